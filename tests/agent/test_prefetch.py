from __future__ import annotations

from pathlib import Path

from agent.prefetch import Prefetch


def written(folder: Path | None) -> Path:
    assert folder is not None
    batch = folder / "a-0-4.batch"
    batch.write_bytes(b"tokens")
    return batch


def test_a_jobs_batches_are_kept_until_it_ends_and_its_node_leaves_nothing(tmp_path: Path) -> None:
    prefetch = Prefetch(tmp_path / "node")
    one, other = written(prefetch.folder("job-1")), written(prefetch.folder("job-2"))
    assert prefetch.folder("job-1") == one.parent, "a process that starts later finds the same"
    prefetch.forget("job-1")
    assert not one.exists()
    assert other.exists()
    prefetch.forget("job-2")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_starts_again_keeps_what_belongs_to_its_jobs(tmp_path: Path) -> None:
    before = Prefetch(tmp_path / "node")
    kept, left = written(before.folder("job-1")), written(before.folder("job-2"))
    Prefetch(tmp_path / "node").sweep(["job-1"])
    assert kept.exists()
    assert not left.exists()


def test_nothing_is_left_where_a_node_is_ended_in_order(tmp_path: Path) -> None:
    prefetch = Prefetch(tmp_path / "node")
    written(prefetch.folder("job-1"))
    prefetch.end()
    assert list(tmp_path.iterdir()) == []


def test_without_shared_memory_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for prefetch in (Prefetch(None), Prefetch(tmp_path / "file" / "node")):
        assert prefetch.folder("job") is None
        prefetch.forget("job")
        prefetch.sweep([])
        prefetch.end()
