from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from models.errors import IllegalMove, NotFound, Unauthenticated
from models.events import Event
from models.ids import digest
from models.node import changes, hosts, queries
from models.node.beats import Heartbeat, report_beats
from models.node.changes import Arrival
from models.node.states import NodeState
from models.node.table import Node
from models.session import Sessions, unit_of_work
from tests import rows

NOW = rows.NOW
SECOND = timedelta(seconds=1)


def arrive(session: Session, node: Node, boot: str = "boot-2", *, token: str = "t2", port: int = 4000, **facts: object) -> None:
    arrival = Arrival(boot=boot, address="127.77.9.9", rendezvous_port=port, facts=facts)
    changes.report_registered(session, node, arrival, node_token=token, now=NOW + SECOND)


def beat(node: Node, sequence: int, *, boot: str = "boot-1", at: int | None = None) -> Heartbeat:
    return Heartbeat(node_id=node.id, boot=boot, sequence=sequence, at=NOW + (sequence if at is None else at) * SECOND)


def test_a_node_is_wanted_before_it_is_launched(session: Session) -> None:
    node = rows.node(session, rows.cluster(session), state=NodeState.REQUESTED)
    assert (node.state, node.is_wanted, node.instance_id, node.reconcile_at) == (NodeState.REQUESTED, True, None, NOW)


def test_a_replacement_takes_over_the_place_of_the_one_before(session: Session) -> None:
    cluster = rows.cluster(session)
    old = rows.node(session, cluster)
    group = rows.clusters.groups(session, cluster.id)[0]
    new = changes.settle_wanted_node(session, group, logical_id=old.logical_id, now=NOW)
    assert new.logical_id == old.logical_id
    assert new.id != old.id


@pytest.mark.parametrize("state", [NodeState.BOOTING, NodeState.REBOOTING, NodeState.UPDATING])
def test_an_agent_that_comes_up_brings_its_node_to_its_checks(session: Session, state: NodeState) -> None:
    cluster = rows.cluster(session)
    node = rows.node(session, cluster, state=NodeState.BOOTING if state is NodeState.BOOTING else NodeState.READY)
    if state is not NodeState.BOOTING:
        changes.settle_node(session, node, NodeState.DRAINING, why="Asked for.", now=NOW)
        changes.settle_node(session, node, state, why="Asked for.", now=NOW)
    arrive(session, node, vcpus=8)
    assert (node.state, node.address, node.rendezvous_port) == (NodeState.CHECKING, "127.77.9.9", 4000)
    assert node.facts["vcpus"] == 8


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.CHECKING])
def test_an_agent_that_was_only_restarted_leaves_its_nodes_state_alone(session: Session, state: NodeState) -> None:
    node = rows.node(session, rows.cluster(session), state=state)
    arrive(session, node, vcpus=8, gpus=1)
    assert (node.state, node.reconcile_at) == (state, NOW + SECOND)
    assert (node.facts["vcpus"], node.facts["gpus"]) == (8, 1)


def test_a_new_boot_starts_its_sequences_afresh_and_a_repeated_one_does_not(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    node.report_sequence, node.beat_sequence = 41, 17
    arrive(session, node, "boot-1")
    assert (node.report_sequence, node.beat_sequence) == (41, 17)
    arrive(session, node, "boot-2")
    assert (node.report_sequence, node.beat_sequence, node.boot) == (-1, -1, "boot-2")


def test_a_nodes_token_is_kept_as_a_digest_and_replaces_the_one_before(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    arrive(session, node, token="first")
    arrive(session, node, token="second")
    assert node.node_token_digest == digest("second")
    assert queries.by_token(session, "second") is node
    with pytest.raises(Unauthenticated):
        queries.by_token(session, "first")


def test_a_node_that_is_gone_is_found_by_nobody(session: Session) -> None:
    cluster = rows.cluster(session)
    node = rows.node(session, cluster)
    arrive(session, node, token="mine")
    rows.release(session, node)
    with pytest.raises(Unauthenticated):
        queries.by_token(session, "mine")
    with pytest.raises(NotFound):
        queries.by_instance(session, str(node.instance_id))
    assert queries.of_cluster(session, cluster.id) == []
    assert (node.state, node.reconcile_at) == (NodeState.GONE, None)


def test_a_loss_is_concluded_from_suspicion_alone(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    with pytest.raises(IllegalMove):
        changes.settle_lost(session, node, witnesses="two peers", now=NOW)
    changes.settle_node(session, node, NodeState.SUSPECT, why="Silent.", now=NOW)
    changes.settle_lost(session, node, witnesses="two peers", now=NOW)
    assert (node.state, node.is_wanted, node.lost_because) == (NodeState.RELEASING, False, "two peers")


def test_a_release_is_asked_for_once_and_wakes_the_node(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    for turn in (1, 2):
        changes.settle_unwanted(session, node, why="Scaled down.", now=NOW + turn * SECOND)
    assert (node.is_wanted, node.reconcile_at) == (False, NOW + 2 * SECOND)
    assert len(session.scalars(select(Event.id).where(Event.name == "release requested")).all()) == 1


def test_a_failed_lifecycle_script_leaves_its_last_words(session: Session) -> None:
    node = rows.node(session, rows.cluster(session), state=NodeState.CHECKING)
    changes.report_lifecycle(session, node, exit_code=7, tail="x" * 900 + "no such module\x00", now=NOW)
    session.refresh(node)
    assert not node.lifecycle_done
    assert node.message is not None
    assert node.message.startswith("Lifecycle script failed with exit code 7: xxx")
    assert "no such module" in node.message


def test_the_beginning_of_a_lifecycle_script_is_told_once_a_try_and_changes_nothing(session: Session) -> None:
    node = rows.node(session, rows.cluster(session), state=NodeState.CHECKING)
    changes.report_lifecycle_started(session, node, script="on_create.sh", attempt=1, now=NOW)
    changes.report_lifecycle_started(session, node, script="on_create.sh", attempt=2, now=NOW + SECOND)
    changes.report_lifecycle(session, node, exit_code=0, tail="", script="on_create.sh", now=NOW + SECOND)
    changes.report_lifecycle_started(session, node, script="on_create.sh", attempt=3, now=NOW + 2 * SECOND)
    told = session.scalars(select(Event.description).where(Event.name == "lifecycle started").order_by(Event.sequence)).all()
    assert told == ["Lifecycle script on_create.sh started.", "Lifecycle script on_create.sh started (try 2)."]
    assert (node.state, node.message) == (NodeState.CHECKING, None)


def test_a_lifecycle_script_that_has_succeeded_does_not_fail_later(session: Session) -> None:
    node = rows.node(session, rows.cluster(session), state=NodeState.CHECKING)
    changes.report_lifecycle(session, node, exit_code=0, tail="", now=NOW)
    changes.report_lifecycle(session, node, exit_code=1, tail="late", now=NOW)
    assert (node.lifecycle_done, node.message, node.facts["lifecycle_exit_code"]) == (True, None, 0)


def test_a_closed_stream_is_a_fact_and_no_conclusion(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    changes.report_stream(session, node, is_open=False, now=NOW + SECOND)
    assert (node.state, node.stream_lost_at, node.reconcile_at) == (NodeState.READY, NOW + SECOND, NOW + SECOND)
    changes.report_stream(session, node, is_open=True, now=NOW + 2 * SECOND)
    assert (node.stream_lost_at, node.last_seen) == (None, NOW + 2 * SECOND)


def test_beats_never_go_backwards(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    report_beats(session, [beat(node, 5)])
    report_beats(session, [beat(node, 3), beat(node, 4, at=90)])
    session.refresh(node)
    assert (node.beat_sequence, node.last_seen) == (5, NOW + 5 * SECOND)
    report_beats(session, [beat(node, 6, at=1)])
    session.refresh(node)
    assert (node.beat_sequence, node.last_seen) == (6, NOW + 5 * SECOND)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_of_several_beats_in_a_batch_the_newest_counts(session: Session, order: tuple[int, ...]) -> None:
    node = rows.node(session, rows.cluster(session))
    report_beats(session, [beat(node, sequence) for sequence in order])
    session.refresh(node)
    assert (node.beat_sequence, node.last_seen) == (3, NOW + 3 * SECOND)


def test_a_beat_of_another_boot_is_no_sign_of_life(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    report_beats(session, [beat(node, 9, boot="boot-0"), beat(node, 1)])
    session.refresh(node)
    assert (node.beat_sequence, node.last_seen) == (1, NOW + SECOND)


def test_an_empty_batch_of_beats_is_no_error(session: Session) -> None:
    report_beats(session, [])


def test_beats_leave_state_and_version_alone(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    before = (node.state, node.version, node.reconcile_at)
    report_beats(session, [beat(node, 1)])
    session.refresh(node)
    assert (node.state, node.version, node.reconcile_at) == before


def test_processes_that_flush_beats_at_once_do_not_deadlock(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        fleet = rows.nodes(session, rows.cluster(session), 30)
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def flush(offset: int) -> None:
        try:
            start.wait(timeout=10)
            for sequence in range(20):
                batch = [beat(node, sequence * 4 + offset) for node in (fleet if offset % 2 else reversed(fleet))]
                with unit_of_work(sessions) as session:
                    report_beats(session, batch)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=flush, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors
    with sessions() as session:
        assert {node.beat_sequence for node in queries.of_cluster(session, fleet[0].cluster_id)} == {79}


def test_the_type_of_a_host_that_has_been_launched_by_now_is_not_changed_nor_is_it_put_off(session: Session) -> None:
    node = rows.node(session, rows.cluster(session), state=NodeState.BOOTING)
    before = (node.instance_type, dict(node.facts), node.message)
    hosts.settle_other_type(session, node, "ml.m5.xlarge", why="It costs less.", is_at_once=True, now=NOW)
    hosts.settle_put_off(session, node, until=NOW + SECOND, why="It costs too much.", now=NOW)
    assert (node.instance_type, node.facts, node.message) == before
    assert not session.scalars(select(Event).where(Event.name.in_(("another type", "launch put off")))).all()
