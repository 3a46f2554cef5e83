"""Opening a connection without waiting for longer than one slice."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable

_SLICE_MS = 20
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN)


def family_of(address: str) -> socket.AddressFamily:
    """Of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def connect(connection: socket.socket, address: tuple[str, int], look: Callable[[], object]) -> None:
    """Connects a socket that has a time-out or does not block. ``look`` is called between slices, and raises when it is time to leave.

    A node that has vanished answers nothing at all, and the kernel would try for minutes.

    Raises:
        OSError: the address is refused, or cannot be reached.
    """
    code = connection.connect_ex(address)
    waits = select.poll()
    waits.register(connection, select.POLLOUT)
    while code in _UNDER_WAY:
        look()
        if waits.poll(_SLICE_MS):
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
