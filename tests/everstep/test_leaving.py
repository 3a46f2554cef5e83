"""Waits can be left: whenever the sockets of a group are cut, nobody stays behind in a collective."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from everstep.errors import CollectiveFailed, GroupRetired
from everstep.resilience.construction import Construction
from everstep.resilience.fence import Fence
from everstep.resilience.groups import GuardedGroup
from everstep.resilience.promises import promise
from everstep.resilience.unwind import Unwind

TRIALS = 120


class Escape:
    """As the membership's, moved by hand."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.superseded = False
        self.messages: list[str] = []

    def is_superseded(self) -> bool:
        return self.superseded

    def cut(self) -> None:
        self.fence.cut(2)

    def failed(self, message: str) -> None:
        self.messages.append(message)


@contextlib.contextmanager
def pair() -> Iterator[tuple[list[GuardedGroup], Escape]]:
    """Two ranks in one process."""
    escape, store = Escape(Fence()), dist.HashStore()
    groups: list[GuardedGroup] = []
    with escape.fence.around_construction(1):
        builders = [threading.Thread(target=lambda r=rank: groups.append(_build(store, r, escape))) for rank in range(2)]
        for builder in builders:
            builder.start()
        for builder in builders:
            builder.join()
    groups.sort(key=lambda group: group.rank())
    yield groups, escape
    escape.superseded = True
    for group in groups:
        group.shutdown()


def _build(store: dist.Store, rank: int, escape: Escape) -> GuardedGroup:
    return Construction("127.0.0.1", None).build(store, rank, 2, escape)


def _collective(group: GuardedGroup, kind: str) -> Any:
    if kind == "all-reduce":
        return group.allreduce([torch.ones(1000)])
    if kind == "reduce-scatter":
        return group._reduce_scatter_base(torch.ones(500), torch.ones(1000))
    return group.allreduce([torch.ones(1000)]).get_future()


@pytest.mark.timeout(90)
def test_however_the_sockets_are_cut_every_waiter_comes_out() -> None:
    seed = int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    print("seed", seed)
    chance = random.Random(seed)
    outcomes: list[str] = []
    for trial in range(TRIALS):
        kind = ("all-reduce", "reduce-scatter", "future")[trial % 3]
        with pair() as (groups, escape):
            count, delay = chance.randrange(1, 4), chance.random() * 6e-4

            def work(group: GuardedGroup, kind: str = kind, count: int = count) -> None:
                try:
                    for _ in range(count):
                        _collective(group, kind).wait()
                    outcomes.append("done")
                except Unwind:
                    outcomes.append("left")
                except RuntimeError:
                    outcomes.append("failed")

            workers = [threading.Thread(target=work, args=(group,), daemon=True) for group in groups]
            for worker in workers:
                worker.start()
            end = time.perf_counter() + delay
            while time.perf_counter() < end:
                pass
            escape.superseded = True
            escape.cut()
            for worker in workers:
                worker.join(5.0)
            assert not any(worker.is_alive() for worker in workers), f"stuck in trial {trial} ({kind})"
    assert len(outcomes) == 2 * TRIALS
    assert "failed" in outcomes


def test_a_collective_without_a_peer_is_left_when_a_newer_generation_comes() -> None:
    with pair() as (groups, escape):
        threading.Timer(0.2, lambda: (setattr(escape, "superseded", True), escape.cut())).start()
        began = time.monotonic()
        with pytest.raises((Unwind, CollectiveFailed)):
            groups[0].allreduce([torch.ones(10)]).wait()
        assert time.monotonic() - began < 3.0


def test_a_future_fails_as_a_cpp_error_when_its_collective_is_left() -> None:
    with pair() as (groups, escape):
        future = groups[0].allreduce([torch.ones(10)]).get_future()
        escape.superseded = True
        with pytest.raises(RuntimeError, match="collective failed"):
            future.wait()


class Lost:
    """A collective of which gloo has lost the completion."""

    def __init__(self, escape: Escape) -> None:
        self.escape = escape
        self.inner: Any = self
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future

    def end(self) -> None:
        """Nothing follows it."""


def test_a_future_whose_completion_is_lost_is_left_when_a_newer_generation_comes() -> None:
    escape = Escape(Fence())
    lost = Lost(escape)
    future = promise(lost)
    escape.superseded = True
    with pytest.raises(RuntimeError, match="collective failed: Unwind"):
        future.wait()
    lost.future.set_result(None)  # it comes late, and changes nothing
    with pytest.raises(RuntimeError, match="collective failed: Unwind"):
        future.wait()
    assert len(escape.messages) == 1


def test_a_future_holds_what_the_collective_made() -> None:
    with pair() as (groups, _):
        tensors = [torch.full((3,), float(group.rank() + 1)) for group in groups]
        futures = [group.allreduce([tensor]).get_future() for group, tensor in zip(groups, tensors, strict=True)]
        assert [future.wait()[0].tolist() for future in futures] == [[3.0] * 3] * 2


def test_a_dead_peer_is_told_once_it_is_noticed() -> None:
    with pair() as (groups, escape):
        escape.cut()
        with pytest.raises(CollectiveFailed):
            groups[0].allreduce([torch.ones(10)]).wait()
        assert escape.messages


def test_a_retired_group_says_so() -> None:
    with pair() as (groups, _):
        groups[0].shutdown()
        with pytest.raises(GroupRetired, match=r"everstep\.State"):
            groups[0].allreduce([torch.ones(10)])


def test_the_fence_spares_listening_sockets_and_those_that_are_exempt() -> None:
    fence = Fence()
    with socket.create_server(("127.0.0.1", 0)) as listener, fence.around_construction(1):
        ours = fence.exempt(socket.create_connection(listener.getsockname()))
        ours_far, _ = listener.accept()
        fence.exempt(ours_far)
        theirs = socket.create_connection(listener.getsockname())
        theirs_far, _ = listener.accept()
        fence.exempt(theirs_far)
        assert not fence.cut(1), "late news of the generation that the group belongs to"
        assert fence.cut(2)
        assert theirs_far.recv(1) == b"", "the peer of a cut socket sees its end"
        ours.sendall(b"x")
        assert ours_far.recv(1) == b"x"
        late = socket.create_connection(listener.getsockname())
        for one in (ours, ours_far, theirs, theirs_far, late):
            one.close()
