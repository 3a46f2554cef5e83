from __future__ import annotations

import os
import time
from pathlib import Path

from agent.prefetch import Prefetch


def written(folder: Path | None, *, ago_s: float = 0.0) -> Path:
    assert folder is not None
    batch = folder / "a-0-4.batch"
    batch.write_bytes(b"tokens")
    for path in (batch, folder, folder.parent):
        os.utime(path, (time.time() - ago_s,) * 2)
    return batch


def test_a_jobs_batches_are_kept_until_it_ends_and_its_node_leaves_nothing(tmp_path: Path) -> None:
    prefetch = Prefetch(tmp_path / "node", tmp_path)
    one, other = written(prefetch.folder("job-1")), written(prefetch.folder("job-2"))
    assert prefetch.folder("job-1") == one.parent, "a process that starts later finds the same"
    prefetch.forget("job-1")
    assert not one.exists()
    assert other.exists()
    prefetch.forget("job-2")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_starts_again_keeps_what_belongs_to_its_jobs(tmp_path: Path) -> None:
    before = Prefetch(tmp_path / "node", tmp_path)
    kept, left = written(before.folder("job-1"), ago_s=9000), written(before.folder("job-2"))
    before.let_go()
    Prefetch(tmp_path / "node", tmp_path).sweep(["job-1"], time.time())
    assert kept.exists()
    assert not left.exists()


def test_what_a_dead_node_has_left_goes_after_an_hour_and_a_living_one_keeps_its_own(tmp_path: Path) -> None:
    dead, fresh, living = (Prefetch(tmp_path / name, tmp_path) for name in ("dead", "fresh", "living"))
    left, young, used = (
        written(dead.folder("job"), ago_s=4000),
        written(fresh.folder("job")),
        written(living.folder("job"), ago_s=4000),
    )
    for path in (dead.folder("job"), living.folder("job")):
        assert path is not None
        os.utime(path.parent / ".agent", (time.time() - 4000,) * 2)
    dead.let_go()
    fresh.let_go()
    Prefetch(tmp_path / "other", tmp_path).sweep([], time.time())
    assert [path.exists() for path in (left, young, used)] == [False, True, True]


def test_without_shared_memory_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    prefetch = Prefetch(tmp_path / "node", tmp_path / "nowhere")
    assert prefetch.folder("job") is None
    prefetch.forget("job")
    prefetch.sweep([], time.time())
