"""What ranks of plain scripts must do alike, whatever becomes of one of them; and what a copy beside a forward may not see."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import everstep
from everstep.checkpoint import direct, saving
from everstep.checkpoint.contents import Contents
from everstep.checkpoint.placing import Part, Whose, write_metadata, write_shard
from everstep.checkpoint.policy import Policy, Schedule, Wanted
from everstep.checkpoint.saving import Save, Saver
from everstep.checkpoint.tiers import Tiers
from everstep.checkpoint.writer import TieredWriter
from tests.checkpoint.tiers import memory_tiers, planned
from tests.everstep.checkpoint.ranks import Failed, Ranks, ranks


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """A Checkpointer in this very process installs its handler."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def workers() -> Iterator[Ranks]:
    with ranks(2) as made:
        yield made


# ------------------------------------------------------------------------------------------------ all ranks alike


def test_fixed_intervals_do_not_depend_on_what_one_rank_knows_alone() -> None:
    """A rank whose save has failed, or that has heard of another interval, must not save when the others do not: they would not answer it."""
    calm, troubled = (Schedule(Policy(4, 6), has_memory=True, has_store=True) for _ in range(2))
    seen = []
    for step in range(1, 40):
        found = calm.fixed(step)
        assert troubled.fixed(step) == found
        seen += [step] if found else []
        for schedule in (calm, troubled):
            schedule.saved(step, found) if found else None
        if step % 3 == 0:
            troubled.came_to_nothing()
            troubled.policy = Policy(1, 1)
    assert seen == sorted({*range(4, 40, 4), *range(6, 40, 6)})


def with_one_that_cannot_save(rank: int, world: int, kind: str) -> list[float]:
    """Sums of all ranks, of a training that talks on the default group as state dicts do."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = everstep.State(model=model, optimizer=optimizer) if kind == "state" else {"model": model.state_dict()}
    ckpt = everstep.Checkpointer(every=2)
    sums = []
    for step in range(1, 12):
        total = torch.tensor([float(step + rank)])
        dist.all_reduce(total)
        sums.append(total.item())
        ckpt.step(state, step)
    ckpt.close()
    return sums


@pytest.mark.parametrize("kind", ["state", "dict"])
@pytest.mark.parametrize("trouble", ["away", "nowhere"])
def test_a_rank_that_cannot_save_leaves_no_other_waiting(workers: Ranks, trouble: str, kind: str, tmp_path: Path) -> None:
    with memory_tiers(tmp_path, namespaces=[planned("ns", replicas=1)]) as tiers:
        good = tiers[0].environment()
        away = {**good, "EVERSTEP_CHECKPOINT_SOCKET": str(tmp_path / "nobody")}
        told = workers.run(2, with_one_that_cannot_save, [good, away if trouble == "away" else {}], kind)
    assert told == [[2.0 * step + 1 for step in range(1, 12)]] * 2


def saving_every_other(rank: int, world: int, kind: str) -> None:
    del rank, world
    state = states(kind)
    ckpt = everstep.Checkpointer(durable_every=2)
    for step in range(1, 7):
        filled(state, step)
        ckpt.step(state, step)
    ckpt.close()


def going_on(rank: int, world: int, kind: str) -> tuple[int | None, float]:
    del rank, world
    state = states(kind)
    filled(state, 0)
    step = everstep.Checkpointer().restore(state)
    return step, tensor_of(state).flatten()[0].item()


def states(kind: str) -> Any:
    model = torch.nn.Linear(64, 64)
    return everstep.State(model=model) if kind == "state" else {"model": model.state_dict()}


def tensor_of(state: Any) -> torch.Tensor:
    found: torch.Tensor = state.model.weight if isinstance(state, everstep.State) else state["model"]["weight"]
    return found


def filled(state: Any, value: float) -> None:
    with torch.no_grad():
        tensor_of(state).fill_(value)


def damaged(folder: Path, step: int, index: int) -> None:
    path = folder / "ns" / f"rank_{index}" / f"step_{step}" / "checkpoint.pt"
    held = bytearray(path.read_bytes())
    held[100] ^= 1
    path.write_bytes(held)


@pytest.mark.parametrize("kind", ["state", "dict"])
def test_a_step_that_some_rank_cannot_read_is_passed_over_by_all(workers: Ranks, kind: str, tmp_path: Path) -> None:
    environment = {"EVERSTEP_DURABLE_URL": tmp_path.as_uri(), "EVERSTEP_NAMESPACE": "ns"}
    workers.run(2, saving_every_other, [environment], kind)
    damaged(tmp_path, 6, 0)
    assert workers.run(2, going_on, [environment], kind) == [(4, 4.0)] * 2
    damaged(tmp_path, 4, 1)
    damaged(tmp_path, 2, 0)
    with pytest.raises(Failed, match="no checkpoint can be read by every rank: rank 0: there is no good copy of shard"):
        workers.run(2, going_on, [environment], kind)


# ------------------------------------------------------------------------------------------------ a copy beside a forward


class Norm(torch.nn.Module):
    """A forward changes its buffers, as batch norm's does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(300))
        self.frozen = torch.nn.Parameter(torch.full((300,), 7.0), requires_grad=False)
        self.register_buffer("seen", torch.zeros(300))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return (self.weight * given).sum()


@pytest.mark.parametrize("kind", ["state", "dict"])
def test_what_a_forward_changes_is_saved_as_it_was_though_the_copy_is_late(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = Tiers.from_environment({"EVERSTEP_DURABLE_URL": tmp_path.as_uri(), "EVERSTEP_NAMESPACE": "ns"})
    may_copy = threading.Event()
    for place in (direct._Prepared, saving.ShardWork):
        copy = place.copy
        monkeypatch.setattr(place, "copy", lambda self, copy=copy: (may_copy.wait(30), copy(self))[1])
    model = Norm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ckpt = everstep.Checkpointer(durable_every=1, tiers=tiers)

    def state() -> Any:
        if kind == "state":
            return everstep.State(model=model, optimizer=optimizer)
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    model(torch.ones(300)).backward()
    optimizer.step()
    ckpt.step(state(), 1, optimizer=optimizer)
    committed = model.weight.detach().clone()
    model(torch.ones(300)).backward()
    may_copy.set()
    optimizer.step()
    ckpt.close()
    with torch.no_grad():
        model.frozen.zero_()
    held = state()
    assert ckpt.restore(held) == 1
    found = held["model"] if kind == "dict" else model.state_dict()
    assert torch.equal(found["weight"], committed)
    assert torch.equal(found["seen"], torch.ones(300))
    assert torch.equal(found["frozen"], torch.full((300,), 7.0))


def test_a_tier_that_hangs_is_waited_for_once_a_save_and_not_once_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "ROOM_PATIENCE_S", 0.3)
    tiers = Tiers.from_environment({"EVERSTEP_DURABLE_URL": tmp_path.as_uri()})
    answers = threading.Event()

    class Hanging:
        was_copied = False

        def open(self) -> None:
            answers.wait(30)

        def copy(self) -> None:
            self.was_copied = True

        def seal(self) -> int:
            return 0

        def abandon(self) -> None: ...

    work = Hanging()
    save = Save(work, 1, Wanted(memory=True), tiers, lambda: None)
    for _ in range(50):
        save.settle()
    assert 0.3 <= save.outcome.stall_s < 10
    answers.set()
    assert save.wait(30)
    assert not work.was_copied, "the state had moved on"
    assert "no room" in str(save.outcome.error)


class Quick:
    """Work of a rank whose part is nothing."""

    def open(self) -> None: ...

    def copy(self) -> None: ...

    def seal(self) -> int:
        return 0

    def abandon(self) -> None: ...


def test_how_long_draining_takes_is_learnt_by_one_thread_and_bounds_the_interval(tmp_path: Path) -> None:
    tiers = Tiers.from_environment({"EVERSTEP_DURABLE_URL": tmp_path.as_uri(), "EVERSTEP_NAMESPACE": "ns"})
    policy = Policy(mtbf_s=1e-3)
    saver = Saver(tiers, Schedule(policy, has_memory=False, has_store=True), lambda: policy)
    before = threading.active_count()
    told = []
    for step in range(1, 21):
        saver.stepped(0.01)
        saver.begin(Quick(), step, Wanted(durable=True))
        assert saver.flush(30)
        told.append(saver.ended())
        time.sleep(0.02)
    assert threading.active_count() <= before + 2, "an outage of the store must not cost a thread for each save"
    assert saver.schedule.durable_every is not None
    assert saver.schedule.durable_every < 60, "nothing is durable yet, so nothing is known"
    write_shard(tiers, Whose(1, 0, "s", is_durable=True), [Part("blob", None, b"x")])
    write_metadata(tiers, Whose(1, 1, "s", is_durable=True), Contents(1, {}, {"blob": 0}).to_json())
    assert saver._watched is not None
    assert saver._watched.drained.wait(30)
    for step in range(21, 27):
        saver.begin(Quick(), step, Wanted(durable=True))
        assert saver.flush(30)
        told.append(saver.ended())
    assert saver.schedule.durable_every >= 2 * 20 * 0.02 / 0.01, told


def test_a_segment_that_is_used_again_is_seen_with_the_types_of_the_new_state(tmp_path: Path) -> None:
    with memory_tiers(tmp_path, namespaces=[planned("ns", replicas=1)]) as nodes:
        tiers = Tiers.from_environment(nodes[0].environment())
        for step, kept in enumerate([torch.randn(30, 2).bfloat16(), torch.randn(30, 2).half(), torch.randn(2, 30).half()], 1):
            writer = TieredWriter(step, tiers=tiers)
            staged = writer.stage({"w": kept})
            assert writer._refusal is None
            assert isinstance(staged, dict)
            assert staged["w"].dtype == kept.dtype
            assert torch.equal(staged["w"], kept)
            del staged
            writer.close()
        assert len(tiers.memory.segments if tiers.memory else ()) == 1, "all of them have had the same segment"
        tiers.close()
