from __future__ import annotations

from datetime import timedelta

from workers import sweep
from workers.plane import Plane


def small(plane) -> Plane:
    return Plane(plane.sessions, plane.clock, plane.driver, plane.provider)


def test_only_kinds_with_rows_that_are_due_are_swept(plane):
    cluster_id = plane.cluster()
    assert sweep.ripe_kinds(small(plane)) == ["cluster"]
    asked = []
    assert sweep.sweep(small(plane), "cluster", lambda *row: asked.append(row)) == 1
    assert asked == [("cluster", cluster_id)]
    assert sweep.ripe_kinds(small(plane)) == []


def test_a_node_without_beats_is_asked_for_although_nobody_woke_it(plane):
    cluster_id = plane.serving(2)
    plane.work()
    silent = plane.nodes(cluster_id)[0]
    plane.dead.add(silent.instance_id)
    for _ in range(14):
        plane.agents()
        plane.clock.at += timedelta(seconds=0.5)
    asked = []
    sweep.sweep(small(plane), "node", lambda *row: asked.append(row))
    assert asked == [("node", silent.id)]
