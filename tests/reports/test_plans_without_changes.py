"""R-1: a declarative tool saw changes on every plan, because groups moved, absent members came back empty, and counts that an autoscaler had
moved were told as if they had been asked for.

What such a tool does is done here: what was sent is held against what is described, member by member.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.serving import Server, group, settings_for
from tests.api.test_process import api_process, until_alive

LABELS = {"Labels": {"team": "blue"}}
SENT = [group("b", KubernetesConfig=LABELS), group("a"), group("c", count=0, KubernetesConfig=LABELS)]
IMAGES = {f"{when}Image{what}" for when in ("Current", "Desired") for what in ("Id", "ReleaseVersion")} | {"ImageVersionStatus"}
OBSERVED = {"CurrentCount", "Status", "ActiveOperations"} | IMAGES
"""What is told of a group beyond what was asked of it; a tool that plans knows these as read-only."""


def raw(url: str, database_url: str) -> dict[str, Any]:
    """The description as it is on the wire: no client has dropped a null yet."""
    return json.loads(Server(url, settings_for(database_url)).call("DescribeCluster", {"ClusterName": "c1"}).content)


def planned(described: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups that the tool would have sent, to read what is described."""
    shown = [{name: value for name, value in one.items() if name not in OBSERVED} for one in described["InstanceGroups"]]
    for one in shown:
        one["InstanceCount"] = one.pop("TargetCount")
        if "KubernetesConfig" in one:
            assert one["KubernetesConfig"]["CurrentLabels"] == one["KubernetesConfig"]["DesiredLabels"]
            one["KubernetesConfig"] = {"Labels": one["KubernetesConfig"]["DesiredLabels"]}
    return shown


def empties(value: Any, path: str = "") -> list[str]:
    """Where there is a null, an empty structure or an empty list."""
    if value is None or value in ({}, []):
        return [path]
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for step, item in inside for found in empties(item, f"{path}.{step}")]


def test_what_is_described_is_what_was_sent_time_after_time_and_after_a_crash(
    database_url: str, sessions: Sessions, tmp_path: Path
):
    with api_process(database_url, tmp_path / "first.log") as (process, url):
        until_alive(url, process)
        wish = {"ClusterName": "c1", "InstanceGroups": SENT, "NodeProvisioningMode": "Continuous"}
        assert Server(url, settings_for(database_url)).call("CreateCluster", wish).status_code == 200
        as_it_comes_into_service(sessions, "c1")
        seen = [raw(url, database_url) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
    assert all(one == seen[0] for one in seen)
    assert planned(seen[0]) == SENT
    assert empties(seen[0]) == []
    with api_process(database_url, tmp_path / "second.log") as (process, url):
        until_alive(url, process)
        assert raw(url, database_url) == seen[0]


def test_nodes_that_come_move_only_what_is_observed(sagemaker, server: Server, sessions: Sessions, database_url: str):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=SENT, NodeProvisioningMode="Continuous")
    before = raw(server.url, database_url)
    with unit_of_work(sessions) as session:
        rows.node(session, rows.clusters.find(session, "c1"))
    after = raw(server.url, database_url)
    assert [one["CurrentCount"] for one in after["InstanceGroups"]] != [one["CurrentCount"] for one in before["InstanceGroups"]]
    assert planned(after) == planned(before) == SENT
    assert {**after, "InstanceGroups": 0} == {**before, "InstanceGroups": 0}
