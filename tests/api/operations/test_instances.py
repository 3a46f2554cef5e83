"""Limits of instances, over the wire: what a caller may ask for is refused by its code, and two callers do not pass a limit together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from tests.api.serving import group, settings_for

CONTINUOUS = {"NodeProvisioningMode": "Continuous"}


@pytest.fixture
def limited(serve, database_url):
    """A client of a server that allows for 10 instances, and 6 in one cluster."""
    settings = replace(settings_for(database_url), most_instances=10, most_instances_of_cluster=6)
    client = serve(settings).client()
    yield client
    client.close()


def refusal(call, **members) -> str:
    with pytest.raises(ClientError) as caught:
        call(**members)
    assert caught.value.response["Error"]["Code"] == "ResourceLimitExceeded"
    return caught.value.response["Error"]["Message"]


def test_a_limit_holds_for_each_cluster_and_for_all_of_them(limited):
    told = refusal(limited.create_cluster, ClusterName="c1", InstanceGroups=[group("a", 4), group("b", 3)])
    assert told.startswith("The number of instances of the cluster would be 7; the limit is 6.")
    limited.create_cluster(ClusterName="c1", InstanceGroups=[group("a", 4), group("b", 2)])
    told = refusal(limited.create_cluster, ClusterName="c2", InstanceGroups=[group("a", 5)])
    assert told.startswith("The number of instances of all clusters would be 11; the limit is 10.")
    limited.create_cluster(ClusterName="c2", InstanceGroups=[group("a", 4)])


def test_callers_at_once_do_not_pass_a_limit_together(limited):
    def create(number: int) -> bool:
        try:
            limited.create_cluster(ClusterName=f"c{number}", InstanceGroups=[group("a", 4)])
        except limited.exceptions.ResourceLimitExceeded:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, range(4))) == [False, False, True, True]
