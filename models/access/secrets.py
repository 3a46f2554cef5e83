"""What the master key is for: sealing secrets at rest, and deriving tokens that need no storage. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from models.ids import ClusterId, JobId, NodeId

_NONCE = 12


def seal(master_key: bytes, secret: str, *, bound_to: str) -> str:
    """Encrypts under AES-256-GCM-SIV. The nonce is derived, which that mode allows: sealing twice gives the same text, and nothing more."""
    nonce = hmac.digest(master_key, f"nonce:{bound_to}:{secret}".encode(), "sha256")[:_NONCE]
    sealed = AESGCMSIV(_key(master_key)).encrypt(nonce, secret.encode(), bound_to.encode())
    return base64.b64encode(nonce + sealed).decode()


def unseal(master_key: bytes, sealed: str, *, bound_to: str) -> str:
    """Raises cryptography's InvalidTag if the text was changed, moved to another row, or sealed under another master key."""
    raw = base64.b64decode(sealed)
    return AESGCMSIV(_key(master_key)).decrypt(raw[:_NONCE], raw[_NONCE:], bound_to.encode()).decode()


def boot_token(master_key: bytes, node_id: NodeId) -> str:
    """The one-time token with which a node's agent registers. Derived, so that a launch repeated after a crash hands out the same one."""
    return _derived(master_key, f"boot:{node_id}")


def tier_secret(master_key: bytes, cluster_id: ClusterId) -> str:
    """What the memory tiers of a cluster's nodes show each other. Derived, so that it is neither stored nor lost."""
    return _derived(master_key, f"tier:{cluster_id}")


def namespace_token(master_key: bytes, namespace: str, job_id: JobId) -> str:
    """What opens a namespace of checkpoints to one job's processes. A later job of the same namespace has another one."""
    return _derived(master_key, f"namespace:{namespace}:{job_id}")


def _derived(master_key: bytes, of: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(master_key, of.encode(), "sha256")).decode().rstrip("=")


def _key(master_key: bytes) -> bytes:
    return hashlib.sha256(b"everstep seal\x00" + master_key).digest()
