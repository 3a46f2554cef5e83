"""The coordinator alone, as the members of one job grow to thousands: no training process exists, everything that decides is real.

Usage: python -m benchmarks.coordinator [--quick] [--members 10,100,1000,10000] [--json FILE]

For each number of members, of which one has just died with a spare standing by:

- ``plan``: the job's plan, from its snapshot to the next generation (`workers/plans/job.py`);
- ``meet``: the rendezvous server of an agent, with a connection from each member, all at once: each lays its card, reads everybody's, says that it holds
  the state, and hears that all do. From the first word to the last answer;
- ``agree``: what each member does alone, beside all others: it unpacks everybody's cards and decides.

Besides: the bytes that one member is sent. A member opens one connection, to an agent, and accepts none. Members are simulated by two processes on this
machine (`coordinator_members.py`), which take a large part of the meeting's time themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.rendezvous import Rendezvous
from benchmarks import figures
from everstep.gathered import unpack
from everstep.protocol import Generation, Member
from everstep.resilience.agreement import Card, agree
from models.ids import NodeId, ProcessId
from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import START
from workers.plans.job import plan
from workers.plans.job_seen import GenerationSeen, JobSeen, NodeSeen, ProcessSeen, Publish

PER_NODE = 8
REPEATS = 5
MEMBERS = (10, 100, 1_000, 10_000)
ADDRESS = "127.78.255.1"
SIMULATORS = 2
LIMIT_S = 120.0


# ---------------------------------------------------------------------------------------------- the plan


def job_with_a_death(members: int) -> JobSeen:
    """A job that trains, eight ranks a node, one of which has just exited; a spare node's eight processes are ready."""
    nodes = [NodeId(f"n{number}") for number in range(-(-members // PER_NODE) + 1)]
    processes = [_process(nodes[number // PER_NODE], number) for number in range(members)]
    spares = [replace(_process(nodes[-1], members + number), reformed=0) for number in range(PER_NODE)]
    victim = members // 2
    processes[victim] = replace(processes[victim], state=ProcessState.EXITED, signal=9, state_since=START)
    generation = GenerationSeen(1, tuple(process.id for process in processes), START, is_formed=True, step=0)
    return JobSeen(
        state=JobState.TRAINING,
        replicas=-(-members // PER_NODE),
        processes_per_node=PER_NODE,
        spares=1,
        processes=(*processes, *spares),
        nodes={name: NodeSeen(name, "workers", age) for age, name in enumerate(nodes)},
        generations=(generation,),
        has_ever_formed=True,
        step=100,
    )


def _process(node: NodeId, number: int) -> ProcessSeen:
    return ProcessSeen(
        ProcessId(f"p-{number:06d}"), node, number % PER_NODE, ProcessState.READY, START, reformed=1, has_started=True
    )


def planned(members: int) -> list[float]:
    """Seconds; every answer replaces the dead rank and no other."""
    seconds = []
    for _ in range(REPEATS):
        seen = job_with_a_death(members)
        began = time.perf_counter()
        decision = plan(seen, START)
        seconds.append(time.perf_counter() - began)
        (published,) = [action for action in decision.actions if isinstance(action, Publish)]
        assert seen.generation is not None
        assert sum(new != old for new, old in zip(published.members, seen.generation.members, strict=True)) == 1
    return seconds


# ---------------------------------------------------------------------------------------------- the meeting


@dataclass(frozen=True)
class Met:
    """``sent`` are the bytes that a member was sent, ``cards`` is what it was told of all cards, packed."""

    seconds: float
    sent: float
    cards: bytes


def cards_of(members: int) -> list[Card]:
    """One without state, all others a step ahead of it."""
    digest = "6f" * 16
    return [
        Card(
            rank=rank,
            step=0 if rank == members // 2 else 100,
            holds_state=rank != members // 2,
            is_reduced=False,
            structure=digest,
            transfer_port=32768 + rank * 7 % 28000,
            vote_port=32768 + rank * 11 % 28000,
            alone_since=2 if rank == members // 2 else 0,
            initial=digest,
            loss=0.5,
        )
        for rank in range(members)
    ]


def meet(members: int) -> Met:
    """Raises TimeoutError when not everybody has met in time."""
    with tempfile.TemporaryDirectory(prefix="coordinator-") as folder:
        Path(folder, "cards.json").write_text(json.dumps([card.to_wire() for card in cards_of(members)]))
        seconds, sent = asyncio.run(_meet(folder))
        return Met(seconds, sent / members, Path(folder, "packed-0").read_bytes())


async def _meet(folder: str) -> tuple[float, int]:
    server = Rendezvous(ADDRESS)
    port = await server.start()
    server.admit(Generation("job", 2, "replaced", (Member(0, "p", "n", ADDRESS),), f"{ADDRESS}:{port}", "secret"))
    simulators = [await _simulator(first, folder) for first in range(SIMULATORS)]
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(_line(one) for one in simulators))
            began = time.time()
            for one in simulators:
                _pipe(one.stdin).write(f"{port}\n".encode())
            told = [json.loads(line) for line in await asyncio.gather(*(_line(one) for one in simulators))]
    finally:
        for one in simulators:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            await one.wait()
        await server.stop()
    return max(one["end"] for one in told) - began, sum(one["sent"] for one in told)


async def _simulator(first: int, folder: str) -> asyncio.subprocess.Process:
    """With its share of the members."""
    arguments = (str(Path(__file__).with_name("coordinator_members.py")), str(first), str(SIMULATORS), folder)
    return await asyncio.create_subprocess_exec(sys.executable, "-I", *arguments, stdin=PIPE, stdout=PIPE)


async def _line(process: asyncio.subprocess.Process) -> bytes:
    line: bytes = await _pipe(process.stdout).readline()
    if not line:
        message = "a process of simulated members has ended"
        raise RuntimeError(message)
    return line


def _pipe(stream: Any) -> Any:
    assert stream is not None
    return stream


def agreed(members: int, packed: bytes) -> list[float]:
    """Seconds of one member; all decide alike."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        agreement = agree(tuple(Card.from_wire(told) for told in unpack(packed)), 2, "replaced")
        seconds.append(time.perf_counter() - began)
        assert len(agreement.holders) == members - 1
    return seconds


# ---------------------------------------------------------------------------------------------- telling it


def measured(members: int) -> dict[str, float]:
    """Medians, in milliseconds and bytes."""
    ways: dict[str, Callable[[], list[float]]] = {"plan": lambda: planned(members), "agree": lambda: agreed(members, met[0].cards)}
    met = [meet(members) for _ in range(1 if members >= MEMBERS[-1] else 3)]
    return {
        "members": members,
        **{f"{name}_ms": statistics.median(way()) * 1e3 for name, way in ways.items()},
        "meet_ms": statistics.median(one.seconds for one in met) * 1e3,
        "sent_a_member": met[0].sent,
        "packed": len(met[0].cards),
    }


def exponent(rows: list[dict[str, float]], name: str) -> float:
    """``p`` in time ~ members^p, between the first and the last row: below 1, time grows slower than the members."""
    first, last = rows[0], rows[-1]
    return math.log(last[name] / first[name]) / math.log(last["members"] / first["members"])


def main() -> None:
    options = _options()
    environment, rows = figures.environment(), []
    print(f"the coordinator alone\n{figures.told(environment)}\n\n  members   plan ms   meet ms  agree ms   bytes to each")
    for members in options.members:
        rows.append(measured(members))
        row = rows[-1]
        print(f"  {members:7d} {row['plan_ms']:9.2f} {row['meet_ms']:9.1f} {row['agree_ms']:9.2f} {row['sent_a_member']:15,.0f}")
    exponents = {name: exponent(rows, name) for name in ("plan_ms", "meet_ms", "agree_ms")} if len(rows) > 1 else {}
    for name, power in exponents.items():
        print(f"{name} ~ members^{power:.2f}: {'sub-linear' if power < 1 else 'NOT sub-linear'}")
    figures.write(options, {"environment": environment, "rows": rows, "exponents": exponents})


def _options() -> argparse.Namespace:
    parser = figures.parser(__doc__)
    parser.add_argument("--members", default="", help="numbers, with commas between")
    options = parser.parse_args()
    options.members = [int(one) for one in options.members.split(",")] if options.members else list(MEMBERS)
    if options.quick:
        options.members = [one for one in options.members if one < MEMBERS[-1]]
    return options


if __name__ == "__main__":
    main()
