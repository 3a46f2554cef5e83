"""What the demonstration concludes from what it saw."""

from datetime import UTC, datetime

import pytest

from everstep.demo.console import spark
from everstep.demo.ledger import Ledger
from everstep.demo.picture import draw

KILLED = 1_000.0


def told(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def member(rank, source, **phases):
    return {
        "rank": rank,
        "process_id": f"p-{rank}",
        "instance_id": f"i-{rank}",
        "source": source,
        "phases": {name: KILLED + at for name, at in phases.items()},
    }


def generation(number, decided, first_step, *members):
    return {
        "number": number,
        "step": 10 * number,
        "evidence_at": told(KILLED + 0.02),
        "decided_at": told(KILLED + decided),
        "first_step_at": None if first_step is None else told(KILLED + first_step),
        "members": list(members),
    }


@pytest.fixture
def ledger():
    first = generation(1, -50.0, -49.0, member(0, "initial"), member(1, "initial"))
    second = generation(
        2, 0.1, 0.5, member(0, "kept", grouped=0.2, transferred=0.3), member(1, "peer", grouped=0.25, transferred=0.29)
    )
    job = {"generations": [first, second], "step": 40, "steps_lost": 0, "loss_first": 4.0, "loss_last": 2.0, "goodput": 0.9}
    steps = [{"number": number, "loss": 4.0 - number / 20} for number in range(40)]
    return Ledger("arn", "job-1", ["i-0", "i-1"], job | {"world_size": 2, "processes": []}, steps, "i-9", KILLED)


def test_each_phase_ends_with_its_slowest_member(ledger):
    assert ledger.timeline() == {"detected": 0.02, "decided": 0.1, "reformed": 0.25, "transferred": 0.3, "first step": 0.5}


def test_a_generation_that_was_decided_before_the_kill_is_no_recovery(ledger):
    ledger.job["generations"].pop()
    assert ledger.after_kill is None
    assert ledger.timeline() == {}
    assert ledger.restored_from() is None


def test_a_generation_that_came_to_nothing_is_passed_over(ledger):
    ledger.job["generations"].insert(1, generation(2, 0.05, None, member(0, None)))
    assert ledger.after_kill["decided_at"] == told(KILLED + 0.1)


def test_the_dearest_source_is_named(ledger):
    assert ledger.restored_from() == "peer"
    ledger.job["generations"][1]["members"][0]["source"] = "store"
    assert ledger.restored_from() == "store"


def test_the_summary_has_every_member_of_the_contract(ledger):
    contract = {"cluster_arn", "job_id", "nodes", "steps", "nodes_killed", "steps_lost", "detected_s", "resumed_s", "restored_from"}
    assert ledger.summary().keys() >= contract | {"survivor_pids_kept", "loss_first", "loss_last", "goodput"}


def test_claims_that_a_run_has_not_shown_are_named(ledger):
    ledger.survivor_pids_kept, ledger.replaced_at = True, KILLED + 5.0
    assert ledger.broken_claims() == []
    ledger.job |= {"steps_lost": 1, "loss_last": 4.5}
    ledger.replaced_at = None
    assert ledger.broken_claims() == ["no completed step is lost", "the killed node is replaced", "the loss falls"]


def test_the_picture_is_a_page(ledger, tmp_path):
    draw(ledger, tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("values", "line"), [([], ""), ([1.0], "▁"), ([0.0, 1.0], "▁█"), ([3.0, 2.0, 1.0], "█▅▁")])
def test_a_spark_line_spans_from_the_lowest_to_the_highest_value(values, line):
    assert spark(values) == line


def test_a_long_spark_line_is_thinned_to_its_width():
    assert len(spark([float(number) for number in range(1_000)], width=48)) <= 48
