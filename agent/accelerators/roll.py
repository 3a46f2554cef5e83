"""Which of a host's devices are missing: a device that vanishes leaves no line in any log."""

from __future__ import annotations

from collections.abc import Sequence

NAMELESS = "?"
"""Stands for a device that this host should have and was never seen to have."""
_LOOKS = 2
"""How often in a row a device must be missing: a driver that is being read may stumble once."""


class Roll:
    """``patience_s``: how long after the first look a device that was never seen may still be on its way."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._begun: float | None = None
        self._missed: dict[str, int] = {}
        self.is_in_doubt = False
        """Some are not there, and whether they are missing is not certain yet."""

    def call(self, present: Sequence[str], known: Sequence[str], expected: int | None, now: float) -> tuple[str, ...]:
        """The devices that are missing for certain. ``now`` in seconds of a clock that only goes forward.

        A host that has as many as it should misses none, whatever their names: one may have been exchanged.
        """
        self._begun = now if self._begun is None else self._begun
        absent = [device for device in known if device not in present]
        awaited = 0
        if expected is not None:
            lacking = max(0, expected - len(present))
            absent = absent[:lacking]
            awaited = lacking - len(absent)
            if now - self._begun >= self._patience_s:
                absent += [f"{NAMELESS}{number}" for number in range(awaited)]
                awaited = 0
        self._missed = {device: self._missed.get(device, 0) + 1 for device in absent}
        certain = tuple(device for device in absent if self._missed[device] >= _LOOKS)
        self.is_in_doubt = awaited > 0 or len(certain) < len(absent)
        return certain
