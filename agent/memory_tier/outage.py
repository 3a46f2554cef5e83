"""How often something that does not answer is asked again, and what is said meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

FIRST_S = 0.25
MOST_S = 15.0


@dataclass
class Outage:
    """Begins with the first failure and ends with the first success. Waits double from ``FIRST_S`` to ``most_s``.

    Each wait is drawn between half of that and all of it: nodes that lost the same store at once would else come back to it at once.
    """

    rng: Random
    most_s: float = MOST_S
    since: float | None = field(default=None, init=False)
    why: str = field(default="", init=False)
    failures: int = field(default=0, init=False)
    next_at: float = field(default=0.0, init=False)

    def failed(self, why: str, now: float) -> None:
        self.since = now if self.since is None else self.since
        self.why = why
        longest = min(self.most_s, FIRST_S * 2.0 ** min(self.failures, 30))
        self.failures += 1
        self.next_at = now + self.rng.uniform(longest / 2, longest)

    def succeeded(self) -> None:
        self.since, self.why, self.failures, self.next_at = None, "", 0, 0.0

    def hurry(self) -> None:
        """Whatever was in the way is said to be gone: it is asked at once."""
        self.failures, self.next_at = 0, 0.0

    def wait_s(self, now: float) -> float:
        """How long it is not asked yet."""
        return max(0.0, self.next_at - now)

    def words(self, of: str) -> str | None:
        """For an operator; the same for as long as it lasts and fails alike. None: it answers."""
        if self.since is None:
            return None
        return f"{of} has not answered since {datetime.fromtimestamp(self.since, UTC):%H:%M:%S} UTC: {self.why}"
