"""The key ``elastic`` of a job file: how many nodes the job may have, and how patiently it changes their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from api.own.job_checkpoint import seconds
from api.own.wire import Asked
from models.errors import Invalid
from models.job import elastic

DURATIONS: Final = ("scaling_timeout", "graceful_timeout", "faulty_scale_down_timeout", "snooze")
Nodes = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[float, Field(ge=0, le=1e7)]


class Elastic(Asked):
    """The job may have ``min`` to ``max`` nodes: every ``step``-th number, or only the ``sizes`` that are named, whose outermost ones the bounds then are.

    In a file times may be written as ``5m``. Nodes that have been free for ``scaling_timeout`` seconds are grown onto. A member that does not follow a
    change of size within ``graceful_timeout`` is ended. Lost nodes for which none comes within ``faulty_scale_down_timeout`` are done without. After
    growth that failed none is tried for ``snooze``.
    """

    model_config = ConfigDict(strict=True)

    min: Nodes | None = None
    max: Nodes | None = None
    step: Nodes | None = None
    sizes: Annotated[list[Nodes], Field(min_length=1, max_length=1000)] | None = None
    scaling_timeout: Seconds = elastic.SCALING_S
    graceful_timeout: Seconds = elastic.GRACEFUL_S
    faulty_scale_down_timeout: Seconds = elastic.FAULTY_S
    snooze: Seconds = elastic.SNOOZE_S


def block(written: Any) -> dict[str, Any]:
    """What the file says. Raises Invalid: it is no block."""
    if not isinstance(written, Mapping):
        raise Invalid(message=f"elastic: a block of keys is expected, such as {{min: 1, max: 4}}, not {written!r}.")
    return dict(written)


def durations(named: dict[str, Any]) -> dict[str, Any]:
    """Its times in seconds. Raises Invalid."""
    return named | {key: seconds(named[key], of=f"elastic.{key}") for key in DURATIONS if key in named}


def settled(asked: Elastic) -> Elastic:
    """With its bounds filled in.

    Raises:
        Invalid: the bounds, the step and the sizes contradict each other; the message names the key and the remedy.
    """
    if asked.step is not None and asked.sizes is not None:
        raise Invalid(message="elastic: 'step' and 'sizes' exclude each other; leave one of them out.")
    if asked.sizes is None and (asked.min is None or asked.max is None):
        missing = "min" if asked.min is None else "max"
        raise Invalid(message=f"elastic.{missing}: it is missing; give both 'min' and 'max', or the allowed 'sizes'.")
    sizes = sorted(asked.sizes or ())
    least = asked.min if asked.min is not None else sizes[0]
    most = asked.max if asked.max is not None else sizes[-1]
    if least > most:
        raise Invalid(message=f"elastic.min: {least} is above elastic.max, {most}; lower 'min' or raise 'max'.")
    if sizes and sizes[-1] > most:
        raise Invalid(message=f"elastic.sizes: {sizes[-1]} is above elastic.max, {most}; raise 'max', or leave it out.")
    if sizes and sizes[0] < least:
        raise Invalid(message=f"elastic.sizes: {sizes[0]} is below elastic.min, {least}; lower 'min', or leave it out.")
    return asked.model_copy(update={"min": least, "max": most})


def wish(asked: Elastic, replicas: int | None) -> int:
    """How many nodes the job is to have when there are enough of them; left out, as many as it may.

    Raises:
        Invalid: it is none of the job's sizes.
    """
    assert asked.min is not None and asked.max is not None  # noqa: S101, PT018  (settled before)
    sizes = elastic.sizes_of(asked.min, asked.max, asked.step, asked.sizes)
    if replicas is None:
        return sizes[-1]
    if replicas not in sizes:
        raise Invalid(
            message=f"replicas: {replicas} is none of the job's sizes, which are {elastic.told(sizes)}; choose one of them."
        )
    return replicas
