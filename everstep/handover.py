"""How a training process and its node's memory tier hand segments to each other: lines of JSON over a Unix socket, with descriptors.

The process is told the socket in ``EVERSTEP_CHECKPOINT_SOCKET`` and speaks first. One request, one answer, in order; a process may hold several
conversations. Everything that a conversation has in hand (a segment being filled) is given back when it ends, also by SIGKILL.

======== ======================================================== ==========================================================================
ask      members                                                  answer
======== ======================================================== ==========================================================================
hello    namespace, token, protocol                               node, policy (``tiers.NamespacePlan`` or null), budget {allocated, used}
reserve  index, nbytes, count                                     reserved: how many segments of that size stand ready, prefaulted; why (if fewer)
open     index, step, nbytes, save, kind, is_durable, mapped      segment, capacity, path; with the descriptor, unless ``segment`` is in ``mapped``
seal     segment, nbytes, save (if unknown when it was opened)    seal (``shards.Seal``): hashed and committed, replication has begun
abandon  segment                                                  (nothing)
lease    index, step, save                                        seal, segment; with a read-only descriptor that holds a shared lock, or missing
corrupt  index, step, save                                        is_corrupt: hashed now; a copy that is not its digest's has been given up, and is fetched anew
find     step (null: the newest complete), limit                  steps: list of ``shards.StepFound``, newest first
discard  after                                                    discarded: steps of the namespace that are newer are superseded in all tiers
wait     step, replicas, durable, seconds                         replicas, is_durable: when reached, or as it is when the time is over
status   (nothing)                                                as hello, and age_of_last_durable_step_s, newest_durable_step, outage (words or null)
======== ======================================================== ==========================================================================

Any answer may instead be ``{"refused": why}``: words for a person, with the remedy. After ``refused`` the conversation goes on. An answer to
``open`` leaves the caller to take an exclusive ``flock`` on the descriptor that it was given for the segment, before it writes, and to release
it after the answer to ``seal``. A segment's bytes begin at ``shards.STAMP_BYTES``; the tier writes the stamp. The tier hashes what lies there.

Standard library only, as ``everstep.shards``.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

PROTOCOL_VERSION = 1
SOCKET_VARIABLE = "EVERSTEP_CHECKPOINT_SOCKET"
TOKEN_VARIABLE = "EVERSTEP_CHECKPOINT_TOKEN"  # noqa: S105  (a variable's name)
LONGEST_LINE = 16 << 20
_MOST_DESCRIPTORS = 4
_CHUNK = 1 << 16


class Ask(StrEnum):
    HELLO = "hello"
    RESERVE = "reserve"
    OPEN = "open"
    SEAL = "seal"
    ABANDON = "abandon"
    LEASE = "lease"
    CORRUPT = "corrupt"
    FIND = "find"
    DISCARD = "discard"
    WAIT = "wait"
    STATUS = "status"


class Conversation:
    """One end of it. Not for several threads at once: a request and its answer belong together."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = bytearray()
        self._descriptors: list[int] = []

    def say(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Raises OSError."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            sent = self._connection.sendmsg([line], rights)
            line = line[sent:]
        self._connection.sendall(line)

    def hear(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and the descriptors that came with it, which are the caller's to close; None at the end.

        Raises:
            OSError: the connection broke, or its time-out is over.
            ValueError: that was no message.
        """
        while (end := self._unread.find(b"\n")) < 0:
            if len(self._unread) > LONGEST_LINE:
                message = f"a line of more than {LONGEST_LINE} bytes"
                raise ValueError(message)
            chunk, descriptors, _, _ = socket.recv_fds(self._connection, _CHUNK, _MOST_DESCRIPTORS)
            self._descriptors += descriptors
            if len(self._descriptors) > _MOST_DESCRIPTORS:
                message = f"more than {_MOST_DESCRIPTORS} descriptors with one message"
                raise ValueError(message)
            if not chunk:
                self.close()
                return None
            self._unread += chunk
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        told = json.loads(line)
        if not isinstance(told, dict):
            message = "a message is a JSON object"
            raise ValueError(message)  # noqa: TRY004  (of what the other end said, not of an argument)
        descriptors, self._descriptors = self._descriptors, []
        return told, descriptors

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        self._connection.close()
