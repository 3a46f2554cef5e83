"""The life of a credential."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class Role(StrEnum):
    """What the holder of a credential may do: look; look and change; also give credentials."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class KeyState(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"


KEY = Machine("Credential", initial=KeyState.ACTIVE, table={KeyState.ACTIVE: {KeyState.REVOKED: "revoked"}, KeyState.REVOKED: {}})
