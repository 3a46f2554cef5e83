"""A Unix socket at which the node's own processes find this one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_BACKLOG = 256
_NO_DESCRIPTOR_S = 0.02
"""Until it is tried again to accept somebody for whom this process had no descriptor left."""


class LocalSocket:
    """Nobody but this user can connect. ``greet`` is called with each new connection, which is the callee's to close, by a thread called ``name``."""

    def __init__(self, path: Path, greet: Callable[[socket.socket], None], *, name: str) -> None:
        """Listens at once, in place of whoever listened there before. Raises OSError."""
        self._path = path
        self._greet = greet
        self._is_closed = threading.Event()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(_BACKLOG)
        self._accepting = threading.Thread(target=self._accept, name=name, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Once it returns nobody is greeted any more."""
        self._is_closed.set()
        self._path.unlink(missing_ok=True)
        hang_up(self._listener)
        self._listener.close()
        self._accepting.join()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._is_closed.wait(_NO_DESCRIPTOR_S)
                continue
            self._greet(connection)


def hang_up(connection: socket.socket) -> None:
    """Whoever waits for it, on either side, goes on."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
