"""Operations of tags."""

from __future__ import annotations

from api.aws.table.kinds import Operation, Table, honoured
from api.aws.table.parts import TAG
from api.aws.translate import tags as wire
from api.operations import tags

TAGS: Table = {
    "AddTags": Operation(
        wire.read_add, tags.add, wire.write_tags, note="Returns all tags of the resource.", members=honoured("ResourceArn", *TAG)
    ),
    "ListTags": Operation(
        wire.read_list,
        tags.listed,
        wire.write_tags,
        note="Always a single page: 50 tags at most.",
        members=honoured("ResourceArn", "MaxResults", "NextToken"),
    ),
    "DeleteTags": Operation(wire.read_remove, tags.remove, wire.write_nothing, members=honoured("ResourceArn", "TagKeys")),
}
