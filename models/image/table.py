"""Image releases."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base
from models.image.states import ReleaseState


class ImageRelease(Base):
    """What nodes can start from. ``image_id`` is ``default`` for a release of the line that every group follows unless it names another image.

    ``is_security`` says that nodes on older releases of the same image are not safe any more.
    """

    __tablename__ = "image_release"

    version: Mapped[str] = mapped_column(primary_key=True)
    image_id: Mapped[str] = mapped_column(index=True)
    state: Mapped[ReleaseState]
    is_security: Mapped[bool] = mapped_column(default=False)
    note: Mapped[str | None]
    released_at: Mapped[datetime]
