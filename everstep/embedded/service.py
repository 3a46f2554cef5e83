"""One thing that the supervisor keeps alive, as a value."""

from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.embedded.children import Command


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Service:
    """How to start a service and how to know that it is ready.

    ``prepare`` and ``finish`` may block; they run in a thread, before each start and after each readiness.
    ``command`` is asked for once, so that descriptors in it are opened once.
    """

    name: str
    command: Callable[[], Command]
    needs: tuple[str, ...] = ()
    """Services that have to be ready before this one is started, at first and after each crash."""
    prepare: Callable[[], None] = field(default=_nothing)
    why_not_ready: Callable[[], str | None] | None = None
    """Answers None when the service is ready. A service that cannot be asked is ready when the whole stack is."""
    finish: Callable[[], None] = field(default=_nothing)
    is_task: bool = False
    """It does its work and ends; status 0 makes it ready, any other fails the start of the stack."""
    poll_seconds: float = 0.02
