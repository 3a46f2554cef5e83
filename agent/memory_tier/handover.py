"""The tier's end of ``everstep.handover``: segments for the training processes of this node, by descriptor over a Unix socket.

A thread a conversation. What a conversation has in hand is given back when it ends, whichever way; a segment that its writer still locks then is used
by nobody until the lock is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent.memory_tier.authority import Authority, Forbidden
from agent.memory_tier.local_socket import LocalSocket, hang_up
from agent.memory_tier.seals import MOST_INDEX
from agent.memory_tier.store import Corrupt, Gone, NoRoom, Sealing, Segment, Store
from everstep.handover import PROTOCOL_VERSION, Ask, Conversation
from everstep.shards import STAMP_BYTES, ShardKind, StepFound
from everstep.tiers import NamespacePlan

log = logging.getLogger(__name__)

_MOST = 10**18 - 1
_PATIENCE_S = 2.0
"""How long the end of a conversation is waited for: what it asked last may be waiting for something."""


class Steps(Protocol):
    """What is known of a namespace in all tiers."""

    def policy(self, namespace: str) -> NamespacePlan | None: ...

    def find(self, namespace: str, step: int | None, limit: int) -> tuple[StepFound, ...]: ...

    def discard(self, namespace: str, after: int) -> tuple[int, ...]: ...

    def wait(self, namespace: str, step: int, *, replicas: int, durable: bool, seconds: float) -> tuple[int, bool]: ...

    def status(self, namespace: str) -> dict[str, Any]: ...


class Refused(Exception):
    """The words are the answer. The conversation goes on."""


@dataclass(frozen=True)
class _Open:
    segment: Segment
    index: int
    step: int
    save: str
    kind: ShardKind
    is_durable: bool


Answer = tuple[dict[str, Any], list[int]]


class Handover:
    """Serves ``path`` from ``start`` to ``stop``."""

    def __init__(
        self, path: Path, *, node: str, store: Store, authority: Authority, steps: Steps, relieve: Callable[[], None]
    ) -> None:
        """``relieve`` applies retention now: it is called before a save is refused for want of room."""
        self._path = path
        self._desk = _Desk(node, store, authority, steps, relieve)
        self._socket: LocalSocket | None = None
        self._lock = threading.Lock()
        self._talks: dict[socket.socket, threading.Thread] = {}

    def start(self) -> None:
        """Raises OSError."""
        self._socket = LocalSocket(self._path, self._greet, name="handover")

    def stop(self) -> None:
        """Ends every conversation; what was being filled is given back."""
        local, self._socket = self._socket, None
        if local is None:
            return
        local.close()
        with self._lock:
            talks = list(self._talks.items())
        for connection, _ in talks:
            hang_up(connection)
        for _, thread in talks:
            thread.join(_PATIENCE_S)

    def _greet(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._converse, args=(connection,), name="handover-talk", daemon=True)
        with self._lock:
            self._talks[connection] = thread
        thread.start()

    def _converse(self, connection: socket.socket) -> None:
        talk = _Talk(self._desk)
        conversation = Conversation(connection)
        try:
            while (heard := conversation.hear()) is not None:
                asked, descriptors = heard
                for descriptor in descriptors:
                    os.close(descriptor)
                answer, lent = talk.answer(asked)
                try:
                    conversation.say(answer, lent)
                finally:
                    for descriptor in lent:
                        os.close(descriptor)
        except (OSError, ValueError, RecursionError) as error:
            log.info("a conversation of namespace %s ended: %s", talk.namespace, error)
        finally:
            talk.end()
            with self._lock:
                self._talks.pop(connection, None)
            conversation.close()


@dataclass(frozen=True)
class _Desk:
    node: str
    store: Store
    authority: Authority
    steps: Steps
    relieve: Callable[[], None]

    def take(self, namespace: str, index: int, step: int, nbytes: int) -> Segment:
        """Raises NoRoom."""
        try:
            return self.store.take(namespace, index, step, nbytes, is_last_try=False)
        except NoRoom:
            self.relieve()
        return self.store.take(namespace, index, step, nbytes)


class _Talk:
    """One process's. Its namespace is that of its hello."""

    def __init__(self, desk: _Desk) -> None:
        self.namespace = ""
        self._desk = desk
        self._open: dict[str, _Open] = {}
        self._reserved: set[int] = set()
        self._asks: dict[str, Callable[[dict[str, Any]], Answer | dict[str, Any]]] = {
            Ask.RESERVE: self._reserve,
            Ask.OPEN: self._begin,
            Ask.SEAL: self._seal,
            Ask.ABANDON: self._abandon,
            Ask.LEASE: self._lease,
            Ask.CORRUPT: self._doubt,
            Ask.FIND: self._find,
            Ask.DISCARD: self._discard,
            Ask.WAIT: self._wait,
            Ask.STATUS: lambda _: self._greeting() | self._desk.steps.status(self.namespace),
        }

    def answer(self, asked: dict[str, Any]) -> Answer:
        try:
            told = self._answer(asked)
        except (Refused, NoRoom, Corrupt, Forbidden) as refused:
            told = {"refused": str(refused)}
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            told = {"refused": f"the request {asked.get('ask')!r} cannot be read: {type(error).__name__} {error}"}
        except OSError as error:
            log.exception("the memory tier failed at %s of namespace %s", asked.get("ask"), self.namespace)
            told = {"refused": f"the memory tier of node {self._desk.node} failed: {error}; its log says more"}
        return told if isinstance(told, tuple) else (told, [])

    def end(self) -> None:
        for one in self._open.values():
            with contextlib.suppress(OSError):
                self._desk.store.abandon(one.segment)
        self._open.clear()
        for index in self._reserved:
            self._desk.store.unclaim(self.namespace, index)

    def _answer(self, asked: dict[str, Any]) -> Answer | dict[str, Any]:
        ask = asked.get("ask")
        if ask == Ask.HELLO:
            return self._hello(asked)
        if not self.namespace:
            message = "the first thing to say is hello, with the namespace and its token"
            raise Refused(message)
        found = self._asks.get(str(ask))
        if found is None:
            message = f"this memory tier does not know {ask!r}; it speaks version {PROTOCOL_VERSION} of the hand-over"
            raise Refused(message)
        return found(asked)

    def _hello(self, asked: dict[str, Any]) -> dict[str, Any]:
        namespace = str(asked["namespace"])
        self._desk.authority.admit(namespace, shown=f"Bearer {asked.get('token') or ''}", source="127.0.0.1")
        self.namespace = namespace
        return self._greeting()

    def _greeting(self) -> dict[str, Any]:
        policy = self._desk.steps.policy(self.namespace)
        usage = self._desk.store.usage
        return {
            "node": self._desk.node,
            "protocol": PROTOCOL_VERSION,
            "policy": policy.to_wire() if policy else None,
            "budget": {"allocated": usage.allocated, "used": usage.used},
        }

    def _reserve(self, asked: dict[str, Any]) -> dict[str, Any]:
        index, nbytes, count = _count(asked, "index"), _count(asked, "nbytes"), _count(asked, "count")
        self._reserved.add(index)
        reserved, why = self._desk.store.reserve(self.namespace, index, nbytes, count)
        return {"reserved": reserved, "why": why}

    def _begin(self, asked: dict[str, Any]) -> Answer:
        index, step, nbytes = _count(asked, "index"), _count(asked, "step"), _count(asked, "nbytes")
        kind = ShardKind(asked.get("kind", ShardKind.DATA))
        save, is_durable = str(asked.get("save") or ""), bool(asked.get("is_durable"))
        mapped = set(asked.get("mapped") or ())
        segment = self._desk.take(self.namespace, index, step, nbytes)
        self._open[segment.id] = _Open(segment, index, step, save, kind, is_durable)
        told = {"segment": segment.id, "capacity": segment.capacity, "path": str(segment.path)}
        return told, [] if segment.id in mapped else [segment.open_descriptor(is_writable=True)]

    def _seal(self, asked: dict[str, Any]) -> dict[str, Any]:
        opened = self._opened(asked)
        seal = self._desk.store.seal(
            opened.segment,
            Sealing(
                namespace=self.namespace,
                index=opened.index,
                step=opened.step,
                kind=opened.kind,
                nbytes=_count(asked, "nbytes"),
                save=str(asked.get("save") or opened.save),
                is_durable=opened.is_durable,
            ),
        )
        del self._open[opened.segment.id]
        return {"seal": seal.to_wire()}

    def _abandon(self, asked: dict[str, Any]) -> dict[str, Any]:
        opened = self._opened(asked)
        del self._open[opened.segment.id]
        self._desk.store.abandon(opened.segment)
        return {}

    def _lease(self, asked: dict[str, Any]) -> Answer:
        save = asked.get("save")
        seal = self._desk.store.find(self.namespace, _count(asked, "index"), _count(asked, "step"), save)
        try:
            if seal is not None:
                descriptor = self._desk.store.lease(seal)
                return {"seal": seal.to_wire(), "segment": seal.stamp.partition(".")[0], "start": STAMP_BYTES}, [descriptor]
        except Gone as gone:
            return {"missing": str(gone)}, []
        return {"missing": f"node {self._desk.node} does not hold it"}, []

    def _doubt(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A reader says that the bytes are not those of the seal. Its word alone costs nobody a copy."""
        seal = self._desk.store.find(self.namespace, _count(asked, "index"), _count(asked, "step"), asked.get("save"))
        return {"is_corrupt": seal is not None and not self._desk.store.verify(seal)}

    def _find(self, asked: dict[str, Any]) -> dict[str, Any]:
        step = asked.get("step")
        found = self._desk.steps.find(self.namespace, None if step is None else int(step), int(asked.get("limit") or 1))
        return {"steps": [one.to_wire() for one in found]}

    def _discard(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"discarded": self._desk.steps.discard(self.namespace, int(asked["after"]))}

    def _wait(self, asked: dict[str, Any]) -> dict[str, Any]:
        replicas, is_durable = self._desk.steps.wait(
            self.namespace,
            _count(asked, "step"),
            replicas=int(asked.get("replicas") or 0),
            durable=bool(asked.get("durable")),
            seconds=float(asked.get("seconds") or 0),
        )
        return {"replicas": replicas, "is_durable": is_durable}

    def _opened(self, asked: dict[str, Any]) -> _Open:
        opened = self._open.get(str(asked.get("segment")))
        if opened is None:
            message = f"segment {asked.get('segment')} is not open in this conversation"
            raise Refused(message)
        return opened


def _count(asked: dict[str, Any], name: str) -> int:
    value = asked[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= (MOST_INDEX if name == "index" else _MOST):
        message = f"{name} must be a whole number from 0 on, not {value!r}"
        raise ValueError(message)
    return value
