"""How many copies of a state live, and what the worst fault costs, in words."""

from __future__ import annotations

from typing import Any

import pytest

from api.operations.redundancy import Redundancy, Told, of_job


def told(*, replicas: int = 2, processes: int = 1, told: Told | None = None, has_tier: bool = True, **spec: Any) -> Redundancy:
    return of_job(spec, replicas=replicas, processes=processes, told=told, has_tier=has_tier)


def test_a_single_process_has_no_redundancy_and_loses_what_no_checkpoint_holds():
    found = told(replicas=1, checkpoint={"memory_every": 10, "durable_every": 500, "replicas": 2})
    assert (found.copies, found.worst_loss) == (1, None)
    assert (found.warning or "").startswith("no redundancy")
    assert "10 steps" in found.words
    assert "500 steps" in found.words


def test_without_a_memory_tier_nothing_is_said_of_checkpoints_in_memory():
    assert "in memory" not in told(replicas=1, has_tier=False).words


def test_a_script_under_process_recovery_has_no_redundancy_however_many_ranks_it_has():
    assert (told(replicas=8, recovery="process").warning or "").startswith("no redundancy")


def test_processes_of_one_node_are_no_redundancy_against_its_loss():
    assert "loss of a node" in (told(replicas=1, processes=8).warning or "")
    assert told(replicas=2, processes=8).warning is None


def test_a_job_that_may_shrink_to_one_process_is_warned_of_that_size():
    assert "least size" in (told(replicas=4, elastic={"min": 1, "max": 4}).warning or "")
    assert told(replicas=4, elastic={"min": 2, "max": 4}).warning is None


@pytest.mark.parametrize(
    ("ranks", "copies", "loss", "words"),
    [
        (
            Told(4, 0, 4),
            4,
            0,
            "4 copies of each part of the state live in the ranks on 4 nodes: the loss of one costs no committed step.",
        ),
        (
            Told(2, 3, 4),
            2,
            3,
            "2 copies of each part of the state live in the ranks on 4 nodes: the loss of one costs at most 3 steps.",
        ),
    ],
)
def test_what_the_ranks_say_replaces_what_could_be_expected(ranks: Told, copies: int, loss: int, words: str):
    found = told(replicas=4, told=ranks)
    assert (found.copies, found.worst_loss, found.warning) == (copies, loss, None)
    assert found.words.startswith(words)
    assert told(replicas=4).copies is None


def test_ranks_that_hold_one_copy_are_warned_of_whatever_was_expected():
    assert (told(replicas=4, told=Told(1, 0, 4)).warning or "").startswith("no redundancy")
