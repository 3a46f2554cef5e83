"""How our own resources look on the wire: PascalCase members, as everywhere in this API; snake_case is taken as well."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema, field_validator
from pydantic.alias_generators import to_pascal
from starlette.responses import Response

from models.text import storable


class Wire(BaseModel):
    """A float that JSON has no word for is written as a string (``"NaN"``): a loss that diverged must be seen."""

    model_config = ConfigDict(alias_generator=to_pascal, populate_by_name=True, frozen=True, ser_json_inf_nan="strings")


class Asked(Wire):
    """What an operation takes. A member that it does not know is refused, never dropped; so is text that no database keeps as it is."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_stored(cls, value: Any) -> Any:
        if not _is_storable(value):
            message = "text must not hold U+0000 or half of a surrogate pair"
            raise ValueError(message)
        return value


def _is_storable(value: Any) -> bool:
    match value:
        case str():
            return storable(value) == value
        case Mapping():
            return all(_is_storable(part) for pair in value.items() for part in pair)
        case list() | tuple():
            return all(map(_is_storable, value))
    return True


ClientToken = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=255)] | None,
    Field(description="A repetition with the same token is the same request."),
]
"""Of a member ``client_token``."""
NextToken = Annotated[
    Annotated[str, StringConstraints(max_length=8192)] | None,
    Field(description="Of the page before: the listing goes on after it."),
]
"""Of a member ``next_token`` that a listing takes."""


Moment = Annotated[datetime, AfterValidator(lambda at: at.replace(tzinfo=UTC) if at.tzinfo is None else at)]
"""A time that an operation takes. Without an offset it is UTC, as in AWS's JSON: else it would be the database's local time."""


Real = Annotated[
    float,
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}, mode="serialization"
    ),
]
"""A number that may be none: what diverged is told."""


def answer(view: Wire, status: int = 200) -> Response:
    return Response(view.model_dump_json(by_alias=True), status, media_type="application/json")


def word(state: StrEnum) -> str:
    """A state as it is written on the wire: ``in_service`` is ``InService``."""
    return "".join(part.capitalize() for part in state.value.split("_"))
