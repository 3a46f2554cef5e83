"""What a run does about a sick loss, once all ranks have seen it in their vote: they pass the step over, go back, or stop."""

from __future__ import annotations

from typing import NoReturn

from everstep.errors import LossStopped
from everstep.local_protocol import ToAgent

from .anomaly import LossPolicy, Verdict, judge
from .membership import Membership
from .unwind import PassOver


class LossGuard:
    """One per resilient function. ``policy`` None: losses are nobody's concern."""

    def __init__(self, policy: LossPolicy | None, membership: Membership) -> None:
        self._policy = policy
        self._membership = membership

    def judge(self, loss: float | None) -> Verdict | None:
        """Of the step that is being trained; every rank answers alike."""
        place = self._membership.place
        return judge(self._policy, place.losses, place.step, loss) if self._policy is not None else None

    def accept(self, loss: float | None) -> None:
        """The step was applied, and its loss is one to compare others with."""
        if self._policy is not None:
            self._membership.place.losses.accept(loss, self._policy.window)

    def react(self, verdict: Verdict) -> NoReturn:
        """Never comes back.

        Raises:
            PassOver: the step is not applied.
            CollectiveFailed: the state was given up, everybody goes on from an older checkpoint.
            LossStopped: the job ends.
        """
        place, policy = self._membership.place, self._policy or LossPolicy()
        step, words, action = place.step, verdict.words, verdict.action
        if action == "rollback" and self._membership.checkpoints is None:
            action, words = "stop", f"{words}; but there are no checkpoints to go back to"
        self._tell(step, verdict.what, action, words)
        if action == "skip":
            place.losses.react(step)
            raise PassOver(verdict.loss)
        if action == "rollback":
            place.losses.go_back(step, policy.rollback_steps)
            self._membership.give_up_state(words)
        message = f"{words[0].upper()}{words[1:]}."
        raise LossStopped(message)

    def _tell(self, step: int, what: str, action: str, words: str) -> None:
        place, watcher = self._membership.place, self._membership.watcher
        if watcher is not None and place.rank == 0:
            watcher.tell(ToAgent.ANOMALY, generation=place.generation, step=step, what=str(what), action=action, words=words)
