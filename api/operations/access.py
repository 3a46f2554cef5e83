"""Use-cases of credentials: who may give what to whom, and what must not be taken away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from api.operations.work import Work
from models.access import changes, queries
from models.access.changes import Grant
from models.access.states import Kind, Role
from models.access.table import Credential
from models.errors import Forbidden, Invalid
from models.paging import Cut, Page

MOST_OVERLAP: Final = timedelta(days=90)


@dataclass(frozen=True)
class KeyWish:
    """A credential as it is asked for. Without a team it is the caller's team's."""

    name: str
    role: Role
    kind: Kind
    team: str | None = None


@dataclass(frozen=True)
class NewKey:
    """``secret`` is an access key's secret or the token itself. It is told here and never again."""

    credential: Credential
    secret: str


def create(work: Work, wish: KeyWish) -> NewKey:
    """Raises Forbidden: a role or a team beyond the caller's own."""
    caller = work.caller
    if caller.team is not None and wish.team not in (None, caller.team):
        raise Forbidden(message=f"Team: a caller of team '{caller.team}' gives no keys to team '{wish.team}'.")
    if not caller.role.covers(wish.role):
        raise Forbidden(message=f"Role: a caller whose role is {caller.role} cannot give the role {wish.role}.")
    team = wish.team or caller.team
    return _issue(work, Grant(wish.kind, wish.name, wish.role, team, work.account_id, created_by=caller.name))


def listed(work: Work, cut: Cut, *, active_only: bool) -> Page[Credential]:
    """By creation; a team's caller sees those of its team."""
    return queries.listed(work.session, cut, active_at=work.now if active_only else None)


def rotate(work: Work, key_id: str, *, overlap: timedelta) -> NewKey:
    """A new credential for the same holder; the old one goes on to work for ``overlap``, and no longer.

    Raises:
        NotFound: no such key, or another team's.
        Invalid: the key is valid no more, so there is nothing to go on with.
    """
    old = queries.get(work.session, key_id, lock=True)
    if not queries.is_active(old, now=work.now):
        raise Invalid(message=f"Key '{key_id}' is no longer valid, so that it cannot be rotated. Create a new one.")
    grant = Grant(old.kind, old.name, old.role, old.team, old.account_id, created_by=work.caller.name)
    made = _issue(work, grant)
    if overlap:
        changes.request_end(work.session, old, at=work.now + overlap)
    else:
        changes.request_revocation(work.session, old, now=work.now)
    return made


def revoke(work: Work, key_id: str) -> Credential:
    """Ends a key at once; one that is revoked already stays so.

    Raises:
        NotFound: no such key, or another team's.
        Invalid: nobody would be left to give keys.
    """
    lasting = queries.lasting_admins(work.session)
    found = queries.get(work.session, key_id, lock=True)
    if [admin.id for admin in lasting] == [found.id]:
        raise Invalid(
            message=f"Key '{key_id}' is the last one of an admin without a team: nobody could give keys any more. Create another one first."
        )
    changes.request_revocation(work.session, found, now=work.now)
    return found


def _issue(work: Work, grant: Grant) -> NewKey:
    return NewKey(*changes.request_credential(work.session, grant, master_key=work.master_key, now=work.now))
