"""The life of a credential, and what its holder may do."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class Role(StrEnum):
    """What the holder of a credential may do: look; look and change; also give credentials. Each may do what the one before may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, other: Role) -> bool:
        """Whether this role may do all that the other may."""
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


class Kind(StrEnum):
    """How a credential is used: an access key signs requests (SigV4), a token is sent along with them."""

    ACCESS_KEY = "access_key"
    TOKEN = "token"  # noqa: S105  (a kind, not a token)


class KeyState(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"


KEY = Machine("Credential", initial=KeyState.ACTIVE, table={KeyState.ACTIVE: {KeyState.REVOKED: "revoked"}, KeyState.REVOKED: {}})
