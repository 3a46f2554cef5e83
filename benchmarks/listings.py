"""What a page of a long listing takes: of 5,000 clusters at its beginning, middle and end; of 10,000 nodes beside one of 100.

Usage: python -m benchmarks.listings [--json FILE]

Rows are written straight into the database: one cluster and one node made by the domain's own functions, and copies of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks import servers
from benchmarks.load import load
from models.cluster import queries as clusters
from models.cluster.changes import ClusterSpec, GroupSpec, request_cluster
from models.ids import InstanceId
from models.node.changes import settle_launched, settle_wanted_node
from models.session import connect, sessions, unit_of_work

CLUSTERS = 5_000
MANY, FEW = 10_000, 100
PAGE = 100
WALKS = 9
WINDOW = 4
"""Pages that speak for their part of the listing: one alone says more about the machine than about us."""
MOST_OF_FIRST = 1.5
"""How much longer than the first page a later one may take, medians of several walks."""
MOST_OF_FEW = 3.0
ROLE = "arn:aws:iam::123456789012:role/everstep"

_COPIES = """
INSERT INTO {table} SELECT (jsonb_populate_record(seed, jsonb_build_object({changes}))).*
FROM {table} AS seed, generate_series(1, :copies) AS n WHERE seed.id = :seed
"""


def times() -> dict[str, float]:
    """Milliseconds of pages: first, middle and last of clusters, and the 95th percentile of nodes of a large and of a small cluster."""
    with tempfile.TemporaryDirectory() as home, servers.everstep(Path(home)) as ours:
        engine = connect(ours.database_url, pool_size=1)
        many, few = _seed(engine, "many"), _seed(engine, "few")
        _copy_nodes(engine, many, MANY)
        _copy_nodes(engine, few, FEW)
        _copy_clusters(engine, few)
        engine.dispose()
        with load(ours.url) as client:
            client.call("list_clusters", 5, {"MaxResults": PAGE})
            walks = [client.call("list_clusters", "all", {"MaxResults": PAGE}) for _ in range(WALKS)]
            large, small = [], []
            for _ in range(3):
                large += client.call("list_cluster_nodes", "all", {"ClusterName": "many", "MaxResults": PAGE})
                small += client.call("list_cluster_nodes", MANY // PAGE, {"ClusterName": "few", "MaxResults": PAGE})
    assert all(len(walk) == CLUSTERS // PAGE for walk in walks)
    return {
        "first_ms": _median([took for walk in walks for took in walk[:WINDOW]]),
        "middle_ms": _median([took for walk in walks for took in walk[len(walk) // 2 :][:WINDOW]]),
        "last_ms": _median([took for walk in walks for took in walk[-WINDOW:]]),
        "many_p95_ms": statistics.quantiles(large, n=20)[-1] * 1000,
        "few_p95_ms": statistics.quantiles(small, n=20)[-1] * 1000,
    }


def _seed(engine: Engine, name: str) -> tuple[str, str]:
    """A cluster with one node; returns their ids."""
    now = datetime.now(UTC)
    wire = {"InstanceGroupName": "workers", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1, "ExecutionRole": ROLE}
    group = GroupSpec(name="workers", instance_type="ml.c5.xlarge", count=1, min_count=0, spec=wire)
    with unit_of_work(sessions(engine)) as session:
        wish = ClusterSpec(name=name, is_continuous=False, settings={}, groups=(group,))
        cluster = request_cluster(session, wish, region="us-east-1", account_id="123456789012", now=now)
        node = settle_wanted_node(session, clusters.groups(session, cluster.id)[0], now=now)
        settle_launched(session, node, instance_id=InstanceId(f"i-{name.encode().hex():0<17}"), address="127.77.0.1", now=now)
        return cluster.id, node.id


def _copy_nodes(engine: Engine, seed: tuple[str, str], total: int) -> None:
    changes = {
        "id": "gen_random_uuid()",
        "logical_id": "gen_random_uuid()",
        "instance_id": f"'i-' || lpad(to_hex({total} * 100000 + n), 17, '0')",
        "created_at": "seed.created_at + n * interval '1 second'",
        "launched_at": "seed.created_at + n * interval '1 second'",
    }
    _copy(engine, "node", changes, seed[1], total - 1)


def _copy_clusters(engine: Engine, seed: tuple[str, str]) -> None:
    """The two that there are already are part of the number."""
    changes = {
        "id": "lpad(n::text, 12, '0')",
        "arn": "regexp_replace(seed.arn, '[^/]*$', lpad(n::text, 12, '0'))",
        "name": "'copy-' || n",
        "created_at": "seed.created_at + n * interval '1 second'",
    }
    _copy(engine, "cluster", changes, seed[0], CLUSTERS - 2)


def _copy(engine: Engine, table: str, changes: dict[str, str], seed: str, copies: int) -> None:
    written = ", ".join(f"'{column}', {value}" for column, value in changes.items())
    with engine.begin() as connection:
        connection.execute(text(_COPIES.format(table=table, changes=written)), {"copies": copies, "seed": seed})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"VACUUM ANALYZE {table}"))


def _median(took: Sequence[float]) -> float:
    return statistics.median(took) * 1000


def tell(found: dict[str, Any]) -> str:
    return (
        f"ListClusters over {CLUSTERS}: first page {found['first_ms']:.1f} ms, middle {found['middle_ms']:.1f}, last {found['last_ms']:.1f} "
        f"(at most {MOST_OF_FIRST} of the first)\n"
        f"ListClusterNodes, p95 of a page: {found['many_p95_ms']:.1f} ms of {MANY} nodes, {found['few_p95_ms']:.1f} ms of {FEW}: "
        f"{found['many_p95_ms'] / found['few_p95_ms']:.2f} (at most {MOST_OF_FEW})"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    found = times()
    print(tell(found))
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
