"""Keys that are held for a moment: what a call costs less, and what it must not cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from api import auth
from api.auth import FRESH_S, Keyring
from api.sigv4 import WrongSignature
from models.access import queries
from tests import rows
from tests.api.test_sigv4 import NOW, SECRETS, signed

KEY = "AKIA1"


@pytest.fixture
def ring(session: Session) -> Keyring:
    """It holds the one key that there is."""
    rows.access_key(session, KEY, SECRETS[KEY])
    ring = Keyring()
    enter(session, ring)
    return ring


def enter(session: Session, ring: Keyring) -> auth.Caller:
    return auth.by_signature(session, signed(b"{}"), master_key=rows.MASTER_KEY, now=NOW, keyring=ring)


def test_a_held_key_admits_the_caller_that_the_database_would(session, ring):
    request = replace(signed(b"{}"), source="127.0.0.9")
    asked = []
    event.listen(session, "do_orm_execute", asked.append)
    caller = ring.admit(request, now=NOW)
    assert caller is not None
    assert asked == []
    assert caller == auth.by_signature(session, request, master_key=rows.MASTER_KEY, now=NOW)
    assert caller.source == "127.0.0.9"


def test_what_a_held_key_has_not_signed_is_for_the_database_to_refuse(session, ring):
    forged = replace(signed(b"{}"), body=b"{ }")
    assert ring.admit(forged, now=NOW) is None
    with pytest.raises(WrongSignature):
        auth.by_signature(session, forged, master_key=rows.MASTER_KEY, now=NOW, keyring=ring)
    assert ring.admit(signed(b"{}"), now=NOW + timedelta(minutes=16)) is None


def test_a_key_is_held_for_a_second_from_before_it_was_read(session, ring, monkeypatch):
    moment = auth.time.monotonic()
    monkeypatch.setattr(auth.time, "monotonic", lambda: moment)
    enter(session, ring)
    monkeypatch.setattr(auth.time, "monotonic", lambda: moment + FRESH_S)
    assert ring.admit(signed(b"{}"), now=NOW) is not None
    monkeypatch.setattr(auth.time, "monotonic", lambda: moment + FRESH_S + 0.001)
    assert ring.admit(signed(b"{}"), now=NOW) is None


def test_the_end_of_a_rotated_key_holds_for_a_held_one(session, ring):
    key = queries.get(session, KEY)
    key.valid_until = NOW + timedelta(milliseconds=1)
    enter(session, ring)
    assert ring.admit(signed(b"{}"), now=NOW) is not None
    assert ring.admit(signed(b"{}"), now=NOW + timedelta(milliseconds=1)) is None


def test_what_is_forgotten_is_asked_for_again(ring):
    ring.forget()
    assert ring.admit(signed(b"{}"), now=NOW) is None


def test_what_was_read_before_keys_were_forgotten_is_not_held_afterwards(session, ring):
    before = auth.time.monotonic()
    ring.forget()
    ring.hold(enter(session, Keyring()), SECRETS[KEY], valid_until=None, read_at_s=before)
    assert ring.admit(signed(b"{}"), now=NOW) is None
