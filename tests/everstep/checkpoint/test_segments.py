from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
import torch

from everstep.checkpoint.contents import Chunk, Contents, TensorContent
from everstep.checkpoint.placing import Part, Whose, write_metadata, write_shard
from everstep.checkpoint.segments import Descriptor, Mapped, Readable
from everstep.checkpoint.tiers import Tiers
from tests.checkpoint.tiers import memory_tiers, planned


def test_a_mapping_that_is_kept_for_reading_keeps_no_segment_from_being_used_again(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(8192))
    lent = Descriptor(os.open(path, os.O_RDONLY))
    fcntl.flock(lent.number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    kept = Readable.of(lent)
    writer = Mapped(Descriptor(os.open(path, os.O_RDWR)))
    with pytest.raises(Exception, match="still being read"):
        writer.lock()
    lent.close()
    writer.lock()
    writer.map[4096] = 7
    assert kept.map[4096] == 7, "a mapping that is read again must show what was written since"
    writer.unlock()
    path.unlink()
    assert kept.is_deleted
    assert kept.let_go()


def test_a_segment_is_mapped_once_for_all_loads_and_unmapped_when_the_tier_gives_it_up(tmp_path: Path) -> None:
    with memory_tiers(tmp_path, 1, namespaces=[planned("ns", replicas=1)]) as (node,):
        writer, reader = (Tiers.from_environment(node.environment("ns")) for _ in range(2))
        try:
            for step in range(1, 6):
                saved(writer, step)
                assert [loaded(reader, step) for _ in range(3)] == [float(step)] * 3
            once = mappings(node.folder)
            assert [loaded(reader, 5) for _ in range(3)] == [5.0] * 3
            assert mappings(node.folder) <= once
        finally:
            writer.close()
            reader.close()
        assert not mappings(node.folder)


def saved(tiers: Tiers, step: int) -> None:
    write_shard(tiers, Whose(step, 0, f"save-{step}", False), [Part("w", (0,), torch.full((4096,), float(step)))])
    contents = Contents(1, {"w": TensorContent("float32", (4096,), (Chunk((0,), (4096,), 0),))}, {})
    write_metadata(tiers, Whose(step, 1, f"save-{step}", False), contents.to_json())


def loaded(tiers: Tiers, step: int) -> float:
    found = tiers.find(step)
    assert found is not None
    into = torch.zeros(4096)
    with tiers.read(found) as reader:
        reader.fill_tensors({"w": into})
    assert reader.counts["memory"] == into.nbytes
    return float(into.min())


def mappings(folder: Path) -> set[tuple[str, str]]:
    """This process's mappings below a folder: addresses and inode. A segment that is given up changes its name, not its mapping."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    return {(addresses, inode) for addresses, _, _, _, inode, *_ in lines}
