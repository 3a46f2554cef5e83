"""`down` and the processes of local nodes, which belong to nobody else."""

import subprocess
import sys

import pytest

from everstep.embedded import control, leftovers, procfs
from everstep.embedded.home import Home

NODE = "i-0123456789abcdef0"


@pytest.fixture
def home(tmp_path):
    made = Home.at(tmp_path / "home")
    made.create()
    return made


@pytest.fixture
def start():
    """Starts a process that sleeps, with an environment, and sees to its end."""
    started = []

    def start_one(environment, program="import time; print('up', flush=True); time.sleep(60)"):
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, start_new_session=True)
        process.stdout.readline()
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_an_agent_is_known_by_its_state_directory(home, start):
    agent = start({"EVERSTEP_NODE_ID": NODE, "EVERSTEP_AGENT_STATE": str(home.hosts / NODE / "agent")})
    assert control.shut_down(home).nodes == 1
    assert not procfs.is_alive(agent.pid)


def test_a_training_process_with_a_scrubbed_environment_is_known_by_its_node(home, start):
    (home.hosts / NODE).mkdir()
    rank = start({"EVERSTEP_NODE_ID": NODE})
    assert leftovers.end_nodes(home) == 1
    assert not procfs.is_alive(rank.pid)


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(home, start):
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    stubborn = start({"EVERSTEP_NODE_ID": NODE, "EVERSTEP_AGENT_STATE": str(home.hosts / NODE)}, program)
    assert leftovers.end_nodes(home, grace_seconds=0.2) == 1
    assert not procfs.is_alive(stubborn.pid)


def test_two_processes_of_a_node_count_as_one_node(home, start):
    (home.hosts / NODE).mkdir()
    start({"EVERSTEP_NODE_ID": NODE})
    start({"EVERSTEP_NODE_ID": NODE})
    assert leftovers.end_nodes(home) == 1


def test_nodes_of_another_home_and_processes_of_nobody_are_left_alone(home, start, tmp_path):
    other = start({"EVERSTEP_NODE_ID": NODE, "EVERSTEP_AGENT_STATE": str(tmp_path / "other" / "hosts" / NODE)})
    nobody = start({})
    assert leftovers.end_nodes(home) == 0
    assert procfs.is_alive(other.pid)
    assert procfs.is_alive(nobody.pid)


def test_a_node_is_no_service_although_its_environment_came_from_one(home, start):
    node = start({"EVERSTEP_STACK_HOME": str(home.root), "EVERSTEP_NODE_ID": NODE})
    service = start({"EVERSTEP_STACK_HOME": str(home.root)})
    assert leftovers.end_services(home, None) == 1
    assert not procfs.is_alive(service.pid)
    assert procfs.is_alive(node.pid)


def test_memory_of_the_home_s_nodes_and_of_dead_ones_is_given_back_and_that_of_live_ones_kept(home, start, tmp_path):
    dead, ours, alive = "i-00000000000000001", "i-00000000000000002", NODE
    for name in (dead, ours, alive, "not-a-node"):
        (tmp_path / "memory" / name / "ns").mkdir(parents=True)
        (tmp_path / "memory" / f"{name}.batches" / "job-1").mkdir(parents=True)
    (home.hosts / ours).mkdir()
    start({"EVERSTEP_NODE_ID": alive})
    leftovers.give_memory_back(home, tmp_path / "memory")
    assert sorted(folder.name for folder in (tmp_path / "memory").iterdir()) == [
        alive,
        f"{alive}.batches",
        "not-a-node",
        "not-a-node.batches",
    ]
