"""The shepherd with a stand-in for the agent's module, so that what it starts does what a test needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE
from tests.patience import PATIENCE

SHEPHERD = Path(__file__).parents[2] / "agent" / "shepherd.py"


def until(claim, what: str, seconds: float = 10.0):
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := claim()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


class Node:
    """A node whose ``agent`` package holds the given program."""

    def __init__(self, place: Path, program: str, python: str) -> None:
        self.place = place
        self.id = f"i-{uuid.uuid4().hex[:17]}"
        package = place / "code" / "agent"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(program)
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(place / "code"),
            NODE_ID_VARIABLE: self.id,
            "EVERSTEP_HOST_DIR": str(place),
            "EVERSTEP_AGENT_STATE": str(place),
        }
        subprocess.run([python, "-I", "-S", str(SHEPHERD)], env=environ, cwd=place, check=True, timeout=20)

    @property
    def shepherd(self) -> procfs.ProcessKey:
        key = json.loads((self.place / "shepherd.json").read_text())
        return procfs.ProcessKey(key["pid"], key["started"])

    def lines(self, name: str) -> list[str]:
        try:
            return (self.place / name).read_text().splitlines()
        except FileNotFoundError:
            return []

    def alive(self) -> list[procfs.ProcessKey]:
        return list(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == self.id))


@pytest.fixture
def node(tmp_path):
    nodes = []

    def start(program: str, python: str = sys.executable) -> Node:
        nodes.append(Node(tmp_path, program, python))
        return nodes[-1]

    yield start
    for one in nodes:
        while left := one.alive():
            procfs.send(left, signal.SIGKILL)
            procfs.await_end(left, 5)


COUNT = "import os, pathlib\nwith open(pathlib.Path.cwd() / 'starts', 'a') as f: f.write(f'{os.getpid()}\\n')\n"


def test_an_agent_that_ends_is_started_again_and_ever_more_slowly(node):
    here = node(COUNT)
    until(lambda: len(here.lines("starts")) >= 3, "three starts")
    time.sleep(0.5)
    assert len(here.lines("starts")) <= 5


def test_an_agent_that_cannot_be_started_for_a_while_is_started_later(node, tmp_path):
    """As while the interpreter is being replaced, or without memory for a new process. Training runs on meanwhile."""
    python = tmp_path / "python"
    python.symlink_to(Path(sys.executable).resolve())
    here = node(COUNT + "import time; time.sleep(60)\n", str(python))
    first = int(until(lambda: here.lines("starts"), "a start")[0])
    python.rename(tmp_path / "away")
    os.kill(first, signal.SIGKILL)
    time.sleep(0.6)
    assert procfs.is_alive(here.shepherd)
    (tmp_path / "away").rename(python)
    until(lambda: len(here.lines("starts")) == 2, "a second start")


def test_the_exit_of_an_orphan_is_noted_with_its_status(node):
    orphan = (
        "import os\nif os.fork() == 0:\n    if os.fork(): os._exit(0)\n    import time; time.sleep(0.3); os._exit(7)\nos.wait()\n"
    )
    here = node(orphan + "import time; time.sleep(60)\n")
    told = until(lambda: here.lines("exits.jsonl"), "a note")
    assert os.waitstatus_to_exitcode(json.loads(told[0])["status"]) == 7


def test_a_killed_orphan_is_noted_with_its_signal(node):
    program = (
        "import os, pathlib, subprocess, sys, time\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    pathlib.Path('orphan.new').write_text(str(child.pid)); os.rename('orphan.new', 'orphan'); os._exit(0)\n"
        "os.wait(); time.sleep(60)\n"
    )
    here = node(program)
    orphan = int(until(lambda: here.lines("orphan"), "an orphan")[0])
    os.kill(orphan, signal.SIGKILL)
    told = json.loads(until(lambda: here.lines("exits.jsonl"), "a note")[0])
    assert told["pid"] == orphan
    assert os.waitstatus_to_exitcode(told["status"]) == -signal.SIGKILL


def test_asked_to_end_it_ends_everything_of_the_node_even_what_refuses(node):
    stubborn = (
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '60'])\n"
    )
    here = node(stubborn + "time.sleep(60)\n")
    until(lambda: len(here.alive()) == 3, "three processes")
    os.kill(here.shepherd.pid, signal.SIGTERM)
    until(lambda: not here.alive(), "an end")


def test_a_child_that_hides_its_node_id_is_ended_as_well(node):
    here = node(
        "import subprocess, time\nprint(1)\np = subprocess.Popen(['sleep', '61'], env={})\nopen('hidden', 'w').write(str(p.pid))\ntime.sleep(60)\n"
    )
    hidden = procfs.key_of(int(until(lambda: here.lines("hidden"), "a child")[0]))
    os.kill(here.shepherd.pid, signal.SIGTERM)
    until(lambda: not here.alive() and not procfs.is_alive(hidden), "an end")


def test_the_node_ends_when_the_agent_says_that_it_has_been_released(node):
    here = node("import subprocess, sys\nsubprocess.Popen(['sleep', '60'])\nsys.exit(64)\n")
    until(lambda: not here.alive(), "an end")
