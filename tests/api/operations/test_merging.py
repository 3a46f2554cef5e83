"""Random lives of clusters at the use-cases, against a model of what merging by name means."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy.orm import Session

from api.auth import Caller
from api.operations import clusters
from api.operations.clusters import ClusterChange
from api.operations.work import Work
from models.cluster import changes, queries
from models.cluster.changes import ClusterSpec
from models.cluster.states import ClusterState, GroupState
from models.errors import Immutable, InTransition, Invalid, NotFound
from tests.rows import NOW, group_spec

NAMES = ("a", "b", "c", "d")
COUNTS = st.integers(0, 5)
WISHES = st.dictionaries(st.sampled_from(NAMES), COUNTS, max_size=4)
_numbers = itertools.count()


def specs(wish: dict[str, int], **members: Any) -> tuple[Any, ...]:
    wire = {"InstanceType": "ml.c5.xlarge", "ExecutionRole": "role"} | members
    return tuple(
        group_spec(name, count, spec=wire | {"InstanceGroupName": name, "InstanceCount": count}) for name, count in wish.items()
    )


class Lives(RuleBasedStateMachine):
    """``wanted`` maps the live groups to their targets, in order; ``leaving`` are those on their way out."""

    session: Session

    @initialize(wish=WISHES.filter(bool), is_continuous=st.booleans())
    def create(self, wish: dict[str, int], is_continuous: bool) -> None:
        self.name = f"merging-{next(_numbers)}"
        self.work = Work(self.session, NOW, "us-east-1", Caller("123456789012", "test"))
        self.is_continuous = is_continuous
        self.is_busy = True
        self.wanted, self.leaving = dict(wish), set[str]()
        clusters.create(self.work, ClusterSpec(self.name, is_continuous, {}, specs(wish)))

    @rule(wish=WISHES, doomed=st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    def update(self, wish: dict[str, int], doomed: list[str]) -> None:
        kept = [name for name in {**self.wanted, **wish} if name not in doomed]
        is_legal = (
            not self.is_busy and not set(wish) & (set(doomed) | self.leaving) and set(doomed) <= set(self.wanted) | self.leaving
        )
        change = ClusterChange(self.name, specs(wish), tuple(doomed))
        try:
            clusters.update(self.work, change)
        except (InTransition, Invalid):
            assert not is_legal or (doomed and not kept)
            return
        assert is_legal
        is_change = any(self.wanted.get(name) != count for name, count in wish.items()) or bool(doomed)
        self.wanted = {name: count for name, count in {**self.wanted, **wish}.items() if name not in doomed}
        self.leaving |= set(doomed)
        self.is_busy = is_change and not self.is_continuous

    @rule(wish=WISHES.filter(bool))
    def an_immutable_member_never_changes(self, wish: dict[str, int]) -> None:
        try:
            clusters.update(
                self.work,
                ClusterChange(self.name, specs({name: wish[name] for name in wish if name in self.wanted}, ExecutionRole="x")),
            )
        except (Immutable, InTransition):
            return
        assert not set(wish) & set(self.wanted)

    @precondition(lambda self: self.is_busy or self.leaving or self.is_continuous)
    @rule()
    def settle(self) -> None:
        cluster = queries.find(self.session, self.name, lock=True)
        for group in queries.groups(self.session, cluster.id):
            end = GroupState.GONE if group.state is GroupState.DELETING else GroupState.IN_SERVICE
            if group.state is not end:
                changes.settle_group(self.session, cluster, group, end, why="settled", now=NOW)
        if cluster.state is not ClusterState.IN_SERVICE:
            changes.settle_cluster(self.session, cluster, ClusterState.IN_SERVICE, why="settled", now=NOW)
        self.is_busy, self.leaving = False, set()

    @rule()
    def fail_a_node(self) -> None:
        cluster = queries.find(self.session, self.name, lock=True)
        for group in queries.groups(self.session, cluster.id):
            if group.state is GroupState.IN_SERVICE:
                changes.settle_group(self.session, cluster, group, GroupState.DEGRADED, why="below target", now=NOW)

    @invariant()
    def what_is_described_is_what_was_wished_for(self) -> None:
        view = clusters.describe(self.work, self.name)
        shown = {g.group.name: g.group.target_count for g in view.groups if g.group.state is not GroupState.DELETING}
        assert list(shown.items()) == list(self.wanted.items())
        assert {g.group.name for g in view.groups if g.group.state is GroupState.DELETING} == self.leaving
        rows = queries.groups(self.session, view.cluster.id)
        assert [row.position for row in rows] == sorted({row.position for row in rows})
        assert [row.name for row in rows] == [g.group.name for g in view.groups]

    def teardown(self) -> None:
        if not hasattr(self, "name"):
            return
        try:
            clusters.delete(self.work, self.name)
        except InTransition:
            assert self.is_busy
            assert not self.is_continuous
            self.settle()
            clusters.delete(self.work, self.name)
        clusters.delete(self.work, self.name)
        cluster = queries.find(self.session, self.name, lock=True)
        changes.settle_cluster(self.session, cluster, ClusterState.DELETED, why="every node is gone", now=NOW)
        try:
            clusters.describe(self.work, self.name)
        except NotFound:
            return
        raise AssertionError("a deleted cluster is described")


def test_random_lives_of_clusters_keep_to_what_merging_by_name_means(session: Session):
    machine = type("LivesInOneTransaction", (Lives,), {"session": session})
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=20, stateful_step_count=12, deadline=None, suppress_health_check=checks)
    )
