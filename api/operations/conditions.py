"""Use-cases of nodes' health: what is the matter with them, labels by hand, and the end of a hold."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.table import Cluster, InstanceGroup
from models.condition import changes, queries
from models.condition.changes import Finding
from models.condition.states import FaultClass, Source
from models.condition.table import Condition, RepairHold
from models.errors import Invalid, NotFound
from models.health.changes import UNFIT
from models.ids import ConditionId
from models.job import queries as jobs
from models.job.states import ALIVE
from models.job.table import JobProcess
from models.move import wake
from models.node import changes as node_changes
from models.node import queries as nodes
from models.node import wishes
from models.node.labels import HEALTH, OURS
from models.node.states import Schedulability
from models.node.table import Node
from models.paging import Cut, Page

FREE_FOR: Final = timedelta(minutes=10)
"""For how long nothing is held back in a group after somebody has said so."""
_CLOCKS: Final = timedelta(seconds=5)
"""By how much the clocks of a node and of the control plane may differ."""
_MOST_LABELS: Final = 50
_KEY: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_REPAIRS: Final = {
    Schedulability.PENDING_REBOOT.value: (FaultClass.REBOOT, "RebootRequested"),
    Schedulability.PENDING_REPLACEMENT.value: (FaultClass.REPLACE, "ReplacementRequested"),
}
_WORDS: Final = (*_REPAIRS, Schedulability.SCHEDULABLE.value)


@dataclass(frozen=True)
class HealthView:
    """``conditions`` are the newest of the node, over or not, newest first; ``hold`` keeps repairs of its group back, if there is one.

    ``withheld`` are the ids of those whose evidence the caller is not told.
    """

    node: Node
    conditions: Sequence[Condition]
    hold: RepairHold | None
    withheld: frozenset[ConditionId] = frozenset()


@dataclass(frozen=True)
class Labelling:
    """``node_id`` is an instance id or a logical id."""

    cluster: str
    node_id: str
    labels: Mapping[str, Any]
    removed: Sequence[str] = ()


def describe(work: Work, cluster: str, node_id: str) -> HealthView:
    """Raises NotFound: no such cluster, or no such node in it."""
    found = clusters.find(work.session, cluster)
    return _view(work, _node(work, found, node_id))


def listed(work: Work, cluster: str, cut: Cut, *, node_id: str | None, open_only: bool) -> Page[Condition]:
    """By a logical id, also those of the nodes that had the place before. Raises NotFound: no such cluster, or no such node in it."""
    found = clusters.find(work.session, cluster)
    node = None if node_id is None else _node(work, found, node_id)
    place = node.logical_id if node is not None and node_id != node.instance_id else None
    alone = node.id if node is not None and place is None else None
    return queries.listed(work.session, found.id, cut, place=place, node_id=alone, open_only=open_only)


def withheld(work: Work, rows: Sequence[Condition]) -> frozenset[ConditionId]:
    """Those of one cluster's conditions whose evidence names a process of which the caller knows nothing: on a shared cluster, another team's."""
    team = work.caller.team
    naming = [row for row in rows if row.pid is not None]
    if team is None or not naming or clusters.get(work.session, naming[0].cluster_id).team == team:
        return frozenset()
    ours: dict[str, list[JobProcess]] = defaultdict(list)
    for process in jobs.were_on(work.session, {row.node_id for row in naming}):
        ours[process.node_id].append(process)
    return frozenset(row.id for row in naming if not any(_was_there(process, row.at) for process in ours[row.node_id]))


def _was_there(process: JobProcess, at: datetime) -> bool:
    """A node works for one job at a time. Of the end of what a fault has ended we hear a moment later, by another clock."""
    return process.created_at <= at and (process.state in ALIVE or at <= process.state_since + _CLOCKS)


def label(work: Work, asked: Labelling) -> HealthView:
    """Puts labels on a node, and takes some off. The word of its health is a wish: the same follows as from a fault that was detected.

    Raises:
        NotFound: no such cluster, or no such node in it.
        Forbidden: the cluster is one that the caller may not change.
        Invalid: a name or a value that no label may have, a word of the node's health that nobody sets, or too many labels.
        InUse, InTransition: the node is being repaired already, or goes.
    """
    cluster = clusters.find(work.session, asked.cluster, lock=True)
    node = nodes.get(work.session, _node(work, cluster, asked.node_id).id, lock=True)
    _check(node, asked)
    wish = asked.labels.get(HEALTH)
    if wish is not None:
        _obey(work, node, wish)
    kept = {name: value for name, value in node.labels.items() if name not in asked.removed}
    node.labels = kept | {name: value for name, value in asked.labels.items() if name != HEALTH}
    names = ", ".join(sorted({*asked.labels, *asked.removed}))
    node_changes.record(work.session, node, "node labelled", f"{work.caller.name} set labels of the node: {names}.", work.now)
    wake(work.session, node, now=work.now)
    return _view(work, node)


def resume(work: Work, cluster: str, group: str) -> RepairHold:
    """Ends the hold of a group's repairs; for a while nothing is held back there.

    Raises:
        NotFound: no such cluster or group, or nothing is held back.
        Forbidden: the cluster is one that the caller may not change.
    """
    found = clusters.find(work.session, cluster, lock=True)
    row = next((one for one in clusters.groups(work.session, found.id) if one.name == group), None)
    if row is None:
        raise NotFound(kind="Instance group", name=group)
    hold = _hold(work, row)
    changes.request_resumption(
        work.session, hold, row.name, why=f"{work.caller.name} wants repairs to go on.", free_for=FREE_FOR, now=work.now
    )
    return hold


def _hold(work: Work, group: InstanceGroup) -> RepairHold:
    try:
        return queries.open_hold(work.session, group.id, lock=True)
    except NotFound as error:
        raise NotFound(kind="Hold of the repairs of instance group", name=group.name) from error


def _node(work: Work, cluster: Cluster, node_id: str) -> Node:
    by = {"instance_id": node_id} if node_id.startswith("i-") else {"logical_id": node_id}
    return nodes.of_place(work.session, cluster.id, **by)


def _view(work: Work, node: Node) -> HealthView:
    hold = queries.hold_of(work.session, node.group_id)
    rows = queries.of_node(work.session, node.id)
    return HealthView(node, rows, hold if hold is not None and hold.ended_at is None else None, withheld(work, rows))


def _check(node: Node, asked: Labelling) -> None:
    if not asked.labels and not asked.removed:
        raise Invalid(message="Labels: name at least one label to set, or one to take off in Removed.")
    for name, value in asked.labels.items():
        if name in OURS and name != HEALTH:
            raise Invalid(message=f"Labels: '{name}' follows from the node's conditions and cannot be set.")
        if not isinstance(value, str) or not _VALUE.fullmatch(value) or not _KEY.fullmatch(name):
            raise Invalid(
                message=f"Labels: '{name}' = '{value}' is no label; names and values are up to 63 letters, digits, '-', '_' and '.'."
            )
    if set(asked.removed) & OURS:
        raise Invalid(message=f"Removed: the node's health is always labelled; set '{HEALTH}' to {', '.join(_WORDS)}.")
    if len({*node.labels, *asked.labels} - set(asked.removed) - OURS) > _MOST_LABELS:
        raise Invalid(message=f"Labels: a node has at most {_MOST_LABELS} labels besides those of its health.")


def _obey(work: Work, node: Node, wish: str) -> None:
    if wish not in _WORDS:
        raise Invalid(message=f"Labels: '{HEALTH}' is set to {', '.join(_WORDS)}, not to '{wish}'.")
    wishes.check_free(node, "a repair")
    if wish == Schedulability.SCHEDULABLE.value:
        changes.settle_all_over(work.session, node, why=f"{work.caller.name} says that all is well.", now=work.now)
        if node.held_for == UNFIT:
            node_changes.settle_held(work.session, node, None, now=work.now)
        return
    fault_class, reason = _REPAIRS[wish]
    finding = Finding(
        occurrence=f"label:{_stamp(work.now)}",
        fault_class=fault_class,
        code=f"label:{wish}",
        type="LabelledByHand",
        reason=reason,
        evidence=f"{work.caller.name} set the label {HEALTH}={wish}.",
        at=work.now,
        source=Source.OPERATOR,
    )
    changes.report_fault(work.session, node, finding, now=work.now)


def _stamp(now: datetime) -> str:
    return now.isoformat()
