from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from models.events import About, Event, record
from models.text import dumps, storable
from tests import rows

anything = st.text(st.characters(exclude_categories=()), max_size=40)
document = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=8,
)


@given(anything)
def test_storable_text_can_be_encoded_and_holds_no_nul(text: str) -> None:
    kept = storable(text)
    assert "\x00" not in kept.encode().decode()
    assert storable(kept) == kept


@given(st.text().filter(lambda text: "\x00" not in text))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert storable(text) == text


def test_a_float_that_json_has_no_word_for_becomes_null() -> None:
    assert json.loads(dumps({"a": float("nan"), "b": [float("inf"), 1.5]})) == {"a": None, "b": [None, 1.5]}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(description=anything, details=st.dictionaries(anything, document, max_size=3))
def test_postgres_takes_whatever_a_program_may_have_written(session: Session, description: str, details: dict) -> None:
    with session.begin_nested() as step:
        event = record(session, "odd", description, about=About.JOB, details=details, now=rows.NOW)
        session.flush()
        session.refresh(event)
        assert event.description == storable(description)
        assert session.get(Event, event.id) is event
        step.rollback()
