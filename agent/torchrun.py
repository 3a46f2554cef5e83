"""What torchrun would give a script: its environment, a port at which its ranks meet, and a file for its error.

The port is chosen without a race. The agent of a generation's first member binds a free one and keeps it bound without listening: the kernel hands
such a port to nobody, and yet rank 0 may listen on it, because both sockets allow reuse (SO_REUSEADDR, as torch's store and nearly every server do). Each
generation has one of its own, so nobody meets ranks of a generation before. The other agents read it where the generation's ranks meet, which the
same agent hosts; it is on disk too, so that a restarted agent names the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from everstep.protocol import Generation, Launch

PORT_KEY = "master-port"
_ROLE = "default"
_AGAIN_S = 0.2
_LONGEST_ERROR = 16_000


def environment(
    generation: Generation, rank: int, launch: Launch, *, port: int, error_file: Path, own: Mapping[str, str]
) -> dict[str, str]:
    """Torchrun's variables for one rank. ``own`` is what the process is given besides, where the job may have set some of them."""
    nodes = list(dict.fromkeys(member.node for member in generation.members))
    return {
        "LOCAL_RANK": str(generation.members[rank].local_rank),
        "MASTER_PORT": str(port),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_NAME": _ROLE,
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(generation.world_size),
        "TORCHELASTIC_RESTART_COUNT": str(generation.number - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.max_restarts),
        "TORCHELASTIC_RUN_ID": generation.job,
        "TORCHELASTIC_USE_AGENT_STORE": str(False),
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": own.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def told_error(error_file: Path) -> str | None:
    """The traceback that ``torch.distributed.elastic.multiprocessing.errors.record`` has left; None if it has not."""
    try:
        told = json.loads(error_file.read_text())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if isinstance(told, dict):
        extra = told.get("extraInfo")
        told = (extra.get("py_callstack") if isinstance(extra, dict) else None) or told.get("message")
    return str(told)[-_LONGEST_ERROR:] if told else None


class MasterPorts:
    """The ports of the generations whose first member is on this node: one a job, until there is a newer generation."""

    def __init__(self, jobs: Path) -> None:
        self._jobs = jobs
        self._held: dict[str, tuple[int, socket.socket]] = {}

    def reserve(self, job: str, generation: int) -> int:
        """Asking again gives the same port, after a restart of the agent too."""
        if job in self._held and self._held[job][0] == generation:
            return _port(self._held[job][1])
        self.release(job)
        kept = self._jobs / job / "master_port.json"
        held = _bound(_kept(kept, generation)) or _bound(0)
        if held is None:
            message = "no port is free"
            raise OSError(message)
        self._held[job] = (generation, held)
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_name(kept.name + ".draft")
        draft.write_text(json.dumps({"generation": generation, "port": _port(held)}))
        draft.replace(kept)
        return _port(held)

    def release(self, job: str) -> None:
        if job in self._held:
            self._held.pop(job)[1].close()

    def stop(self) -> None:
        for job in list(self._held):
            self.release(job)


async def master_port(generation: Generation, unless: Coroutine[Any, Any, None]) -> int | None:
    """Asks the agent of the first member, again and again while it does not answer; None when ``unless`` has returned before."""
    asking = asyncio.ensure_future(_insisting(generation))
    in_vain = asyncio.ensure_future(unless)
    try:
        await asyncio.wait((asking, in_vain), return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        asking.cancel()
        in_vain.cancel()


async def _insisting(generation: Generation) -> int:
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(await _asked(generation))
        await asyncio.sleep(_AGAIN_S)


async def _asked(generation: Generation) -> str:
    """Raises OSError when nobody answers, KeyError when the answer is a refusal, ValueError when it is none."""
    host, _, port = generation.rendezvous.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        await _ask(
            reader, writer, {"op": "open", "job": generation.job, "generation": generation.number, "token": generation.token}
        )
        return str(await _ask(reader, writer, {"op": "get", "key": PORT_KEY}))
    finally:
        writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: dict[str, Any]) -> Any:
    writer.write(json.dumps(request).encode() + b"\n")
    return json.loads(await reader.readline())["value"]


def _bound(port: int | None) -> socket.socket | None:
    """On all addresses, where torch's store listens; of IPv4 alone where the host knows no IPv6. None if the port is taken."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        if port is None:
            return None
        with contextlib.suppress(OSError):
            held = socket.socket(family, socket.SOCK_STREAM)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                held.bind((address, port))
            except OSError:
                held.close()
                continue
            return held
    return None


def _port(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def _kept(path: Path, generation: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(path.read_text())
        return int(told["port"]) if told["generation"] == generation else None
    return None
