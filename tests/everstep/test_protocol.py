from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep import protocol, shards, tiers
from everstep.local_protocol import ToAgent, ToProcess
from everstep.protocol import Directive, Generation, Member, ProcessReport, ProcessStatus, Wire

MESSAGES = sorted(
    {
        cls
        for module in (protocol, shards, tiers)
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Wire) and cls is not Wire
    },
    key=str,
)
few = settings(max_examples=20, deadline=None)
each_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda cls: cls.__name__)
_PLAIN = {
    str: st.text(max_size=8),
    int: st.integers(min_value=-(2**53), max_value=2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
}


def instances(cls: type[Wire]) -> st.SearchStrategy[Wire]:
    """Any message of a class; ``kind`` is the class's own."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{spec.name: _values(hints[spec.name]) for spec in dataclasses.fields(cls) if spec.name != "kind"})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(st.none() if arm is type(None) else _values(arm) for arm in arguments))
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if issubclass(hint, Wire):
        return instances(hint)
    return st.sampled_from(list(hint)) if issubclass(hint, StrEnum) else _PLAIN[hint]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


@each_message
@few
@given(data=st.data())
def test_every_message_comes_back_from_its_wire_form(message: type[Wire], data: st.DataObject) -> None:
    told = data.draw(instances(message))
    assert message.from_wire(json.loads(json.dumps(told.to_wire()))) == told


@each_message
@few
@given(data=st.data())
def test_members_that_this_version_does_not_know_are_ignored(message: type[Wire], data: st.DataObject) -> None:
    told = data.draw(instances(message))
    assert message.from_wire(told.to_wire() | {"of_a_later_version": {"x": [1]}}) == told


@each_message
@few
@given(data=st.data())
def test_a_missing_member_is_named(message: type[Wire], data: st.DataObject) -> None:
    wire = data.draw(instances(message)).to_wire()
    for spec in dataclasses.fields(message):
        is_required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if is_required:
            with pytest.raises(ValueError, match=f"{message.__name__}: member '{spec.name}' is missing"):
                message.from_wire({name: value for name, value in wire.items() if name != spec.name})


@each_message
@few
@given(data=st.data())
def test_members_that_have_a_default_may_be_left_out(message: type[Wire], data: st.DataObject) -> None:
    wire = data.draw(instances(message)).to_wire()
    for spec in dataclasses.fields(message):
        if spec.default is not dataclasses.MISSING:
            read = message.from_wire({name: value for name, value in wire.items() if name != spec.name})
            assert getattr(read, spec.name) == spec.default


@each_message
@few
@given(data=st.data())
def test_what_is_not_there_is_not_written(message: type[Wire], data: st.DataObject) -> None:
    assert None not in list(_leaves(data.draw(instances(message)).to_wire()))


@given(st.sampled_from(sorted(protocol.REPORTS)), st.data())
def test_a_report_is_told_by_its_kind(kind: str, data: st.DataObject) -> None:
    told = data.draw(instances(protocol.REPORTS[kind]))
    assert told.to_wire()["kind"] == kind
    assert protocol.report_from_wire(told.to_wire()) == told


def test_every_member_of_the_union_of_reports_has_a_kind_of_its_own() -> None:
    union = set(typing.get_args(protocol.Report))
    assert set(protocol.REPORTS.values()) == union
    assert len(protocol.REPORTS) == len(union)


@pytest.mark.parametrize("wire", [{}, {"kind": "gossip"}, {"kind": None}])
def test_a_report_of_an_unknown_kind_is_refused_with_the_known_ones(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unknown kind.*known: anomaly, broken, copies, cut, durable"):
        protocol.report_from_wire(wire)


def test_an_unknown_value_of_an_enum_is_refused() -> None:
    with pytest.raises(ValueError, match="exploded"):
        ProcessReport.from_wire({"job": "j", "process": "p", "status": "exploded"})


def test_a_status_is_read_as_a_member_and_written_as_a_word() -> None:
    read = ProcessReport.from_wire({"job": "j", "process": "p", "status": "ready"})
    assert read.status is ProcessStatus.READY
    assert json.dumps(read.to_wire()) == '{"job": "j", "process": "p", "status": "ready", "kind": "process"}'


def test_the_rank_of_a_process_is_its_place_among_the_members() -> None:
    members = tuple(Member(rank=rank, process=f"p-{rank}", node="n", address="a") for rank in range(3))
    generation = Generation(job="j", number=1, cause="first", members=members, rendezvous="a:1", token="t")
    assert (generation.world_size, generation.rank_of("p-2"), generation.rank_of("p-9")) == (3, 2, None)


def test_a_rank_of_zero_is_written_and_no_rank_is_not() -> None:
    assert protocol.Process("p", rank=0).to_wire() == {"id": "p", "rank": 0, "local_rank": 0}
    assert protocol.Process("p").to_wire() == {"id": "p", "local_rank": 0}


def test_an_assignment_of_no_processes_says_so() -> None:
    halt = Directive(1, protocol.Assignment("j", protocol.Launch(("true",), "/")))
    assert halt.to_wire()["assignment"]["processes"] == []


def test_lines_on_the_socket_have_words_of_their_own() -> None:
    words = [*ToAgent, *ToProcess]
    assert len({word.value for word in words}) == len(words)


def test_messages_are_values() -> None:
    one, other = Member(0, "p", "n", "a"), Member(0, "p", "n", "a")
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.rank = 1  # type: ignore[misc]


def test_the_vocabulary_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import everstep.protocol; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['everstep']"
