"""Scripts that only know torch.distributed, as processes of their own, that are killed and started again."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.checkpoint.tiers import Tiers
from everstep.errors import EverstepError
from tests.checkpoint.tiers import memory_tiers, planned
from tests.patience import PATIENCE

SCRIPT = Path(__file__).parents[1] / "scripts" / "plain.py"


def started(folder: Path, *rounds: Sequence[dict[str, Any]], script: Path = SCRIPT) -> subprocess.Popen[str]:
    """Rounds of runs (see the script); notes are folders below ``folder``."""
    told = [[{**run, "notes": str(folder / run["notes"]), "port": _free_port()} for run in runs] for runs in rounds]
    for run in itertools.chain.from_iterable(told):
        Path(run["notes"]).mkdir(exist_ok=True)
    (folder / "rounds.json").write_text(json.dumps(told))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(everstep.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, str(script), str(folder / "rounds.json")],
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def ended(script: subprocess.Popen[str], limit_s: float = 100) -> tuple[list[list[list[int]]], str]:
    """The ranks' exit codes, by round and run, and what was said."""
    try:
        told, words = script.communicate(timeout=limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
    assert told, words
    return json.loads(told.splitlines()[-1]), words


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"losses-{rank}.jsonl").read_text().splitlines()]


def losses(folder: Path, rank: int = 0) -> dict[int, set[float]]:
    found: dict[int, set[float]] = {}
    for line in lines(folder, rank):
        found.setdefault(line["step"], set()).add(line["loss"])
    return found


def store_alone(folder: Path, namespace: str = "ns") -> dict[str, str]:
    (folder / "objects").mkdir(exist_ok=True)
    return {"EVERSTEP_DURABLE_URL": (folder / "objects").as_uri(), "EVERSTEP_NAMESPACE": namespace}


@pytest.mark.parametrize("kind", ["state", pytest.param("dict", marks=pytest.mark.slow)])
def test_a_plain_script_that_is_killed_goes_on_bitwise_as_if_unbroken(kind: str, tmp_path: Path) -> None:
    common = {"kind": kind, "until": 14, "world": 2, "durable_every": 4}
    broken = {**common, "notes": "broken", "environment": store_alone(tmp_path)}
    unbroken = {**common, "notes": "unbroken", "environment": store_alone(tmp_path, "other")}
    codes, words = ended(started(tmp_path, [{**broken, "dies_at": 10}, unbroken], [broken]))
    assert codes == [[[-9, -9], [0, 0]], [[0, 0]]], words
    assert {line["restored"] for line in lines(tmp_path / "broken")} - {None} <= {4, 8}
    assert len({line["pid"] for line in lines(tmp_path / "broken")}) == 2
    for rank in range(2):
        assert losses(tmp_path / "broken", rank) == losses(tmp_path / "unbroken", rank)


def test_another_world_size_goes_on_with_the_same_weights_and_the_next_samples(tmp_path: Path) -> None:
    common = {"kind": "state", "durable_every": 4, "environment": store_alone(tmp_path)}
    two, one = {**common, "notes": "two", "until": 8, "world": 2}, {**common, "notes": "one", "until": 12, "world": 1}
    codes, words = ended(started(tmp_path, [two], [one]))
    assert codes == [[[0, 0]], [[0]]], words
    assert sorted(losses(tmp_path / "one")) == [8, 9, 10, 11]
    assert "Random numbers begin anew: 2 ranks saved, 1 go on" in words


def test_automatic_saves_find_their_interval_and_memory_serves_the_restart(tmp_path: Path) -> None:
    with memory_tiers(tmp_path, namespaces=[planned("ns", replicas=1)]) as tiers:
        run = {"kind": "state", "notes": "run", "until": 40, "world": 1, "environment": tiers[0].environment()}
        codes, words = ended(started(tmp_path, [{**run, "dies_at": 30, "pace_s": 0.02}], [run]))
    assert codes == [[[-9]], [[0]]], words
    restored = {line["restored"] for line in lines(tmp_path / "run")} - {None}
    assert len(restored) == 1
    assert 0 < restored.pop() <= 30
    assert all(len(of_step) == 1 for of_step in losses(tmp_path / "run").values())


def test_a_plain_script_that_is_told_to_end_saves_its_step_on_all_ranks_first(tmp_path: Path) -> None:
    """Every step goes to memory anyway: the one that the process ends with must be durable."""
    run = {"kind": "state", "notes": "run", "until": 10**6, "world": 2, "pace_s": 0.02, "every": 1, "durable_every": 10**6}
    with memory_tiers(tmp_path, namespaces=[planned("ns", replicas=1)]) as tiers:
        script = started(tmp_path, [{**run, "environment": tiers[0].environment()}])
        try:
            folder = tmp_path / "run"
            until(lambda: (folder / "losses-1.jsonl").exists() and len(lines(folder, 1)) > 5)
            pid = lines(folder, 1)[0]["pid"]
            os.kill(pid, signal.SIGTERM)
            until(lambda: not is_alive(pid))
            with contextlib.suppress(ProcessLookupError):  # the other's end may have been an error to it by now
                os.kill(lines(folder, 0)[0]["pid"], signal.SIGKILL)
        finally:
            ((codes,),), words = ended(script)
        assert codes[1] == -signal.SIGTERM, words  # the other one ends by the signal, or because its peer has gone
        (found,) = Tiers.from_environment({**tiers[0].environment(), "EVERSTEP_CHECKPOINT_SOCKET": ""}).latest()
    assert found.is_durable
    assert found.step == len(lines(folder, 1)), "the last step that the process has done is the one that was saved"


def test_where_nothing_is_named_to_save_to_nothing_is_done(tmp_path: Path) -> None:
    run = {"kind": "state", "notes": "run", "until": 3, "world": 1, "every": 1, "durable_every": 1}
    codes, words = ended(started(tmp_path, [run]))
    assert codes == [[[0]]], words


@pytest.fixture
def _own_signals() -> Iterator[None]:
    """A Checkpointer in this very process installs its handler."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize("is_strict", [False, True])
def test_the_error_of_a_save_is_told_with_the_next_step_and_raised_only_if_strict(is_strict: bool, tmp_path: Path) -> None:
    tiers = Tiers.from_environment({"EVERSTEP_DURABLE_URL": tmp_path.as_uri()})
    (tmp_path / tiers.namespace).write_text("a file, below which nothing can be written")
    model = torch.nn.Linear(3, 2)
    state = everstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    told: list[dict[str, Any]] = []
    ckpt = everstep.Checkpointer(durable_every=5, strict=is_strict, tiers=tiers)
    ckpt.tell = told.append
    ckpt.step(state, 5)
    if is_strict:
        with pytest.raises((EverstepError, OSError)):
            ckpt.close()
    else:
        ckpt.close()
    assert [one["step"] for one in told] == [5]
    assert told[0]["why"].startswith("not saved: ")


@pytest.mark.usefixtures("_own_signals")
def test_what_a_save_has_cost_is_told_with_the_interval_that_follows_from_it(tmp_path: Path) -> None:
    tiers = Tiers.from_environment({"EVERSTEP_DURABLE_URL": (tmp_path / "objects").as_uri()})
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = everstep.State(model=model, optimizer=optimizer)
    told: list[dict[str, Any]] = []
    ckpt = everstep.Checkpointer(tiers=tiers)
    ckpt.tell = told.append
    for step in range(1, 4):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        ckpt.step(state, step)
    ckpt.close()
    (one,) = told
    assert (one["step"], one["memory_every"]) == (3, None)
    assert one["why"].startswith(f"durable: every {one['durable_every']} steps: a save costs")
    assert 0 < one["stall_s"] < 60
    assert one["nbytes"] > 3 * 2 * 4


@pytest.mark.usefixtures("_own_signals")
def test_whoever_asks_has_the_next_step_saved(tmp_path: Path) -> None:
    tiers = Tiers.from_environment({"EVERSTEP_DURABLE_URL": (tmp_path / "objects").as_uri()})
    ckpt = everstep.Checkpointer(durable_every=1000, tiers=tiers)
    state = everstep.State(model=torch.nn.Linear(3, 2))
    ckpt.step(state, 1)
    ckpt.ask(durable=True)
    ckpt.step(state, 2)
    ckpt.step(state, 3)
    ckpt.close()
    assert [found.step for found in tiers.latest(5)] == [2]


def test_an_interval_of_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="durable_every is 0"):
        everstep.Checkpointer(durable_every=0)


def until(claim: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s * PATIENCE
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Not ended; one that its parent has not waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
