"""Whether what a job holds would be of use to one that waits."""

from __future__ import annotations

import pytest

from models.ids import JobId, NodeId
from models.job.table import Job
from workers.plans.job_seen import NodeSeen
from workers.reconcilers.job_size import Claim, is_of_use

ELASTIC = {"elastic": {"min": 2, "max": 4}}


def seen(own: int, free: int, held: int = 0, *, group: str = "workers") -> dict[NodeId, NodeSeen]:
    names = [
        *(f"own-{one}" for one in range(own)),
        *(f"free-{one}" for one in range(free)),
        *(f"held-{one}" for one in range(held)),
    ]
    return {NodeId(name): NodeSeen(NodeId(name), group, age, is_held=name.startswith("held")) for age, name in enumerate(names)}


@pytest.mark.parametrize(
    ("own", "free", "replicas", "spec", "is_used"),
    [
        (2, 0, 2, {}, True),
        (2, 1, 3, {}, True),
        (2, 0, 3, {}, False),  # it would wait on
        (2, 3, 3, {}, False),  # it starts without them, in a moment
        (1, 1, 4, ELASTIC, True),
        (1, 0, 4, ELASTIC, False),
        (0, 1, 2, {}, False),
    ],
)
def test_nodes_are_given_back_for_a_job_that_can_start_with_them_and_not_without(
    own: int, free: int, replicas: int, spec: dict, is_used: bool
):
    nodes = seen(own, free, held=5)
    claim = Claim(Job(id=JobId("job-other"), replicas=replicas, spec=spec), frozenset())
    assert is_of_use(claim, nodes, frozenset(name for name in nodes if name.startswith("own"))) is is_used


def test_nodes_of_groups_that_the_other_job_may_not_use_are_of_no_use_to_it():
    nodes = seen(2, 0)
    job = Job(id=JobId("job-other"), replicas=2, spec={})
    assert is_of_use(Claim(job, frozenset({"workers"})), nodes, frozenset(nodes))
    assert not is_of_use(Claim(job, frozenset({"others"})), nodes, frozenset(nodes))
