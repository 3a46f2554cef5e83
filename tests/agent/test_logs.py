"""Logs of processes, told a little at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.logs import MOST_BYTES, Logs
from agent.processes import Record
from everstep.protocol import LogReport


@pytest.fixture
def record(tmp_path: Path) -> Record:
    (tmp_path / "processes").mkdir()
    (tmp_path / "p.log").touch()
    record = Record(job="j", process="p", log=str(tmp_path / "p.log"), pid=1, start_time=1)
    record.write(tmp_path / "processes" / "p.json")
    return record


def write(record: Record, text: str) -> None:
    with Path(record.log).open("a") as log:
        log.write(text)


def test_whole_lines_are_told_once(tmp_path: Path, record: Record):
    told: list[LogReport] = []
    logs = Logs(tmp_path, told.append)
    write(record, "one\ntw")
    logs.look()
    logs.look()
    write(record, "o\n")
    logs.look()
    assert [report.text for report in told] == ["one\n", "two\n"]


def test_half_a_line_is_told_when_its_process_has_ended(tmp_path: Path, record: Record):
    told: list[LogReport] = []
    logs = Logs(tmp_path, told.append)
    write(record, "the last words")
    logs.look()
    assert told == []
    replace(record, has_exited=True).write(tmp_path / "processes" / "p.json")
    logs.look()
    assert [report.text for report in told] == ["the last words"]


def test_the_last_words_of_a_process_that_has_been_forgotten_meanwhile_are_told_once(tmp_path: Path, record: Record):
    told: list[LogReport] = []
    logs = Logs(tmp_path, told.append)
    write(record, "one\n")
    logs.look()
    write(record, "two\nthree")
    (tmp_path / "processes" / "p.json").unlink()
    logs.look()
    logs.look()
    assert [report.text for report in told] == ["one\n", "two\nthree"]


def test_a_log_that_grows_too_fast_is_told_from_its_end_and_the_rest_is_counted(tmp_path: Path, record: Record):
    told: list[LogReport] = []
    logs = Logs(tmp_path, told.append)
    write(record, "0123456789abcde\n" * (MOST_BYTES // 4))
    logs.look()
    [report] = told
    assert len(report.text) <= MOST_BYTES
    assert report.skipped + len(report.text) == Path(record.log).stat().st_size


def test_a_restarted_agent_goes_on_where_the_one_before_stopped(tmp_path: Path, record: Record):
    told: list[LogReport] = []
    write(record, "before\n")
    Logs(tmp_path, told.append).look()
    write(record, "after\n")
    Logs(tmp_path, told.append).look()
    assert [report.text for report in told] == ["before\n", "after\n"]


def test_a_full_disk_ends_neither_the_telling_nor_repeats_it(tmp_path: Path, record: Record, caplog: pytest.LogCaptureFixture):
    told: list[LogReport] = []
    logs = Logs(tmp_path, told.append)
    (tmp_path / ".logs.json").mkdir()  # nothing can be kept
    for text in ("one\n", "two\n"):
        write(record, text)
        logs.look()
    assert [report.text for report in told] == ["one\n", "two\n"]
    assert "how far logs have been told" in caplog.text
