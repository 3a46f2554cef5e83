"""Jobs whose scripts know nothing of generations, as their accepted file says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from models.job.elastic import elastic_of
from models.job.states import JobState

_GRACE_S = 10.0


def is_plain(spec: Mapping[str, Any]) -> bool:
    """Whether each generation is made of new processes."""
    return spec.get("recovery") == "process"


def grace_of(spec: Mapping[str, Any], state: JobState) -> timedelta:
    """What a process gets between being told to end and being killed.

    Only a plain script that is to have another size gets the job's graceful time: after a fault it may be stuck in a collective, deaf to signals.
    """
    policy = elastic_of(spec)
    if policy is not None and is_plain(spec) and state is JobState.RESIZING:
        return policy.graceful
    return timedelta(seconds=float(spec.get("grace_s", _GRACE_S)))
