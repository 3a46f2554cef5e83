"""Clusters are created, scaled and deleted while processes of the control plane are killed at random; nothing may leak."""

import random
import threading

import pytest

from tests.system.stack import UNREACHABLE, ClientError, group, until

SERVICES = ("api", "worker-fast", "worker-slow", "beat", "relay", "valkey", "postgres")


MOST_KILLS = 3


class Killer:
    """Kills a few drawn services at drawn moments, from a thread of its own, until told to stop. What it did is in ``killed``."""

    def __init__(self, stack, rng):
        self.killed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(stack, rng))

    def _run(self, stack, rng):
        pause_s = rng.uniform(0.0, 0.3)  # the first comes before anything can have been reached
        while len(self.killed) < MOST_KILLS and not self._stop.wait(pause_s):
            service = rng.choice(SERVICES)
            stack.kill_service(service)
            self.killed.append(service)
            pause_s = rng.uniform(0.1, 2.0)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def insist(call, **arguments):
    """Calls until the control plane is there to answer. A call whose answer was lost may find its work done."""

    def answered():
        try:
            call(**arguments)
        except UNREACHABLE:
            return False
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in {"ResourceInUse", "ConflictException", "ResourceNotFound"}:
                return True
            raise
        return True

    until(f"an answer to {arguments}", answered, 60)


def play(stack, rng, number):
    """One round; returns the cluster's name, which is left or deleted by the draw."""
    name = f"chaos-{number}-{rng.randrange(10**6)}"
    insist(stack.sagemaker.create_cluster, ClusterName=name, InstanceGroups=[group("a", rng.randint(1, 2))])
    with Killer(stack, rng) as killer:
        until(f"{name} created", lambda: stack.status(name) == "InService", 90)
        wanted = rng.randint(1, 3)
        insist(stack.sagemaker.update_cluster, ClusterName=name, InstanceGroups=[group("a", wanted)])
    stack.await_ready()
    until(f"{name} scaled", lambda: stack.status(name) == "InService" and len(stack.running(name)) == wanted, 90)
    with Killer(stack, rng) as last:
        insist(stack.sagemaker.delete_cluster, ClusterName=name)
        until(f"{name} deleted", lambda: stack.status(name) == "gone", 90)
    return killer.killed + last.killed


def check_nothing_leaked(stack):
    stack.await_ready()
    known = set()
    for summary in stack.sagemaker.list_clusters()["ClusterSummaries"]:
        known |= {node["InstanceId"] for node in stack.nodes(summary["ClusterName"])}
    until("the provider's nodes are the cluster's nodes", lambda: stack.hosts() == known, 30)


@pytest.mark.timeout(300)
def test_a_round_of_kills_leaks_no_node(stack):
    _rounds(stack, 1, seed=random.SystemRandom().randrange(10**6))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_thirty_rounds_of_kills_leak_no_node(stack):
    _rounds(stack, 30, seed=random.SystemRandom().randrange(10**6))


def _rounds(stack, rounds, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    killed = [service for number in range(rounds) for service in play(stack, rng, number)]
    print(f"{rounds} rounds, {len(killed)} kills: { {service: killed.count(service) for service in SERVICES} }")
    assert killed
    check_nothing_leaked(stack)
