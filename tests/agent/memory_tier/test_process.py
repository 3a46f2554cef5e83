"""A memory tier's process and its agent: plans, reports, faults, its end, and what it finds when it begins again."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import stat
import time
from pathlib import Path

import pytest

from everstep.protocol import FaultOutcome
from everstep.tiers import CopiesReport, CopyStatus, TierReport
from tests.agent.memory_tier.hands import KIB, leased, save_step
from tests.checkpoint.tiers import memory_tiers, planned, until

MIB = 1 << 20


def tier_reports(node):
    return [report for report in node.reports if isinstance(report, TierReport)]


def note_of(node):
    return next((report.note for report in reversed(tier_reports(node))), None)


def copies(node, status=CopyStatus.SEALED):
    """(step, index) of everything that was told so."""
    told = [report for report in node.reports if isinstance(report, CopiesReport)]
    return {(report.step, copy.index) for report in told for copy in report.copies if copy.status is status}


def test_a_tier_tells_its_budget_and_what_it_holds(tmp_path):
    with memory_tiers(tmp_path, memory_mib=400, allocation_percent=25) as (node,):
        until(lambda: any(one.allocated_bytes == 100 * MIB for one in tier_reports(node)), "the budget")
        save_step(node, 10)
        until(lambda: copies(node) == {(10, 0), (10, 1)}, "both shards are told")
        worlds = {report.world_size for report in node.reports if isinstance(report, CopiesReport)}
        assert worlds <= {None, 1}
        assert 1 in worlds


def test_without_a_plan_a_tier_is_off_and_tells_so(tmp_path):
    with memory_tiers(tmp_path, allocation_percent=None) as (node,):
        report = until(lambda: tier_reports(node), "a report")[-1]
        assert (report.allocated_bytes, report.used_bytes) == (0, 0)
        assert not node.socket.exists()
        assert not node.folder.exists()


def test_a_plan_turns_a_tier_on_and_off_and_its_memory_is_given_back(tmp_path):
    with memory_tiers(tmp_path, allocation_percent=None) as tiers:
        node = tiers[0]
        tiers.tell(allocation_percent=25)
        until(node.socket.exists, "the hand-over")
        save_step(node, 10)
        with node.talk() as ask:
            opened = ask("open", index=0, step=20, nbytes=100)
            assert "segment" in opened
            tiers.tell(allocation_percent=None)
            until(lambda: not node.folder.exists(), "the memory is given back")
            with pytest.raises((OSError, AssertionError)):
                ask("status")
        until(lambda: (tier_reports(node)[-1].plan, tier_reports(node)[-1].used_bytes) == (tiers.plan.number, 0), "that it is off")
        assert copies(node, CopyStatus.DROPPED) >= {(10, 0), (10, 1)}
        assert node.is_alive


def test_a_tier_that_was_killed_serves_by_its_last_plan_without_any_agent(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        save_step(node, 10, content=b"x" * 300 * KIB)
        node.kill()
        node.start()
        with node.talk() as ask:
            (found,) = ask("find", step=None, limit=3)["steps"]
            assert found["step"] == 10
            assert leased(ask, 0, 10) == b"x" * 300 * KIB


def test_what_a_new_process_does_not_find_again_is_told_to_be_gone(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        save_step(node, 10)
        save_step(node, 20)
        until(lambda: len(copies(node)) == 4, "all shards are told")
        node.kill()
        next((node.folder / "ns/ns/10").glob("0-*.json")).unlink()
        node.reports.clear()
        node.start()
        until(lambda: copies(node) == {(10, 1), (20, 0), (20, 1)}, "what is left")
        assert copies(node, CopyStatus.DROPPED) == {(10, 0)}


def test_an_agent_that_connects_is_told_everything_anew(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        save_step(node, 10)
        until(lambda: len(copies(node)) == 2, "both shards are told")
        node._detach()
        node.reports.clear()
        node._attach()
        until(lambda: copies(node) == {(10, 0), (10, 1)} and tier_reports(node), "everything")


def test_a_smaller_percentage_takes_the_oldest_and_says_so(tmp_path):
    with memory_tiers(tmp_path, memory_mib=100, allocation_percent=40) as tiers:
        node = tiers[0]
        for step in (10, 20, 30):
            save_step(node, step, content=bytes([step]) * 9 * MIB)
        until(lambda: len(copies(node)) == 6, "all shards are told")
        tiers.tell(allocation_percent=20)
        report = until(lambda: [one for one in tier_reports(node) if one.plan == tiers.plan.number and one.note], "a note")[-1]
        assert "ns/10" in report.note
        assert report.allocated_bytes == 20 * MIB
        assert report.used_bytes <= 20 * MIB
        with node.talk() as ask:
            assert leased(ask, 0, 30) == bytes([30]) * 9 * MIB
            assert "missing" in ask("lease", index=0, step=10, save="s10")


def test_a_step_that_is_deleted_goes_and_an_ended_namespace_goes_whole(tmp_path):
    with memory_tiers(tmp_path) as tiers:
        node = tiers[0]
        save_step(node, 10)
        save_step(node, 20)
        tiers.tell(namespaces=(planned(replicas=1, dropped=(10,)),))
        until(lambda: copies(node, CopyStatus.DROPPED) == {(10, 0), (10, 1)}, "step 10 goes")
        tiers.tell(namespaces=(), ended=("ns",))
        until(lambda: copies(node, CopyStatus.DROPPED) >= {(20, 0), (20, 1)}, "the rest goes")


def test_a_corrupted_shard_is_found_and_given_up(tmp_path):
    with memory_tiers(tmp_path, environment={"EVERSTEP_MEMORY_TIER_SCRUB_S": "0.2"}) as (node,):
        save_step(node, 10)
        report = node.strike(kind="corrupt-shard", namespace="ns", step=10, index=0)
        assert report.outcome is FaultOutcome.STRUCK
        until(lambda: (10, 0) in copies(node, CopyStatus.CORRUPT), "the scrub finds it")
        with node.talk() as ask:
            assert "missing" in ask("lease", index=0, step=10, save="s10")
            assert ask("find", step=None, limit=1)["steps"] == []


def test_a_fault_that_cannot_strike_says_why(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        report = node.strike(kind="corrupt-shard", namespace="ns", step=10, index=0)
        assert (report.outcome, report.note) == (
            FaultOutcome.MISSED,
            "this node holds no byte of shard 0 of step 10 of namespace ns",
        )


def test_a_term_signal_ends_a_tier_and_leaves_its_shards(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        save_step(node, 10)
        node.signal(signal.SIGTERM)
        assert node._process.returncode == 0
        assert not node.socket.exists()
        node.start()
        with node.talk() as ask:
            assert len(ask("find", step=None, limit=1)["steps"]) == 1


def test_sockets_and_the_kept_plan_are_their_owners_alone(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        for path in (node.socket, node.home / "control.sock", until_there(node.home / "memory_tier" / "plan.json")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(node.folder.stat().st_mode) == 0o700


def until_there(path):
    until(path.exists, f"{path} is there")
    return path


def test_nonsense_from_an_agent_costs_nothing(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        node._agent.sendall(
            b'garbage\n[1]\nnull\n{"plan": {"number": "x"}}\n{"plan": 7}\n{"fault": {}}\n{"plan": {"peers": 5, "number": 9}}\n'
        )
        report = node.strike(kind="nonsense")
        assert report.outcome is FaultOutcome.MISSED
        save_step(node, 10)


def test_an_idle_tier_costs_no_processor(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        save_step(node, 10)
        until(lambda: copies(node), "it has told")
        before = processor_s(node.pid)
        time.sleep(3)  # what is measured is that nothing happens
        assert processor_s(node.pid) - before < 0.6


def processor_s(pid):
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_a_tier_whose_address_is_taken_says_so_and_begins_when_it_is_free(tmp_path):
    with memory_tiers(tmp_path, allocation_percent=None) as tiers:
        node = tiers[0]
        with socket.create_server((node.address, 9200)):
            tiers.tell(allocation_percent=25)
            note = until(lambda: note_of(node), "a note")
            assert "Address already in use" in note
            assert tier_reports(node)[-1].allocated_bytes == 0
        until(node._serves, "the tier serves")
        until(lambda: tier_reports(node)[-1].note is None, "the note goes")
        save_step(node, 10)


def test_an_object_store_that_cannot_be_is_said_and_costs_nothing_else(tmp_path):
    with memory_tiers(tmp_path, allocation_percent=None, environment={"EVERSTEP_OBJECT_STORE_URL": "nonsense://x"}) as tiers:
        tiers.tell(allocation_percent=25)
        note = until(lambda: note_of(tiers[0]), "a note")
        assert "nonsense" in note
        assert tiers[0].is_alive


def test_a_wait_does_not_keep_a_tier_from_being_turned_off(tmp_path):
    with memory_tiers(tmp_path) as tiers:
        save_step(tiers[0], 10)
        with tiers[0].talk() as ask, concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(ask, "wait", step=10, replicas=2, durable=False, seconds=25)
            tiers.tell(allocation_percent=None)
            until(lambda: not tiers[0].folder.exists(), "the tier is off", patience_s=15)
            assert waiting.exception(timeout=30) is not None or waiting.result() is not None
