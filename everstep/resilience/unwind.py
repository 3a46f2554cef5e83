"""How control leaves user code. These are BaseExceptions, so that a user's ``except Exception`` cannot swallow a change of membership."""

from __future__ import annotations


class Unwind(BaseException):
    """The membership has changed: leave the step and come back to ``resilient``, which enters the training function again."""


class PassOver(Unwind):
    """The step is not applied, by all ranks alike; the membership stays as it is. ``loss`` is why."""

    def __init__(self, loss: float | None) -> None:
        super().__init__()
        self.loss = loss


class RehearsalOver(BaseException):
    """The dry run has done its steps: leave the training function, then put everything back as it was."""
