"""What scheduler configurations and compute quotas share on the wire. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.aws.translate.clusters import read_cut
from api.aws.translate.times import read_after, read_before
from api.operations.revising import Listing, RevisedView, Wanted
from models.revised import Order, Revised, RevisedFilter, RevisedState

STATUS: Final[dict[RevisedState, str | None]] = {
    RevisedState.CREATED: "Created",
    RevisedState.UPDATED: "Updated",
    RevisedState.DELETED: None,  # never shown: the door answers ResourceNotFound
}


def read_wanted(members: Mapping[str, Any], noun: str) -> Wanted:
    return Wanted(members[f"{noun}Id"], members.get(f"{noun}Version"))


def read_listing(members: Mapping[str, Any], cursor: str | None) -> Listing:
    """A status that nothing here ever has is no error; it finds nothing."""
    status = members.get("Status")
    return Listing(
        wanted=RevisedFilter(
            created_after=read_after(members, "CreatedAfter"),
            created_before=read_before(members, "CreatedBefore"),
            name_contains=members.get("NameContains"),
            cluster_arn=members.get("ClusterArn"),
            states=None if status is None else frozenset(state for state, word in STATUS.items() if word == status),
        ),
        cut=read_cut(members, cursor, default_order="Descending"),
        order=Order(members.get("SortBy", Order.CREATED)),
    )


def write_made(row: Revised, noun: str) -> dict[str, Any]:
    return {f"{noun}Arn": row.arn, f"{noun}Id": row.id}


def write_updated(row: Revised, noun: str) -> dict[str, Any]:
    return {f"{noun}Arn": row.arn, f"{noun}Version": row.revision}


def write_summary(row: Revised, noun: str) -> dict[str, Any]:
    """Of the newest version. Members that a summary does not have are left out when it is rendered."""
    return {
        **write_made(row, noun),
        f"{noun}Version": row.revision,
        "Name": row.name,
        "Status": STATUS[row.state],
        "ClusterArn": row.cluster_arn,
        "CreationTime": row.created_at,
        "LastModifiedTime": row.updated_at,
        **row.settings,
    }


def write_description(view: RevisedView, noun: str) -> dict[str, Any]:
    """One version, with the state that the whole thing is in now."""
    head, revision = view.head, view.revision
    return {
        **write_summary(head, noun),
        f"{noun}Version": revision.number,
        "Description": revision.description,
        "CreatedBy": _write_user(head.created_by),
        "LastModifiedTime": revision.made_at,
        "LastModifiedBy": _write_user(revision.made_by),
        **revision.settings,
    }


def _write_user(arn: str) -> dict[str, Any]:
    return {"IamIdentity": {"Arn": arn, "PrincipalId": arn.partition("/")[2]}}
