"""How a run comes by its batches, in a rehearsal and in training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from everstep.data.feeds import Beginnings, Kind, Part, kind_of
from everstep.data.supply import Origin, Supply, Wish
from everstep.errors import StepNotCommitted

from . import randomness
from .place import Place
from .settings import Settings
from .unwind import RehearsalOver

_REHEARSED_STEPS = 2
_LARGEST_REHEARSED_BATCH = 32


class Feeding:
    """One a run. ``part`` is what the current step trains on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._beginnings = Beginnings()
        self.part = Part(None)
        self.origin = Origin.READ

    def rehearsed(self, wish: Wish) -> Iterator[tuple[int, Any]]:
        """Real batches of about the size that this rank will see, then out of user code."""
        expected = self._settings.expected_world_size
        size = -(-wish.global_batch // expected) if expected else min(wish.global_batch, _LARGEST_REHEARSED_BATCH)
        # A factory knows the size of its batches itself, and is asked for what rank 0 will see.
        world_size = (expected or 1) if kind_of(wish.data) is Kind.FACTORY else 1
        own = replace(wish, global_batch=size * world_size, workers=0)
        supply = Supply(own, position=None, beginnings=self._beginnings, end=0, folder=None)
        for step in range(_REHEARSED_STEPS):
            randomness.seed_step(wish.seed, step, 0)
            yield step, supply.at(step * own.global_batch, 0, world_size).batch
        raise RehearsalOver

    def batches(self, wish: Wish, place: Place, until: int, begin: Callable[[int, int], None]) -> Generator[tuple[int, Any]]:
        """From the committed step on. ``begin(step, seed)`` is called before a batch is read."""
        folder = self._settings.prefetch_folder
        end = until * wish.global_batch
        supply = Supply(wish, position=place.position, beginnings=self._beginnings, end=end, folder=folder)
        with contextlib.closing(supply):
            while place.step < until:
                step = place.step
                begin(step, wish.seed)
                self.part = supply.at(place.consumed, place.rank, place.world_size)
                self.origin = supply.origin
                yield step, self.part.batch
                if place.step == step:
                    raise StepNotCommitted
