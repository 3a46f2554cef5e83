from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from models.ids import ProcessId
from models.job import logs
from models.job.table import Job, JobProcess, ProcessLog
from tests import rows


@pytest.fixture
def process(session: Session) -> JobProcess:
    job = rows.job(session, rows.cluster(session))
    return rows.processes(session, job, 1)[0]


def told(session: Session, process: JobProcess) -> ProcessLog:
    ((_, log),) = logs.of_job(session, process.job_id)
    assert log is not None
    return log


def test_a_process_that_has_said_nothing_has_no_log(session: Session, process: JobProcess) -> None:
    assert logs.of_job(session, process.job_id) == [(process, None)]


def test_what_a_process_writes_is_appended_and_counted_in_bytes(session: Session, process: JobProcess) -> None:
    logs.report_log(session, process.id, "schön\n", skipped=0, now=rows.NOW)
    logs.report_log(session, process.id, "two\n", skipped=0, now=rows.NOW)
    assert (told(session, process).text, told(session, process).end) == ("schön\ntwo\n", 11)


def test_a_gap_is_shown_where_it_was(session: Session, process: JobProcess) -> None:
    logs.report_log(session, process.id, "one\n", skipped=0, now=rows.NOW)
    logs.report_log(session, process.id, "two\n", skipped=100, now=rows.NOW)
    assert (told(session, process).text, told(session, process).end) == ("one\n[100 bytes left out]\ntwo\n", 108)


def test_the_end_of_a_long_log_is_kept_in_whole_lines(session: Session, process: JobProcess) -> None:
    for _ in range(3):
        logs.report_log(session, process.id, "".join(f"line {number}\n" for number in range(4000)), skipped=0, now=rows.NOW)
    text = told(session, process).text
    assert len(text) <= logs.KEPT
    assert text.startswith("line ")
    assert text.endswith("line 3999\n")


def test_a_line_that_is_longer_than_all_that_is_kept_is_cut(session: Session, process: JobProcess) -> None:
    logs.report_log(session, process.id, "x" * (logs.KEPT + 5), skipped=0, now=rows.NOW)
    assert told(session, process).text == "x" * logs.KEPT


def test_the_words_of_a_stranger_are_not_kept(session: Session) -> None:
    logs.report_log(session, ProcessId("p-unknown"), "hello\n", skipped=0, now=rows.NOW)
    assert session.get(Job, "job-unknown") is None
    assert session.query(ProcessLog).count() == 0


def test_bytes_that_are_no_text_do_not_stop_a_log(session: Session, process: JobProcess) -> None:
    logs.report_log(session, process.id, "a\x00b\ud800\n", skipped=0, now=rows.NOW)
    session.expire_all()
    assert told(session, process).text == "a\N{REPLACEMENT CHARACTER}b?\n"
