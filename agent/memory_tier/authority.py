"""Who may have what at the door. Tokens are compared in constant time, and neither told nor logged.

A job's namespace is opened by its own token and by nothing else; other nodes' tiers show the plan's secret, which opens every namespace. A namespace
that no plan has named is *open*: AWS's package sends no token. It is served to processes on the node itself, never to strangers on the network. A name
that was a job's stays closed when the job's plan goes: what it has left behind is nobody's to read or to write over.
"""

from __future__ import annotations

import hmac
import ipaddress
import threading
from collections.abc import Mapping
from enum import StrEnum

from everstep.shards import NAMESPACE
from everstep.tiers import TierPlan

_BEARER = "bearer "


class Caller(StrEnum):
    JOB = "job"
    PEER = "peer"
    NODE = "node"


class Forbidden(Exception):
    """The words name the namespace and what would open it, never a token."""


class Authority:
    """``address`` is this node's own. Thread-safe."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._secret = ""
        self._tokens: Mapping[str, str] = {}
        self._were_planned: set[str] = set()

    def know(self, plan: TierPlan) -> None:
        with self._lock:
            self._secret = plan.secret
            self._tokens = {namespace.name: namespace.token for namespace in plan.namespaces}
            self._were_planned |= {*self._tokens, *plan.ended}

    def is_open(self, namespace: str) -> bool:
        """Whether clients without a token own it."""
        with self._lock:
            return namespace not in self._were_planned

    def admit(self, namespace: str, *, shown: str | None, source: str) -> Caller:
        """Who speaks. ``shown`` is the header Authorization, ``source`` the address that it came from.

        Raises:
            ValueError: that is no name of a namespace.
            Forbidden: this caller may not have it.
        """
        if not NAMESPACE.fullmatch(namespace):
            message = f"{namespace[:220]!r} cannot be a namespace: letters, digits, '_', '-' and '.', not beginning with '-' or '.', at most 200"
            raise ValueError(message)
        token = _token(shown)
        with self._lock:
            secret, own, was_planned = self._secret, self._tokens.get(namespace, ""), namespace in self._were_planned
        if _is_same(token, secret):
            return Caller.PEER
        if _is_same(token, own):
            return Caller.JOB
        if was_planned:
            message = f"namespace {namespace} is a job's: its processes show the token in EVERSTEP_CHECKPOINT_TOKEN; other callers use another namespace"
            raise Forbidden(message)
        if self.is_here(source):
            return Caller.NODE
        message = f"namespace {namespace} is open to processes on node {self._address} alone, and {source} is another; save to the tier of your own node"
        raise Forbidden(message)

    def admit_peer(self, *, shown: str | None) -> None:
        """Raises Forbidden."""
        with self._lock:
            secret = self._secret
        if not _is_same(_token(shown), secret):
            message = "only the memory tiers of this cluster's other nodes may ask that; they show the secret of their plan"
            raise Forbidden(message)

    def is_here(self, source: str) -> bool:
        """Whether an address is this machine's own."""
        if source == self._address:
            return True
        try:
            address = ipaddress.ip_address(source.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback or str(mapped or address) == self._address


def _token(shown: str | None) -> str:
    return shown[len(_BEARER) :].strip() if shown is not None and shown.lower().startswith(_BEARER) else ""


def _is_same(token: str, expected: str) -> bool:
    """An empty one opens nothing: a plan without a secret must not be one that everybody knows."""
    return bool(token) and bool(expected) and hmac.compare_digest(token.encode(), expected.encode())
