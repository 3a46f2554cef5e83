from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from models.access import changes, queries
from models.access.secrets import boot_token, seal, unseal
from models.access.states import KEY, KeyState
from models.ids import NodeId
from models.move import advance
from models.registry import metadata
from models.session import Sessions, unit_of_work
from tests import rows

SECRET = "wJalrXUtnFEMI-only-for-tests"
TOKEN = "evs-bearer-token-only-for-tests"


@given(secret=st.text(), bound_to=st.text(), master_key=st.binary(min_size=32, max_size=32))
def test_a_sealed_secret_comes_back(secret: str, bound_to: str, master_key: bytes) -> None:
    sealed = seal(master_key, secret, bound_to=bound_to)
    assert unseal(master_key, sealed, bound_to=bound_to) == secret
    assert seal(master_key, secret, bound_to=bound_to) == sealed


def test_a_sealed_secret_belongs_to_its_row() -> None:
    sealed = seal(rows.MASTER_KEY, SECRET, bound_to="AKIA1")
    with pytest.raises(InvalidTag):
        unseal(rows.MASTER_KEY, sealed, bound_to="AKIA2")


def test_another_master_key_opens_nothing() -> None:
    sealed = seal(rows.MASTER_KEY, SECRET, bound_to="AKIA1")
    with pytest.raises(InvalidTag):
        unseal(bytes(32), sealed, bound_to="AKIA1")


@given(st.integers(min_value=0))
def test_a_sealed_secret_that_was_changed_is_refused(place: int) -> None:
    raw = bytearray(base64.b64decode(seal(rows.MASTER_KEY, SECRET, bound_to="AKIA1")))
    raw[place % len(raw)] ^= 1
    with pytest.raises(InvalidTag):
        unseal(rows.MASTER_KEY, base64.b64encode(bytes(raw)).decode(), bound_to="AKIA1")


def test_two_rows_with_one_secret_do_not_look_alike() -> None:
    assert seal(rows.MASTER_KEY, SECRET, bound_to="AKIA1")[:16] != seal(rows.MASTER_KEY, SECRET, bound_to="AKIA2")[:16]


def test_a_boot_token_is_the_same_for_a_repeated_launch_and_for_nobody_else() -> None:
    mine = boot_token(rows.MASTER_KEY, NodeId("n-1"))
    assert mine == boot_token(rows.MASTER_KEY, NodeId("n-1"))
    assert mine != boot_token(rows.MASTER_KEY, NodeId("n-2"))
    assert mine != boot_token(bytes(32), NodeId("n-1"))
    assert len(base64.urlsafe_b64decode(mine + "=")) == 32


def test_no_column_of_the_database_holds_a_secret_in_plain(session: Session) -> None:
    rows.access_key(session, "AKIA1", SECRET)
    changes.request_token(session, TOKEN, account_id="1", now=rows.NOW)
    rows.node(session, rows.cluster(session))
    node_token = session.scalar(text("SELECT 'token-' || id FROM node"))
    stored = "\n".join(
        str(tuple(row)) for table in metadata.sorted_tables for row in session.execute(text(f'SELECT * FROM "{table.name}"'))
    )
    assert "AKIA1" in stored
    for secret in (SECRET, base64.b64encode(SECRET.encode()).decode(), TOKEN, node_token):
        assert secret not in stored


def test_a_key_that_is_stored_again_takes_the_new_secret(session: Session) -> None:
    rows.access_key(session, "AKIA1", "old")
    key = rows.access_key(session, "AKIA1", "new")
    assert unseal(rows.MASTER_KEY, key.sealed_secret, bound_to="AKIA1") == "new"
    assert queries.active_key(session, "AKIA1", now=rows.NOW) is key


def test_what_was_revoked_stays_revoked_when_it_is_stored_again(session: Session) -> None:
    advance(KEY, rows.access_key(session, "AKIA1"), KeyState.REVOKED, now=rows.NOW)
    rows.access_key(session, "AKIA1", "new")
    assert queries.active_key(session, "AKIA1", now=rows.NOW) is None


def test_only_the_token_itself_opens_the_door(session: Session) -> None:
    for _ in range(2):
        changes.request_token(session, TOKEN, account_id="7", now=rows.NOW)
    found = queries.active_token(session, TOKEN, now=rows.NOW)
    assert found is not None
    assert found.account_id == "7"
    assert queries.active_token(session, TOKEN + "x", now=rows.NOW) is None
    assert queries.active_token(session, found.digest, now=rows.NOW) is None
    advance(KEY, found, KeyState.REVOKED, now=rows.NOW)
    assert queries.active_token(session, TOKEN, now=rows.NOW) is None


def test_two_processes_that_start_at_once_store_the_same_credentials(sessions: Sessions) -> None:
    def store(session: Session) -> None:
        changes.request_key(session, "AKIA1", SECRET, account_id="1", master_key=rows.MASTER_KEY, now=rows.NOW)
        changes.request_token(session, TOKEN, account_id="1", now=rows.NOW)

    def later() -> None:
        with unit_of_work(sessions) as session:
            store(session)

    with ThreadPoolExecutor(1) as other:
        with unit_of_work(sessions) as session:
            store(session)
            second = other.submit(later)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)  # it waits for what the first will do
        second.result(timeout=10)
    with unit_of_work(sessions) as session:
        assert queries.active_key(session, "AKIA1", now=rows.NOW) is not None
        assert queries.active_token(session, TOKEN, now=rows.NOW) is not None
