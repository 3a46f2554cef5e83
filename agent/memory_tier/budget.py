"""How much of a node's memory its tier may take. Whoever wants a segment is granted it or refused here, before a byte is touched.

Touching memory that is not there ends in SIGBUS or in the kernel's killer, for whichever process is at it: so segments are allocated whole
(``posix_fallocate``) after they have been granted, and never grow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

MIB = 1 << 20
_SMALLEST_RESERVE = 256 * MIB
_RESERVE_PERCENT = 2


class NoRoom(Exception):
    """There is no memory for this shard. The words say how much was asked, how much is free, and what to do."""


class Budget:
    """Bytes granted and given back; thread-safe. ``allocated`` is the hard cap, 0 when the tier is off.

    ``reserve`` bytes of the machine's available memory are left to everybody else, whatever the cap says: other programs may have taken what the cap
    was meant to be made of.
    """

    def __init__(self, allocated: int, *, available: Callable[[], int], reserve: int) -> None:
        self.allocated = allocated
        self.used = 0
        self.refusals = 0
        self._available = available
        self._reserve = reserve
        self._lock = Lock()

    @property
    def free(self) -> int:
        return max(0, self.allocated - self.used)

    @property
    def excess(self) -> int:
        """What is granted beyond the cap, after the cap has fallen."""
        return max(0, self.used - self.allocated)

    def take(self, nbytes: int) -> None:
        """Raises NoRoom."""
        available = self._available()
        with self._lock:
            if self.used + nbytes > self.allocated:
                raise NoRoom(self._words(nbytes))
            if available - nbytes < self._reserve:
                message = (
                    f"a segment of {in_mib(nbytes)} is refused: the node has {in_mib(available)} of memory available and keeps "
                    f"{in_mib(self._reserve)} for other programs; lower InstanceMemoryAllocationPercentage or end what uses the memory"
                )
                raise NoRoom(message)
            self.used += nbytes

    def put_back(self, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes

    def adopt(self, nbytes: int) -> None:
        """Counts what is there already, whether or not the cap has room for it."""
        with self._lock:
            self.used += nbytes

    def count_refusal(self, times: int = 1) -> None:
        with self._lock:
            self.refusals += times

    def _words(self, nbytes: int) -> str:
        if self.allocated == 0:
            return "this node's memory tier is off; enable it with TieredStorageConfig of the cluster"
        return (
            f"a segment of {in_mib(nbytes)} is refused: {in_mib(self.free)} of the {in_mib(self.allocated)} of this node's memory tier are free; "
            "raise InstanceMemoryAllocationPercentage, keep fewer steps in memory, or save smaller shards on more nodes"
        )


def in_mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.1f} MiB"


def share_of(percent: int, *, node_mib: int, machine_bytes: int) -> int:
    """``InstanceMemoryAllocationPercentage`` in bytes: of what the node was given, or of the machine where that is less."""
    return min(node_mib * MIB, machine_bytes) * percent // 100


def reserve_of(machine_bytes: int) -> int:
    """What is left available on a machine of this size whatever the percentage: 2 %, at least 256 MiB."""
    return max(_SMALLEST_RESERVE, machine_bytes * _RESERVE_PERCENT // 100)


def total_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    return _meminfo(meminfo, "MemTotal")


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What programs could still take without anything being swapped or killed, as the kernel estimates it."""
    return _meminfo(meminfo, "MemAvailable")


def _meminfo(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    message = f"{path} has no line {name}"
    raise ValueError(message)
