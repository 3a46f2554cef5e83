"""The hand-over with a real tier: every ask of ``everstep.handover``, refusals in words, locks and leases that end with their holders."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import signal
import socket
import subprocess
import sys

import pytest

from everstep.shards import STAMP_BYTES
from tests.agent.memory_tier.hands import KIB, leased, save_step, write_shard
from tests.checkpoint.tiers import ROOT, TOKEN, memory_tiers, planned, until

MIB = 1 << 20


@pytest.fixture(scope="module")
def tiers(tmp_path_factory):
    with memory_tiers(
        tmp_path_factory.mktemp("tiers"), memory_mib=256, namespaces=[planned(), planned("other", token="its own")]
    ) as tiers:
        yield tiers


@pytest.fixture
def node(tiers):
    """Empty, and alive."""
    tiers.tell(namespaces=(), ended=("ns", "other"))
    until(lambda: not list(tiers[0].folder.glob("ns/*")), "the namespaces are gone")
    number = tiers.plan.number
    tiers.tell(namespaces=(planned(memory_every=number), planned("other", token="its own")), ended=())
    until(lambda: policy(tiers[0]).get("memory_every") == number, "the plan has come")
    return tiers[0]


def policy(node):
    with node.talk() as ask:
        return ask("status").get("policy") or {}


def test_a_hello_tells_the_policy_and_the_budget(node):
    with node.talk() as ask:
        told = ask("status")
        assert told["node"] == "n0"
        assert told["policy"]["job"] == "job-ns"
        assert told["budget"]["allocated"] == 64 * MIB
        assert told["newest_durable_step"] is None
        assert told["outage"] is None


def test_a_namespace_of_another_job_is_refused(node):
    with node.talk("other") as ask:
        refused = ask("open", index=0, step=1, nbytes=10)["refused"]
    assert "hello" in refused
    with node.talk("other", token="its own") as ask:
        assert "segment" in ask("open", index=0, step=1, nbytes=10)


def test_the_words_of_a_refused_hello_name_the_namespace_and_no_token(node):
    with node.talk("other", token="wrong") as ask:
        refused = ask("hello", namespace="other", token="wrong")["refused"]
        assert "other" in refused
        assert "its own" not in refused


def test_a_segment_is_handed_over_filled_sealed_and_leased(node):
    with node.talk() as ask:
        seal = write_shard(ask, 3, 10, b"abc" * 1000, is_durable=True)["seal"]
        assert (seal["index"], seal["step"], seal["size"], seal["save"], seal["is_durable"]) == (3, 10, 3000, "s10", True)
        assert leased(ask, 3, 10) == b"abc" * 1000


def test_a_descriptor_comes_only_for_a_segment_that_is_not_mapped_yet(node):
    with node.talk() as ask:
        first = ask("open", index=0, step=1, nbytes=100)
        (descriptor,) = first["descriptors"]
        mapped = mmap.mmap(os.dup(descriptor), STAMP_BYTES + first["capacity"])
        mapped[STAMP_BYTES : STAMP_BYTES + 3] = b"one"
        ask("seal", segment=first["segment"], nbytes=3)
        with node.talk() as other:
            assert leased(other, 0, 1, save="") == b"one"
        ask("discard", after=0)
        steps = itertools.count(2)

        def opened_again():
            step = next(steps)
            again = ask("open", index=0, step=step, nbytes=100, mapped=[first["segment"]])
            return (step, again) if again["segment"] == first["segment"] else None

        step, again = until(opened_again, "the other one's lease has ended with its conversation")
        assert "descriptors" not in again
        mapped[STAMP_BYTES : STAMP_BYTES + 3] = b"two"
        ask("seal", segment=again["segment"], nbytes=3)
        assert leased(ask, 0, step, save="") == b"two"
        mapped.close()


def test_reserved_segments_stand_ready_and_a_reserve_that_is_too_large_says_why(node):
    with node.talk() as ask:
        assert ask("reserve", index=0, nbytes=4 * MIB, count=4)["reserved"] == 4
        told = ask("reserve", index=1, nbytes=16 * MIB, count=9)
        assert told["reserved"] < 9
        assert "InstanceMemoryAllocationPercentage" in told["why"]


def test_a_save_without_room_is_refused_in_words_and_the_conversation_goes_on(node):
    with node.talk() as ask:
        refused = ask("open", index=0, step=1, nbytes=100 * MIB)["refused"]
        assert "100.0 MiB" in refused
        assert "64.0 MiB" in refused
        assert "segment" in ask("open", index=0, step=1, nbytes=MIB)


def test_an_abandoned_segment_cannot_be_sealed(node):
    with node.talk() as ask:
        opened = ask("open", index=0, step=1, nbytes=10)
        assert ask("abandon", segment=opened["segment"]) == {}
        assert "not open" in ask("seal", segment=opened["segment"], nbytes=10)["refused"]


def test_a_segment_of_another_conversation_cannot_be_sealed(node):
    with node.talk() as ask, node.talk() as other:
        opened = ask("open", index=0, step=1, nbytes=10)
        assert "not open" in other("seal", segment=opened["segment"], nbytes=10)["refused"]


def test_only_complete_steps_are_found_newest_first(node):
    save_step(node, 10)
    save_step(node, 20)
    with node.talk() as ask:
        write_shard(ask, 0, 30, b"no metadata")
        steps = ask("find", step=None, limit=9)["steps"]
        assert [one["step"] for one in steps] == [20, 10]
        assert steps[0]["shards"] == [[{"node": "n0", "address": node.address, "port": 9200}]] * 2
        assert [one["step"] for one in ask("find", step=10, limit=1)["steps"]] == [10]
        assert ask("find", step=30, limit=1)["steps"] == []


def test_steps_after_the_one_that_training_went_back_to_are_gone(node):
    for step in (10, 20, 30):
        save_step(node, step)
    with node.talk() as ask:
        assert ask("discard", after=10)["discarded"] == [20, 30]
        assert [one["step"] for one in ask("find", step=None, limit=9)["steps"]] == [10]
        save_step(node, 20, save="anew")
        assert [one["step"] for one in ask("find", step=None, limit=9)["steps"]] == [20, 10]


def test_a_step_that_is_to_be_durable_is_waited_for(node):
    save_step(node, 10, is_durable=True)
    with node.talk() as ask:
        assert ask("wait", step=10, replicas=1, durable=True, seconds=20) == {"replicas": 1, "is_durable": True}
        told = ask("status")
        assert told["newest_durable_step"] == 10
        assert 0 <= told["age_of_last_durable_step_s"] < 30
        assert ask("find", step=10, limit=1)["steps"][0]["is_durable"]


def test_a_wait_ends_when_its_time_is_over(node):
    save_step(node, 11)
    with node.talk() as ask:
        assert ask("wait", step=11, replicas=2, durable=True, seconds=0.1) == {"replicas": 1, "is_durable": False}


@pytest.mark.parametrize(
    "asked",
    [
        {"ask": "open"},
        {"ask": "open", "index": -1, "step": 1, "nbytes": 1},
        {"ask": "open", "index": "0", "step": 1, "nbytes": 1},
        {"ask": "open", "index": 0, "step": True, "nbytes": 1},
        {"ask": "open", "index": 0, "step": 1, "nbytes": 1, "kind": "nonsense"},
        {"ask": "open", "index": 0, "step": 1, "nbytes": 1, "mapped": 7},
        {"ask": "seal"},
        {"ask": "seal", "segment": [1], "nbytes": 1},
        {"ask": "lease", "index": 0},
        {"ask": "discard", "after": "x"},
        {"ask": "wait", "step": 1, "seconds": "x"},
        {"ask": "reserve", "index": 0, "nbytes": 1, "count": -1},
        {"ask": "nonsense"},
        {"ask": None},
        {},
        {"ask": ["open"]},
        {"ask": "hello"},
        {"ask": "hello", "namespace": "../x", "token": ""},
    ],
    ids=str,
)
def test_a_request_that_cannot_be_read_is_refused_and_the_conversation_goes_on(node, asked):
    with node.talk() as ask:
        assert "refused" in ask(**{"ask": None, **asked})
        assert "node" in ask("status")


@pytest.mark.parametrize("said", [b"garbage\n", b"[]\n", b"\xff\xfe\n", b"[" * 10_000 + b"\n", b"half a line"])
def test_what_is_no_message_ends_that_conversation_alone(node, said):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(node.socket))
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10)
        assert connection.recv(100) == b""
    with node.talk() as ask:
        assert "node" in ask("status")


HOLDER = """
import fcntl, json, os, socket, sys, time
from everstep.handover import Conversation
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(sys.argv[1])
talk = Conversation(connection)
def ask(**message):
    talk.say(message)
    return talk.hear()
ask(ask="hello", namespace="ns", token=sys.argv[2], protocol=1)
answer, descriptors = ask(**json.loads(sys.argv[3]))
if "path" in answer:
    fcntl.flock(descriptors[0], fcntl.LOCK_EX)
print(answer["segment"], flush=True)
time.sleep(1000)
"""


def holder(node, asked):
    """A process that holds what it has asked for until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(node.socket), TOKEN, asked],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_segment_under_a_lease_is_left_alone_until_its_reader_is_killed(node):
    save_step(node, 10, content=b"a" * 5 * MIB)
    reader, segment = holder(node, '{"ask": "lease", "index": 0, "step": 10, "save": "s10"}')
    with node.talk() as ask:
        ask("discard", after=0)
        others = [ask("open", index=0, step=20 + number, nbytes=5 * MIB)["segment"] for number in range(2)]
        assert segment not in others
        end(reader)
        assert ask("open", index=0, step=30, nbytes=5 * MIB)["segment"] == segment


def test_a_killed_writer_gives_its_segment_back_and_a_stopped_one_keeps_it(node):
    asked = f'{{"ask": "open", "index": 0, "step": 10, "nbytes": {5 * MIB}, "save": "x"}}'
    writer, segment = holder(node, asked)
    writer.send_signal(signal.SIGSTOP)
    with node.talk() as ask:
        assert ask("open", index=0, step=10, nbytes=5 * MIB)["segment"] != segment
        end(writer)
        until(lambda: ask("open", index=0, step=10, nbytes=5 * MIB).get("segment") == segment, "the segment comes back")


def test_a_writer_whose_tier_was_killed_keeps_its_segment_locked_from_the_next_tier(tiers, node):
    asked = f'{{"ask": "open", "index": 0, "step": 10, "nbytes": {5 * MIB}, "save": "x"}}'
    writer, segment = holder(node, asked)
    node.kill()
    node.start()
    with node.talk() as ask:
        assert ask("open", index=0, step=10, nbytes=5 * MIB)["segment"] != segment
        end(writer)
        assert ask("open", index=0, step=10, nbytes=5 * MIB)["segment"] == segment


def test_a_tier_that_has_no_room_never_costs_its_writer_more_than_an_answer(node):
    """Criterion TC-1: beyond the budget a save is refused; what was mapped before stays mapped, and nobody is killed."""
    with node.talk() as ask:
        opened = []
        while "segment" in (answer := ask("open", index=len(opened), step=1, nbytes=8 * MIB)):
            opened.append(answer)
        assert 6 <= len(opened) <= 8
        used = sum(path.stat().st_blocks * 512 for path in node.folder.rglob("*") if path.is_file())
        assert used <= 64 * MIB + 64 * KIB
        for answer in opened:
            with mmap.mmap(answer["descriptors"][0], STAMP_BYTES + answer["capacity"]) as mapped:
                mapped[STAMP_BYTES:] = b"\xff" * answer["capacity"]
        assert all("seal" in ask("seal", segment=answer["segment"], nbytes=8 * MIB) for answer in opened)
        assert ask("status")["budget"]["used"] <= 64 * MIB


def test_the_lock_of_a_writer_is_not_in_the_way_of_the_seal(node):
    with node.talk() as ask:
        opened = ask("open", index=0, step=10, nbytes=100, save="s10")
        fcntl.flock(opened["descriptors"][0], fcntl.LOCK_EX)
        assert "seal" in ask("seal", segment=opened["segment"], nbytes=100)
