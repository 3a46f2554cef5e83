"""What a DescribeCluster costs: CPU seconds of the server, its database included, beside moto_server's in the same run.

Usage: python -m benchmarks.describe [--calls 1500] [--json FILE]

The same cluster, of 2 and then of 10 groups, described by the same boto3 client from a process of its own, servers taking turns in short
rounds so that a busy machine slows both. moto checks no signature, keeps everything in its own memory and answers from there; ours verifies
every request and reads every answer from Postgres.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.load import client, load
from benchmarks.servers import Measured

SIZES = (2, 10)
ROUNDS = 10
WARM_UP = 40
MOST_OF_MOTO = 1 / 3
ROLE = "arn:aws:iam::123456789012:role/everstep"


def cost(calls: int) -> dict[int, dict[str, float]]:
    """Milliseconds of CPU for each DescribeCluster, by the number of groups."""
    with tempfile.TemporaryDirectory() as home, servers.everstep(Path(home)) as ours, servers.moto() as moto:
        return {size: _compare(ours, moto, size, calls) for size in SIZES}


def _compare(ours: Measured, moto: Measured, size: int, calls: int) -> dict[str, float]:
    name = f"bench-{size}"
    with load(ours.url) as to_ours, load(moto.url) as to_moto:
        sides = {"ours": (ours, to_ours), "moto": (moto, to_moto)}
        for server, client_of_it in sides.values():
            client(server.url).create_cluster(ClusterName=name, InstanceGroups=[_group(number) for number in range(size)])
            client_of_it.call("describe_cluster", WARM_UP, {"ClusterName": name})
        spent: dict[str, list[float]] = {which: [] for which in sides}
        for _ in range(ROUNDS):
            for which, (server, client_of_it) in sides.items():
                before = server.cpu_s()
                client_of_it.call("describe_cluster", calls // ROUNDS, {"ClusterName": name})
                spent[which].append((server.cpu_s() - before) / (calls // ROUNDS))
    # Of rounds, medians: a neighbour who comes for some of them makes a call more expensive for whoever has more processes.
    ours_s, moto_s = statistics.median(spent["ours"]), statistics.median(spent["moto"])
    return {"ours_ms": ours_s * 1000, "moto_ms": moto_s * 1000, "ratio": ours_s / moto_s}


def _group(number: int) -> dict[str, Any]:
    return {
        "InstanceGroupName": f"group-{number}",
        "InstanceType": "ml.c5.xlarge",
        "InstanceCount": 2,
        "ExecutionRole": ROLE,
        "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-bench/scripts", "OnCreate": "on_create.sh"},
        "ThreadsPerCore": 1,
        "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 100}}],
    }


def tell(size: int, told: dict[str, float]) -> str:
    return (
        f"DescribeCluster, {size:2} groups: ours {told['ours_ms']:.2f} ms of CPU with its database, "
        f"moto_server {told['moto_ms']:.2f} ms: {told['ratio']:.2f} of it (at most {MOST_OF_MOTO:.2f})"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--calls", type=int, default=1500)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    found = cost(given.calls)
    for size, told in found.items():
        print(tell(size, told))
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
