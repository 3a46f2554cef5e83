"""Process groups whose every wait can be left.

Gloo can lose the completion of a send when its socket fails at the wrong moment: its own wait then lasts until the time-out of the
operation although every socket is shut. So nobody in this runtime waits inside gloo for longer than one slice:

1. ``GuardedGroup`` stands in front of a gloo (or NCCL) group and returns ``GuardedWork`` from each collective;
2. a ``GuardedWork`` waits in slices, looks whether a newer generation exists, cuts the sockets, grants a grace, and leaves;
3. C++ callers that wait on a future (the reducer of DDP) get a ``Promise``, which is left under the same rules;
4. a group that is let go is buried: a thread keeps it until its works are complete, because its destructor joins them.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from everstep.errors import GroupRetired

from .effort import EFFORT
from .escapes import Departure, Escape, failure
from .promises import promise
from .python_group import PythonGroup

SLICE = timedelta(milliseconds=20)

_POINT_TO_POINT = frozenset({"send", "recv", "recv_anysource"})
COLLECTIVES = (
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    *sorted(_POINT_TO_POINT),
)


class GuardedWork(dist.Work):
    """One collective under way. ``wait`` raises CollectiveFailed, or Unwind when it was left behind."""

    def __init__(self, inner: dist.Work, group: GuardedGroup, *, point_to_point: bool, after: Callable[[], None] | None) -> None:
        super().__init__()
        self.inner = inner
        self.escape = group.escape
        self._group = group
        self._after = after
        self._done = False
        self._waiting = threading.Lock()
        self._ending = threading.Lock()
        # A sliced wait breaks the pair of a gloo send and receive, so a thread waits for those.
        self._thread_wait = _ThreadWait(inner) if point_to_point else None

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self._waiting:
            if not self._done:
                began = time.monotonic()
                self._wait(timeout)
                EFFORT.waited(time.monotonic() - began)
                self.end()
        return True

    def is_completed(self) -> bool:
        return self._done or bool(self.inner.is_completed())

    def is_success(self) -> bool:
        return self._done

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self.inner.result()

    def get_future(self) -> torch.futures.Future[Any]:
        return promise(self)

    def end(self) -> None:
        """The operation has succeeded: what is to follow it is done, once. Never waits for anybody, for it may be gloo's thread that calls."""
        with self._ending:
            if self._done:
                return
            if self._after is not None:
                self._after()
                self._after = None
            self._done = True
            self._group.completed(self.inner)

    def _wait(self, timeout: timedelta | None) -> None:
        departure = Departure(self.escape, timeout)
        while not self._slice():
            departure.look()

    def _slice(self) -> bool:
        try:
            if self._thread_wait is not None:
                return self._thread_wait.join(SLICE)
            self.inner.wait(SLICE)
        except RuntimeError as error:
            return self._settle(error)
        return True

    def _settle(self, error: RuntimeError) -> bool:
        """A slice that ran out looks like a failure; only a completed operation's own error is one."""
        if self._thread_wait is None and not self.inner.is_completed():
            return False
        if self._thread_wait is None:
            try:
                self.inner.wait(SLICE)
            except RuntimeError as own:
                error = own
            else:
                return True
        raise failure(self.escape, str(error))


class _ThreadWait:
    def __init__(self, work: dist.Work) -> None:
        self._error: RuntimeError | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="everstep-p2p", daemon=True)
        self._thread.start()

    def _run(self, work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            self._error = error

    def join(self, limit: timedelta) -> bool:
        self._thread.join(limit.total_seconds())
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True


class GuardedGroup(PythonGroup):
    """A process group of one generation. ``inner`` does the work; this object decides how long anybody waits for it.

    ``store`` is what the inner one was built on, which holds no more than the C++ half of it.
    """

    def __init__(self, inner: dist.ProcessGroup, rank: int, size: int, escape: Escape, store: dist.Store | None = None) -> None:
        super().__init__(rank, size)
        self._store = store
        self.escape = escape
        self._inner: dist.ProcessGroup | None = inner
        self._rank = rank
        self._size = size
        self._pending: dict[int, dist.Work] = {}
        self._on_device: dist.Work | None = None

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def _get_backend(self, device: torch.device) -> Any:
        return self._live()._get_backend(device)  # noqa: SLF001

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, options: Any = None) -> GuardedWork:
        """As gloo does it, an all-reduce of a copy of which the own part is kept; gloo's own Work never reports completion."""
        whole = source.clone()
        reduce_options = dist.AllreduceOptions()
        if options is not None:
            reduce_options.reduceOp = options.reduceOp
        work = self._live().allreduce([whole], reduce_options)
        return self._guard(work, after=lambda: _copy(output, whole.view(self._size, -1)[self._rank]))

    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]

    def abort(self) -> None:
        self.escape.cut()
        self.shutdown()

    def shutdown(self) -> None:
        """Lets go of the inner group without waiting for it; later use of this object raises GroupRetired."""
        inner, self._inner = self._inner, None
        if inner is not None:
            bury(inner, list(self._pending.values()))
        self._pending = {}
        self._on_device = None

    def completed(self, work: dist.Work) -> None:
        self._pending.pop(id(work), None)

    def is_waiting(self) -> bool:
        """Whether a collective has begun here and not ended. From any thread."""
        if self._inner is None:
            return False
        begun = [*self._pending.copy().values(), *((self._on_device,) if self._on_device else ())]
        return not all(work.is_completed() for work in begun)

    def _live(self) -> dist.ProcessGroup:
        if self._inner is None:
            raise GroupRetired
        return self._inner

    def _guard(self, work: dist.Work, *, point_to_point: bool = False, after: Callable[[], None] | None = None) -> GuardedWork:
        self._pending[id(work)] = work
        _groups.add(self)
        EFFORT.launched()
        return GuardedWork(work, self, point_to_point=point_to_point, after=after)

    def _start(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> dist.Work:
        work: dist.Work = getattr(self._live(), name)(*args, **options)
        if _is_on_accelerator(args):
            # NCCL's wait only orders streams, and one with a time-out aborts; there the fence is a real abort.
            _groups.add(self)
            self._on_device = work
            EFFORT.launched()
            return work
        return self._guard(work, point_to_point=name in _POINT_TO_POINT)


_groups: weakref.WeakSet[GuardedGroup] = weakref.WeakSet()
_elsewhere: list[str] = []


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Whoever is inside waits for others, though in none of its groups. For the training thread."""
    _elsewhere.append(what)
    try:
        yield
    finally:
        _elsewhere.remove(what)


def is_waiting() -> bool:
    """Whether this process waits for others in any of its groups, or is overlapping that with work of its own. From any thread."""
    try:
        return bool(_elsewhere) or any(group.is_waiting() for group in list(_groups))
    except RuntimeError:  # a group came or went at this very moment: whoever makes groups is not stuck
        return False


def _copy(target: torch.Tensor, part: torch.Tensor) -> None:
    target.copy_(part.view_as(target))


def _is_on_accelerator(args: tuple[Any, ...]) -> bool:
    first = args[0] if args else None
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return isinstance(first, torch.Tensor) and first.device.type != "cpu"


def _forward(name: str) -> Callable[..., dist.Work]:
    def collective(self: GuardedGroup, *args: Any, **options: Any) -> dist.Work:
        return self._start(name, args, options)

    collective.__name__ = name
    return collective


for _name in COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(GuardedGroup, _name, _forward(_name))


def bury(inner: dist.ProcessGroup, works: list[dist.Work]) -> None:
    """Keeps a group alive in a thread until its works are complete: destroying it earlier blocks the caller until they time out."""
    grave: list[Any] = [inner, works]
    del inner, works

    def rest() -> None:
        while not all(work.is_completed() for work in grave[1]):
            time.sleep(0.05)
        grave.clear()

    threading.Thread(target=rest, name="everstep-burial", daemon=True).start()
