"""Operations of a cluster's log of events."""

from __future__ import annotations

from api.aws.table.kinds import Listing, Table
from api.aws.translate import events as wire
from api.operations import events

EVENTS: Table = {
    "ListClusterEvents": Listing(
        wire.read_listing,
        events.listed,
        lambda rows, _members: wire.write_listing(rows),
        note="Continuous clusters only, as on HyperPod.",
    ),
}
