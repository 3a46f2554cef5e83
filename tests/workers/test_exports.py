"""Real programs, which stand for the exporter: what matters here is how they are begun, looked at, and end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed.checkpoint as dcp

from everstep import TieredWriter
from everstep.checkpoint.tiers import Tiers
from workers.exports import Broken, ExportOrder, Exports, Running, Vanished, Written

ORDER = ExportOrder("export-1", "file:///store/checkpoints", "ns", 40, "dcp", "file:///out")


def exports(tmp_path, script: str, **more) -> Exports:
    return Exports(tmp_path, {"PATH": os.environ["PATH"], "ALLOWED": "yes"}, program=(sys.executable, "-c", script), **more)


def ended(here: Exports, seconds: float = 30.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = here.look(ORDER.id)
        if not isinstance(found, Running):
            return found
        time.sleep(0.02)
    raise AssertionError("it does not end")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_step_in_the_object_store_is_written_by_the_real_program(tmp_path):
    """What the order says is what the library's exporter understands."""
    url = (tmp_path / "store" / "checkpoints").as_uri()
    tiers = Tiers.from_environment({"EVERSTEP_DURABLE_URL": url, "EVERSTEP_NAMESPACE": "ns"})
    state = {"weight": torch.arange(6, dtype=torch.float32).view(2, 3)}
    dcp.save(state, storage_writer=TieredWriter(40, durable=True, tiers=tiers), no_dist=True)
    tiers.close()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    here = Exports(tmp_path, environ)
    here.begin(replace(ORDER, source=url, target=(tmp_path / "out").as_uri()))
    found = ended(here, 100.0)
    assert isinstance(found, Written), found
    loaded = {"weight": torch.zeros(2, 3)}
    dcp.load(loaded, checkpoint_id=str(tmp_path / "out"), no_dist=True)
    assert torch.equal(loaded["weight"], state["weight"])


TELL = "import json, os, sys; print('working'); print(json.dumps({'argv': sys.argv[1:], 'env': sorted(os.environ)}))"


def test_an_export_is_told_its_order_by_arguments_and_its_result_is_read(tmp_path):
    here = exports(tmp_path, TELL)
    here.begin(ORDER)
    found = ended(here)
    assert isinstance(found, Written)
    words = ["--source", ORDER.source, "--namespace", "ns", "--step", "40", "--format", "dcp", "--to", ORDER.target]
    assert found.told["argv"] == words


def test_the_program_gets_the_environment_that_it_is_given_and_no_more(tmp_path):
    here = exports(tmp_path, TELL)
    here.begin(ORDER)
    assert set(ended(here).told["env"]) - {"LC_CTYPE"} == {"ALLOWED", "PATH"}


def test_a_program_that_fails_is_quoted(tmp_path):
    here = exports(tmp_path, "raise SystemExit('step 40 of ns is not in the object store')")
    here.begin(ORDER)
    assert ended(here) == Broken("step 40 of ns is not in the object store")


def test_a_program_that_fails_without_a_word_is_told_with_its_exit_code(tmp_path):
    here = exports(tmp_path, "raise SystemExit(7)")
    here.begin(ORDER)
    assert "exit code 7" in ended(here).why


def test_a_program_that_takes_too_long_is_ended(tmp_path):
    here = exports(tmp_path, "import time; time.sleep(100)", limit=timedelta(seconds=1))
    here.begin(ORDER)
    assert "exit code 124" in ended(here).why


def test_a_program_that_runs_is_not_begun_twice_and_another_worker_sees_it_too(tmp_path):
    here = exports(tmp_path, "import time; time.sleep(100)")
    here.begin(ORDER)
    pid = (tmp_path / "exports" / ORDER.id / "process").read_text()
    here.begin(ORDER)
    other = exports(tmp_path, TELL)
    assert isinstance(other.look(ORDER.id), Running)
    other.begin(ORDER)
    assert (tmp_path / "exports" / ORDER.id / "process").read_text() == pid
    os.killpg(int(pid.split()[0]), signal.SIGKILL)
    assert isinstance(ended(here), Broken)


def test_a_worker_that_has_not_begun_it_reads_the_result_of_one_that_has(tmp_path):
    here = exports(tmp_path, TELL)
    here.begin(ORDER)
    ended(here)
    assert isinstance(exports(tmp_path, TELL).look(ORDER.id), Written)


def test_a_program_that_vanished_is_told_with_how_often_it_was_begun(tmp_path):
    assert exports(tmp_path, TELL).look(ORDER.id) == Vanished(0)
    here = exports(tmp_path, "import time; time.sleep(100)")
    for number in (1, 2):
        here.begin(ORDER)
        os.killpg(int((tmp_path / "exports" / ORDER.id / "process").read_text().split()[0]), signal.SIGKILL)
        ended(here)
        assert exports(tmp_path, TELL).look(ORDER.id) == Vanished(number)


def test_a_number_that_another_process_was_given_since_is_not_taken_for_the_program(tmp_path):
    folder = tmp_path / "exports" / ORDER.id
    folder.mkdir(parents=True)
    (folder / "process").write_text(f"{os.getpid()} 1")
    assert isinstance(exports(tmp_path, TELL).look(ORDER.id), Vanished)


@pytest.mark.parametrize("output", ["", "not json", "[1]", json.dumps({"a": 1}) + "\nmore"])
def test_only_an_object_on_the_last_line_is_a_result(tmp_path, output):
    here = exports(tmp_path, f"print({output!r})")
    here.begin(ORDER)
    assert isinstance(ended(here), Broken)
