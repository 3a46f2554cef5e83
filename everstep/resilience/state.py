"""The state of a training run: everything that must be equal after a change of membership.

Tensors are always changed in place. Survivors keep the identity and the storage of model, optimizer and parameters, because user code,
DDP and the optimizer hold references to them. Of a state that is sharded (FSDP2) this process has one shard: ``tensors`` are what is here,
``structure`` and the entries tell of the whole, so that a state divided otherwise can be recognised and read.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from everstep.errors import StateMismatch, UnsupportedWrapper

from . import sharding
from .leaves import Leaves, Named
from .memory import bytes_of


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class TensorEntry:
    """``key`` is ``model/<name>`` or ``optimizer/<parameter number>/<name>``; ``shape`` is that of the whole, also where it is sharded."""

    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return torch.empty(0, dtype=getattr(torch, self.dtype)).element_size() * torch.Size(self.shape).numel()


class State:
    """What a user hands to ``resilient``. Further keyword arguments are anything with ``state_dict`` and ``load_state_dict``.

    A model that is wrapped in DistributedDataParallel or by ``fully_shard`` is to be given wrapped, or its groups cannot be replaced.

    Raises:
        UnsupportedWrapper: the wrapper was made with ``static_graph=True``: survivors and replacements would reduce buckets of different
            sizes, at which gloo ends the process. Or ``fully_shard`` was given something that cannot be remade; the message says what.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: Optimizer | None = None,
        scheduler: Stateful | None = None,
        **others: Stateful,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.others = others
        self._reserve: dict[str, torch.Tensor] = {}
        self._buffers: list[torch.Tensor] = []
        self._are_buffers_kept = False
        self._named: Named | None = None
        if any(wrapper.static_graph for wrapper in self.wrappers()):
            raise UnsupportedWrapper
        self.is_sharded = sharding.is_sharded(model)
        sharding.check_supported(model)

    # ------------------------------------------------------------ structure

    def wrappers(self) -> list[DistributedDataParallel]:
        return [module for module in self.model.modules() if isinstance(module, DistributedDataParallel)]

    def regroup(self, group: dist.ProcessGroup | None) -> None:
        """Makes DDP reduce over another group; the DDP object, its hooks and its buckets' layout stay."""
        for wrapper in self.wrappers():
            wrapper._update_process_group(group)  # noqa: SLF001, checked at import

    def unwrapped_parameters(self) -> list[torch.nn.Parameter]:
        """Parameters that neither DDP nor FSDP reduces: the runtime reduces these before the vote. Asked for in each step."""
        if isinstance(self.model, DistributedDataParallel):
            return []
        reduced = {id(parameter) for wrapper in self.wrappers() for parameter in wrapper.parameters()}
        reduced |= {id(parameter) for parameter in sharding.sharded_parameters(self.model)}
        return [parameter for parameter in self.model.parameters() if id(parameter) not in reduced and parameter.requires_grad]

    def structure(self) -> str:
        """A fingerprint of the model's tensors and the optimizer's groups; equal in all ranks that run the same script."""
        lines = [f"{key} {tensor.dtype} {tuple(tensor.shape)}" for key, tensor in self._model_tensors()]
        groups = self.optimizer.param_groups if self.optimizer else []
        lines += [str(len(group["params"])) for group in groups] + sorted(self.others)
        lines += [f"wrapped at {prefix}" for prefix in self._wrapped_at()] + ["sharded"] * self.is_sharded
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """What of the state is in this process: of sharded tensors the own rows."""
        return [(key, sharding.local(tensor)) for key, tensor in self.whole_tensors()]

    def whole_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """As ``tensors``; those that are sharded as DTensors, which know the shape of the whole."""
        return self._model_tensors() + self._optimizer_tensors()

    def entries(self) -> list[TensorEntry]:
        named = self.whole_tensors()
        return [TensorEntry(key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for key, tensor in named]

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """As ``whole_tensors``, by the names that checkpoints use: those of the unwrapped model, optimizer state by its parameter's name.

        The same list as long as the state has the same tensors, of the same shapes and types, under the same names: then nothing that follows
        from it need be worked out again.
        """
        return self._names().items

    def paths(self) -> dict[str, tuple[str | int, ...]]:
        """Of each item's name: the keys under which a nested state dict has it."""
        return self._names().paths

    def fleeting(self) -> set[int]:
        """The ``id`` of tensors that a forward may change: buffers."""
        return {id(buffer) for buffer in self.model.buffers()}

    def digest(self) -> str:
        """SHA-256 of parameters, buffers and optimizer state, in a fixed order."""
        seen = hashlib.sha256()
        for key, tensor in self.tensors():
            seen.update(key.encode())
            whole = tensor.detach().cpu().contiguous()
            seen.update(bytes_of(whole))
        return seen.hexdigest()

    # ------------------------------------------------------------ within a step

    def remember_buffers(self) -> None:
        """Keeps the model's buffers as they are before a forward, which may change them (batch norm)."""
        current = [buffer for _, buffer in self.model.named_buffers()]
        if len(self._buffers) != len(current):
            self._buffers = [buffer.detach().clone() for buffer in current]
        for kept, buffer in zip(self._buffers, current, strict=True):
            kept.copy_(buffer)
        self._are_buffers_kept = True

    def settle_step(self) -> None:
        """The step is committed: what its forward did to buffers is part of the state now."""
        self._are_buffers_kept = False

    def come_to_rest(self) -> None:
        """After a forward or backward that was left: the model has its own parameters again. Gradients that are in hand stay."""
        if self.is_sharded:
            sharding.come_to_rest(self.model)

    def reseated(self) -> None:
        """The sharded tensors have others inside of them."""
        self._named = None
        self._reserve = {}

    def abandon_step(self) -> None:
        """Undoes the traces of a step that was not committed: gradients, and what a forward did to buffers."""
        self.come_to_rest()
        for parameter in self.model.parameters():
            parameter.grad = None
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        if self._are_buffers_kept:
            for kept, (_, buffer) in zip(self._buffers, self.model.named_buffers(), strict=True):
                buffer.copy_(kept)
            self._are_buffers_kept = False

    # ------------------------------------------------------------ everything that is no tensor

    def pack_rest(self, cursor: dict[str, Any]) -> bytes:
        """Entries of the tensors and all other state, as one blob that ``torch.load(weights_only=True)`` reads."""
        rest = {
            "entries": self._names().entries,
            "groups": self._groups(),
            "values": self._optimizer_values(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "others": {name: other.state_dict() for name, other in self.others.items()},
            "cursor": cursor,
        }
        blob = io.BytesIO()
        torch.save(rest, blob)
        return blob.getvalue()

    def unpack_rest(self, blob: bytes) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """Takes everything but the tensors over, and returns the tensors to be filled, in the order of the sender's, and the cursor."""
        rest = torch.load(io.BytesIO(blob), weights_only=True)
        entries = [TensorEntry(key, dtype, tuple(shape)) for key, dtype, shape in json.loads(rest["entries"])]
        targets = self._make_room(entries)
        self._take_groups(rest["groups"])
        self._take_values(rest["values"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(rest["scheduler"])
        for name, other in self.others.items():
            other.load_state_dict(rest["others"][name])
        return targets, dict(rest["cursor"])

    # ------------------------------------------------------------ before and after a rehearsal

    def snapshot(self) -> Snapshot:
        return Snapshot(
            model=[sharding.local(tensor).detach().clone() for _, tensor in self._model_tensors()],
            optimizer=[(key, tensor.detach().clone()) for key, tensor in self._optimizer_tensors()],
            values=copy.deepcopy(self._optimizer_values()),
            groups=copy.deepcopy(self._groups()),
            scheduler=copy.deepcopy(self.scheduler.state_dict()) if self.scheduler else None,
            others={name: copy.deepcopy(other.state_dict()) for name, other in self.others.items()},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Puts everything back in place. Optimizer state that the rehearsal made is kept aside, to be received into."""
        self.come_to_rest()
        with torch.no_grad():
            for (_, tensor), kept in zip(self._model_tensors(), snapshot.model, strict=True):
                sharding.local(tensor).copy_(kept)
        self._reserve = dict(self._optimizer_tensors())
        self._restore_optimizer(snapshot)
        if self.scheduler is not None and snapshot.scheduler is not None:
            self.scheduler.load_state_dict(snapshot.scheduler)
        for name, other in self.others.items():
            other.load_state_dict(snapshot.others[name])
        self._are_buffers_kept = False
        for parameter in self.model.parameters():
            parameter.grad = None

    def release_reserve(self) -> None:
        """The first members begin with a fresh optimizer; what was kept aside is of no use to them."""
        self._reserve = {}

    # ------------------------------------------------------------ inside

    def _put_away(self) -> None:
        if self.is_sharded:  # for its modules are walked, and an unwrapped state is named at each save
            sharding.put_away(self.model)

    def _names(self) -> Named:
        """Walking the state takes a tenth of the time of naming it, which is felt at thousands of tensors."""
        self._put_away()
        leaves = Leaves.of(self.model, self._parameters(), self.optimizer.state if self.optimizer else {})
        if self._named is None or not self._named.are_of(leaves):
            paths = self._item_paths()
            items = [(".".join(path), tensor) for path, (_, tensor) in zip(paths, self.whole_tensors(), strict=True)]
            entries = json.dumps([(entry.key, entry.dtype, entry.shape) for entry in self.entries()], separators=(",", ":"))
            self._named = Named(leaves, leaves.forms(), items, {".".join(path): path for path in paths}, entries)
        return self._named

    def _model_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """By names that know nothing of wrappers: a checkpoint of a wrapped model fills one that is not."""
        prefixes = self._wrapped_at()
        self._put_away()
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return [(f"model/{_unwrapped(name, prefixes)}", tensor) for name, tensor in named]

    def _parameters(self) -> list[torch.nn.Parameter]:
        if self.optimizer is None:
            return []
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _optimizer_tensors(self) -> list[tuple[str, torch.Tensor]]:
        if self.optimizer is None:
            return []
        return [
            (f"optimizer/{number}/{name}", value)
            for number, parameter in enumerate(self._parameters())
            for name, value in sorted(self.optimizer.state.get(parameter, {}).items())
            if isinstance(value, torch.Tensor)
        ]

    def _item_paths(self) -> list[tuple[str, ...]]:
        prefixes = self._wrapped_at()
        names = {id(parameter): _unwrapped(name, prefixes) for name, parameter in self.model.named_parameters()}
        owners = [names.get(id(parameter), f"#{number}") for number, parameter in enumerate(self._parameters())]
        paths: list[tuple[str, ...]] = [("model", key.removeprefix("model/")) for key, _ in self._model_tensors()]
        for key, _ in self._optimizer_tensors():
            _, number, name = key.split("/", 2)
            paths.append(("optimizer", "state", owners[int(number)], name))
        return paths

    def _wrapped_at(self) -> list[str]:
        """What stands before ``module.`` in the names of wrapped parts."""
        return [
            f"{name}." if name else "" for name, module in self.model.named_modules() if isinstance(module, DistributedDataParallel)
        ]

    def _optimizer_values(self) -> dict[int, dict[str, Any]]:
        if self.optimizer is None:
            return {}
        found = {}
        for number, parameter in enumerate(self._parameters()):
            own = self.optimizer.state.get(parameter, {})
            if values := {name: value for name, value in own.items() if not isinstance(value, torch.Tensor)}:
                found[number] = values
        return found

    def _groups(self) -> list[dict[str, Any]]:
        groups = self.optimizer.param_groups if self.optimizer else []
        return [{name: value for name, value in group.items() if name != "params"} for group in groups]

    def _take_groups(self, groups: list[dict[str, Any]]) -> None:
        own = self.optimizer.param_groups if self.optimizer else []
        if len(own) != len(groups):
            message = f"{len(own)} parameter groups here, {len(groups)} in the state that was found"
            raise StateMismatch(message)
        for group, taken in zip(own, groups, strict=True):
            for name, value in taken.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                    group[name].copy_(value)
                else:
                    group[name] = value

    def _take_values(self, values: dict[int, dict[str, Any]]) -> None:
        if self.optimizer is None:
            return
        for number, parameter in enumerate(self._parameters()):
            if number in values:
                self.optimizer.state[parameter].update(values[number])

    def _make_room(self, entries: list[TensorEntry]) -> list[torch.Tensor]:
        """Where each of the sender's tensors is to be written. Optimizer state that the sender has not is dropped."""
        self._named = None  # it would keep alive what is dropped here
        own = dict(self.whole_tensors())
        targets = [sharding.local(self._room_for(entry, own.get(entry.key))) for entry in entries]
        wanted = {entry.key for entry in entries}
        if missing := [key for key in own if key not in wanted and key.startswith("model/")]:
            message = f"the state that was found does not have {missing[0]}"
            raise StateMismatch(message)
        for number, parameter in enumerate(self._parameters()):
            self._drop_unwanted(number, parameter, wanted)
        self._reserve = {}
        return targets

    def _room_for(self, entry: TensorEntry, own: torch.Tensor | None) -> torch.Tensor:
        if own is not None and _fits(own, entry):
            return own
        if not entry.key.startswith("optimizer/") or self.optimizer is None:
            message = f"{entry.key} is {entry.dtype}{list(entry.shape)} where the state comes from, not so here"
            raise StateMismatch(message)
        _, number, name = entry.key.split("/", 2)
        parameter = self._parameters()[int(number)]
        room = self._reserve.get(entry.key)
        if room is None or not _fits(room, entry):
            room = sharding.room(parameter, entry.shape, getattr(torch, entry.dtype))
        self.optimizer.state[parameter][name] = room
        return room

    def _drop_unwanted(self, number: int, parameter: torch.nn.Parameter, wanted: set[str]) -> None:
        if self.optimizer is None or parameter not in self.optimizer.state:
            return
        own = self.optimizer.state[parameter]
        for name in [name for name in own if f"optimizer/{number}/{name}" not in wanted]:
            del own[name]
        if not own:
            del self.optimizer.state[parameter]

    def _restore_optimizer(self, snapshot: Snapshot) -> None:
        if self.optimizer is None:
            return
        self.optimizer.state.clear()
        for key, tensor in snapshot.optimizer:
            _, number, name = key.split("/", 2)
            self.optimizer.state[self._parameters()[int(number)]][name] = tensor
        self._take_values(snapshot.values)
        self._take_groups(snapshot.groups)


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state as it was before a rehearsal."""

    model: list[torch.Tensor]
    optimizer: list[tuple[str, torch.Tensor]]
    values: dict[int, dict[str, Any]]
    groups: list[dict[str, Any]]
    scheduler: dict[str, Any] | None
    others: dict[str, dict[str, Any]]


def _unwrapped(name: str, prefixes: list[str]) -> str:
    """Without what DistributedDataParallel (at these prefixes) and torch.compile add to a name."""
    for prefix in sorted(prefixes, key=len, reverse=True):
        if name.startswith(f"{prefix}module."):
            name = prefix + name.removeprefix(f"{prefix}module.")
    return name.replace("_orig_mod.", "")


def _fits(tensor: torch.Tensor, entry: TensorEntry) -> bool:
    return str(tensor.dtype) == f"torch.{entry.dtype}" and tuple(tensor.shape) == entry.shape
