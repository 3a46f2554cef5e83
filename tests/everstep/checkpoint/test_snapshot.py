from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from everstep.checkpoint.layout import Layout, read_tail, tail_length
from everstep.checkpoint.snapshot import REST, Division, Entry, Plan, capture, divide, entries_of
from everstep.checkpoint.torch_parts import memory_of
from everstep.resilience import State

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64)
entries = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=12).map(
    lambda drawn: tuple(Entry(f"t{number}", dtype, tuple(shape)) for number, (dtype, shape) in enumerate(drawn))
)


@given(entries, st.integers(1, 9))
def test_the_parts_of_all_ranks_tile_every_tensor_once(drawn: tuple[Entry, ...], world_size: int) -> None:
    division = divide(drawn, world_size)
    for number, entry in enumerate(drawn):
        parts = [part for mine in division.parts for part in mine if part.number == number]
        assert sum(part.rows for part in parts) == entry.rows
        assert sorted(part.first for part in parts) == [sum(one.rows for one in parts[:place]) for place in range(len(parts))]


@given(entries, st.integers(1, 9))
def test_every_rank_writes_its_part_of_the_bytes_to_within_a_row(drawn: tuple[Entry, ...], world_size: int) -> None:
    total = sum(entry.rows * entry.row_bytes for entry in drawn)
    widest = max(entry.row_bytes for entry in drawn)
    for mine in divide(drawn, world_size).parts:
        assert abs(sum(part.nbytes for part in mine) - total / world_size) <= widest


@settings(deadline=None)
@given(st.integers(1, 5), st.binary(max_size=90))
def test_what_the_ranks_write_is_together_the_state(world_size: int, rest: bytes) -> None:
    state = trained()
    division = divide(entries_of(state.items()), world_size)
    bodies = [body_of(state, division, rank, rest) for rank in range(world_size)]
    contents = division.contents({REST: 0}, state.paths())
    for name, tensor in state.items():
        rebuilt = torch.full_like(tensor, 77)
        for chunk in contents.tensors[name].chunks:
            body = bodies[chunk.shard]
            item = layout_of(body).by_key[name, chunk.offsets]
            piece = body[item.start : item.start + item.nbytes].view(tensor.dtype).view(chunk.sizes)
            (rebuilt[chunk.offsets[0] : chunk.offsets[0] + chunk.sizes[0]] if chunk.sizes else rebuilt).copy_(piece)
        assert torch.equal(rebuilt, tensor), name
    item = layout_of(bodies[0]).by_key[REST, None]
    assert bytes(bodies[0][item.start : item.start + item.nbytes].tolist()) == rest


def test_no_byte_of_a_segment_that_is_used_again_stays_in_it() -> None:
    state = trained()
    division = divide(entries_of(state.items()), 2)
    assert torch.equal(body_of(state, division, 1, None, fill=255), body_of(state, division, 1, None, fill=0))


def test_what_a_forward_changes_is_copied_at_once_and_the_rest_when_it_is_written() -> None:
    state = trained()
    division = divide(entries_of(state.items()), 1)
    before = {name: tensor.clone() for name, tensor in state.items()}
    captured = capture(state, division, 0, {})
    state.model(torch.randn(8, 5))
    body = torch.zeros(captured.layout.size, dtype=torch.uint8)
    captured.write(memory_of(body))
    for item in captured.layout.items:
        written = body[item.start : item.start + item.nbytes].view(before[item.name].dtype)
        assert torch.equal(written.view(before[item.name].shape), before[item.name]), item.name
    assert not torch.equal(dict(state.items())["model.1.running_mean"], before["model.1.running_mean"])


def test_the_names_of_a_checkpoint_know_nothing_of_wrappers() -> None:
    state = trained()
    names = [name for name, _ in state.items()]
    assert "model.0.weight" in names
    assert "optimizer.state.0.weight.exp_avg" in names
    assert state.paths()["optimizer.state.0.weight.exp_avg"] == ("optimizer", "state", "0.weight", "exp_avg")
    assert len(set(names)) == len(names)


def trained() -> State:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    return State(model=model, optimizer=optimizer)


def body_of(state: State, division: Division, rank: int, rest: bytes | None, fill: int = 9) -> torch.Tensor:
    captured = capture(state, division, rank, {} if rest is None or rank else {REST: rest})
    body = torch.full((captured.layout.size,), fill, dtype=torch.uint8)
    captured.write(memory_of(body))
    return body


def first_layers(state: State) -> tuple[Any, Any]:
    return state.model.get_submodule("0"), state.model.get_submodule("1")


def layout_of(body: torch.Tensor) -> Any:
    raw = bytes(body.tolist())
    return read_tail(raw[-tail_length(raw[-16:]) :], len(raw))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    torch.set_num_threads(1)


def test_a_wrapped_models_names_are_those_of_the_model_without_its_wrapper() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        bare, wrapped = State(model=net), State(model=DistributedDataParallel(net))
        assert [name for name, _ in wrapped.items()] == [name for name, _ in bare.items()]
        assert wrapped.entries() == bare.entries()
        assert wrapped.structure() != bare.structure(), "ranks that wrap and ranks that do not would wait for each other for ever"
    finally:
        dist.destroy_process_group()


def test_a_plan_is_kept_for_as_long_as_the_state_has_the_same_tensors() -> None:
    state = trained()
    items = state.items()
    assert state.items() is items
    plan = Plan(items, divide(entries_of(items), 2), 0, state.fleeting())
    first_layers(state)[0].weight.data.add_(1)
    assert plan.is_for(state.items(), 0, 2)
    assert not plan.is_for(state.items(), 1, 2)
    assert not plan.is_for(state.items(), 0, 3)


@pytest.mark.parametrize("change", ["parameter", "type", "shape", "optimizer", "buffer", "name", "module"])
def test_any_change_of_a_states_tensors_is_seen_by_the_next_save(change: str) -> None:
    state = trained()
    linear, norm = first_layers(state)
    assert state.optimizer is not None
    before = state.items()
    match change:
        case "parameter":
            linear.bias = torch.nn.Parameter(torch.ones(7))
        case "type":
            norm.weight.data = norm.weight.data.double()
        case "shape":
            linear.weight.data = linear.weight.data.view(5, 7)
        case "optimizer":
            state.optimizer.state[linear.weight]["exp_avg"] = torch.ones(7, 5)
        case "buffer":
            norm.running_mean = torch.ones(7)
        case "name":
            linear._parameters = {"renamed": linear.weight, "bias": linear.bias}
        case "module":
            state.model.add_module("3", torch.nn.Linear(2, 2))
    after = state.items()
    assert after is not before
    assert [name for name, _ in after] == [name for name, _ in State(model=state.model, optimizer=state.optimizer).items()]
    assert all(
        one is other
        for (_, one), (_, other) in zip(after, State(model=state.model, optimizer=state.optimizer).items(), strict=True)
    )


@given(entries, st.lists(st.integers(0, 200), max_size=3))
def test_a_layout_that_is_extended_is_the_one_made_at_once(drawn: tuple[Entry, ...], sizes: list[int]) -> None:
    blobs = [(f"blob{number}", None, nbytes) for number, nbytes in enumerate(sizes)]
    parts = [(part.entry.name, part.offsets, part.nbytes) for part in divide(drawn, 1).parts[0]]
    extended, whole = Layout.of(parts).extended(blobs), Layout.of([*parts, *blobs])
    assert extended == whole
    assert (extended.tail, extended.nbytes, extended.gaps()) == (whole.tail, whole.nbytes, whole.gaps())


def test_a_segment_that_is_used_again_by_the_same_plan_or_another_holds_what_was_last_written() -> None:
    state = trained()
    views: dict[Any, Any] = {}
    plans = [Plan(state.items(), divide(entries_of(state.items()), world), 0, state.fleeting()) for world in (1, 2)]
    segment = bytearray(plans[0].capture({}).layout.size)
    for plan in (plans[0], plans[0], plans[1], plans[1], plans[0]):
        first_layers(state)[0].weight.data.add_(1)
        captured = plan.capture({})
        fresh = bytearray(captured.layout.size)
        captured.write(memoryview(fresh))
        captured.write(memoryview(segment)[: len(fresh)], views)
        assert segment[: len(fresh)] == fresh
