"""A job that saves checkpoints on a small plane: what its nodes and their drain would do and report."""

from __future__ import annotations

from datetime import timedelta

import obstore

from everstep.shards import Manifest, ManifestShard, ShardKind, manifest_key, seal_key, shard_key
from everstep.tiers import CopyStatus
from models.checkpoint import changes, queries
from models.checkpoint.reports import Copy, Durable, Held, report_copies, report_durable
from models.job.states import ALIVE
from models.job.table import Job
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane


class Saving:
    """A job that trains, with a namespace of its name; its nodes and its drain are played."""

    def __init__(
        self, plane: SmallPlane, *, count: int = 4, keep: dict | None = None, cluster_id: str = "", job_id: str = "", **wish
    ) -> None:
        self.plane = plane
        self.cluster_id = cluster_id or plane.serving(count)
        spec = {"command": ["python", "train.py"], "checkpoint": {"keep": keep or {}, "namespace": "ns"}}
        self.job_id = job_id or plane.training(self.cluster_id, spec=spec, **({"replicas": 2, "spares": 1} | wish))
        with unit_of_work(plane.sessions) as session:
            job = session.get_one(Job, self.job_id)
            job.spec = spec
            changes.request_namespace(session, job, "ns", now=plane.clock.at)
        self.world_size = len(plane.members(self.job_id))

    def save(self, step: int, *, status: CopyStatus = CopyStatus.SEALED, leave_out: tuple[int, ...] = ()) -> None:
        """Rank 0's node holds the metadata as well."""
        now = self.plane.clock.at
        held = {member.node_id: [] for member in self.plane.members(self.job_id)}
        for index in range(self.world_size + 1):
            node_id = list(held)[index % len(held)]
            if index not in leave_out:
                held[node_id].append(Copy(index, status, 5, "d"))
        with unit_of_work(self.plane.sessions) as session:
            for node_id, copies in held.items():
                node = self.plane.node(node_id)
                report_copies(
                    session, session.merge(node), Held("ns", step, f"s{step}", self.world_size, copies, now, now), now=now
                )

    def drain(self, step: int) -> None:
        store, now = self.plane.objects.store, self.plane.clock.at
        world = self.world_size
        kinds = (*[ShardKind.DATA] * world, ShardKind.METADATA)
        shards = tuple(ManifestShard(index, kind, 5, "d") for index, kind in enumerate(kinds))
        for index in range(world + 1):
            obstore.put(store, shard_key("ns", index, step, world), b"bytes")
            obstore.put(store, seal_key("ns", index, step, world), b"{}")
        manifest = Manifest("ns", step, world, f"s{step}", now.timestamp(), shards)
        obstore.put(store, manifest_key("ns", step), manifest.to_json())
        told = Durable("ns", step, f"s{step}", world, 5 * (world + 1), is_withdrawn=False, at=now)
        with unit_of_work(self.plane.sessions) as session:
            report_durable(session, self.cluster_id, told, now=now)

    def save_and_drain(self, *steps: int) -> None:
        for step in steps:
            self.plane.clock.at += timedelta(seconds=1)
            self.save(step)
            self.drain(step)

    def forgotten_in_memory(self, *steps: int) -> None:
        self.plane.clock.at += timedelta(seconds=1)
        for step in steps:
            self.save(step, status=CopyStatus.DROPPED)

    def step(self, number: int):
        with unit_of_work(self.plane.sessions) as session:
            return queries.find(session, "ns", number)

    def stored(self) -> set[int]:
        """Steps of which anything at all is in the store; a step without a manifest must have nothing."""
        keys = [entry["path"] for chunk in obstore.list(self.plane.objects.store) for entry in chunk]
        manifests = {step for step in range(1000) if manifest_key("ns", step) in keys}
        parts = {int(key.split("/step_")[1].split("/")[0]) for key in keys if "/step_" in key}
        assert parts == manifests
        return manifests

    def kill_all(self) -> None:
        for process in self.plane.members(self.job_id):
            if process.state in ALIVE:
                self.plane.exit(process.id, signal=9)
