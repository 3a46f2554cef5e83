"""What a body of four megabytes can hold: millions of mistakes. Refusing them costs no more than reading them, and the answer stays short."""

from __future__ import annotations

from typing import Any

import pytest

from api.aws.schema import sagemaker
from api.aws.service_model import everstep
from api.aws.validate import Violated, read_all, read_members


def violations(operation: str, members: dict[str, Any]) -> list[str]:
    return read_all(sagemaker().operation_model(operation).input_shape, members)[1]


def test_what_is_beyond_a_lists_maximum_is_refused_unread():
    groups = {"ClusterName": "c1", "InstanceGroups": [{}] * 50_000}
    about = [text for text in violations("CreateCluster", groups) if "'instanceGroups'" in text]
    assert len(about) == 1
    assert about[0].endswith("Member must have length less than or equal to 100")
    assert len(violations("CreateCluster", groups)) <= 1 + 100 * 3


def test_all_keys_of_a_map_are_one_violation_that_shows_the_map_once():
    """One each, with all of the map, made a minute's work of a hundred kilobytes."""
    group = {"InstanceGroupName": "g", "KubernetesConfig": {"Labels": {f"!{number}": "x" for number in range(20_000)}}}
    about = [text for text in violations("CreateCluster", {"InstanceGroups": [group]}) if "labels" in text]
    assert [text.rpartition("constraint: ")[2][:40] for text in about] == [
        "Member must have length less than or equ",
        "[Member must satisfy regular expression ",
    ]
    env = {f"\x00{number}": "x" for number in range(20_000)}
    _, found = read_all(everstep().operation_model("SubmitJob").input_shape, {"Env": env})
    assert sum("Map keys" in text for text in found) == 1


def test_the_neighbours_of_unknown_members_are_looked_for_a_hundred_times_at_most():
    found = violations("DescribeCluster", {f"ClusterNam{number}": 1 for number in range(1_000)})
    assert len(found) == 1_001, "and the required one"
    assert 0 < sum("did you mean" in text for text in found) <= 100


@pytest.mark.parametrize(("wrong", "told"), [(999, 1_000), (1_000, 1_000), (50_000, 1_000)])
def test_a_message_tells_the_first_thousand_violations_and_counts_the_rest(wrong: int, told: int):
    with pytest.raises(Violated) as refusal:
        read_members(sagemaker().operation_model("DescribeCluster").input_shape, {f"x{number}": 1 for number in range(wrong)})
    message = str(refusal.value)
    assert message.startswith(f"{wrong + 1} validation errors detected: ")
    assert len(refusal.value.violations) == told
    assert message.count("failed to satisfy constraint") == told
    assert message.endswith(f"; and {wrong + 1 - told} more") == (wrong + 1 > told)
