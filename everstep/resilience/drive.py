"""``resilient``: enters the training function, and enters it again after each change of membership."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch

from everstep.checkpoint.checkpointer import Checkpointer
from everstep.errors import CollectiveFailed, NotInAJob, NotInitialised
from everstep.local_protocol import ToAgent
from everstep.shards import Manifest
from everstep.testing import faults

from . import randomness, settings
from .anomaly import LossPolicy
from .checkpoints import Checkpoints
from .construction import NcclGroups
from .membership import Membership
from .retry import may_stay
from .run import Run
from .sick import LossGuard
from .state import State
from .unwind import PassOver, RehearsalOver, Unwind
from .vitals import answer_to_signals

P = ParamSpec("P")
R = TypeVar("R")

_LAST_WORDS_S = 2.0
_SAVED_BEFORE_S = 10.0
"""How long a save that was under way when user code raised may still take: what it saves is a step from before."""
_LAST_SAVE_S = 120.0


class _Current:
    """The run of this process; torch's default group is one per process too."""

    run: Run | None = None
    membership: Membership | None = None


def init() -> Run:
    """Joins the job that started this process, or begins a run of one rank when there is none.

    Sets up torch.distributed as a world of one, in which models are to be built and wrapped. Calling it again returns the same run.

    Raises:
        NotInAJob: the environment speaks of more ranks, but no agent is there; each of them would train on its own.
    """
    if _Current.run is None:
        seen = settings.read()
        if seen.socket_path is None and (seen.expected_world_size or 1) > 1:
            raise NotInAJob
        if seen.faults_path is not None:
            faults.arm(seen.faults_path, node=seen.node)
        _Current.membership = Membership(seen, NcclGroups() if torch.cuda.is_available() else None)
        _Current.run = Run(seen, _Current.membership)
        answer_to_signals()
    return _Current.run


def resilient(
    state: State,
    checkpointer: Checkpointer | None = None,
    *,
    scale: Mapping[int, Mapping[str, Any]] | None = None,
    loss: LossPolicy | None = None,
) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[P, R]]:
    """Decorates ``train(run, …)``; the result is called without the run.

    The function is entered more than once: first to rehearse two steps (``run.rehearsing``), then again after changes of membership.
    What it does before its loop is therefore done again.

    Args:
        state: what is carried from process to process.
        checkpointer: what is saved when; None saves nothing, and then only a living peer can give the state back.
        scale: by the number of ranks, what is to be otherwise at that size; ``run.scale`` says it. The global batch stays, whatever the size.
        loss: what is done about a loss that is no number, or far above those before it; None: nothing.

    Raises:
        ValueError: a key of ``scale`` is no number of ranks, or an entry no mapping; or ``loss`` goes back to checkpoints, and there is no checkpointer.
    """
    sizes = _checked(scale or {}, loss, checkpointer)

    def decorate(train: Callable[Concatenate[Run, P], R]) -> Callable[P, R]:
        @functools.wraps(train)
        def driven(*args: P.args, **options: P.kwargs) -> R:
            if _Current.run is None or _Current.membership is None:
                raise NotInitialised
            run, membership = _Current.run, _Current.membership
            run.attach(state, sizes)
            run.losses = LossGuard(loss, membership)
            membership.checkpoints = _checkpoints(checkpointer, run, membership, state)
            enter = functools.partial(train, run, *args, **options)
            if membership.watcher is None:
                return _alone(membership, enter)
            return cast(R, _Drive(run, membership, state, enter).through())

        return driven

    return decorate


def _checked(
    scale: Mapping[Any, Any], loss: LossPolicy | None, checkpointer: Checkpointer | None
) -> Mapping[int, Mapping[str, Any]]:
    if loss is not None and loss.goes_back and checkpointer is None:
        message = "LossPolicy(... 'rollback') has no checkpoints to go back to: resilient(state, everstep.Checkpointer(), loss=...)"
        raise ValueError(message)
    for size, said in scale.items():
        if not isinstance(size, int) or size < 1 or not isinstance(said, Mapping):
            message = f"scale[{size!r}]: a number of ranks, from 1, leads to a mapping, as in scale={{2: {{'micro_batch': 8}}}}"
            raise ValueError(message)
    return scale


def _checkpoints(checkpointer: Checkpointer | None, run: Run, membership: Membership, state: State) -> Checkpoints | None:
    saver = checkpointer.connect() if checkpointer is not None else None
    if checkpointer is None or saver is None:
        return None
    watcher = membership.watcher
    if watcher is not None:
        checkpointer.tell = lambda told: watcher.tell(ToAgent.SAVED, **told)
        checkpointer.tiers.committed = lambda manifest: watcher.tell(ToAgent.DURABLE, **_durable(manifest))
    job = membership.job
    found = Checkpoints(checkpointer, saver, state, job, is_alone=watcher is None, is_in_step=lambda: run.is_in_step)
    if watcher is not None:
        watcher.on_notice = found.save_soon
        if watcher.notice is not None:
            found.save_soon()
    return found


def _durable(manifest: Manifest) -> dict[str, Any]:
    return {
        "namespace": manifest.namespace,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "nbytes": manifest.nbytes,
        "at": manifest.committed_at,
        "save": manifest.save,
    }


def _alone(membership: Membership, enter: Callable[[], R]) -> R:
    """A run of one rank: it goes on from its newest checkpoint, and from an older one if that turns out to be of no use."""
    membership.resume_alone()
    while True:
        try:
            result = enter()
        except PassOver:
            continue
        except CollectiveFailed:
            if membership.place.holds_state:
                raise
            membership.resume_alone()
            continue
        if membership.checkpoints is not None:
            membership.checkpoints.flush(_LAST_SAVE_S, 0)
        return result


class _Drive:
    """One call of a resilient function, from the rehearsal to the dismissal."""

    def __init__(self, run: Run, membership: Membership, state: State, enter: Callable[[], Any]) -> None:
        self._run = run
        self._membership = membership
        self._state = state
        self._enter = enter
        self._code_if_dismissed = 0

    def through(self) -> Any:
        try:
            self._rehearse()
            self._tell(ToAgent.READY)
            return self._train()
        except Exception as error:
            self._tell(ToAgent.FAILED, generation=self._run.generation, traceback=_told(error))
            if self._membership.watcher is not None:
                self._membership.watcher.flush(_LAST_WORDS_S)
            if self._membership.checkpoints is not None:
                self._membership.checkpoints.flush(_SAVED_BEFORE_S, self._membership.place.rank)
            raise

    def _rehearse(self) -> None:
        """A dry run in a world of one: lazy parts are imported, DDP's buckets rebuilt, optimizer state allocated."""
        before, generators = self._state.snapshot(), randomness.capture()
        self._run.begin_rehearsal()
        try:
            self._enter()
        except RehearsalOver:
            pass
        finally:
            self._run.end_rehearsal()
        self._state.restore(before)
        randomness.restore(generators)
        self._membership.initial_digest = self._state.digest()

    def _train(self) -> Any:
        """Enters the training function until it has finished and the process is dismissed."""
        is_finished, result = False, None
        while self._join():
            try:
                result = self._enter()
            except Unwind:
                continue
            except Exception as error:
                if self._membership.has_lost_generation:
                    self._run.give_up_step()
                elif not self._stays_after(error):
                    raise
                continue
            is_finished = True
            self._tell_finished()
        if not is_finished:
            sys.exit(self._code_if_dismissed)
        return result

    def _stays_after(self, error: Exception) -> bool:
        """Tells what user code has raised. The next generation is this process's next try; dismissed instead, it ends as one that has failed."""
        if not may_stay(error):
            return False
        told = _told(error)
        sys.stderr.write(f"{told}everstep: this process stays, and tries again in a new generation\n")
        self._run.give_up_step()
        self._code_if_dismissed = 1
        self._tell(ToAgent.FAILED, generation=self._run.generation, traceback=told, stays=True)
        return True

    def _join(self) -> bool:
        """True when a generation is joined and the step can begin; False when the process is dismissed."""
        membership = self._membership
        if not membership.has_joined and self._run.join() is None:
            return False
        membership.has_joined = False
        membership.place.is_reduced = False
        self._state.abandon_step()
        self._code_if_dismissed = 0
        return True

    def _tell_finished(self) -> None:
        place = self._membership.place
        if self._membership.checkpoints is not None:
            self._membership.checkpoints.flush(_LAST_SAVE_S, place.rank)
        self._tell(ToAgent.FINISHED, generation=place.generation, step=place.step, digest=self._state.digest())

    def _tell(self, kind: ToAgent, **members: Any) -> None:
        if self._membership.watcher is not None:
            self._membership.watcher.tell(kind, **members)


def _told(error: Exception) -> str:
    """The traceback from the first line on that is not of this file: the user's own, if the error came out of their code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
