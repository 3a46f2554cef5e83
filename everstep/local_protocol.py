"""What a training process and its node's agent say to each other: newline-delimited JSON over the Unix socket ``EVERSTEP_SOCKET``.

Standard library only.
"""

from __future__ import annotations

import signal
from enum import StrEnum

STACKS_SIGNAL = signal.SIGRTMIN + 9
"""Has a training process that has told a pulse write the stacks of all its threads to its log."""


class ToAgent(StrEnum):
    """The member ``type`` of a line from a training process. The rest of the line is stated beside each."""

    HELLO = "hello"
    """process, pid, generation (0 before the first), step (null before state), protocol. Sent on every (re)connect."""
    READY = "ready"
    """(nothing)"""
    BROKEN = "broken"
    """generation, message, at"""
    REFORMED = "reformed"
    """generation, rank, step, source, bytes_moved, phases, copies, worst_loss (both absent if not known)"""
    PROGRESS = "progress"
    """generation, step, seconds, at, loss, stall_s (0 if absent)"""
    FINISHED = "finished"
    """generation, step, digest"""
    FAILED = "failed"
    """generation, traceback, stays (false if absent): the process lives on and waits for a generation to try again in"""
    SAVED = "saved"
    """step, stall_s, seconds, nbytes, memory_every, durable_every, why"""
    DURABLE = "durable"
    """namespace, step, world_size, nbytes, at, save: this process has committed a step to the object store, past any memory tier"""
    PULSE = "pulse"
    """generation, step, seconds (since the last progress; null when none is expected), limit_s; and when the limit has passed, and again whenever that
    time has doubled: is_waiting (in a collective), stack. Told every second by itself."""
    STRAGGLER = "straggler"
    """generation, step, own_s, others_s, steps"""
    ANOMALY = "anomaly"
    """generation, step, what, action, words"""


class ToProcess(StrEnum):
    """The member ``type`` of a line from the agent."""

    GENERATION = "generation"
    """generation: a ``Generation``. A process that is no member of it is a spare and keeps waiting."""
    DISMISS = "dismiss"
    """The job is over for this process: leave with exit code 0."""
    NOTICE = "notice"
    """notice: an ``Evacuation`` of this node: save now, as it may be gone by the deadline. Told again it says how it is by then."""
