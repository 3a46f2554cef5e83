"""A rank's part of a state into its shard: one copy, straight into the segment, then the layout, then the seal.

Where a save is staged (copied now, planned later), the same segment is opened, filled and sealed by two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import xxhash
from torch import Tensor

from everstep.checkpoint.layout import Key, Layout
from everstep.checkpoint.tiers import OpenShard, Tiers
from everstep.checkpoint.torch_parts import over, size_of
from everstep.shards import Seal, ShardKind

_PLANS_KEPT = 3


class Part(NamedTuple):
    """A chunk of a tensor on any device, or bytes (then ``offsets`` is None). ``name`` and ``offsets`` are its key in the shard."""

    name: str
    offsets: tuple[int, ...] | None
    content: Tensor | bytes

    @property
    def key(self) -> Key:
        return (self.name, self.offsets)

    @property
    def nbytes(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else size_of(self.content.shape, self.content.dtype)


@dataclass(frozen=True)
class Whose:
    """Which shard of which save."""

    step: int
    index: int
    save: str
    is_durable: bool


def layout_of(parts: Sequence[Part]) -> Layout:
    return Layout.of(((part.name, part.offsets, part.nbytes) for part in parts), has_digests=True)


def open_shard(tiers: Tiers, whose: Whose, nbytes: int) -> OpenShard:
    """Raises SaveRefused."""
    return tiers.open(
        index=whose.index, step=whose.step, save=whose.save, nbytes=nbytes, kind=ShardKind.DATA, is_durable=whose.is_durable
    )


def write_shard(tiers: Tiers, whose: Whose, parts: Sequence[Part], layout: Layout | None = None, plan: Hashable = None) -> Seal:
    """Copies and seals. ``layout`` and ``plan`` as in ``fill``. Raises SaveRefused, SaveFailed."""
    layout = layout or layout_of(parts)
    shard = open_shard(tiers, whose, layout.size)
    try:
        fill(shard, parts, layout, plan)
        finish(shard, layout)
    except BaseException:
        shard.abandon()
        raise
    return shard.seal(layout.size)


def write_metadata(tiers: Tiers, whose: Whose, text: bytes) -> Seal:
    """The metadata shard of a step; ``whose.index`` is its world size. Raises SaveRefused, SaveFailed."""
    shard = tiers.open(
        index=whose.index, step=whose.step, save=whose.save, nbytes=len(text), kind=ShardKind.METADATA, is_durable=whose.is_durable
    )
    shard.body[: len(text)] = text
    return shard.seal(len(text))


def fill(
    shard: OpenShard, parts: Sequence[Part], layout: Layout, plan: Hashable = None, *, without: frozenset[Key] = frozenset()
) -> None:
    """Copies the parts to where the layout has them; ``finish`` is to follow, which needs them no more.

    ``plan``: whoever comes again with an equal one has an equal layout for the same types and shapes; then the views over the segment are kept.
    ``without``: tensors that lie there already.
    """
    tensors = [(part.key, part.content) for part in parts if isinstance(part.content, Tensor)]
    views = views_over(shard, parts, layout, plan)
    _copy_pairs([(view, tensor) for view, (key, tensor) in zip(views, tensors, strict=True) if key not in without])
    for part, item in zip(parts, layout.items, strict=True):
        if isinstance(part.content, bytes):
            shard.body[item.start : item.start + item.nbytes] = part.content


def fill_early(shard: OpenShard, parts: Sequence[Part], layout: Layout, is_steady: Callable[[Tensor], bool]) -> frozenset[Key]:
    """Copies the tensors that are not steady, alone, and returns which those are: ``fill`` must not copy them again later."""
    early = [
        (item, part.content)
        for part, item in zip(parts, layout.items, strict=True)
        if isinstance(part.content, Tensor) and not is_steady(part.content)
    ]
    _copy_pairs([(over(shard.body, item.start, tensor.shape, tensor.dtype), tensor) for item, tensor in early])
    return frozenset(item.key for item, _ in early)


def _copy_pairs(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    copy_all([into for into, _ in pairs], [tensor for _, tensor in pairs])


def finish(shard: OpenShard, layout: Layout) -> None:
    """Writes what is neither a tensor's nor a blob's byte; all of those are there. Reads the shard alone, not the state."""
    for start, end in layout.gaps():
        shard.body[start:end] = bytes(end - start)
    body = shard.body
    body[layout.nbytes : layout.size] = layout.digested_tail(lambda start, end: xxhash.xxh3_128_hexdigest(body[start:end]))


def views_over(shard: OpenShard, parts: Sequence[Part], layout: Layout, plan: Hashable = None) -> list[Tensor]:
    """Of the tensors among the parts, in their order."""

    def laid() -> list[Tensor]:
        return [
            over(shard.body, item.start, part.content.shape, part.content.dtype)
            for part, item in zip(parts, layout.items, strict=True)
            if isinstance(part.content, Tensor)
        ]

    return laid() if plan is None else kept_views(shard.views, plan, laid)


def kept_views(views: dict[Any, Any], plan: Hashable, lay: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Those of a plan over one segment. A segment may serve two ways of saving in turn, but not ever new ones."""
    found: list[Tensor] | None = views.get(plan)
    if found is None:
        while len(views) >= _PLANS_KEPT:
            del views[next(iter(views))]
        found = views[plan] = lay()
    return found


def copy_all(into: list[Tensor], tensors: list[Tensor]) -> None:
    """One call for all of them: it lets other threads run as long as it takes. Copies from a GPU are awaited together."""
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(into, tensors, non_blocking=True)
    for device in {one.device for one in tensors if one.device.type == "cuda"}:
        torch.cuda.synchronize(device)
