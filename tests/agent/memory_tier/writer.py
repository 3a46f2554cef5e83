"""A training process in all but its training: saves step after step through the hand-over, and says which are saved. To be killed.

    writer.py SOCKET NAMESPACE TOKEN FIRST_STEP NBYTES

A step has two data shards and a metadata shard. Every byte is a function of its place (``content``). After the tier has sealed all three the number of
the step is printed.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

from everstep.handover import Conversation
from tests.agent.memory_tier.hands import write_shard

WORLD = 2


def content(step: int, index: int, nbytes: int) -> bytes:
    word = f"{step}.{index}.".encode()
    return (word * (nbytes // len(word) + 1))[:nbytes]


def main() -> None:
    path, namespace, token, first, nbytes = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    step = first
    while True:
        with contextlib.suppress(OSError, AssertionError), _talk(path, namespace, token) as ask:
            ask("reserve", index=0, nbytes=nbytes, count=2)
            while True:
                _save(ask, step, nbytes)
                print(step, flush=True)
                step += 1
        time.sleep(0.01)  # the tier is away: it is knocked again
        step += 1


def _save(ask, step, nbytes):
    for index in range(WORLD + 1):
        kind = "data" if index < WORLD else "metadata"
        while "refused" in (answer := write_shard(ask, index, step, content(step, index, nbytes), kind=kind)):
            print("refused", answer["refused"], file=sys.stderr, flush=True)
            time.sleep(0.005)  # retention makes room in another process


@contextlib.contextmanager
def _talk(path, namespace, token):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(path)
        conversation = Conversation(connection)

        def ask(ask, **members):
            conversation.say({"ask": ask, **members})
            heard = conversation.hear()
            assert heard is not None, "the tier hung up"
            return heard[0] | ({"descriptors": heard[1]} if heard[1] else {})

        ask("hello", namespace=namespace, token=token, protocol=1)
        yield ask


if __name__ == "__main__":
    main()
