"""Operations of access keys and tokens."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from api.operations import access
from api.operations.access import MOST_OVERLAP, KeyWish, NewKey
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, NextToken, Wire, word
from models.access.states import KeyState, Kind, Role
from models.access.table import Credential
from models.errors import NotFound
from models.paging import Cut

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9+=,.@_-]{1,64}$")]
"""As names of IAM users, because they stand in such an ARN when a call is refused."""
Team = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")]
KeyId = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class KindWord(StrEnum):
    ACCESS_KEY = "AccessKey"
    TOKEN = "Token"  # noqa: S105  (a kind, not a token)


class RoleWord(StrEnum):
    VIEWER = "Viewer"
    OPERATOR = "Operator"
    ADMIN = "Admin"


class StatusWord(StrEnum):
    """``Expiring`` has been rotated, and works until ``ValidUntil``."""

    ACTIVE = "Active"
    EXPIRING = "Expiring"
    EXPIRED = "Expired"
    REVOKED = "Revoked"


class KeyAsked(Asked):
    """``team`` bounds what the holder sees and changes to its team's; left out, it is the caller's own."""

    name: Name
    role: RoleWord = RoleWord.OPERATOR
    team: Team | None = None
    kind: KindWord = KindWord.ACCESS_KEY


class KeysWanted(Asked):
    """Only those that can be used now, if ``active``."""

    active: bool = False
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class OneKey(Asked):
    key_id: KeyId


class Rotation(OneKey):
    """The old key works for ``overlap_seconds`` more."""

    overlap_seconds: Annotated[int, Field(ge=0, le=int(MOST_OVERLAP.total_seconds()))] = 0


class KeyShape(Wire):
    """``team`` is null for who sees everything, ``valid_until`` for what has no end yet. ``last_used`` is a minute coarse."""

    key_id: str
    kind: KindWord
    name: str
    role: RoleWord
    team: str | None
    status: StatusWord
    created_by: str | None
    created_at: datetime
    last_used: datetime | None
    valid_until: datetime | None
    revoked_at: datetime | None


class NewKeyShape(KeyShape):
    """``secret`` is the secret of an access key, or the token itself. It is told this once."""

    secret: str


class KeyList(Wire):
    keys: tuple[KeyShape, ...]
    next_token: str | None = None


def create(work: Work, asked: KeyAsked) -> NewKeyShape:
    """Give a key: an access key, which signs requests, or a token. The answer is the only one that ever holds its secret."""
    wish = KeyWish(asked.name, Role(asked.role.lower()), _KINDS[asked.kind], asked.team)
    return _told(work, access.create(work, wish))


def listing(work: Work, asked: KeysWanted) -> KeyList:
    """Keys and tokens, oldest first, never with a secret. An admin of a team sees those of the team."""
    found = access.listed(work, Cut(asked.max_results, cursor=asked.next_token), active_only=asked.active)
    return KeyList(keys=tuple(_shape(row, now=work.now) for row in found.rows), next_token=found.cursor)


def rotate(work: Work, asked: Rotation) -> NewKeyShape:
    """Give the holder of a key a new one of the same name, role and team, and end the old one, at once or after a while."""
    return _told(work, access.rotate(work, asked.key_id, overlap=timedelta(seconds=asked.overlap_seconds)))


def revoke(work: Work, asked: OneKey) -> KeyShape:
    """End a key at once. Revoking it again changes nothing; the last key of an admin without a team stays."""
    return _shape(access.revoke(work, asked.key_id), now=work.now)


def _told(work: Work, made: NewKey) -> NewKeyShape:
    return NewKeyShape(**_shape(made.credential, now=work.now).model_dump(), secret=made.secret)


def _shape(row: Credential, *, now: datetime) -> KeyShape:
    return KeyShape(
        key_id=row.id,
        kind=KindWord(word(row.kind)),
        name=row.name,
        role=RoleWord(word(row.role)),
        team=row.team,
        status=_status(row, now),
        created_by=row.created_by,
        created_at=row.created_at,
        last_used=row.last_used,
        valid_until=row.valid_until,
        revoked_at=row.revoked_at,
    )


def _status(row: Credential, now: datetime) -> StatusWord:
    if row.state is KeyState.REVOKED:
        return StatusWord.REVOKED
    if row.valid_until is None:
        return StatusWord.ACTIVE
    return StatusWord.EXPIRING if row.valid_until > now else StatusWord.EXPIRED


_KINDS: Final = {KindWord.ACCESS_KEY: Kind.ACCESS_KEY, KindWord.TOKEN: Kind.TOKEN}

KEYS: OwnTable = (
    Own("CreateKey", "POST", "/v1/keys", KeyAsked, NewKeyShape, create, status=201),
    Own("ListKeys", "GET", "/v1/keys", KeysWanted, KeyList, listing, page_of="keys"),
    Own("RotateKey", "POST", "/v1/keys/{key_id}/rotate", Rotation, NewKeyShape, rotate, errors=(NotFound,)),
    Own("RevokeKey", "POST", "/v1/keys/{key_id}/revoke", OneKey, KeyShape, revoke, errors=(NotFound,)),
)
