"""Parts of the door by themselves: patterns, bodies, page tokens, and what happens when a use-case crashes."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette

from api.aws.body import Unreadable, read_object
from api.aws.dispatch import Door, Service, TargetRoute
from api.aws.pages import PageTokens
from api.aws.patterns import compile_pattern, is_match
from api.aws.schema import sagemaker as model
from api.aws.validate import Violated, read_members
from api.deps import Services
from models.clock import WallClock
from models.errors import Invalid
from models.session import Sessions
from tests.api.installed import SERVED
from tests.api.serving import Signing, settings_for


def shapes_below(shape: Any, seen: dict[str, Any]) -> None:
    if shape.name not in seen:
        seen[shape.name] = shape
        inner = [*getattr(shape, "members", {}).values(), *(getattr(shape, name, None) for name in ("member", "key", "value"))]
        for below in inner:
            if below is not None:
                shapes_below(below, seen)


def test_python_reads_every_pattern_of_the_served_operations():
    seen: dict[str, Any] = {}
    for name in SERVED:
        shapes_below(model().operation_model(name).input_shape, seen)
    patterns = {shape.metadata["pattern"] for shape in seen.values() if "pattern" in shape.metadata}
    assert len(patterns) > 20
    assert [pattern for pattern in patterns if compile_pattern(pattern) is None] == []


@pytest.mark.parametrize(
    "pattern, text, matches",
    [
        (r"[\p{L}\p{Z}]*", "équipe 研究", True),
        (r"[\p{L}\p{Z}]*", "a1", False),
        (r"[a-z]+", "abc\n", False),
        (r"(?!\s*$).+", "  ", False),
        (r"\d+", "١٢", False),
        (r"arn:[\p{Alnum}\-]+:x", "arn:aws-cn:x", True),
    ],
)
def test_patterns_hold_for_the_whole_text_and_mean_what_java_means(pattern, text, matches):
    assert is_match(pattern, text) is matches


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@example({"ClusterName": {}})
def test_no_json_crashes_the_reader_of_any_operation(value):
    members = value if isinstance(value, dict) else {"ClusterName": value, "InstanceGroups": value, "Tags": [value]}
    for name in ("CreateCluster", "UpdateCluster", "ListClusters"):
        try:
            read_members(model().operation_model(name).input_shape, members)
        except (Unreadable, Violated):
            continue


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader_of_bodies(raw):
    try:
        assert isinstance(read_object(raw), dict)
    except Unreadable:
        return


class TestPageTokens:
    TOKENS = PageTokens(b"k" * 32)

    @given(cursor=st.text(min_size=1), name=st.text())
    def test_a_token_comes_back_as_its_cursor(self, cursor, name):
        token = self.TOKENS.issue("ListClusters", {"NameContains": name, "MaxResults": 1}, cursor)
        assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
        asked = {"NameContains": name, "MaxResults": 9, "NextToken": token}
        assert self.TOKENS.redeem("ListClusters", asked) == cursor

    @given(text=st.text(min_size=1, max_size=80))
    def test_an_invented_token_is_refused(self, text):
        with pytest.raises(Invalid, match="NextToken is invalid"):
            self.TOKENS.redeem("ListClusters", {"NextToken": text})

    def test_a_token_of_another_installation_is_refused(self):
        token = PageTokens(b"x" * 32).issue("ListClusters", {}, "cursor")
        with pytest.raises(Invalid):
            self.TOKENS.redeem("ListClusters", {"NextToken": token})


@pytest.mark.usefixtures("server")
class TestCrashes:
    """A door whose only use-case fails in ways that none of ours should."""

    @pytest.fixture
    def call(self, sessions: Sessions):
        def call(error: Exception):
            def serve(_model, _asked, _work, _tokens):
                raise error

            door = Door({"SageMaker": Service(model(), {"ListClusters": serve})}, PageTokens(b"k" * 32))
            app = Starlette(routes=[TargetRoute(door)])
            app.state.services = Services(settings_for(""), sessions, WallClock())
            request = Signing()._signed("http://testserver", "ListClusters", b"{}")

            async def post() -> httpx.Response:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
                    return await client.post("http://testserver/", content=b"{}", headers=request)

            return asyncio.run(post())

        return call

    def test_a_crash_is_an_internal_failure_whose_traceback_is_in_the_log(self, call, caplog: pytest.LogCaptureFixture):
        answer = call(RuntimeError("the secret of the house"))
        assert (answer.status_code, answer.json()["__type"]) == (500, "InternalFailure")
        assert "secret of the house" not in answer.text
        assert answer.headers["x-amzn-requestid"] in caplog.text
        assert "RuntimeError: the secret of the house" in caplog.text

    def test_a_database_that_is_away_is_worth_another_try(self, call, caplog: pytest.LogCaptureFixture):
        with caplog.at_level(logging.WARNING):
            answer = call(OperationalError("SELECT 1", {}, Exception("at 10.0.0.1")))
        assert (answer.status_code, answer.json()["__type"]) == (503, "ServiceUnavailable")
        assert "10.0.0.1" not in answer.text
        assert "10.0.0.1" in caplog.text
