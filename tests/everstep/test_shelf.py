from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.data.shelf import Shelf, fingerprint


def batch(number: float = 1.0) -> dict[str, Any]:
    return {"tokens": torch.full((4, 6), number), "names": ["one", "two"], "pair": (torch.arange(3), 5)}


def entry(folder: Path) -> Path:
    (path,) = folder.glob("*.batch")
    return path


def test_a_batch_comes_back_as_it_was_put(tmp_path: Path) -> None:
    assert Shelf(tmp_path, "a").put(8, 4, batch(2.0))
    taken = Shelf(tmp_path, "a").take(8, 4)
    assert taken is not None
    assert torch.equal(taken[0]["tokens"], torch.full((4, 6), 2.0))
    assert taken[0]["names"] == ["one", "two"]
    assert taken[0]["pair"][1] == 5
    assert Shelf(tmp_path, "b").take(8, 4) is None
    assert Shelf(tmp_path, "a").take(8, 3) is None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_an_entry_that_is_torn_or_has_one_wrong_byte_is_not_there(tmp_path: Path, data: st.DataObject) -> None:
    shelf = Shelf(tmp_path, "a")
    shelf.put(0, 4, batch())
    path = entry(tmp_path)
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    is_cut = data.draw(st.booleans())
    path.write_bytes(whole[:place] if is_cut else whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
    assert shelf.take(0, 4) is None
    assert not path.exists(), "it is taken away, so that a whole one can take its place"


def test_what_was_trained_on_goes_and_what_comes_next_stays(tmp_path: Path) -> None:
    shelf, other = Shelf(tmp_path, "a"), Shelf(tmp_path, "b")
    for first in (0, 4, 8, 12):
        shelf.put(first, 4, batch())
    other.put(0, 4, batch())
    shelf.clear_before(8)
    assert [shelf.take(first, 4) is not None for first in (0, 4, 8, 12)] == [False, False, True, True]
    assert other.take(0, 4) is not None


def test_what_a_writer_has_died_in_goes_when_its_samples_have_been_trained_on(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "a")
    shelf.put(0, 4, batch())
    half = tmp_path / f".4711-{entry(tmp_path).name}"
    entry(tmp_path).rename(half)
    shelf.clear_before(3)
    assert half.exists()
    shelf.clear_before(4)
    assert list(tmp_path.iterdir()) == []


def test_no_more_is_kept_than_there_is_room_for(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "a", most_bytes=20_000)
    kept = [shelf.put(first, 4, torch.zeros(1000)) for first in range(8)]
    assert kept == [True] * 3 + [False] * 5
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    shelf.clear_before(10)
    assert shelf.put(20, 4, torch.zeros(1000))


def test_a_batch_that_only_code_could_read_back_is_not_kept(tmp_path: Path) -> None:
    assert not Shelf(tmp_path, "a").put(0, 4, {"object": Path("somewhere")})
    assert not Shelf(tmp_path, "a").put(0, 4, lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_has_gone_is_no_error(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "gone", "a")
    assert not shelf.put(0, 4, batch())
    assert shelf.take(0, 4) is None
    shelf.clear_before(9)


@pytest.mark.parametrize("parts", [("a", 1), ("b", 1), ("a", 2), ("a1",)])
def test_fingerprints_tell_their_parts_apart(parts: tuple[object, ...]) -> None:
    assert (fingerprint(*parts) == fingerprint("a", 1)) is (parts == ("a", 1))
