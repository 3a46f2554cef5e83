"""Whether a state still has the tensors that it had, told without naming them.

Names are strings that are put together, and doing so for every save costs more than its copy when tensors are many and small. Tensors are told by
their identity: the same objects, of the same shapes and types, found under the same keys in the same order, have the same names.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Form = tuple[torch.Size, torch.dtype] | None


@dataclass(frozen=True)
class Leaves:
    """``keys`` are what modules and the optimizer call their parts, in the order of a walk; ``tensors`` what was found, some more than once."""

    keys: list[str]
    tensors: list[torch.Tensor | None]

    @classmethod
    def of(cls, model: torch.nn.Module, parameters: Iterable[torch.Tensor], state: Mapping[Any, Mapping[str, Any]]) -> Leaves:
        """``parameters`` are the optimizer's, in the order of its groups, and ``state`` is its state."""
        keys: list[str] = []
        tensors: list[torch.Tensor | None] = []
        waiting, seen = [model], set()
        while waiting:
            module = waiting.pop()
            if module in seen:
                continue
            seen.add(module)
            parts = (module._parameters, module._buffers, module._modules)  # noqa: SLF001, the public walk takes ten times as long
            keys += [key for part in parts for key in part]
            tensors += [*parts[0].values(), *parts[1].values()]
            waiting += [child for child in reversed(parts[2].values()) if child is not None]
        for parameter in parameters:
            own = state.get(parameter, {})
            keys += own
            tensors.append(parameter)
            tensors += [value for value in own.values() if isinstance(value, torch.Tensor)]
        return cls(keys, tensors)

    def forms(self) -> list[Form]:
        return [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in self.tensors]


@dataclass(frozen=True)
class Named:
    """What follows from the leaves of a state. ``entries``: its ``TensorEntry``s, as JSON."""

    leaves: Leaves
    forms: list[Form]
    items: list[tuple[str, torch.Tensor]]
    paths: dict[str, tuple[str | int, ...]]
    entries: str

    def are_of(self, now: Leaves) -> bool:
        """A tensor keeps its identity when its ``data`` becomes another, so that shapes and types are looked at each time."""
        known = self.leaves
        if len(now.tensors) != len(known.tensors) or now.keys != known.keys:
            return False
        return all(map(operator.is_, now.tensors, known.tensors)) and all(map(_has_form, now.tensors, self.forms))


def _has_form(tensor: torch.Tensor | None, form: Form) -> bool:
    return tensor is None if form is None else tensor is not None and tensor.dtype is form[1] and tensor.shape == form[0]
