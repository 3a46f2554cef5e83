"""Clusters, their instance groups, and tags."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import ForeignKey, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed, Versioned
from models.cluster.states import ClusterState, GroupState
from models.ids import ClusterId, GroupId


class Cluster(Leased, Versioned, Timed, Base):
    """``settings`` holds what the caller sent for the cluster as a whole, by wire name, and only what was sent.

    A name is taken until its cluster is deleted; a deleted cluster's row stays, for its events. ``team`` is whose it is; None: everybody's.
    """

    __tablename__ = "cluster"
    __table_args__ = (
        Index("uq_cluster_live_name", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
        Index("ix_cluster_listed", "created_at", "id", postgresql_where=text("state <> 'deleted'")),
        # In the migration its name has COLLATE "C", as the listing sorts; Alembic could not compare that.
        Index("ix_cluster_listed_by_name", "name", "id", postgresql_where=text("state <> 'deleted'")),
    )
    KIND: ClassVar[str] = "cluster"

    id: Mapped[ClusterId] = mapped_column(primary_key=True)
    arn: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    team: Mapped[str | None]
    state: Mapped[ClusterState]
    settings: Mapped[dict[str, Any]]
    is_continuous: Mapped[bool]
    failure_message: Mapped[str | None]
    created_at: Mapped[datetime]

    @property
    def zone(self) -> str:
        """The availability zone of its nodes: there is one in a region here."""
        return f"{self.arn.split(':')[3]}a"


class InstanceGroup(Timed, Base):
    """``spec`` is the caller's specification by wire name, verbatim; the counts in it are superseded by the columns.

    ``image`` is the release that its nodes run, ``image_wanted`` the one that they are to run, and that new ones start from; they differ while an
    update of the software is under way. ``update_id`` is its newest one. ``patching`` is what the schedule of its updates has come to.
    ``minimum_since`` is when the wish for its minimum was last spoken: a group that does not have it in time goes back.
    ``spare_nodes`` of its nodes are kept free for what is lost, None if nobody ever asked for that; how many is left to the planner if it
    ``sizes_spares``.
    ``settled`` is the specification at which group and cluster were last in service: what a rollback returns to, None before the first time.
    """

    __tablename__ = "instance_group"
    __table_args__ = (
        Index("uq_instance_group_live_name", "cluster_id", "name", unique=True, postgresql_where=text("state <> 'gone'")),
    )

    id: Mapped[GroupId] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    name: Mapped[str]
    position: Mapped[int] = mapped_column(Integer)
    state: Mapped[GroupState]
    instance_type: Mapped[str]
    target_count: Mapped[int] = mapped_column(Integer)
    min_count: Mapped[int] = mapped_column(Integer, default=0)
    minimum_since: Mapped[datetime | None]
    is_restricted: Mapped[bool] = mapped_column(default=False)
    spec: Mapped[dict[str, Any]]
    image: Mapped[str | None]
    image_wanted: Mapped[str | None]
    update_id: Mapped[str | None]
    patching: Mapped[dict[str, Any]] = mapped_column(default=dict)
    spare_nodes: Mapped[int | None] = mapped_column(Integer)
    sizes_spares: Mapped[bool] = mapped_column(default=False)
    settled: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime]

    @property
    def is_flexible(self) -> bool:
        return "InstanceRequirements" in self.spec

    @property
    def is_spot(self) -> bool:
        """Whether its nodes are bought on the spot market. Immutable."""
        return "Spot" in self.spec.get("CapacityRequirements", {})

    @property
    def instance_types(self) -> tuple[str, ...]:
        """Of what types its nodes may be, the preferred ones first."""
        return types_of(self.spec) or (self.instance_type,)


def types_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The instance types of a group's specification, the preferred ones first."""
    requirements = spec.get("InstanceRequirements")
    if requirements is not None:
        return tuple(requirements["InstanceTypes"])
    return (spec["InstanceType"],) if "InstanceType" in spec else ()


class Tag(Base):
    """A tag of any resource, in the order of first writing."""

    __tablename__ = "tag"
    __table_args__ = (UniqueConstraint("resource_arn", "key"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    resource_arn: Mapped[str] = mapped_column(index=True)
    key: Mapped[str]
    value: Mapped[str]
