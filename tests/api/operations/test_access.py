"""Use-cases of credentials where the doors cannot show them: two calls at once, and what is stored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session

from api.auth import Caller
from api.operations import access
from api.operations.access import KeyWish
from api.operations.work import Work
from models.access.states import Kind, Role
from models.access.table import Credential
from models.errors import Forbidden, Invalid
from models.session import Sessions, unit_of_work
from tests import rows


def work(session: Session, role: Role = Role.ADMIN, team: str | None = None) -> Work:
    return Work(session, rows.NOW, "us-east-1", Caller("123456789012", "ada", role, team), rows.MASTER_KEY)


def test_two_callers_cannot_take_the_last_two_admins_together(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        for key_id in ("AKIA1", "AKIA2"):
            rows.access_key(session, key_id)

    def revoke(key_id: str) -> None:
        with unit_of_work(sessions) as session:
            access.revoke(work(session), key_id)

    with ThreadPoolExecutor(1) as other:
        with unit_of_work(sessions) as session:
            access.revoke(work(session), "AKIA1")
            second = other.submit(revoke, "AKIA2")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)  # it waits for what the first will do
        with pytest.raises(Invalid, match="last one of an admin"):
            second.result(timeout=10)


def test_a_key_on_its_way_out_is_no_admin_to_count_on(session: Session) -> None:
    rows.access_key(session, "AKIA1")
    made = access.create(work(session), KeyWish("second", Role.ADMIN, Kind.TOKEN))
    made.credential.valid_until = rows.NOW
    session.flush()
    with pytest.raises(Invalid, match="last one of an admin"):
        access.revoke(work(session), "AKIA1")


@pytest.mark.parametrize("kind", list(Kind))
def test_no_secret_that_was_given_is_stored_in_plain(session: Session, kind: Kind) -> None:
    made = access.create(work(session), KeyWish("ci", Role.VIEWER, kind))
    row = session.get_one(Credential, made.credential.id)
    assert made.secret not in str({column.name: getattr(row, column.name) for column in Credential.__table__.c})
    assert (row.sealed_secret is None, row.digest is None) == (kind is Kind.TOKEN, kind is Kind.ACCESS_KEY)


@pytest.mark.parametrize("role, given", [(Role.VIEWER, Role.OPERATOR), (Role.OPERATOR, Role.ADMIN)])
def test_nobody_gives_a_role_beyond_his_own(session: Session, role: Role, given: Role) -> None:
    with pytest.raises(Forbidden, match="cannot give"):
        access.create(work(session, role), KeyWish("ci", given, Kind.TOKEN))
    assert access.create(work(session, role), KeyWish("ci", role, Kind.TOKEN)).credential.role is role
