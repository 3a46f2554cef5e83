from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from models.errors import Invalid
from models.replay import KEEP, forget, recall, remember
from models.session import Sessions, unit_of_work
from tests import rows

REQUEST = {"ClusterName": "c1", "Nodes": [{"Count": 2}]}
ANSWER = {"Successful": [{"NodeLogicalId": "l-1"}]}


def test_a_repeated_request_is_given_its_first_answer(session: Session) -> None:
    assert recall(session, "caller add", "t-1", REQUEST, now=rows.NOW) is None
    remember(session, "caller add", "t-1", REQUEST, ANSWER, now=rows.NOW)
    again = {"Nodes": ({"Count": 2},), "ClusterName": "c1"}
    assert recall(session, "caller add", "t-1", again, now=rows.NOW + KEEP / 2) == ANSWER


def test_a_token_is_good_for_one_request_only(session: Session) -> None:
    remember(session, "caller add", "t-1", REQUEST, ANSWER, now=rows.NOW)
    with pytest.raises(Invalid, match="'t-1' was used for another request"):
        recall(session, "caller add", "t-1", REQUEST | {"ClusterName": "c2"}, now=rows.NOW)


@pytest.mark.parametrize("token", ["a\x00b", "a\ud800"])
def test_a_token_that_cannot_be_stored_is_refused(session: Session, token: str) -> None:
    with pytest.raises(Invalid, match="must not hold"):
        recall(session, "caller add", token, REQUEST, now=rows.NOW)


def test_another_scope_may_use_the_same_token(session: Session) -> None:
    remember(session, "caller add", "t-1", REQUEST, ANSWER, now=rows.NOW)
    assert recall(session, "another add", "t-1", {}, now=rows.NOW) is None


def test_a_token_that_has_run_out_may_be_used_anew(session: Session) -> None:
    remember(session, "caller add", "t-1", REQUEST, ANSWER, now=rows.NOW)
    later = rows.NOW + KEEP
    assert recall(session, "caller add", "t-1", {}, now=later) is None
    remember(session, "caller add", "t-1", {}, {"new": True}, now=later)
    assert recall(session, "caller add", "t-1", {}, now=later) == {"new": True}


def test_old_answers_are_dropped_and_fresh_ones_stay(session: Session) -> None:
    remember(session, "s", "old", REQUEST, ANSWER, now=rows.NOW - timedelta(hours=9))
    remember(session, "s", "new", REQUEST, ANSWER, now=rows.NOW)
    assert forget(session, before=rows.NOW - KEEP) == 1
    assert recall(session, "s", "new", REQUEST, now=rows.NOW) == ANSWER


def test_of_two_requests_with_one_token_at_once_one_does_the_work(sessions: Sessions) -> None:
    done = []
    both = threading.Barrier(2)

    def request(name: str) -> None:
        both.wait(5)
        with unit_of_work(sessions) as session:
            if recall(session, "s", "t", REQUEST, now=rows.NOW) is None:
                done.append(name)
                remember(session, "s", "t", REQUEST, {"by": name}, now=rows.NOW)

    threads = [threading.Thread(target=request, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(done) == 1
    with unit_of_work(sessions) as session:
        assert recall(session, "s", "t", REQUEST, now=rows.NOW) == {"by": done[0]}
