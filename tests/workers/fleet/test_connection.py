"""What a node of the fleet makes of the control plane's answers: also of those of a proxy, which speaks another language."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from workers.fleet import connection
from workers.fleet.connection import NodeGone, NotKnown, Rejected
from workers.fleet.http import Answer, Unreachable

NO_OBJECTS = [b"", b"[]", b"7", b'"gone"', b"null", b"{", b"<html>", b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("body", NO_OBJECTS, ids=[repr(body[:8]) for body in NO_OBJECTS])
@pytest.mark.parametrize(
    ("status", "wanted"), [(401, NotKnown), (409, NotKnown), (410, NodeGone), (400, Rejected), (413, Rejected), (502, Unreachable)]
)
def test_a_refusal_is_told_by_its_status_whatever_its_body_is(status: int, wanted: type[Exception], body: bytes) -> None:
    with pytest.raises(wanted, match=rf"^{status} answered {status} with a body of {len(body)} bytes that is no JSON object$"):
        connection._read(Answer(status, body))


def test_a_refusal_that_is_an_object_says_why_and_which_report() -> None:
    with pytest.raises(Rejected, match="400 no such kind") as refused:
        connection._read(Answer(HTTPStatus.BAD_REQUEST, b'{"detail": "no such kind", "index": 3}'))
    assert refused.value.index == 3


@pytest.mark.parametrize("body", NO_OBJECTS, ids=[repr(body[:8]) for body in NO_OBJECTS])
def test_an_answer_that_is_no_object_is_one_clear_error(body: bytes) -> None:
    with pytest.raises(
        Unreachable, match=rf"^the control plane answered 200 with a body of {len(body)} bytes that is no JSON object$"
    ):
        connection._read(Answer(HTTPStatus.OK, body))


@pytest.mark.parametrize("told", [b"{}", b'{"next_s": "soon"}', b'{"next_s": null}', b'{"next_s": -1}', b'{"next_s": NaN}'])
def test_an_answer_to_a_beat_without_a_time_is_one_clear_error(told: bytes) -> None:
    with pytest.raises(Unreachable, match=r"next_s, which must be a number of seconds above 0$"):
        connection._next_s(connection._read(Answer(HTTPStatus.OK, told)))
