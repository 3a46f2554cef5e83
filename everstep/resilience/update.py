"""The context of one update: the vote, and the critical section after it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

import torch


class Stepped(Protocol):
    """Whose update it is."""

    def reduce_and_vote(self, step: int, loss: float | None) -> float | None: ...

    def commit(self, loss: float | None) -> None: ...

    def tear(self) -> None: ...


class Update:
    """The context of one update. The body must not communicate: everything in it is applied or, if this process dies, is not."""

    def __init__(self, run: Stepped, step: int, loss: torch.Tensor | float | None) -> None:
        self._run = run
        self._step = step
        self._told = loss
        self.loss: float | None = None
        """The mean loss over the ranks, from the vote on."""

    def __enter__(self) -> Self:
        told = self._told.detach().item() if isinstance(self._told, torch.Tensor) else self._told
        self.loss = self._run.reduce_and_vote(self._step, told)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._run.commit(self.loss)
        else:
            self._run.tear()
