"""What can be wrong, as facts. The docstring of a class is its message; doors translate classes into codes and statuses."""

from __future__ import annotations

from typing import Any, Final

_LEAVING: Final = frozenset({"deleting", "releasing", "gone"})


class DomainError(Exception):
    """The request cannot be carried out."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        template = " ".join((type(self).__doc__ or "").split())
        super().__init__(template.format(**facts))


class NotFound(DomainError):
    """{kind} '{name}' does not exist."""


class AlreadyExists(DomainError):
    """Resource Already Exists: {kind} with name {name} already exists. Choose a different name."""


class Taken(DomainError):
    """{kind} with {member} '{value}' already exists on this cluster. Choose another one, or update that."""


class NamespaceTaken(DomainError):
    """Checkpoint namespace '{name}' is held by {holder}. Choose another one under checkpoint.namespace in the job file."""


class Kept(DomainError):
    """Checkpoint '{name}' is kept: {why}"""  # noqa: D415


class Outdated(DomainError):
    """TargetVersion {seen} is not the newest version of {kind} '{name}', which is {newest}. Describe it and decide again."""


class InTransition(DomainError):
    """{kind} '{name}' is {state}; {verb} is possible once it has settled."""


class Leaving(InTransition):
    """{kind} '{name}' is being deleted; {verb} is not possible any more."""


class InUse(InTransition):
    """{kind} '{name}' is in use by {by}; try again when that is over."""


class IllegalMove(DomainError):
    """{kind} '{name}' cannot go from {old} to {new}."""


class Immutable(DomainError):
    """Updating fields {member} on {where} not supported"""  # noqa: D415


class Invalid(DomainError):
    """{message}"""  # noqa: D415


class Unsupported(DomainError):
    """{member} is not supported by this control plane yet. {remedy}"""  # noqa: D415


class LimitExceeded(DomainError):
    """{what} would be {wanted}; the limit is {limit}. {remedy}"""  # noqa: D415


class Forbidden(DomainError):
    """{message}"""  # noqa: D415


class StaleLease(DomainError):
    """The lease on {kind} '{name}' has passed to another worker (token {token}); what this worker found out is dropped."""


class Unauthenticated(DomainError):
    """The security token included in the request is invalid."""


def in_transition(*, kind: str, name: str | None, state: str, verb: str) -> InTransition:
    """The error for what is asked of something in a state that does not allow it; of what goes, nobody should wait that it settles."""
    if state.lower() in _LEAVING:
        return Leaving(kind=kind, name=name, verb=verb)
    return InTransition(kind=kind, name=name, state=state.replace("_", " "), verb=verb)
