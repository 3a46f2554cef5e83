"""``resilient``: enters the training function, and enters it again after each change of membership."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch

from everstep.errors import NotInAJob, NotInitialised
from everstep.protocol import ToAgent
from everstep.testing import faults

from . import randomness, settings
from .checkpointer import Checkpointer
from .construction import NcclGroups
from .membership import Membership
from .run import Run
from .state import State
from .unwind import RehearsalOver, Unwind

P = ParamSpec("P")
R = TypeVar("R")

_LAST_WORDS_S = 2.0


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
    return _Current.run


def resilient(
    state: State, checkpointer: Checkpointer | None = None
) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[P, R]]:
    """Decorates ``train(run, …)``; the result is called without the run.

    The function is entered more than once: first to rehearse two steps (``run.rehearsing``), then again after changes of membership.
    What it does before its loop is therefore done again.

    Args:
        state: what is carried from process to process.
        checkpointer: carried for the checkpoint tiers; see Checkpointer.
    """
    del checkpointer

    def decorate(train: Callable[Concatenate[Run, P], R]) -> Callable[P, R]:
        @functools.wraps(train)
        def driven(*args: P.args, **options: P.kwargs) -> R:
            if _Current.run is None or _Current.membership is None:
                raise NotInitialised
            _Current.run.attach(state)
            enter = functools.partial(train, _Current.run, *args, **options)
            if _Current.membership.watcher is None:
                return enter()
            return cast(R, _Drive(_Current.run, _Current.membership, state, enter).through())

        return driven

    return decorate


class _Drive:
    """One call of a resilient function, from the rehearsal to the dismissal."""

    def __init__(self, run: Run, membership: Membership, state: State, enter: Callable[[], Any]) -> None:
        self._run = run
        self._membership = membership
        self._state = state
        self._enter = enter

    def through(self) -> Any:
        try:
            self._rehearse()
            self._tell(ToAgent.READY)
            return self._train()
        except Exception as error:
            self._tell(ToAgent.FAILED, generation=self._run.generation, traceback=_told(error))
            if self._membership.watcher is not None:
                self._membership.watcher.flush(_LAST_WORDS_S)
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
            except Exception:
                if not self._membership.has_lost_generation:
                    raise
                continue
            is_finished = True
            self._tell_finished()
        if not is_finished:
            sys.exit(0)
        return result

    def _join(self) -> bool:
        """True when a generation is joined and the step can begin; False when the process is dismissed."""
        membership = self._membership
        if not membership.has_joined and membership.join(self._state) is None:
            return False
        membership.has_joined = False
        membership.place.is_reduced = False
        self._state.abandon_step()
        return True

    def _tell_finished(self) -> None:
        place = self._membership.place
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
