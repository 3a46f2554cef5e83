"""Which steps are saved, and where. Pure.

Who decides, in this order: the job file (through the plan of the node's memory tier), the script's arguments, the measured costs. A step
that is saved durably is saved to memory as well, where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .interval import Costs, Interval, durable_interval, memory_interval, steadied

FIRST_SAVE_AFTER = 3
"""Steps before the first automatic save: it measures what a save costs, and early steps are slow for reasons of their own."""
_RECOMPUTED_EVERY = 5


@dataclass(frozen=True)
class Policy:
    """Intervals in steps; None: automatic."""

    memory_every: int | None = None
    durable_every: int | None = None
    mtbf_s: float | None = None


@dataclass(frozen=True)
class Wanted:
    """What is to become of a step that has just been committed."""

    memory: bool = False
    durable: bool = False

    def __bool__(self) -> bool:
        return self.memory or self.durable

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(self.memory or other.memory, self.durable or other.durable)


NOTHING = Wanted()


@dataclass(frozen=True)
class Asks:
    """What one rank lays into the vote of a step, to be summed over the ranks.

    ``busy``: its last save has not ended, so another would queue behind it. ``urgent``: to be durable, and there is no later; it is about to be ended.
    """

    memory: bool = False
    durable: bool = False
    busy: bool = False
    urgent: bool = False

    def as_numbers(self) -> list[float]:
        return [float(self.memory), float(self.durable), float(self.busy), float(self.urgent)]


def decided(sums: list[float]) -> Wanted:
    """What all ranks do, from the sums of their ``Asks.as_numbers``: equal in all of them."""
    memory, durable, busy, urgent = (number > 0 for number in sums)
    return NOTHING if busy and not urgent else Wanted(memory or durable or urgent, durable)


def in_force(asked_by_job: Policy, asked_by_script: Policy) -> Policy:
    """The job file before the script; whatever neither says stays automatic."""
    return Policy(
        asked_by_job.memory_every or asked_by_script.memory_every,
        asked_by_job.durable_every or asked_by_script.durable_every,
        asked_by_job.mtbf_s or asked_by_script.mtbf_s,
    )


class Schedule:
    """Decides for every step. Every rank keeps one, so that any rank can take over; rank 0's decides.

    Fixed intervals are multiples, counted from the beginning of training; a step that could not be saved, because the save before it had
    not ended, is made up for by the next one. Automatic intervals count from the last save.
    """

    def __init__(self, policy: Policy, *, has_memory: bool, has_store: bool) -> None:
        self.policy = policy
        self._agreed = policy
        self._begun = (0, 0)
        self._has_memory = has_memory
        self._has_store = has_store
        self._memory: Interval | None = None
        self._durable: Interval | None = None
        self._last_memory = self._last_durable = 0
        self._before = (0, 0)
        self._saves = 0

    @property
    def memory_every(self) -> int | None:
        """In steps, None as long as nothing has been measured."""
        if not self._has_memory:
            return None
        return self.policy.memory_every or (self._memory.steps if self._memory else None)

    @property
    def durable_every(self) -> int | None:
        if not self._has_store:
            return None
        return self.policy.durable_every or (self._durable.steps if self._durable else None)

    def begins_at(self, step: int) -> None:
        """Training goes on from here: automatic intervals count from this step."""
        self._last_memory = self._last_durable = step
        self._before = self._begun = (step, step)

    def agree(self, policy: Policy, *, has_memory: bool, has_store: bool) -> None:
        """What all ranks have been told alike, once and before the first step: ``fixed`` goes by that alone."""
        self._agreed, self._has_memory, self._has_store = policy, has_memory, has_store

    def wants(self, step: int) -> Wanted:
        """``step`` counts the committed ones."""
        durable = self._has_store and self._is_due(step, self.policy.durable_every, self._durable, self._last_durable)
        memory = self._has_memory and self._is_due(step, self.policy.memory_every, self._memory, self._last_memory)
        return Wanted(self._has_memory and (memory or durable), durable)

    def possible(self, asked: Wanted) -> Wanted:
        """What can be had of it here: without a memory tier, a durable save for one to memory."""
        return Wanted(
            asked.memory and self._has_memory, self._has_store and (asked.durable or (asked.memory and not self._has_memory))
        )

    def urgently(self) -> Wanted:
        """As safe as can be, whatever the intervals say."""
        return Wanted(self._has_memory, self._has_store)

    def fixed(self, step: int) -> Wanted:
        """As ``wants``, by fixed intervals alone: all ranks say the same without a word.

        So nothing may count here that one rank knows earlier than another, or alone: what became of its saves, or of the job's policy since.
        """
        durable = self._has_store and self._passes(step, self._agreed.durable_every, self._begun[1])
        memory = self._has_memory and self._passes(step, self._agreed.memory_every, self._begun[0])
        return Wanted(self._has_memory and (memory or durable), durable)

    def saved(self, step: int, wanted: Wanted) -> None:
        """A save of this step has begun."""
        self._before = (self._last_memory, self._last_durable)
        self._begun = (step, step if wanted.durable else self._begun[1])
        self._last_memory = step
        if wanted.durable:
            self._last_durable = step

    def came_to_nothing(self) -> None:
        """The last save is not complete, because a rank died in it: it is due again."""
        self._last_memory, self._last_durable = self._before

    def measured(self, costs: Costs) -> str | None:
        """Takes the costs of a save in. Returns words when an automatic interval has changed."""
        self._saves += 1
        if self._saves % _RECOMPUTED_EVERY != 1 and self._memory is not None:
            return None
        memory = steadied(self._memory, memory_interval(costs))
        durable = steadied(self._durable, durable_interval(costs))
        changed = [
            new.why
            for new, old, is_automatic in (
                (memory, self._memory, self._has_memory and self.policy.memory_every is None),
                (durable, self._durable, self._has_store and self.policy.durable_every is None),
            )
            if is_automatic and new is not old
        ]
        self._memory, self._durable = memory, durable
        return "; ".join(changed) or None

    @staticmethod
    def _passes(step: int, every: int | None, last: int) -> bool:
        return every is not None and step // every > last // every

    def _is_due(self, step: int, fixed: int | None, automatic: Interval | None, last: int) -> bool:
        if fixed is not None:
            return self._passes(step, fixed, last)
        return step - last >= (automatic.steps if automatic else FIRST_SAVE_AFTER)
