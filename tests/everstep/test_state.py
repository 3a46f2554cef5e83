from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import pytest
import torch

from everstep.errors import StateMismatch, TransferFailed
from everstep.resilience.fence import Fence
from everstep.resilience.rendezvous import Superseded
from everstep.resilience.state import State
from everstep.resilience.transfer import Published, Receiver, TransferServer

Optimizers = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def net(seed: int, width: int = 6) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2))


def state_of(seed: int, optimizer: Optimizers = torch.optim.Adam, steps: int = 0) -> State:
    model = net(seed)
    chosen = optimizer(list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.StepLR(chosen, 2, gamma=0.5)
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        chosen.step()
        scheduler.step()
        chosen.zero_grad()
    return State(model=model, optimizer=chosen, scheduler=scheduler)


def move(holders: list[State], receiver: State) -> dict[str, object]:
    fence = Fence()
    servers = [TransferServer("127.0.0.1", fence) for _ in holders]
    for server, holder in zip(servers, holders, strict=True):
        cursor = {"step": 7, "consumed": 70}
        server.publish(Published(3, "secret", holder.pack_rest(cursor), [tensor for _, tensor in holder.tensors()]))
    reader = Receiver([("127.0.0.1", server.port) for server in servers], 3, "secret", fence, lambda: False)
    targets, cursor = receiver.unpack_rest(reader.rest())
    assert reader.tensors(targets) == sum(target.nbytes for target in targets)
    return cursor


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    ],
)
@pytest.mark.parametrize("steps_of_receiver", [0, 3])
def test_a_received_state_is_that_of_the_holder_bit_for_bit(optimizer: Optimizers, steps_of_receiver: int) -> None:
    holder, receiver = state_of(1, optimizer, steps=3), state_of(2, optimizer, steps=steps_of_receiver)
    storage = [parameter.data_ptr() for parameter in receiver.model.parameters()]
    assert move([holder, holder], receiver) == {"step": 7, "consumed": 70}
    assert receiver.digest() == holder.digest()
    assert receiver.entries() == holder.entries()
    assert receiver.scheduler.state_dict() == holder.scheduler.state_dict()
    assert [group["lr"] for group in receiver.optimizer.param_groups] == [group["lr"] for group in holder.optimizer.param_groups]
    assert [parameter.data_ptr() for parameter in receiver.model.parameters()] == storage


def test_a_holder_before_its_first_step_makes_the_receiver_forget_optimizer_state() -> None:
    holder, receiver = state_of(1), state_of(2, steps=2)
    move([holder], receiver)
    assert receiver.optimizer.state == {}
    assert receiver.digest() == holder.digest()


def test_a_rehearsal_leaves_no_trace_and_keeps_its_buffers_to_receive_into() -> None:
    state, holder = state_of(1), state_of(3, steps=2)
    before, digest = state.snapshot(), state.digest()
    moments: list[int] = []
    for _ in range(2):
        state.model(torch.randn(8, 4)).sum().backward()
        state.optimizer.step()
        state.scheduler.step()
    moments = [state.optimizer.state[parameter]["exp_avg"].data_ptr() for parameter in state.model.parameters()]
    state.restore(before)
    assert state.digest() == digest
    assert state.optimizer.state == {}
    assert state.scheduler.last_epoch == 0
    assert all(parameter.grad is None for parameter in state.model.parameters())
    move([holder], state)
    assert [state.optimizer.state[parameter]["exp_avg"].data_ptr() for parameter in state.model.parameters()] == moments


def test_an_abandoned_step_gives_buffers_back_and_a_committed_one_keeps_them() -> None:
    state = state_of(1)
    before = state.digest()
    state.remember_buffers()
    state.model(torch.randn(8, 4)).sum().backward()
    assert state.digest() != before
    state.abandon_step()
    assert state.digest() == before
    state.remember_buffers()
    state.model(torch.randn(8, 4))
    after = state.digest()
    state.settle_step()
    state.abandon_step()
    assert state.digest() == after


def test_models_of_other_shapes_have_other_structures_and_are_refused() -> None:
    holder = state_of(1)
    receiver = State(model=net(1, width=7), optimizer=torch.optim.Adam(net(1, width=7).parameters()))
    assert holder.structure() != receiver.structure()
    with pytest.raises(StateMismatch, match="where the state comes from"):
        receiver.unpack_rest(holder.pack_rest({}))


def test_a_tensor_that_is_not_contiguous_is_received_too() -> None:
    holder, receiver = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    one, other = State(model=holder), State(model=receiver)
    move([one], other)
    assert torch.equal(holder.weight, receiver.weight)


def test_a_wrong_token_is_not_served() -> None:
    fence = Fence()
    server = TransferServer("127.0.0.1", fence)
    server.publish(Published(3, "secret", b"rest", []))
    with pytest.raises(TransferFailed):
        Receiver([("127.0.0.1", server.port)], 3, "guess", fence, lambda: False).rest()


def test_a_receiver_gives_way_to_a_newer_generation() -> None:
    fence, newer = Fence(), threading.Event()
    server = TransferServer("127.0.0.1", fence)
    threading.Timer(0.1, newer.set).start()
    with pytest.raises(Superseded):
        Receiver([("127.0.0.1", server.port)], 3, "secret", fence, newer.is_set).rest()


BIG = 1 << 26
"""More bytes than two sockets' buffers hold, so that a transfer is still under way when something happens to it."""


def test_a_state_whose_holder_moves_on_while_it_is_read_does_not_count() -> None:
    fence = Fence()
    server = TransferServer("127.0.0.1", fence)
    server.publish(Published(3, "secret", b"rest", [torch.ones(BIG, dtype=torch.uint8)]))

    def withdraw() -> bool:
        server.publish(None)
        return False

    with pytest.raises(TransferFailed):
        Receiver([("127.0.0.1", server.port)], 3, "secret", fence, withdraw).tensors([torch.empty(BIG, dtype=torch.uint8)])


def test_a_transfer_gives_way_while_bytes_flow() -> None:
    fence = Fence()
    server = TransferServer("127.0.0.1", fence)
    server.publish(Published(3, "secret", b"rest", [torch.ones(BIG, dtype=torch.uint8)]))
    looks = iter([False] * 3)
    target = torch.zeros(BIG, dtype=torch.uint8)
    with pytest.raises(Superseded):
        Receiver([("127.0.0.1", server.port)], 3, "secret", fence, lambda: next(looks, True)).tensors([target])
    assert target[-1] == 0, "it was left before its end"


def test_a_holder_that_does_not_answer_a_connect_is_left_when_a_newer_generation_comes() -> None:
    with contextlib.ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(
            4
        ):  # the queue of a listener that accepts nobody is full: the kernel leaves further callers without an answer
            caller = opened.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        late = time.monotonic() + 0.2
        receiver = Receiver([full.getsockname()], 3, "secret", Fence(), lambda: time.monotonic() > late)
        with pytest.raises(Superseded):
            receiver.rest()
        assert time.monotonic() - late < 2.0
