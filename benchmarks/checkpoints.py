"""Checkpoints: what they keep training waiting for, how fast they are loaded, replicated and drained, beside a memcpy of the same bytes and beside peers.

Usage: python -m benchmarks.checkpoints [--rounds 5] [--mib 512] [--only GROUP ...] [--json FILE]

Every figure is a ratio of medians of one run: to a memcpy of the same bytes by the same ranks, to a bare socket, or to what PyTorch does. Memory
tiers are real processes. The state is 1 GiB on two ranks unless said otherwise. As root the tiers get a tmpfs of their own with huge pages, which
is unmounted in the end, beside a run in /dev/shm as it is. It takes some minutes, and wants a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import checkpoint_wires as wires
from benchmarks.peers import others
from tests.checkpoint.tiers import memory_tiers, planned

COLD = "cold load from the object store, of a memcpy"
LOCAL = "local load, copied, new process [{ground}]"
ROOT = Path(__file__).parents[1]
LIMIT_S = 600.0
HUGE = "huge pages"
PLAIN = "/dev/shm"  # noqa: S108  (a name in a table)


@dataclass(frozen=True)
class Row:
    """A figure, and what it should be at most (or, ``is_least``, at least). ``unit`` is empty for ratios."""

    what: str
    figure: float | None
    goal: float | None = None
    unit: str = "×"
    is_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "skipped"
        if self.goal is None:
            return ""
        return "met" if (self.figure >= self.goal if self.is_least else self.figure <= self.goal) else "NOT MET"


@dataclass(frozen=True)
class Bench:
    """What all groups are told."""

    folder: Path
    mib: int
    rounds: int
    grounds: tuple[str, ...]

    def room(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def environment(self, ground: str) -> dict[str, str]:
        return {"EVERSTEP_MEMORY_TIER_MOUNT": "auto" if ground == HUGE else "never", "EVERSTEP_MEMORY_TIER_SCRUB_S": "36000"}


# ------------------------------------------------------------------------------------------------ ranks


def ranks(bench: Bench, what: str, own: Mapping[str, str], world: int = 2, **told: Any) -> dict[str, list[float]]:
    """Starts ``world`` rank processes that do ``what``; their samples."""
    out = bench.folder / f"{what}.json"
    out.unlink(missing_ok=True)
    given = {"mib": bench.mib, "count": 64, "rounds": bench.rounds, "folder": str(bench.folder), "out": str(out)} | told
    command = [sys.executable, "-m", "benchmarks.checkpoint_saves", json.dumps({"what": what, **given})]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    shared = {
        **kept,
        **own,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
    }
    errors = [(bench.folder / f"{what}.{rank}.log").open("w+") for rank in range(world)]
    processes = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=ROOT, stderr=errors[rank])
        for rank in range(world)
    ]
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        words = "\n".join((bench.folder / f"{what}.{rank}.log").read_text()[-3000:] for rank in range(world) if codes[rank])
        message = f"{what} failed in ranks {[rank for rank in range(world) if codes[rank]]}:\n{words}"
        raise RuntimeError(message)
    samples: dict[str, list[float]] = json.loads(out.read_text())["samples"]
    return samples


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ratio(samples: Mapping[str, Sequence[float]], name: str, to: str = "memcpy") -> float:
    return statistics.median(samples[name]) / statistics.median(samples[to])


def _range(samples: Mapping[str, Sequence[float]], name: str, to: str = "memcpy") -> str:
    unit = statistics.median(samples[to])
    low, high = min(samples[name]) / unit, max(samples[name]) / unit
    return f"{low:.2f}–{high:.2f}"


def _row(samples: Mapping[str, Sequence[float]], name: str, what: str, goal: float | None = None, to: str = "memcpy") -> Row:
    return Row(what, ratio(samples, name, to), goal, note=_range(samples, name, to))


# ------------------------------------------------------------------------------------------------ groups


def first(bench: Bench) -> list[Row]:
    """The first save of fresh processes."""
    rows = []
    for ground in bench.grounds:
        samples: dict[str, list[float]] = {"memcpy": [], "first save": []}
        for number in range(bench.rounds):
            with _one_tier(bench, f"first-{number}-{len(ground)}", ground) as node:
                took = ranks(bench, "first", node.environment("ns"))
            samples["memcpy"].append(statistics.median(took["memcpy"]))
            samples["first save"] += took["first save"]
        rows.append(_row(samples, "first save", f"first save, prefaulted [{ground}]", 2.0))
    return rows


def saves(bench: Bench) -> list[Row]:
    """Stalls with a core free: two ranks that compute elsewhere, as on a device; beside, PyTorch's own ways."""
    rows = []
    for ground in bench.grounds:
        with _one_tier(bench, f"saves-{len(ground)}", ground) as node:
            took = ranks(bench, "saves", node.environment("ns"))
        rows += [
            _row(took, "Checkpointer, overlapped", f"visible stall, overlapped: Checkpointer [{ground}]", 0.35),
            _row(
                took,
                "dcp.async_save with TieredWriter, overlapped",
                f"visible stall, overlapped: dcp.async_save(TieredWriter) [{ground}]",
                0.35,
            ),
            _row(took, "Checkpointer, staged", f"visible stall, staged: Checkpointer [{ground}]", 1.25),
            _row(
                took,
                "dcp.async_save with TieredWriter, staged",
                f"visible stall, staged: dcp.async_save(TieredWriter) [{ground}]",
                1.25,
            ),
            _row(took, "dcp.save with TieredWriter", f"dcp.save(TieredWriter), sealed [{ground}]"),
        ]
        if ground == bench.grounds[-1]:
            rows += [
                _row(took, "torch.save", "peer: torch.save to disk (page cache)"),
                _row(took, "dcp.save", "peer: dcp.save to disk (page cache)"),
                _row(took, "dcp.async_save with DefaultStager", "peer: dcp.async_save with DefaultStager, visible stall"),
            ]
    return rows


def busy(bench: Bench) -> list[Row]:
    """One rank that computes on its core, in torch, beside a core that is free."""
    with _one_tier(bench, "busy", bench.grounds[0]) as node:
        took = ranks(bench, "saves", node.environment("ns"), world=1, is_busy=True)
    return [
        _row(took, "Checkpointer, overlapped", "visible stall, one rank multiplying, a core free: Checkpointer", 0.35),
        _row(took, "dcp.async_save with TieredWriter, overlapped", "the same: dcp.async_save(TieredWriter)", 0.35),
        _row(took, "dcp.async_save with DefaultStager", "the same, peer: dcp.async_save with DefaultStager"),
    ]


def loads(bench: Bench) -> list[Row]:
    rows = []
    for ground in bench.grounds:
        with _one_tier(bench, f"loads-{len(ground)}", ground) as node:
            mapped = ranks(bench, "loads", node.environment("ns"), is_writer=True)
            fresh = ranks(bench, "loads", node.environment("ns"))
        fresh_goal, mapped_goal = (1.1, None) if ground == HUGE else (None, 1.25)
        rows += [
            _row(fresh, "copied", LOCAL.format(ground=ground), fresh_goal),
            _row(fresh, "copied and verified", f"local load, copied and verified, new process [{ground}]"),
            _row(mapped, "copied", f"local load, copied, once mapped [{ground}]", mapped_goal),
            _row(mapped, "copied and verified", f"local load, copied and verified, once mapped [{ground}]"),
            _row(fresh, "mapped", f"local load, mapped read-only [{ground}]", 0.1),
            _row(fresh, "mapped and verified", f"local load, mapped read-only and verified [{ground}]"),
            _row(fresh, "dcp.load with TieredReader", f"dcp.load(TieredReader), local, verified [{ground}]"),
        ]
    return rows


def peer(bench: Bench) -> list[Row]:
    rows = []
    for ground in bench.grounds:
        took = wires.peer_loads(bench.room(f"peer-{len(ground)}"), bench.mib, bench.rounds, bench.environment(ground))
        rows.append(_row(took, "StepReader", f"peer load, of a bare socket copy [{ground}]", 1.2, to="bare socket"))
        rows.append(
            _row(took, "StepReader, verified", f"peer load, verified, of a bare socket copy [{ground}]", 1.2, to="bare socket")
        )
    return rows


def replicas(bench: Bench) -> list[Row]:
    rows = []
    for ground in bench.grounds:
        took = wires.replication(bench.room(f"replicas-{len(ground)}"), bench.mib, bench.rounds, bench.environment(ground))
        rate = ratio(took, "bare socket", to="replica") * 100
        rows.append(Row(f"replication, of one bare loopback stream [{ground}]", rate, 95.0, unit="%", is_least=True))
    return rows


def door(bench: Bench) -> list[Row]:
    took = wires.door(bench.room("door"), 2304)
    note = f"POST {took['POST s']:.2f} s, GET {took['GET s']:.2f} s"
    return [Row("2.25 GiB through the door: anonymous memory added", took["anonymous MiB"], 32.0, unit=" MiB", note=note)]


def cold(bench: Bench) -> list[Row]:
    """Drained through a tier, as in earnest; then read without one."""
    store = bench.room("cold")
    with memory_tiers(store, 1, memory_mib=bench.mib * 16, allocation_percent=60) as nodes:
        ranks(bench, "save_once", nodes[0].environment("ns"))
        url = nodes[0].environment("ns")["EVERSTEP_DURABLE_URL"]
    took = ranks(bench, "cold", {"EVERSTEP_DURABLE_URL": url, "EVERSTEP_NAMESPACE": "ns"}, store=str(store / "objects"))
    return [
        _row(
            took,
            "StepReader, page-cached",
            "load from the object store, verified, of dcp.load, page cache",
            0.5,
            "dcp.load, page-cached",
        ),
        _row(took, "TieredReader, page-cached", "the same by dcp.load(TieredReader)", to="dcp.load, page-cached"),
        _row(took, "StepReader, cold", "the same, both from a disk, cold", 0.5, to="dcp.load, cold"),
        _row(took, "TieredReader, cold", "the same by dcp.load(TieredReader)", to="dcp.load, cold"),
        _row(took, "bare read, cold", "floor: a bare read of the same bytes, cold, of dcp.load", to="dcp.load, cold"),
        _row(took, "StepReader, cold", COLD),
        _row(took, "dcp.load, cold", "peer: dcp.load from disk, cold, of a memcpy"),
    ]


def planner(bench: Bench) -> list[Row]:
    """5,000 tensors of 16 KiB a rank: what a save takes longer than the copy."""
    with _one_tier(bench, "planner", bench.grounds[-1]) as node:
        took = ranks(bench, "planner", node.environment("ns"), mib=78.125, count=5000)
    bare = statistics.median(took["memcpy"])
    costs = {name: (statistics.median(samples) - bare) * 1000 for name, samples in took.items()}
    return [
        Row("planner cost at 5,000 tensors, second save on: Checkpointer", costs["Checkpointer"], 50.0, unit=" ms"),
        Row("the same: dcp.save(TieredWriter)", costs["dcp.save with TieredWriter"], unit=" ms"),
        Row("the same: dcp.save(TieredWriter), enable_plan_caching", costs["dcp.save with TieredWriter, plans cached"], unit=" ms"),
        Row("the same, peer: dcp.save to disk", costs["dcp.save"], unit=" ms"),
    ]


def peers(bench: Bench) -> list[Row]:
    """Other people's memory checkpoints, each in an environment of its own."""
    rows = []
    for found in others.measured(bench.folder, bench.mib, bench.rounds):
        if found.why_not is not None:
            rows.append(Row(f"peer: {found.name}", None, note=found.why_not))
        rows += [_row(found.samples, name, f"peer: {found.name}, {name}") for name in found.samples if name != "memcpy"]
    return rows


GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    one.__name__: one for one in (first, saves, busy, loads, peer, replicas, door, cold, planner, peers)
}


def _one_tier(bench: Bench, name: str, ground: str) -> Any:
    """A context: one node's tier with room for all that the ranks save, and the plan of one namespace."""
    return _OneTier(bench, name, ground)


class _OneTier:
    def __init__(self, bench: Bench, name: str, ground: str) -> None:
        plan = [planned("ns", replicas=1, keep_in_memory=2)]
        self._tiers = memory_tiers(
            bench.room(name),
            1,
            memory_mib=bench.mib * 20,
            allocation_percent=60,
            namespaces=plan,
            environment=bench.environment(ground),
        )

    def __enter__(self) -> Any:
        return self._tiers.__enter__()[0]

    def __exit__(self, *error: object) -> None:
        self._tiers.__exit__(*error)  # type: ignore[arg-type]


def derived(rows: Sequence[Row], grounds: Sequence[str]) -> list[Row]:
    """What follows from figures of two groups, both in memcpys of their own runs."""
    by_name = {row.what: row.figure for row in rows}
    memory, store = by_name.get(LOCAL.format(ground=grounds[0])), by_name.get(COLD)
    if memory is None or store is None:
        return []
    return [
        Row(f"load from memory [{grounds[0]}], times faster than from the object store, cold", store / memory, 10.0, is_least=True)
    ]


# ------------------------------------------------------------------------------------------------ the table


def show(rows: Sequence[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"\n{'what':{width}}  {'goal':>10}  {'figure':>11}  {'':8}  range")
    for row in rows:
        goal = "" if row.goal is None else f"{'≥' if row.is_least else '≤'} {row.goal:g}{row.unit}"
        figure = "–" if row.figure is None else f"{row.figure:.2f}{row.unit}"
        print(f"{row.what:{width}}  {goal:>10}  {figure:>11}  {row.verdict:8}  {row.note}")


def main() -> int:
    """1 if something could not be measured; whether a goal is met is for the reader."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=512, help="of state, a rank")
    parser.add_argument("--only", nargs="*", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # the tiers end with their contexts
    grounds = (HUGE, PLAIN) if os.geteuid() == 0 else (PLAIN,)
    if len(grounds) == 1:
        print(f"{HUGE}: skipped, since only root may mount a tmpfs")
    rows: list[Row] = []
    is_whole = True
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        bench = Bench(Path(folder), options.mib, options.rounds, grounds)
        for name in options.only:
            print(f"{name} …", flush=True)
            try:
                found = GROUPS[name](bench)
                rows += found
                show(found)  # now, as what is interrupted later has measured this all the same
            except Exception:  # noqa: BLE001  (the other groups are measured all the same)
                traceback.print_exc()
                is_whole = False
    rows += derived(rows, grounds)
    if rows:
        show(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) | {"verdict": row.verdict} for row in rows], indent=1))
    return 0 if is_whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
