"""The fence: a real abort for gloo groups.

Gloo's own ``abort`` and ``shutdown`` free nobody. Shutting down (never closing) the connected TCP sockets of a group fails its
pending and later operations at once, here and in the peers.

Invariants:
* a listening socket is never touched: gloo answers that with ``std::terminate``;
* only sockets that appeared while a group was being built are the group's, and not those of them that somebody else has opened to elsewhere;
  sockets of ours (rendezvous, transfer) are exempt;
* a descriptor is acted on only while it still names the same inode, because numbers are used again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Iterable, Iterator

_TCP = (socket.AF_INET, socket.AF_INET6)


class Fence:
    """Knows the sockets of the current group and cuts them. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: dict[int, int] = {}
        self._generation = 0
        self._before: dict[int, int] | None = None
        self._peers: frozenset[str] = frozenset()
        self._exempt: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def exempt(self, own: socket.socket) -> socket.socket:
        """Marks a socket as ours: it is never cut, whenever it appears."""
        with self._lock:
            self._exempt.add(own)
        return own

    @contextlib.contextmanager
    def around_construction(self, generation: int, peers: Iterable[str] = (), *, is_further: bool = False) -> Iterator[None]:
        """What appears inside belongs to the groups under construction; a cut inside cuts what has appeared so far.

        ``peers`` are the members' addresses, as numbers: what leads elsewhere is the script's own. Without any, everything is the group's.
        ``is_further``: one more group of the same generation, whose sockets are cut together with those that there are.
        """
        with self._lock:
            self._generation = generation
            self._before = _open_sockets()
            self._group = self._group if is_further else {}
            self._peers = self._peers if is_further else frozenset(peers)
        try:
            yield
        finally:
            with self._lock:
                self._group = self._group | self._appeared()
                self._before = None

    def cut(self, below: int) -> bool:
        """Shuts the group's sockets down, if it is of a generation below this one; says whether it was.

        A thread that is late with its news must not cut the group that was built because of that very news. Harmless when repeated.
        """
        with self._lock:
            if self._generation >= below:
                return False
            targets = self._group | self._appeared() if self._before is not None else dict(self._group)
            for inode, descriptor in targets.items():
                _shut_down(descriptor, inode)
        return True

    def connections(self) -> list[socket.socket]:
        """Handles of the caller's own on the group's connections; the caller closes them."""
        with self._lock:
            copies = [_copy(descriptor, inode) for inode, descriptor in self._group.items()]
        found = []
        for copy in copies:
            if copy is not None and _is_connection(copy):
                found.append(copy)
            elif copy is not None:
                copy.close()
        return found

    def _appeared(self) -> dict[int, int]:
        before = self._before or {}
        ours = {_inode(own) for own in self._exempt}
        present = _open_sockets()
        new = {inode: descriptor for inode, descriptor in present.items() if inode not in before and inode not in ours}
        return self._without_others(new, present) if self._peers else new

    def _without_others(self, new: dict[int, int], present: dict[int, int]) -> dict[int, int]:
        """Leaves out what leads to no member. A peer may come from any address of its node: what was accepted here stays in."""
        ports, leads_to = set(), {}
        for inode, descriptor in present.items():
            copy = _copy(descriptor, inode)
            if copy is None or copy.family not in _TCP:
                continue
            with copy, contextlib.suppress(OSError):
                if not _is_connection(copy):
                    ports.add(copy.getsockname()[1])
                elif inode in new:
                    leads_to[inode] = (str(copy.getpeername()[0]).removeprefix("::ffff:"), copy.getsockname()[1])
        others = {inode for inode, (address, port) in leads_to.items() if address not in self._peers and port not in ports}
        return {inode: descriptor for inode, descriptor in new.items() if inode not in others}


def _open_sockets() -> dict[int, int]:
    """Descriptors by inode. With names, not paths: those take three times as long, and everybody waits for it."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            if link.startswith("socket:["):
                found[int(link[8:-1])] = int(name)
    return found


def _inode(own: socket.socket) -> int:
    """0 when it is closed, or is being closed by another thread right now."""
    try:
        return os.fstat(own.fileno()).st_ino
    except OSError:
        return 0


def _shut_down(descriptor: int, inode: int) -> None:
    with contextlib.suppress(OSError):
        copy = _copy(descriptor, inode)
        if copy is not None:
            with copy:
                if _is_connection(copy):
                    copy.shutdown(socket.SHUT_RDWR)


def _copy(descriptor: int, inode: int) -> socket.socket | None:
    """A handle of our own; None when the number names another inode by now, or nothing."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        return None
    return socket.socket(fileno=copy)


def _is_connection(found: socket.socket) -> bool:
    return found.family in _TCP and not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
