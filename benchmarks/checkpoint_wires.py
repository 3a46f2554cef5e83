"""Bytes between nodes: a load from a peer, a replica, a body through the door; each beside the same bytes over a bare socket, in turn."""

from __future__ import annotations

import contextlib
import http.client
import mmap
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.checkpoint_ranks import MIB
from everstep import TieredWriter
from everstep.checkpoint.tiers import Tiers
from everstep.checkpoint.torch_parts import memory_of
from tests.checkpoint import tiers as running

_PIECE = 1 << 20
_COPIES = 2


def _send(address: tuple[str, int], nbytes: int, commands: Any) -> None:
    """The other end of the bare socket: sends warm memory whenever it is told to."""
    body = memoryview(mmap.mmap(-1, nbytes))
    for at in range(0, nbytes, 4096):
        body[at] = 1
    with socket.create_connection(address) as connection:
        while commands.recv():
            connection.sendall(body)


@contextlib.contextmanager
def bare_socket(nbytes: int) -> Iterator[Any]:
    """Yields a function that receives ``nbytes`` into given memory, and returns in how many seconds."""
    context = multiprocessing.get_context("spawn")
    mine, others = context.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = context.Process(target=_send, args=(server.getsockname(), nbytes, others), daemon=True)
        sender.start()
        connection, _ = server.accept()
    with connection:

        def receive(places: list[memoryview]) -> float:
            mine.send(True)
            began = time.perf_counter()
            for place in places:
                _fill(connection, place)
            return time.perf_counter() - began

        try:
            yield receive
        finally:
            mine.send(False)
            sender.join(10)


def _fill(connection: socket.socket, place: memoryview) -> None:
    at = 0
    while at < len(place):
        got = connection.recv_into(place[at : at + _PIECE])
        if not got:
            message = "the sender has gone"
            raise ConnectionError(message)
        at += got


def _save(tiers: Tiers, tensors: list[torch.Tensor], step: int) -> None:
    """A whole step of one rank, by way of DCP's writer; returns when it is sealed."""
    writer = TieredWriter(step, tiers=tiers)
    dcp.save({f"w{number}": one for number, one in enumerate(tensors)}, storage_writer=writer, no_dist=True)


def peer_loads(folder: Path, mib: int, rounds: int, environment: dict[str, str]) -> dict[str, list[float]]:
    """Node 1 loads what node 0 alone holds."""
    tensors = [torch.arange(4 * MIB, dtype=torch.float32) + number for number in range(mib // 16)]
    nbytes = sum(one.nbytes for one in tensors)
    samples: dict[str, list[float]] = {"bare socket": [], "StepReader": [], "StepReader, verified": []}
    plan = [running.planned("ns", replicas=1)]
    with running.memory_tiers(
        folder, 2, memory_mib=8 * mib, allocation_percent=60, namespaces=plan, environment=environment
    ) as nodes:
        _save(Tiers.from_environment(nodes[0].environment("ns")), tensors, 1)
        there = Tiers.from_environment(nodes[1].environment("ns"))
        found = running.until(lambda: there.find(1), "the step is seen from the other node")
        with bare_socket(nbytes) as receive:
            for _ in range(1 + rounds):
                samples["bare socket"].append(receive([memory_of(one) for one in tensors]))
                for verify, name in ((False, "StepReader"), (True, "StepReader, verified")):
                    tensors[0].zero_()
                    began = time.perf_counter()
                    with there.read(found, verify=verify) as reader:
                        reader.fill_tensors({f"w{number}": one for number, one in enumerate(tensors)})
                        assert reader.counts["peer"] >= nbytes
                    samples[name].append(time.perf_counter() - began)
                    assert tensors[0][7] == float(len("seventh"))
        there.close()
    return {name: some[1:] for name, some in samples.items()}


def replication(folder: Path, mib: int, rounds: int, environment: dict[str, str]) -> dict[str, list[float]]:
    """From the seal of a shard until its second copy is sealed and told on another node."""
    tensors = [torch.arange(4 * MIB, dtype=torch.float32) + number for number in range(mib // 16)]
    nbytes = sum(one.nbytes for one in tensors)
    samples: dict[str, list[float]] = {"bare socket": [], "replica": []}
    into = [memory_of(torch.empty_like(one).fill_(1.0)) for one in tensors]
    plan = [running.planned("ns", replicas=2)]
    with running.memory_tiers(
        folder, 2, memory_mib=16 * mib, allocation_percent=60, namespaces=plan, environment=environment
    ) as nodes:
        here = Tiers.from_environment(nodes[0].environment("ns"))
        with bare_socket(nbytes) as receive:
            for step in range(1, 6 + rounds):  # segments are new for the first ones
                samples["bare socket"].append(receive(into))
                _save(here, tensors, step)
                began = time.perf_counter()
                assert here.wait(step, replicas=_COPIES, seconds=120.0)["replicas"] >= _COPIES
                samples["replica"].append(time.perf_counter() - began)
        here.close()
    return {name: some[5:] for name, some in samples.items()}


def door(folder: Path, mib: int) -> dict[str, float]:
    """A body of more than 2 GiB posted to the door and got back: by how much the tier's anonymous memory has grown at its highest, in MiB."""
    nbytes = mib * MIB
    body = mmap.mmap(-1, nbytes)
    body[nbytes - 4 : nbytes] = b"last"
    with running.memory_tiers(folder, 1, memory_mib=2 * mib, allocation_percent=60) as nodes:
        node = nodes[0]
        before = _anonymous_mib(node.pid)
        highest = [before]
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(0.01):
                highest.append(_anonymous_mib(node.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            seconds = _post_and_get(node, body, nbytes)
        finally:
            is_over.set()
            watcher.join()
    return {"anonymous MiB": max(highest) - before, **seconds}


def _post_and_get(node: Any, body: mmap.mmap, nbytes: int) -> dict[str, float]:
    client = http.client.HTTPConnection(node.address, running.PORT, timeout=300)
    client.request("POST", "/v1/cp/namespaces/open?num_ranks=2&steps_retained=3")
    client.getresponse().read()
    path = "/v1/cp/checkpoints/open/0/1"
    began = time.perf_counter()
    client.putrequest("POST", path)
    client.putheader("Content-Length", str(nbytes))
    client.endheaders()
    view = memoryview(body)
    for at in range(0, nbytes, 4 * _PIECE):
        client.sock.sendall(view[at : at + 4 * _PIECE])
    answer = client.getresponse()
    answer.read()
    assert answer.status in {HTTPStatus.OK, HTTPStatus.CREATED}, f"the door answers {answer.status}"
    posted = time.perf_counter() - began
    began = time.perf_counter()
    client.request("GET", path)
    answer = client.getresponse()
    buffer, got, last = memoryview(bytearray(4 * _PIECE)), 0, b""
    while size := answer.readinto(buffer):
        got, last = got + size, bytes(buffer[max(0, size - 4) : size])
    assert (answer.status, got, last) == (HTTPStatus.OK, nbytes, b"last")
    client.close()
    return {"POST s": posted, "GET s": time.perf_counter() - began}


def _anonymous_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024
