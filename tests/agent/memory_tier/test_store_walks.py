"""Random walks over a store on real shared memory, beside a model of it that is a dictionary: whatever is done in whatever order, what is told is true.

After every step of a walk
- every shard that is told has the bytes that were sealed for it, and every leased descriptor still shows the bytes that it was lent for,
- the budget counts exactly the files that are there, and is not exceeded but for what readers hold after it was lowered,
- the newest complete step that retention was told has not gone, unless the cap was lowered or somebody dropped it.
"""

from __future__ import annotations

import os
import random

import pytest

from agent.memory_tier.budget import Budget
from agent.memory_tier.store import Corrupt, Gone, NoRoom, Sealing, Store
from everstep.shards import STAMP_BYTES, ShardKind

KIB = 1024
CAP = 160 * KIB
NAMESPACES = ("a", "b")
SIZES = (0, 1, 3 * KIB, 4 * KIB, 9 * KIB, 20 * KIB)


class Walk:
    def __init__(self, folder, clock, seed):
        self.folder = folder
        self.clock = clock
        self.chance = random.Random(seed)
        self.open = []
        self.leases = {}
        self.written = {}
        self.newest = {}
        self.cap = CAP
        self.start()

    def start(self):
        self.store = Store(self.folder, node="n", budget=Budget(self.cap, available=lambda: 1 << 40, reserve=0), now=self.clock)
        self.store.adopt()
        for seal in self.store.unverified():
            assert self.store.verify(seal)

    def key(self):
        return self.chance.choice(NAMESPACES), self.chance.randrange(3), self.chance.randrange(6)

    def take(self):
        namespace, index, step = self.key()
        nbytes = self.chance.choice(SIZES)
        try:
            segment = self.store.take(namespace, index, step, nbytes)
        except NoRoom:
            return
        content = self.chance.randbytes(nbytes)
        segment.body[:nbytes] = content
        self.open.append((segment, namespace, index, step, content))

    def seal(self):
        if not self.open:
            return
        segment, namespace, index, step, content = self.open.pop(self.chance.randrange(len(self.open)))
        save = self.chance.choice(("", "x", "y"))
        seal = self.store.seal(segment, Sealing(namespace, index, step, ShardKind.DATA, len(content), save=save))
        self.written[seal.stamp] = content

    def seal_what_is_wrong(self):
        if not self.open:
            return
        segment, namespace, index, step, content = self.open.pop()
        with pytest.raises(Corrupt):
            self.store.seal(segment, Sealing(namespace, index, step, ShardKind.DATA, len(content), digest="0" * 32))
        self.store.abandon(segment)

    def abandon(self):
        if self.open:
            self.store.abandon(self.open.pop()[0])

    def lease(self):
        seals = self.store.seals()
        if seals and len(self.leases) < 4:
            seal = self.chance.choice(seals)
            self.leases[self.store.lease(seal)] = self.written[seal.stamp]

    def end_a_lease(self):
        if self.leases:
            descriptor = self.chance.choice(list(self.leases))
            os.close(descriptor)
            del self.leases[descriptor]

    def drop(self):
        namespace, index, step = self.key()
        gone = self.store.drop(namespace, step=step, index=self.chance.choice((None, index)), why="walk")
        if step == self.newest.get(namespace) and gone:
            del self.newest[namespace]
            self.store.retain(namespace, keep=9, newest_complete=None)

    def retain(self):
        namespace = self.chance.choice(NAMESPACES)
        steps = sorted({seal.step for seal in self.store.seals(namespace)})
        if steps:
            self.newest[namespace] = self.chance.choice(steps)
            pinned = [self.chance.randrange(6)]
            self.store.retain(namespace, keep=self.chance.randint(1, 3), newest_complete=self.newest[namespace], pinned=pinned)

    def reserve(self):
        namespace, index, _ = self.key()
        ready, why = self.store.reserve(namespace, index, self.chance.choice(SIZES), self.chance.randint(0, 3))
        assert ready >= 0
        assert why is None or "refused" in why or "off" in why

    def unclaim(self):
        namespace, index, _ = self.key()
        self.store.unclaim(namespace, index)

    def resize(self):
        self.cap = self.chance.choice((CAP, CAP, CAP // 2, CAP // 4, 0))
        if self.store.resize(self.cap):
            self.newest.clear()

    def restart(self):
        """As after SIGKILL: what was open is lost, leases stay, and nobody remembers what was reserved or kept."""
        self.open.clear()
        self.newest.clear()
        self.start()
        self.store.resize(self.cap)

    def check(self):
        for seal in self.store.seals():
            with self.store.read(seal) as reading:
                assert bytes(reading.view) == self.written[seal.stamp]
                reading.check()
        for descriptor, content in self.leases.items():
            assert os.pread(descriptor, len(content), STAMP_BYTES) == content
        for namespace, step in self.newest.items():
            assert step in {seal.step for seal in self.store.seals(namespace)}
        files = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".json")
        usage = self.store.usage
        assert usage.used == files
        if not self.leases and not self.open:
            if self.store.tidy():
                self.newest.clear()
            assert self.store.usage.used <= self.cap

    def end(self):
        for descriptor in self.leases:
            os.close(descriptor)


ACTIONS = {
    Walk.take: 10,
    Walk.seal: 10,
    Walk.seal_what_is_wrong: 1,
    Walk.abandon: 2,
    Walk.lease: 3,
    Walk.end_a_lease: 3,
    Walk.drop: 2,
    Walk.retain: 4,
    Walk.reserve: 2,
    Walk.unclaim: 1,
    Walk.resize: 1,
    Walk.restart: 1,
}


def walk(folder, clock, seed, length):
    print(f"seed {seed}")
    walking = Walk(folder, clock, seed)
    try:
        for number, action in enumerate(walking.chance.choices(list(ACTIONS), list(ACTIONS.values()), k=length)):
            try:
                action(walking)
                walking.check()
            except (AssertionError, OSError, Gone) as error:
                raise AssertionError(f"seed {seed}, step {number}, {action.__name__}: {error}") from error
    finally:
        walking.end()


@pytest.mark.parametrize("number", range(4))
def test_whatever_is_done_to_a_store_what_it_tells_is_true(shm, clock, number):
    walk(shm, clock, random.randrange(1 << 32), 400)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_is_done_to_a_store_for_long_what_it_tells_is_true(tmp_path, shm, clock):
    for _ in range(15):
        folder = shm / str(random.randrange(1 << 60))
        folder.mkdir()
        walk(folder, clock, random.randrange(1 << 32), 2000)
