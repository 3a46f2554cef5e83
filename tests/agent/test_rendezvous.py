from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent import rendezvous
from agent.rendezvous import Rendezvous
from everstep.errors import RendezvousFailed, RendezvousRefused
from everstep.protocol import Generation, Member
from everstep.resilience.fence import Fence
from everstep.resilience.rendezvous import RendezvousClient, RendezvousStore, Superseded

ADDRESS = "127.0.0.1"


def generation(number: int, port: int = 0, token: str = "secret") -> Generation:
    members = tuple(Member(rank, f"p-{rank}", "n", ADDRESS) for rank in range(2))
    return Generation("job", number, "start", members, f"{ADDRESS}:{port}", token)


def serve(scenario: Callable[[Rendezvous, int], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Rendezvous(ADDRESS)
        port = await server.start()
        try:
            await scenario(server, port)
        finally:
            await server.stop()

    asyncio.run(run())


def client(
    number: int, port: int, *, token: str = "secret", patience_s: float = 5.0, newer: Any = lambda: False
) -> RendezvousClient:
    return RendezvousClient(generation(number, port, token), newer, Fence(), patience_s)


async def ask(one: RendezvousClient, op: str, **members: Any) -> Any:
    return await asyncio.to_thread(lambda: one.request(op, **members))


def test_members_of_a_generation_share_keys() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one, other = client(1, port), client(1, port)
        waiting = asyncio.ensure_future(ask(other, "get", key="address/0"))
        await ask(one, "set", key="address/0", value="here")
        assert await waiting == "here"
        assert await ask(one, "add", key="count", amount=2) == 2
        assert await ask(other, "add", key="count", amount=3) == 5
        assert await ask(one, "check", keys=["count", "address/0"])
        assert not await ask(one, "check", keys=["count", "absent"])
        assert await ask(one, "delete", key="count")
        assert not await ask(one, "delete", key="count")
        one.close()
        other.close()

    serve(scenario)


async def gather(one: RendezvousClient, rank: int, count: int, value: dict[str, Any], name: str = "cards") -> list[dict[str, Any]]:
    return await asyncio.to_thread(one.gather, name, rank, count, value)


def test_members_gather_when_all_are_there_and_are_told_in_order_of_rank() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        several = [client(1, port) for _ in range(3)]
        early = [asyncio.ensure_future(gather(several[rank], rank, 3, {"step": 7, "port": rank * 11})) for rank in (2, 0)]
        done, _ = await asyncio.wait(early, timeout=0.05)
        assert not done
        last = await gather(several[1], 1, 3, {"step": 7, "port": 11})
        assert last == [{"step": 7, "port": 0}, {"step": 7, "port": 11}, {"step": 7, "port": 22}]
        assert await asyncio.gather(*early) == [last, last]
        for one in several:
            one.close()

    serve(scenario)


def test_what_is_laid_anew_is_told_as_it_is_at_the_moment_and_each_name_is_a_gathering_of_its_own() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one = client(1, port)
        assert await gather(one, 0, 1, {"a": 1}) == [{"a": 1}]
        assert await gather(one, 0, 1, {"a": 2}) == [{"a": 2}]
        assert await gather(one, 0, 1, {"b": [None]}, "sights") == [{"b": [None]}]
        await asyncio.to_thread(one.meet, "held", 0, 1)
        one.close()

    serve(scenario)


def test_who_has_nothing_to_tell_meets_all_the_same() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one, other = client(1, port), client(1, port)
        waiting = asyncio.ensure_future(asyncio.to_thread(one.meet, "held", 0, 2))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        await asyncio.to_thread(other.meet, "held", 1, 2)
        await waiting
        one.close()
        other.close()

    serve(scenario)


@pytest.mark.parametrize("rank, count", [(1, 3), (1, 1), (-1, 1)])
def test_a_gathering_refuses_who_does_not_belong_there_and_keeps_what_was_laid(rank: int, count: int) -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one = client(1, port)
        assert await gather(one, 0, 1, {"a": 1}) == [{"a": 1}]
        with pytest.raises(RendezvousRefused, match=f"rank {rank} of {count} at 'cards', where 1 meet"):
            await gather(one, rank, count, {"a": 2})
        assert await gather(one, 0, 1, {"a": 3}) == [{"a": 3}]
        one.close()

    serve(scenario)


def test_a_newer_generation_wakes_who_gathers_in_an_older_one() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one = client(1, port)
        waiting = asyncio.ensure_future(gather(one, 0, 2, {}))
        await asyncio.wait([waiting], timeout=0.05)
        server.admit(generation(2, port))
        with pytest.raises(Superseded):
            await waiting
        one.close()

    serve(scenario)


def test_a_newer_generation_wakes_everybody_who_waits_in_an_older_one() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one = client(1, port)
        waiting = asyncio.ensure_future(ask(one, "get", key="never"))
        await asyncio.sleep(0.05)
        server.admit(generation(2, port))
        with pytest.raises(Superseded):
            await waiting
        late = client(1, port)
        with pytest.raises(Superseded):
            await ask(late, "check", keys=[])
        server.admit(generation(1, port))
        with pytest.raises(Superseded):
            await ask(client(1, port), "check", keys=[])
        one.close()

    serve(scenario)


def test_a_client_gives_way_without_the_servers_help() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        newer = asyncio.Event()
        one = client(1, port, newer=newer.is_set)
        waiting = asyncio.ensure_future(ask(one, "get", key="never"))
        await asyncio.sleep(0.05)
        newer.set()
        began = time.monotonic()
        with pytest.raises(Superseded):
            await waiting
        assert time.monotonic() - began < 2.0

    serve(scenario)


def test_a_process_that_hears_of_a_generation_first_is_let_in_when_the_agent_hears_too() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        early = client(1, port)
        waiting = asyncio.ensure_future(ask(early, "check", keys=[]))
        await asyncio.sleep(0.05)
        server.admit(generation(1, port))
        assert await waiting is True
        early.close()

    serve(scenario)


def test_a_wrong_token_is_refused() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        with pytest.raises(RendezvousRefused, match="wrong token"):
            await ask(client(1, port, token="guess"), "check", keys=[])

    serve(scenario)


def test_an_unknown_generation_is_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "OPEN_PATIENCE_S", 0.1)

    async def scenario(_server: Rendezvous, port: int) -> None:
        with pytest.raises(RendezvousRefused, match="unknown job"):
            await ask(client(9, port), "check", keys=[])

    serve(scenario)


@pytest.mark.parametrize("nbytes", [10, 3 << 20], ids=["a word", "more than a socket holds"])
def test_who_is_refused_hears_why_whatever_was_sent_with_the_opening(nbytes: int) -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(2, port))
        with pytest.raises(Superseded):
            await ask(client(1, port), "set", key="k", value="x" * nbytes)
        with pytest.raises(RendezvousRefused, match="wrong token"):
            await ask(client(2, port, token="guess"), "set", key="k", value="x" * nbytes)

    serve(scenario)


def test_a_forgotten_job_is_unknown() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one = client(1, port)
        waiting = asyncio.ensure_future(ask(one, "get", key="never"))
        await asyncio.sleep(0.05)
        server.forget("job")
        with pytest.raises(Superseded):
            await waiting
        one.close()

    serve(scenario)


@pytest.mark.parametrize(
    "line", [b"not json\n", b"[]\n", b"{}\n", b'{"job": "job", "generation": "x", "token": ""}\n', b'{"op": "get", "key": "k"}\n']
)
def test_nonsense_before_the_opening_is_refused(line: bytes) -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        writer.write(line)
        assert json.loads(await reader.readline())["error"] == "refused"
        assert await reader.read() == b""
        writer.close()

    serve(scenario)


def test_an_unknown_operation_is_named() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        one = client(1, port)
        with pytest.raises(RendezvousRefused, match="'fly' is not one of add"):
            await ask(one, "fly")
        assert await ask(one, "check", keys=[]) is True
        one.close()

    serve(scenario)


def test_without_a_server_the_client_gives_up_after_its_patience() -> None:
    with pytest.raises(RendezvousFailed, match="no answer within"):
        client(1, 1, patience_s=0.2).request("check", keys=[])


def test_a_restarted_server_listens_on_the_port_it_had() -> None:
    async def scenario() -> None:
        first = Rendezvous(ADDRESS)
        port = await first.start()
        await first.stop()
        second, third = Rendezvous(ADDRESS), Rendezvous(ADDRESS)
        assert await second.start(port) == port
        assert await third.start(port) != port
        await second.stop()
        await third.stop()

    asyncio.run(scenario())


def test_the_store_carries_bytes() -> None:
    async def scenario(server: Rendezvous, port: int) -> None:
        server.admit(generation(1, port))
        connection = client(1, port)
        store = RendezvousStore(connection)

        def use() -> None:
            store.set("raw", bytes(range(256)))
            store.set("text", "words")
            assert store.get("raw") == bytes(range(256))
            assert store.get("text") == b"words"
            store.wait(["raw", "text"])
            assert store.check(["raw"])
            assert store.add("number", 4) == 4
            assert store.delete_key("raw")

        await asyncio.to_thread(use)
        connection.close()

    serve(scenario)
