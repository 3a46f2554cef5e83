"""Which errors of user code leave the process fit to go on: it waits for a new generation and enters the training function again.

The process id, the model and the optimizer stay, and so do those of everybody else. How often this may happen is the control plane's to say.
"""

from __future__ import annotations

import torch

from everstep.errors import CheckpointMismatch, CheckpointsPoisoned, LossStopped, StateLost, StateMismatch

_NEVER = (
    MemoryError,
    torch.OutOfMemoryError,
    getattr(torch, "AcceleratorError", ()),  # from 2.8 on
    StateLost,
    StateMismatch,
    CheckpointMismatch,
    CheckpointsPoisoned,
    LossStopped,
)
"""Memory that was short is short again in the same process, an accelerator's context is lost with its error, and the others are verdicts on the job."""


def may_stay(error: Exception) -> bool:
    """Whether the process is as good as a new one."""
    return not isinstance(error, _NEVER) and _is_device_sound()


def _is_device_sound() -> bool:
    """An error of a kernel is told by a later call: it is to come now, not in the middle of the next try."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
