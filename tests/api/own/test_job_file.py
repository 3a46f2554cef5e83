"""The job file: what is wrong with it is named."""

from __future__ import annotations

import difflib
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.own import job_checkpoint, job_file
from everstep import documents
from everstep.tiers import Retention
from models.checkpoint.policy import Policy, policy_of
from models.errors import Invalid, Unsupported
from models.job.stragglers import are_replaced

SMALLEST = {"name": "j", "cluster": "c", "command": ["python", "train.py"], "working_dir": "/work", "replicas": 2}
EVERYTHING = SMALLEST | {
    "processes_per_node": 2,
    "env": {"LR": "0.1"},
    "instance_groups": ["workers"],
    "spares": 1,
    "max_restarts": 0,
    "seed": 7,
    "recovery": "in-process",
    "stragglers": "replace",
    "checkpoint": {
        "memory_every": 10,
        "durable_every": 50,
        "replicas": 3,
        "keep": {"memory": 4, "last": 5, "every": 1000, "max_age": "7d", "max_bytes": 10**12},
        "namespace": "llama-7b",
    },
    "elastic": {
        "min": 1,
        "max": 4,
        "step": 1,
        "scaling_timeout": "2m",
        "graceful_timeout": 600,
        "faulty_scale_down_timeout": "30s",
        "snooze": 0,
    },
}


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises((Invalid, Unsupported)) as refused:
        job_file.read(document)
    return str(refused.value)


def test_the_smallest_job_file_gets_its_defaults():
    job = job_file.read(SMALLEST)
    assert (job.processes_per_node, job.spares, job.max_restarts, job.recovery) == (1, 0, 3, "in-process")


def test_the_number_of_spares_can_be_left_to_the_planner_and_to_nobody_else():
    assert job_file.read(SMALLEST | {"spares": "auto"}).standing_by == 1
    assert job_file.read(SMALLEST | {"spares": 3}).standing_by == 3
    for wrong in ("many", -1, "3"):
        assert "spares" in refusal(SMALLEST | {"spares": wrong})


def test_both_spellings_of_keys_are_taken_and_mean_the_same():
    pascal = {"".join(part.capitalize() for part in key.split("_")): value for key, value in EVERYTHING.items()}
    assert job_file.read(pascal) == job_file.read(EVERYTHING)


def test_a_key_in_both_spellings_is_refused():
    assert "'replicas' twice" in refusal(SMALLEST | {"Replicas": 3})


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, str]:
    """A key, and the same with one character changed, left out, put in, or swapped with its neighbour."""
    key = draw(st.sampled_from(sorted([*EVERYTHING, *job_file.LATER])))
    at = draw(st.integers(0, len(key) - 1))
    other = draw(st.sampled_from(string.ascii_lowercase + "_"))
    change = draw(st.sampled_from(["replace", "drop", "insert", "swap"]))
    wrong = {
        "replace": key[:at] + other + key[at + 1 :],
        "drop": key[:at] + key[at + 1 :],
        "insert": key[:at] + other + key[at:],
        "swap": key[:at] + key[at : at + 2][::-1] + key[at + 2 :],
    }[change]
    return key, wrong


def _likeness(key: str, written: str) -> float:
    return difflib.SequenceMatcher(None, written, key).ratio()


@given(misspelt())
def test_any_misspelt_key_is_refused_with_the_right_one_named(pair: tuple[str, str]):
    right, wrong = pair
    if wrong == right:
        return
    document = {key: value for key, value in EVERYTHING.items() if key != right} | {wrong: EVERYTHING.get(right, 1)}
    message = refusal(document)
    assert f"'{wrong}'" in message
    told = message.partition("did you mean '")[2].partition("'")[0]
    assert told == right or _likeness(told, wrong) >= _likeness(right, wrong), message


@pytest.mark.parametrize("key", sorted(job_file.LATER))
def test_keys_of_later_features_are_refused_as_not_there_yet(key: str):
    message = refusal(SMALLEST | {key: "x"})
    assert f"'{key}'" in message
    assert "not supported" in message


@pytest.mark.parametrize(
    "key, value",
    [
        ("replicas", True),
        ("replicas", "2"),
        ("replicas", 2.0),
        ("replicas", 0),
        ("processes_per_node", 0),
        ("spares", -1),
        ("max_restarts", None),
        ("seed", -1),
        ("seed", 2**64),
        ("command", "python train.py"),
        ("command", []),
        ("command", ["python", 3]),
        ("env", {"LR": 0.1}),
        ("env", {"RANK": "0"}),
        ("env", {"EVERSTEP_JOB_ID": "x"}),
        ("env", {"A=B": "x"}),
        ("env", ["A=B"]),
        ("instance_groups", "workers"),
        ("recovery", "none"),
        ("stragglers", "drop"),
        ("stragglers", True),
        ("stragglers", None),
        ("name", "-x"),
        ("name", "x" * 64),
        ("name", 3),
        ("working_dir", "relative"),
    ],
)
def test_wrong_values_are_refused_with_their_key_named(key: str, value: Any):
    assert key in refusal(EVERYTHING | {key: value})


@pytest.mark.parametrize("key", sorted(SMALLEST))
def test_keys_that_must_be_there_are_named_when_they_are_not(key: str):
    assert key in refusal({name: value for name, value in SMALLEST.items() if name != key})


@pytest.mark.parametrize(
    "text, word",
    [
        ("name: a\nname: b\n", "twice"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("- a\n- b\n", "list"),
        ("", "nothing"),
        ("a: [1\n", "line"),
        ("1: a\n", "no text"),
        ("a: !!python/object:os.system x\n", "line 1"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_yaml_that_would_be_guessed_at_is_refused(text: str, word: str):
    with pytest.raises(documents.Unreadable, match=word):
        documents.parse(text)


def test_dates_in_yaml_stay_text():
    assert documents.parse("name: 2026-01-01\n") == {"name": "2026-01-01"}


def test_a_job_file_that_says_nothing_of_checkpoints_means_auto():
    assert (
        job_file.read(SMALLEST) == job_file.read(SMALLEST | {"checkpoint": "auto"}) == job_file.read(SMALLEST | {"checkpoint": {}})
    )
    policy = policy_of(job_file.read(SMALLEST).spec, "job-1")
    assert policy == Policy(namespace="job-1")
    assert (policy.memory_every, policy.durable_every, policy.replicas, policy.keep_in_memory) == (None, None, 2, 3)


def test_a_block_of_checkpoints_is_the_policy_of_the_job_in_both_spellings():
    expected = Policy("llama-7b", 10, 50, 3, 4, Retention(last=5, every=1000, max_age_s=7 * 86400.0, max_bytes=10**12))
    assert policy_of(job_file.read(EVERYTHING).spec, "job-1") == expected
    pascal = {"MemoryEvery": 10, "DurableEvery": 50, "Replicas": 3, "Namespace": "llama-7b"}
    pascal["Keep"] = {"Memory": 4, "Last": 5, "Every": 1000, "MaxAge": 604800, "MaxBytes": 10**12}
    assert policy_of(job_file.read(SMALLEST | {"Checkpoint": pascal}).spec, "job-1") == expected


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"memroy_every": 10}, "no key 'checkpoint.memroy_every'; did you mean 'checkpoint.memory_every'?"),
        ({"keep": {"lats": 1}}, "no key 'checkpoint.keep.lats'; did you mean 'checkpoint.keep.last'?"),
        ({"keep": {"last": 1, "Last": 2}}, "the key 'checkpoint.keep.last' twice"),
        ({"replicas": 0}, "checkpoint.replicas: Input should be greater than or equal to 1"),
        ({"replicas": 9}, "checkpoint.replicas: Input should be less than or equal to 8"),
        ({"memory_every": 0}, "checkpoint.memory_every: "),
        ({"memory_every": "10"}, "checkpoint.memory_every: Input should be a valid integer"),
        ({"memory_every": True}, "checkpoint.memory_every: Input should be a valid integer"),
        ({"keep": {"max_age": "a week"}}, "checkpoint.keep.max_age: 'a week' is no duration"),
        ({"keep": {"max_age": -1}}, "checkpoint.keep.max_age: "),
        ({"keep": 3}, "checkpoint.keep: "),
        ({"namespace": "../other"}, "checkpoint.namespace: "),
        ({"namespace": "a/b"}, "checkpoint.namespace: "),
        ({"namespace": "a\n"}, "checkpoint.namespace: "),
        ("never", "it is 'auto' or a block of keys, not 'never'"),
        (5, "it is 'auto' or a block of keys, not 5"),
    ],
)
def test_what_is_wrong_with_checkpoints_is_named_by_its_path(written: Any, told: str):
    assert told in refusal(SMALLEST | {"checkpoint": written})


@given(st.integers(0, 10**6), st.sampled_from("smhd"))
def test_any_duration_means_its_seconds(number: int, unit: str):
    assert job_checkpoint.seconds(f"{number}{unit}") == number * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


def test_a_plain_job_is_taken_as_it_is_written():
    assert job_file.read(EVERYTHING | {"recovery": "process", "stragglers": "tell"}).recovery == "process"


def test_slow_ranks_are_told_of_unless_the_job_file_has_them_replaced():
    assert not are_replaced(job_file.read(SMALLEST).spec)
    assert are_replaced(job_file.read(SMALLEST | {"stragglers": "replace"}).spec)
    assert "stragglers: Input should be 'tell' or 'replace'" in refusal(SMALLEST | {"stragglers": "drop"})


def test_slow_ranks_of_a_plain_job_cannot_be_replaced_and_it_is_said_what_to_do():
    message = refusal(SMALLEST | {"recovery": "process", "stragglers": "replace"})
    assert all(words in message for words in ("stragglers: 'replace'", "say 'tell'", "leave 'recovery' out"))


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", "ROLE_RANK", "GROUP_WORLD_SIZE"])
def test_what_torchrun_sets_no_job_file_may_set(name: str):
    assert name in refusal(EVERYTHING | {"env": {name: "1"}})
