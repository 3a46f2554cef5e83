"""Replicas of shards: what is torn is never offered, what is sealed comes back bit for bit, and rows find their place in another division."""

from __future__ import annotations

import threading

import pytest
import torch

from everstep.errors import CollectiveFailed, TransferFailed
from everstep.protocol import Member
from everstep.resilience.fence import Fence
from everstep.resilience.shard_pieces import Part, pieces_of, places_of
from everstep.resilience.shard_replicas import Copy, Replicator, Slot, Slots, buddy_of
from everstep.resilience.sharding import Seat
from everstep.resilience.transfer import Published, Receiver, TransferServer

SEAT = Seat(3, 1)


def copy_at(step: int, seat: Seat = SEAT) -> Copy:
    tensors = [torch.arange(6.0).view(3, 2) + step, torch.tensor(float(step))]
    return Copy(seat, step, f"rest of {step}".encode(), tensors, [7, None], loss=step / 8)


def filled(slots: Slots, step: int, generation: int = 1) -> Slot:
    copy = copy_at(step)
    Replicator(slots, lambda _copy, _slot: None, 1, generation, lambda: False)._give_away(copy)
    found = slots.find(copy.seat, step)
    assert found is not None
    return found


def slots_of(generation: int = 1) -> Slots:
    slots = Slots()
    slots.enter(generation)
    return slots


def test_two_slots_keep_the_last_two_steps() -> None:
    slots = slots_of()
    for step in (4, 5, 6):
        filled(slots, step)
    assert slots.marks() == ((3, 1, 5), (3, 1, 6))
    assert slots.losses() == ((5, 0.625), (6, 0.75))


def test_a_slot_that_is_being_filled_is_not_offered_and_the_older_one_is() -> None:
    slots = slots_of()
    filled(slots, 5)
    filled(slots, 6)
    slots.to_fill(SEAT, 7).open([8], [None])
    assert slots.marks() == ((3, 1, 6),)


def test_what_was_begun_in_an_older_generation_is_not_sealed_in_a_newer_one() -> None:
    slots = slots_of(1)
    slot = slots.to_fill(SEAT, 5)
    slots.enter(2)
    assert not slots.seal(slot, 5, b"", None, 1)
    assert slots.marks() == ()


def test_a_slot_that_an_older_generation_still_fills_is_not_filled_by_a_newer_one() -> None:
    slots = slots_of(1)
    old = slots.to_fill(SEAT, 5)
    slots.enter(2)
    other = slots.to_fill(SEAT, 5)
    assert other is not old


def test_steps_of_a_past_that_is_left_are_dropped_and_seats_of_others_too() -> None:
    slots = slots_of()
    filled(slots, 5)
    filled(slots, 6)
    slots.drop_newer(5)
    assert slots.marks() == ((3, 1, 5),)
    slots.keep_only({Seat(2, 0)})
    assert slots.marks() == ()


def members(*nodes: str) -> list[Member]:
    return [Member(rank, f"p{rank}", node, "127.0.0.1") for rank, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("nodes", "buddies"), [("ab", [1, 0]), ("aabb", [2, 3, 0, 1]), ("abab", [1, 2, 3, 0]), ("aaa", [1, 2, 0]), ("a", [None])]
)
def test_a_replica_lies_on_another_node_where_there_is_one(nodes: str, buddies: list[int | None]) -> None:
    assert [buddy_of(rank, members(*nodes)) for rank in range(len(nodes))] == buddies


def served(server: TransferServer, mark: tuple[int, int, int] | None = None, generation: int = 1, token: str = "t") -> Receiver:
    return Receiver([("127.0.0.1", server.port)], generation, token, Fence(), lambda: False, mark)


def test_a_replica_that_was_given_away_comes_back_bit_for_bit() -> None:
    server, mine = TransferServer("127.0.0.1", Fence()), slots_of()
    server.enter(1, "t")
    sent = copy_at(5)
    served(server, (3, 1, 5)).keep(sent, filled(mine, 5))
    kept = server.slots.find(SEAT, 5)
    assert kept is not None
    assert (kept.rest, kept.loss, kept.lengths) == (sent.rest, sent.loss, (7, None))
    server.publish(Published(1, "t", b"", [], {(3, 1, 5): Part(kept.rest, kept.tensors(), kept.lengths)}))
    targets = [torch.zeros(3, 2), torch.zeros(())]
    receiver = served(server, (3, 1, 5))
    assert receiver.rest() == sent.rest
    receiver.tensors(targets)
    assert all(torch.equal(one, other) for one, other in zip(targets, sent.tensors, strict=True))


@pytest.mark.parametrize(("generation", "token"), [(1, "guess"), (2, "t")])
def test_a_replica_with_a_wrong_token_or_of_another_generation_is_not_kept(generation: int, token: str) -> None:
    server = TransferServer("127.0.0.1", Fence())
    server.enter(1, "t")
    with pytest.raises(TransferFailed):
        served(server, (3, 1, 5), generation, token).keep(copy_at(5), filled(slots_of(), 5))
    assert server.slots.marks() == ()


def test_a_vote_waits_until_the_replica_is_sealed_and_fails_if_it_was_not() -> None:
    sealed = threading.Event()
    replicator = Replicator(slots_of(), lambda _copy, _slot: sealed.wait(), 1, 1, lambda: False)
    replicator.begin(copy_at(5))
    waiting = threading.Thread(target=replicator.settle)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    sealed.set()
    waiting.join(5.0)
    assert not waiting.is_alive()

    def refuse(_copy: Copy, _slot: Slot) -> None:
        raise TransferFailed

    failing = Replicator(slots_of(), refuse, 1, 1, lambda: False)
    failing.begin(copy_at(6))
    with pytest.raises(CollectiveFailed, match="not sealed"):
        failing.settle()


def test_a_vote_does_not_wait_for_a_replica_when_a_newer_generation_exists() -> None:
    held = threading.Event()
    replicator = Replicator(slots_of(), lambda _copy, _slot: held.wait(), 1, 1, lambda: True)
    replicator.begin(copy_at(5))
    with pytest.raises(CollectiveFailed, match="newer generation"):
        replicator.settle()
    held.set()
    replicator.rest()


@pytest.mark.parametrize("length", [1, 2, 5, 7, 12])
@pytest.mark.parametrize(("old", "new"), [(3, 2), (2, 3), (1, 4), (4, 1), (3, 3)])
def test_rows_of_one_division_fill_another(length: int, old: int, new: int) -> None:
    whole, scalar = torch.randn(length, 3), torch.tensor(4.0)

    def part(seat: Seat) -> Part:
        first, end = seat.rows(length)
        return Part(b"", [whole[first:end].clone(), scalar], [length, None])

    server = TransferServer("127.0.0.1", Fence())
    seats = [Seat(old, index) for index in range(old)]
    server.publish(Published(1, "t", b"", [], {(old, seat.index, 9): part(seat) for seat in seats}))
    for index in range(new):
        wanted = Seat(new, index)
        first, end = wanted.rows(length)
        targets = [torch.zeros(end - first, 3), torch.zeros(())]
        for seat in seats:
            places, pieces = places_of(targets, [length, None], seat, wanted)
            assert [piece.nbytes for piece in pieces] == [piece.nbytes for piece in pieces_of(part(seat), seat, wanted)]
            if places:
                served(server, (old, seat.index, 9)).rows(places, wanted, pieces)
        assert torch.equal(targets[0], whole[first:end])
        assert targets[1] == scalar
