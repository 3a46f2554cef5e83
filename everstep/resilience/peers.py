"""Sees a peer go while everybody computes.

A collective only fails when somebody waits in it, which may be a whole forward pass after a peer has died. The kernel knows at once: the
dead process's end of each connection closes. One thread a generation waits for just that; it costs nothing until it happens.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable

_CLOSED = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class PeerWatch:
    """Calls ``on_closed`` once, from a thread of its own, when the other end of one of the connections closes.

    ``connections`` are handles of our own, closed when the watch ends: while one is open, closing the group's own handle tells the peer
    nothing, so a watch must not outlive its generation.
    """

    def __init__(self, connections: list[socket.socket], on_closed: Callable[[], None]) -> None:
        self._connections = connections
        self._on_closed = on_closed
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="everstep-peers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch and closes its handles. Harmless when repeated."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            os.close(self._wake)
            self._wake = -1

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, _CLOSED)
        seen = {descriptor for descriptor, _ in poll.poll()}
        for connection in self._connections:
            connection.close()
        if self._wake not in seen:
            self._on_closed()
