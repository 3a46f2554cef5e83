"""``TieredReader``: PyTorch's distributed checkpoints (DCP) out of the tiers.

The collectives, in order, all on the reader's group and only when ``step`` was not given: 1, in ``step`` or ``read_metadata``: rank 0's candidates are
spread. 2, in ``read_data``: whether every rank could read its part; while one could not, all go on to the next older candidate, and to 2 again.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, StorageReader
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from everstep.checkpoint.contents import Contents
from everstep.checkpoint.fetching import Bytes, Region
from everstep.checkpoint.planning import metadata_of
from everstep.checkpoint.reading import StepReader, log
from everstep.checkpoint.tiers import Tiers, of_environment
from everstep.checkpoint.torch_parts import adopt, device_of, dtype_of
from everstep.errors import CheckpointMismatch, CheckpointMissing, CheckpointUnreadable
from everstep.shards import StepFound

_CANDIDATES = 4


class TieredReader(StorageReader):
    """Reads ``step``, or the newest step that is complete over all tiers and can be read by every rank.

    The world may have another size than the one that saved. ``verify``: see ``reading``. ``mapped``: tensors of CPU that this node's memory holds
    in one piece become views of it instead of copies: for states that are only read, as the first change of a page costs twenty copies of it.

    ``process_group``: the one that is given to ``dcp.load``, if any. ``agree=False`` where not all ranks load (``no_dist=True``).
    """

    def __init__(
        self,
        step: int | None = None,
        *,
        verify: bool = True,
        mapped: bool = False,
        tiers: Tiers | None = None,
        process_group: dist.ProcessGroup | None = None,
        agree: bool = True,
    ) -> None:
        super().__init__()
        self._tiers = tiers or of_environment()
        self._asked = step
        self._verify = verify
        self._is_mapped = mapped
        self._group = process_group
        self._agrees = agree and step is None
        self._candidates: list[StepFound] | None = None
        self._reader: StepReader | None = None
        self._is_coordinator = False
        self.told: list[str] = []
        self.counts: dict[str, int] = {"memory": 0, "peer": 0, "store": 0}

    @property
    def step(self) -> int | None:
        """The step that will be, or has been, loaded; None if there is none. The first to ask asks the tiers, with all ranks."""
        candidates = self._found()
        return candidates[0].step if candidates else None

    # ------------------------------------------------------------------------------------------------ StorageReader

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Steps are numbers, not paths: DCP never chooses this reader for one."""
        del checkpoint_id
        return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        del checkpoint_id

    def read_metadata(self, *_: Any) -> Metadata:
        """Raises CheckpointMissing, CheckpointUnreadable."""
        if not self._found():
            raise CheckpointMissing(_nothing(self._tiers.namespace, self._asked))
        while not self._everywhere(self._failed(self._metadata)):
            self._pass_over()
        return self._metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        del metadata, args, kwargs
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Raises CheckpointUnreadable when no candidate can be read by every rank."""
        planned: LoadPlan | None = plan
        while not self._everywhere(self._failed(partial(self._read, planned, planner))):
            self._pass_over()
            planned = None
        self._close()
        self._say_where()
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    # ------------------------------------------------------------------------------------------------ candidates

    def _found(self) -> list[StepFound]:
        if self._candidates is None:
            self._candidates = self._agreed() if self._agrees and _is_many() else self._seen()
        return self._candidates

    def _seen(self) -> list[StepFound]:
        if self._asked is None:
            return list(self._tiers.latest(_CANDIDATES))
        found = self._tiers.find(self._asked)
        return [] if found is None else [found]

    def _agreed(self) -> list[StepFound]:
        """Rank 0's candidates. Collective 1."""
        first = dist.get_global_rank(self._group, 0) if self._group is not None else 0
        told: list[Any] = [None]
        if dist.get_rank() == first:
            told = [_told(self._seen)]
        dist.broadcast_object_list(told, src=first, group=self._group)
        if isinstance(told[0], str):
            raise CheckpointUnreadable(told[0])
        return [StepFound.from_wire(one) for one in told[0]]

    def _metadata(self) -> Metadata:
        return metadata_of(self._opened().metadata())

    def _opened(self) -> StepReader:
        """The reader of the candidate that is to be loaded."""
        if self._reader is None:
            self._reader = self._tiers.read(self._found()[0], verify=self._verify)
        return self._reader

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            for source, nbytes in self._reader.counts.items():
                self.counts[source] += nbytes
            self.told += self._reader.told
            self._reader = None

    def _pass_over(self) -> None:
        """On to the next older candidate. Raises CheckpointUnreadable, on all ranks, if there is none."""
        self._close()
        candidates = self._found()
        passed = candidates.pop(0)
        if not candidates:
            message = (
                f"no step of {self._tiers.namespace} can be read by every rank: {'; '.join(self.told) or 'another rank says why'}"
            )
            raise CheckpointUnreadable(message)
        words = f"step {passed.step} cannot be read by every rank; step {candidates[0].step} is loaded instead"
        log.warning("%s", words)
        self.told.append(words)

    def _say_where(self) -> None:
        found = self._found()[0]
        if self._tiers.has_memory and not found.is_in_memory:
            words = (
                f"step {found.step} is loaded from the object store: no memory of a node has a complete step of {found.namespace}"
            )
            log.warning("%s", words)
            self.told.append(words)

    def _failed(self, attempt: Callable[[], object]) -> Exception | None:
        """What went wrong. It is not raised yet where other ranks wait to hear of it."""
        try:
            attempt()
        except CheckpointUnreadable as error:
            return error
        except Exception as error:
            if not self._agrees:
                raise
            return error
        return None

    def _everywhere(self, error: Exception | None) -> bool:
        """Whether every rank has succeeded; False: the candidate is to be passed over. Collective 2. Raises what an older step would not mend."""
        worst = 0 if error is None else 1 if isinstance(error, CheckpointUnreadable) else 2
        if self._agrees and _is_many():
            told = torch.tensor([worst], device=device_of(self._group))
            dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
            worst = int(told.item())
        if error is not None and (self._asked is not None or not isinstance(error, CheckpointUnreadable)):
            raise error
        if worst > 1:
            message = "another rank cannot load, and says why"
            raise CheckpointUnreadable(message)
        return worst == 0

    # ------------------------------------------------------------------------------------------------ reading

    def _read(self, plan: LoadPlan | None, planner: LoadPlanner) -> None:
        reader = self._opened()
        plan = self._planned(planner) if plan is None else plan
        contents = reader.metadata()
        loaded: list[tuple[ReadItem, bytes]] = []
        wants: list[Region | Bytes] = []
        targets: list[tuple[ReadItem, torch.Tensor]] = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                name = item.storage_index.fqn
                wants.append(Bytes(reader.shard_of(name), name, lambda body, item=item: loaded.append((item, body))))  # type: ignore[misc]
            else:
                target = planner.resolve_tensor(item).detach()
                region = _region(contents, item, target)
                if not (self._is_mapped and _has_mapped(reader, region, item, planner)):
                    wants.append(region)
                targets.append((item, target))
        reader.fill(wants)
        for item, target in targets:
            planner.commit_tensor(item, target)
        for item, body in loaded:
            planner.load_bytes(item, io.BytesIO(body))

    def _planned(self, planner: LoadPlanner) -> LoadPlan:
        """The plan for an older candidate, of this rank alone: what another rank loads does not change what this one needs."""
        state = getattr(planner, "original_state_dict", None)
        if not isinstance(state, dict):
            message = (
                "the step cannot be read, and only planners made from DefaultLoadPlanner can go on to an older one; give the step"
            )
            raise CheckpointMismatch(message)
        planner.set_up_planner(state, self._metadata(), self._is_coordinator)
        return planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])


def _region(contents: Contents, item: ReadItem, target: torch.Tensor) -> Region:
    name = item.storage_index.fqn
    offsets = tuple(item.storage_index.offset or ())
    tensor = contents.tensors[name]
    chunk = next((one for one in tensor.chunks if one.offsets == offsets), None)
    if chunk is None:
        message = f"the step has no part of {name!r} that begins at {offsets}"
        raise CheckpointMismatch(message)
    return Region(
        chunk.shard, name, offsets, chunk.sizes, tuple(item.storage_offsets), tuple(item.lengths), dtype_of(tensor.dtype), target
    )


def _has_mapped(reader: StepReader, region: Region, item: ReadItem, planner: LoadPlanner) -> bool:
    state = getattr(planner, "state_dict", None)
    if not isinstance(state, dict):
        return False
    whole = state.get(item.dest_index.fqn)
    view = reader.view(region) if isinstance(whole, torch.Tensor) else None
    return view is not None and adopt(whole, view)


def _told(seen: Any) -> list[dict[str, Any]] | str:
    """What rank 0 spreads; if it fails, why, so that no rank waits for it."""
    try:
        return [one.to_wire() for one in seen()]
    except Exception as error:  # noqa: BLE001  (whatever it is, the others are waiting)
        return f"rank 0 cannot ask for checkpoints: {error}"


def _is_many() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _nothing(namespace: str, step: int | None) -> str:
    return f"namespace {namespace} has no complete checkpoint" + ("" if step is None else f" of step {step}") + " in any tier"
