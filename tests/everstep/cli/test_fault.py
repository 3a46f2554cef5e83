"""``everstep fault`` as a user types it, against a real API and a real agent."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from models.job.states import ProcessState
from models.session import Sessions
from tests.agent.test_loop_against_the_control_plane import SLEEP, assign, until
from tests.everstep.cli.conftest import Type
from tests.live import Host, Place, Work, wait_for


def test_faults_are_injected_listed_and_cleared(
    type_: Type, hosted: Host, place: Place, work: Work, sessions: Sessions, tmp_path: Path
):
    assign(sessions, place, work, SLEEP, tmp_path)
    hosted.start()
    until(sessions, work, ProcessState.STARTED)
    hung = json.loads(type_("fault", "hang-rank", f"{work.job_id}/0", "--seconds", "60", "--json").stdout)
    assert (hung["status"], hung["seconds"], hung["instance_id"]) == ("Wanted", 60.0, place.instance_id)

    def states() -> list[str]:
        return [fault["status"] for fault in json.loads(type_("fault", "list", "--json").stdout)["faults"]]

    wait_for(lambda: states() == ["Holding"])
    assert "hang-rank" in type_("fault", "list").stdout
    assert json.loads(type_("fault", "clear", "--json").stdout)["faults"][0]["fault_id"] == hung["fault_id"]
    wait_for(lambda: states() == ["Ended"])
    killed = type_("fault", "kill-rank", f"{work.job_id}/0").stdout.strip()
    assert killed.startswith("fault-")
    assert until(sessions, work, ProcessState.EXITED).signal == signal.SIGKILL
    wait_for(lambda: states() == ["Struck", "Ended"])
    assert "Struck" in type_("fault", "clear", killed).stdout


REFUSED = [
    (("kill-rank",), "TARGET is missing"),
    (("kill-rank", "job-nothing/0"), "job-nothing"),
    (("bucket-outage", "some-bucket"), "object-store"),
    (("corrupt-shard", "job-1/x"), "JOB_ID/STEP/SHARD"),
    (("spot-notice", "i-nothing"), "i-nothing"),
    (("xid", "i-nothing", "--seconds", "3"), "does not last"),
    (("partition", "i-nothing", "--code", "74"), "no fault of an accelerator"),
    (("slow-node", "i-nothing", "--seconds", "7200"), "3600 seconds at the most"),
    (("kill-rank", "job-1/0", "--seconds", "3"), "does not last"),
    (("list", "job-nothing"), "job-nothing"),
    (("list", "--seconds", "3"), "--seconds"),
    (("clear", "../jobs"), "no id of a fault"),
    (("clear", "fault-nothing"), "fault-nothing"),
]


def test_what_cannot_be_done_is_one_clear_line_and_exit_code_2(type_: Type):
    for words, message in REFUSED:
        result = type_("fault", *words)
        assert (result.exit_code, message in result.stderr, result.stderr.count("\n")) == (2, True, 1), words
