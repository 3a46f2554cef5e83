"""``/v1/cp/checkpoints``: a shard is posted, had and dropped; which steps of a namespace can be had whole.

The paths, and ``Shard-Meta``, are those of AWS's package; ranges, HEAD, the ``Everstep-`` headers, ``scope`` and ``save`` are ours. Bytes are received
straight into the segment that they stay in, and sent straight out of it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import threading
from http import HTTPStatus

from agent.memory_tier import stripes
from agent.memory_tier.authority import Caller
from agent.memory_tier.hashing import Digest
from agent.memory_tier.http import Refusal, byte_range
from agent.memory_tier.http_server import Exchange
from agent.memory_tier.namespaces import STEPS_RETAINED
from agent.memory_tier.relaying import Away, Outline, Source, Spoilt
from agent.memory_tier.routes import Behind, admit, asked_number, delete_elsewhere, index_of, number, only, refusals
from agent.memory_tier.seals import checked
from agent.memory_tier.segments import Segment
from agent.memory_tier.store import Gone, Reading, Sealing
from everstep.shards import DIGEST, PICKLE_MARK, Seal, ShardKind, shard_meta

_TAIL_BYTES = 64 << 10
"""What is kept back until the shard has been found to be still what it was when its first byte was sent."""
_ZIP_MARK = b"PK\x03\x04"
"""How what ``torch.save`` has written begins."""
_MOST_STEPS = 1000
_MAY_HAVE_CHANGED = (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)


class Shards:
    """``now`` of foreign writes never stands still: nothing but time orders them."""

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self._lock = threading.Lock()
        self._last_write = 0.0

    def latest(self, exchange: Exchange, namespace: str) -> None:
        exchange.route = "latest"
        only(exchange.request, "GET", "HEAD")
        admit(self._behind, exchange, namespace)
        limit = min(_MOST_STEPS, asked_number(exchange.request, "limit", STEPS_RETAINED))
        self._behind.settle()
        found = self._behind.locating.steps(namespace, limit)
        exchange.answer_json(HTTPStatus.OK, [one.step for one in found])

    def shard(self, exchange: Exchange, namespace: str, index_text: str, step_text: str) -> None:
        exchange.route = "shard"
        request = exchange.request
        only(request, "GET", "HEAD", "POST", "DELETE")
        caller = admit(self._behind, exchange, namespace)
        index, step = index_of(index_text), number(step_text, "step")
        if request.method == "POST":
            if "everstep-seal" in request.headers:
                self._take_replica(exchange, caller, (namespace, step, index))
            else:
                self._take(exchange, caller, namespace, index, step)
        elif request.method == "DELETE":
            self._drop(exchange, caller, namespace, index, step)
        else:
            self._give(exchange, namespace, index, step)

    # ------------------------------------------------------------ in

    def _take(self, exchange: Exchange, caller: Caller, namespace: str, index: int, step: int) -> None:
        headers, nbytes = exchange.request.headers, exchange.request.length
        self._check_size(nbytes)
        save = "" if caller is Caller.NODE else headers.get("everstep-save", "")
        if not (save or self._behind.authority.is_open(namespace)):
            raise Refusal(
                HTTPStatus.BAD_REQUEST, f"in a job's namespace, as {namespace} is, Everstep-Save names the save of each shard"
            )
        expected = _promised(headers.get("shard-meta"), headers.get("everstep-digest"))
        with refusals():
            segment = self._behind.store.take(namespace, index, step, nbytes)
            try:
                begun = Digest()
                exchange.receive_into(segment.body[:nbytes], begun.add)
                self._behind.counts.add("everstep_tier_received_bytes_total", nbytes, source="client")
                asked = Sealing(
                    namespace=namespace,
                    index=index,
                    step=step,
                    kind=self._kind(segment, namespace, index, nbytes, headers.get("everstep-kind")),
                    nbytes=nbytes,
                    save=save,
                    is_durable=caller is not Caller.NODE and headers.get("everstep-durable") == "true",
                    shard_meta=headers.get("shard-meta"),
                    digest=expected,
                    written_at=self._later(namespace),
                )
                seal = self._behind.store.seal(segment, asked, begun=begun)
            except BaseException:
                self._behind.store.abandon(segment)
                raise
        exchange.answer_json(HTTPStatus.CREATED, seal.to_wire(), {"Everstep-Digest": seal.digest})

    def _take_replica(self, exchange: Exchange, caller: Caller, key: tuple[str, int, int]) -> None:
        if caller is not Caller.PEER:
            raise Refusal(HTTPStatus.FORBIDDEN, "only the memory tiers of other nodes push sealed replicas")
        seal = _seal_told(exchange.request.headers["everstep-seal"], key)
        self._check_size(seal.size)
        stream = _stream_told(exchange.request.headers.get(stripes.HEADER.lower()))
        if exchange.request.length != stream.nbytes(seal.size):
            why = f"the body has {exchange.request.length} bytes; of a shard of {seal.size} that its seal tells of, it should have {stream.nbytes(seal.size)}"
            raise Refusal(HTTPStatus.BAD_REQUEST, why)
        with refusals():
            held = self._behind.arrivals.take_in(seal, stream, exchange.receive_into)
        self._behind.counts.add("everstep_tier_received_bytes_total", exchange.received, source="peer")
        exchange.answer_json(HTTPStatus.CREATED, held.to_wire())

    def _check_size(self, nbytes: int) -> None:
        allocated = self._behind.store.usage.allocated
        if nbytes > allocated > 0:
            why = (
                f"a shard of {nbytes} bytes is more than all of this node's memory tier, which is {allocated} bytes; "
                "raise InstanceMemoryAllocationPercentage or save smaller shards on more nodes"
            )
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)

    def _kind(self, segment: Segment, namespace: str, index: int, nbytes: int, told: str | None) -> ShardKind:
        """By what the client says, by how the body begins (never read any further), then by the world that the namespace was made for."""
        if told is not None:
            return ShardKind(told)
        begins = bytes(segment.body[: min(nbytes, len(_ZIP_MARK))])
        if begins.startswith(PICKLE_MARK):
            return ShardKind.METADATA
        made = self._behind.namespaces.get(namespace)
        is_last = made is not None and index == made.num_ranks - 1
        return ShardKind.METADATA if is_last and begins != _ZIP_MARK else ShardKind.DATA

    def _later(self, namespace: str) -> float:
        """Also after a clock was set back while this tier was down: what was written after that would count as older, and be given up for what was before."""
        youngest = max((seal.written_at for seal in self._behind.store.seals(namespace)), default=0.0)
        with self._lock:
            self._last_write = max(self._behind.now(), self._last_write + 1e-6, youngest + 1e-6)
            return self._last_write

    # ------------------------------------------------------------ out

    def _give(self, exchange: Exchange, namespace: str, index: int, step: int) -> None:
        request = exchange.request
        scope, save = request.query.get("scope", "all"), request.query.get("save")
        if scope not in {"all", "local"}:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"scope {scope[:40]!r} must be local, or left out")
        with contextlib.suppress(Gone):
            seal = self._behind.store.find(namespace, index, step, save)
            if seal is not None and self._is_good(exchange, seal):
                with self._behind.store.read(seal) as reading:
                    self._give_held(exchange, reading)
                return
        if scope == "local":
            where = f"shard {index} of step {step} of namespace {namespace}"
            raise Refusal(HTTPStatus.NOT_FOUND, f"node {self._behind.node} does not hold {where}")
        try:
            self._give_of_others(exchange, namespace, index, step, save)
        except Refusal as refusal:
            if exchange.status or refusal.status not in _MAY_HAVE_CHANGED:
                raise
            self._behind.locating.look_again(namespace)  # a copy may have been made since the others were asked last
            self._give_of_others(exchange, namespace, index, step, save)

    def _give_of_others(self, exchange: Exchange, namespace: str, index: int, step: int, save: str | None) -> None:
        sources = self._behind.relay.sources(namespace, index, step, save)
        if not sources:
            where = f"shard {index} of step {step} of namespace {namespace}"
            raise Refusal(HTTPStatus.NOT_FOUND, f"{where} is in no memory tier that can be reached, nor in the object store")
        self._pass_on(exchange, sources)

    def _is_good(self, exchange: Exchange, seal: Seal) -> bool:
        """Whoever asks for a whole shard is not told whole what a bad memory chip has made of it: that copy goes, and the next one is given.

        It costs half a memcpy. Ranges are for readers who check what they make of them.
        """
        is_whole = exchange.request.method == "GET" and "range" not in exchange.request.headers
        return not is_whole or self._behind.store.verify(seal)

    def _give_held(self, exchange: Exchange, reading: Reading) -> None:
        """A segment that is used again while it is sent resets the connection: never a whole body that is not the shard's."""
        seal = reading.seal
        told = seal.shard_meta if seal.shard_meta is not None else shard_meta(seal.digest)
        outline = Outline(seal.size, seal.digest, seal.kind, seal.save, told, "memory")
        start, end = self._begin(exchange, outline)
        view = reading.view
        cut = max(start, end - _TAIL_BYTES)
        exchange.send(view[start:cut])
        try:
            reading.check()
        except Gone:
            exchange.reset()
        exchange.send(view[cut:end])
        self._count_sent(exchange, outline)

    def _pass_on(self, exchange: Exchange, sources: list[Source]) -> None:
        outline = sources[0].outline
        start, end = _span(exchange, outline)
        if exchange.request.method == "HEAD" or start == end:
            self._begin(exchange, outline)
            return
        chunks = self._behind.relay.chunks(sources, start, end)
        try:
            first = next(chunks)
            self._begin(exchange, outline)
            exchange.send(first)
            for chunk in chunks:
                exchange.send(chunk)
        except Away as away:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"this shard cannot be had now: {away}") from away
        except Spoilt as spoilt:
            raise Refusal(HTTPStatus.BAD_GATEWAY, f"{spoilt}; ask again for the next copy") from spoilt
        finally:
            self._count_sent(exchange, outline)

    def _begin(self, exchange: Exchange, outline: Outline) -> tuple[int, int]:
        start, end = _span(exchange, outline)
        headers = {
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "Shard-Meta": outline.shard_meta,
            "Everstep-Digest": outline.digest,
            "Everstep-Kind": outline.kind.value,
            "Everstep-Save": outline.save,
            "Everstep-Source": outline.source,
        }
        if (start, end) == (0, outline.size):
            exchange.begin(HTTPStatus.OK, headers, outline.size)
        else:
            span = f"bytes {start}-{end - 1}/{outline.size}"
            exchange.begin(HTTPStatus.PARTIAL_CONTENT, {**headers, "Content-Range": span}, end - start)
        return start, end

    def _count_sent(self, exchange: Exchange, outline: Outline) -> None:
        self._behind.counts.add("everstep_tier_sent_bytes_total", exchange.sent, source=outline.source)

    def _drop(self, exchange: Exchange, caller: Caller, namespace: str, index: int, step: int) -> None:
        """From all memory tiers."""
        gone = self._behind.store.drop(namespace, step=step, index=index, why="deleted at the door")
        is_everywhere = delete_elsewhere(self._behind, exchange, caller, namespace)
        if not gone:
            raise Refusal(
                HTTPStatus.NOT_FOUND, f"node {self._behind.node} does not hold shard {index} of step {step} of {namespace}"
            )
        exchange.answer_json(HTTPStatus.OK, {"deleted": len(gone), "everywhere": is_everywhere})


def _span(exchange: Exchange, outline: Outline) -> tuple[int, int]:
    return byte_range(exchange.request.headers, outline.size) or (0, outline.size)


def _promised(told: str | None, digest: str | None) -> str | None:
    """The digest that a client says its body has. Raises Refusal: it contradicts itself, or what it says is none."""
    found = {digest.lower()} if digest is not None else set()
    try:
        meta = json.loads(told) if told else None
        if isinstance(meta, dict) and meta.get("algorithm") == DIGEST:
            found.add(base64.b64decode(meta["checksum"], validate=True).hex())
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        why = f'Shard-Meta must be {{"checksum": base64 of 16 bytes, "algorithm": "{DIGEST}"}}: {error}'
        raise Refusal(HTTPStatus.BAD_REQUEST, why) from error
    if len(found) > 1 or any(len(one) != 32 for one in found):  # noqa: PLR2004  (128 bits in hex)
        raise Refusal(HTTPStatus.BAD_REQUEST, "Shard-Meta and Everstep-Digest are not one digest of 128 bits")
    return found.pop() if found else None


def _stream_told(text: str | None) -> stripes.Stream:
    """Raises Refusal."""
    try:
        return stripes.alone() if text is None else stripes.Stream.told(text)
    except ValueError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from error


def _seal_told(text: str, key: tuple[str, int, int]) -> Seal:
    """Raises Refusal."""
    try:
        seal = checked(Seal.from_wire(json.loads(text)))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Everstep-Seal is no seal: {error}") from error
    if seal.key != key:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"the seal is of {seal.key}, the path of {key}")
    return seal
