"""The kernel's log is followed over overruns, rotations and restarts; each line has a place that stays its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.accelerators.kernel_log import File, Kmsg


@dataclass
class Records:
    """A device like ``/dev/kmsg``: a read returns one record. A pipe that keeps writes apart."""

    path: Path
    writer: int

    def say(self, sequence: int, text: str) -> None:
        os.write(self.writer, f"3,{sequence},{sequence * 1_000_000},-;{text}\n DEVICE=+pci:0000:3b:00.0\n".encode())


@pytest.fixture
def records() -> Iterator[Records]:
    reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    yield Records(Path(f"/proc/self/fd/{reader}"), writer)
    os.close(reader)
    os.close(writer)


def test_records_are_read_with_their_time_and_without_their_context(records: Records) -> None:
    log = Kmsg(records.path, None, boot="b", started=1000.0)
    records.say(7, "NVRM: Xid (PCI:0000:3b:00): 79, gone")
    lines = log.read()
    log.close()
    assert [(line.text, line.place, line.at) for line in lines] == [("NVRM: Xid (PCI:0000:3b:00): 79, gone", "b:7", 1007.0)]


def test_what_was_told_is_not_read_again_in_the_same_boot(records: Records) -> None:
    for sequence in (1, 2, 3):
        records.say(sequence, f"line {sequence}")
    log = Kmsg(records.path, "b:2", boot="b", started=0.0)
    assert [line.text for line in log.read()] == ["line 3"]
    assert log.place() == "b:3"
    log.close()


@pytest.mark.parametrize(
    ("after", "wanted"), [(None, ["line 3"]), ("another:9", ["line 3"]), ("b:1", ["line 2", "line 3"]), ("b:3", [])]
)
def test_what_an_operator_has_cleared_is_settled_unless_its_reading_has_begun(
    records: Records, after: str | None, wanted: list[str]
) -> None:
    def seek(descriptor: int, offset: int, whence: int) -> int:
        """As the kernel's: to the first record after the last clearing, here that of lines 1 and 2."""
        assert (offset, whence) == (0, os.SEEK_DATA)
        for _ in range(2):
            os.read(descriptor, 8192)
        return 0

    for sequence in (1, 2, 3):
        records.say(sequence, f"line {sequence}")
    log = Kmsg(records.path, after, boot="b", started=0.0, seek=seek)
    assert [line.text for line in log.read()] == wanted
    log.close()


def test_records_of_a_new_boot_begin_at_nought_again(records: Records) -> None:
    records.say(0, "line 0")
    log = Kmsg(records.path, "another:2", boot="b", started=0.0)
    assert [line.place for line in log.read()] == ["b:0"]
    log.close()


def test_nothing_to_read_is_no_wait(records: Records) -> None:
    log = Kmsg(records.path, None, boot="b", started=0.0)
    assert log.read() == []
    log.close()


def test_an_overrun_goes_on_with_the_oldest_record(tmp_path: Path) -> None:
    answers = iter([b"3,1,0,-;one\n", OSError(errno.EPIPE, "overrun"), b"3,900,0,-;later\n", BlockingIOError()])

    def read(_descriptor: int, _size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    (tmp_path / "kmsg").touch()
    log = Kmsg(tmp_path / "kmsg", None, boot="b", started=0.0, read=read)
    assert [line.text for line in log.read()] == ["one", "later"]
    log.close()


def test_a_record_of_another_form_is_read_as_text(records: Records) -> None:
    os.write(records.writer, b"NVRM: Xid (PCI:0000:3b:00): 79 without a head")
    log = Kmsg(records.path, "b:5", boot="b", started=0.0)
    assert [line.text for line in log.read()] == ["NVRM: Xid (PCI:0000:3b:00): 79 without a head"]
    log.close()


def test_a_log_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Kmsg(tmp_path / "absent", None, boot="b", started=0.0).read()
    with pytest.raises(FileNotFoundError):
        File(tmp_path / "absent", None, from_start=True).read()


def test_a_file_is_read_as_it_grows_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    log = File(path, None, from_start=True, may_be_missing=True)
    assert log.read() == []
    path.write_text("one\ntw")
    assert [line.text for line in log.read()] == ["one"]
    with path.open("a") as more:
        more.write("o\n")
    assert [line.text for line in log.read()] == ["two"]
    log.close()


def test_what_a_file_had_before_its_first_reading_may_be_of_no_interest(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    log = File(path, None, from_start=False)
    assert log.read() == []
    with path.open("a") as more:
        more.write("new\n")
    assert [line.text for line in log.read()] == ["new"]
    log.close()


def test_a_file_goes_on_after_a_restart_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("one\n")
    first = File(path, None, from_start=True)
    places = [line.place for line in first.read()]
    kept = first.place()
    first.close()
    with path.open("a") as more:
        more.write("two\n")
    again = File(path, kept, from_start=True)
    assert [line.text for line in again.read()] == ["two"]
    again.close()
    from_new = File(path, None, from_start=True)
    assert [line.place for line in from_new.read()][:1] == places
    from_new.close()


def test_a_file_that_is_rotated_is_read_to_its_end_and_the_new_one_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("one\n")
    log = File(path, None, from_start=True)
    log.read()
    with path.open("a") as more:
        more.write("last\n")
    path.rename(tmp_path / "kern.log.1")
    path.write_text("first\n")
    assert [line.text for line in log.read()] == ["last", "first"]
    log.close()


def test_a_file_that_is_cut_off_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("a long line\n")
    log = File(path, None, from_start=True)
    log.read()
    with path.open("r+") as cut:
        cut.truncate(0)
        cut.write("new\n")
    assert [line.text for line in log.read()] == ["new"]
    log.close()


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"x" * 200_000 + b"\nNVRM: Xid\n")
    log = File(path, None, from_start=True)
    texts = [line.text for line in log.read()]
    assert max(len(text) for text in texts) <= 65_536
    assert texts[-1] == "NVRM: Xid"
    log.close()


def test_bytes_that_are_no_text_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"\xff\xfe NVRM: Xid \x00\n")
    log = File(path, None, from_start=True)
    assert "NVRM: Xid" in log.read()[0].text
    log.close()
