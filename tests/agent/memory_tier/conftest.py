"""Stores on real shared memory."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from agent.memory_tier.budget import MIB, Budget
from agent.memory_tier.store import Store

_NUMBERS = itertools.count()


@pytest.fixture
def shm():
    """A folder of shared memory that is gone afterwards."""
    folder = Path(f"/dev/shm/everstep-test-{os.getpid()}-{next(_NUMBERS)}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_store(shm, clock):
    """A store that has adopted what lies in the folder: each call is another process's, as far as the store can tell."""

    def make(allocated: int = 64 * MIB, available=lambda: 1 << 40) -> Store:
        store = Store(shm, node="n1", budget=Budget(allocated, available=available, reserve=0), now=clock)
        store.adopt()
        return store

    return make


@pytest.fixture
def store(make_store):
    return make_store()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now
