"""Building a generation's process groups without ever getting stuck in a constructor.

1. The gloo context is built in a thread, on a store prefix of our own naming; whoever waits for it polls, and leaves as soon as a
   newer generation exists. A thread that was left ends by itself within ``CONSTRUCTION_TIMEOUT`` and touches nothing.
2. Torch is then handed the finished context by the creator of a registered backend, so ``init_process_group`` is bookkeeping: it
   can neither block nor fail half-way. (A failed one leaves torch's group counter behind, and then peers never meet again.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from . import settings
from .addresses import Addresses
from .escapes import OPERATION_TIMEOUT, Escape
from .groups import GuardedGroup
from .python_group import BACKEND
from .unwind import Unwind

CONSTRUCTION_TIMEOUT = timedelta(seconds=5)
_POLL_S = 0.002
_GLOO_THREADS = 2


class AcceleratorGroups(Protocol):
    """Adds an accelerator's backend to a group; None on CPUs."""

    def add(self, group: dist.ProcessGroup, store: dist.Store, rank: int, size: int) -> None: ...

    def abort(self) -> None: ...

    def forget(self) -> None:
        """The groups so far are let go: what is added from now on belongs to the next generation."""

    def why_broken(self) -> str | None:
        """Waits for what was started on the device; None when all of it has come to its proper end."""


class NcclGroups:
    """NCCL beside gloo in one group. Not run on the machines that this project is tested on: one code path, kept small."""

    def __init__(self) -> None:
        self._current: list[Any] = []
        settings.survive_nccl_errors()

    def add(self, group: dist.ProcessGroup, store: dist.Store, rank: int, size: int) -> None:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = OPERATION_TIMEOUT  # noqa: SLF001
        backend = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
        group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)  # noqa: SLF001
        self._current.append(backend)

    def abort(self) -> None:
        for backend in tuple(self._current):
            backend.abort()
        self._current = []

    def forget(self) -> None:
        self._current = []

    def why_broken(self) -> str | None:
        torch.cuda.synchronize()  # a wait only orders streams
        if not self._current:
            return "the NCCL communicator was aborted"
        errors = [error for backend in self._current if (error := backend.get_error().name) != "SUCCESS"]
        return f"NCCL tells of {errors[0]}" if errors else None


@dataclass(frozen=True)
class Wanted:
    """A group to be built: ``rank`` and ``size`` are those inside of it, ``store`` is a prefix that only its members use."""

    store: dist.Store
    rank: int
    size: int


class Construction:
    """Builds groups and hands them to torch. One per process, because torch keeps one registration per backend name."""

    def __init__(self, address: str, accelerator: AcceleratorGroups | None) -> None:
        self._address = address
        self._accelerator = accelerator
        self._finished: GuardedGroup | None = None
        self._escape: Escape | None = None

    def register(self) -> None:
        devices = ["cpu"] if self._accelerator is None else ["cpu", "cuda"]
        dist.Backend.register_backend(BACKEND, self._create, extended_api=True, devices=devices)

    def build(self, store: dist.Store, rank: int, size: int, escape: Escape) -> GuardedGroup:
        """Raises Unwind when a newer generation exists, and the constructor's own error when it failed."""
        return self.build_all({"": Wanted(store, rank, size)}, escape)[""]

    def build_all(self, wanted: dict[str, Wanted], escape: Escape) -> dict[str, GuardedGroup]:
        """As ``build``, all of them beside each other, each in a thread of its own."""
        outcomes: dict[str, dist.ProcessGroup | Exception] = {}
        stores = {name: Addresses(one.store, one.rank, one.size) for name, one in wanted.items()}
        progress = threading.Event()

        def construct(name: str, one: Wanted) -> None:
            try:
                outcomes[name] = self._inner(stores[name], one.rank, one.size)
            except Exception as error:  # noqa: BLE001, raised in the caller's thread
                outcomes[name] = error
            progress.set()

        for name, one in wanted.items():
            threading.Thread(target=construct, args=(name, one), name="everstep-construction", daemon=True).start()
        while len(outcomes) < len(wanted):
            progress.wait(_POLL_S)
            progress.clear()
            if failed := [one for one in tuple(outcomes.values()) if isinstance(one, Exception)]:
                raise failed[0]
            if escape.is_superseded():
                raise Unwind
        built = {}
        for name, one in wanted.items():
            result = outcomes[name]
            if isinstance(result, Exception):
                raise result
            built[name] = GuardedGroup(result, one.rank, one.size, escape, stores[name])
        return built

    def install(self, group: GuardedGroup, store: dist.Store) -> None:
        """Makes a built group torch's default group, in place of the one before. Group names come out the same every time."""
        self.uninstall()
        self._finished, self._escape = group, group.escape
        dist.init_process_group(BACKEND, store=store, rank=group.rank(), world_size=group.size(), timeout=OPERATION_TIMEOUT)

    def uninstall(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
            if self._accelerator is not None:
                self._accelerator.forget()

    def _create(self, options: Any, _backend_options: Any) -> GuardedGroup:
        """Called by torch. Sub-groups that the user asks for (``new_group``) are built on the store which torch passes on."""
        finished, self._finished = self._finished, None
        if finished is not None:
            return finished
        if self._escape is None:
            message = "the everstep backend is installed by everstep.init(), not by init_process_group()"
            raise RuntimeError(message)
        return self.build(options.store, options.group_rank, options.group_size, self._escape)

    def _inner(self, store: dist.Store, rank: int, size: int) -> dist.ProcessGroup:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
        options._timeout = CONSTRUCTION_TIMEOUT  # noqa: SLF001
        options._threads = _GLOO_THREADS  # noqa: SLF001
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._address)]  # noqa: SLF001
        gloo = dist.ProcessGroupGloo(store, rank, size, options)
        gloo._set_default_timeout(OPERATION_TIMEOUT)  # noqa: SLF001
        group = dist.ProcessGroup(store, rank, size)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)  # noqa: SLF001
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)  # noqa: SLF001
        if self._accelerator is not None:
            self._accelerator.add(group, store, rank, size)
        return group
