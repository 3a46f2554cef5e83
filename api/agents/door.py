"""The agents' door: register, beat, report, and a stream of directives.

Asynchronous where it waits for agents; the domain's work is synchronous and runs in a few threads of the door's own, so that neither the
REST door's load nor a slow database lets a beat or a stream's end go unnoticed. Node tokens are never logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast

from fastapi import APIRouter, Depends, FastAPI
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.agents import ear
from api.agents.beats import Beats
from api.agents.bundle import bundle
from api.agents.errors import DoorRoute, TooLarge
from api.agents.shutdown import on_signals
from api.agents.streams import Ledger, Streams
from api.agents.tokens import Tokens
from api.agents.wire import BATCH, BEAT, REGISTRATION, NextBeat, Problem, read
from api.deps import Services
from api.operations import agents, bundles, reports
from api.operations.tiers import Commons
from everstep.protocol import Directive, Welcome
from models.errors import Unauthenticated
from models.node.beats import Heartbeat
from models.pulse import AGENTS, EVERY_S, report_pulse
from models.session import unit_of_work

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_THREADS = 6
_MAX_BODY = 4 * 1024 * 1024


@dataclass(frozen=True)
class Door:
    """What the door keeps for the life of the process."""

    services: Services
    loop: asyncio.AbstractEventLoop
    threads: ThreadPoolExecutor
    beats: Beats
    streams: Streams
    tokens: Tokens
    commons: Commons

    async def work(self, use_case: Callable[Concatenate[Session, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await _work(self.services, self.threads, use_case, *args, **kwargs)


@asynccontextmanager
async def open_door(app: FastAPI) -> AsyncIterator[None]:
    """Opens the door for the life of the application, whose ``state.services`` are in place.

    On the way out streams end first and beats are flushed last, so that a shutdown loses no beat and reports no node as cut off.
    """
    services = cast("Services", app.state.services)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="agents") as threads:
        door = app.state.agents = _assemble(services, threads)

        async def undelivered(node_ids: Any) -> Any:
            untold = await door.work(agents.undelivered, node_ids)
            return [*untold, *await door.work(door.commons.news, node_ids, now=services.clock.now())]

        duties = [
            asyncio.create_task(ear.listen(services.settings.database_url, door.streams)),
            asyncio.create_task(ear.poll(door.streams, undelivered)),
            asyncio.create_task(door.beats.run()),
            asyncio.create_task(_pulse(door)),
        ]
        try:
            with on_signals(door.streams.shut_down):
                yield
        finally:
            door.streams.shut_down()
            for duty in duties:
                duty.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*duties, return_exceptions=True)
            await door.streams.settled()
            await door.beats.flush()


def _assemble(services: Services, threads: ThreadPoolExecutor) -> Door:
    now = services.clock.now
    commons = Commons(services.settings.master_key)

    async def directives(node_id: Any) -> list[agents.Line]:
        return await _work(services, threads, agents.directives, node_id)

    async def assignments(node_id: Any) -> list[agents.Line]:
        return await _work(services, threads, agents.assignments, node_id, commons, now=now())

    async def deliver(ids: Any) -> None:
        await _work(services, threads, agents.deliver, ids, now=now())

    async def close(node_id: Any, name: str) -> None:
        await _work(services, threads, agents.close_stream, node_id, name, now=now())

    async def write(beats: Any) -> None:
        await _work(services, threads, agents.report_beats, beats)

    loop = asyncio.get_running_loop()
    streams = Streams(Ledger(directives, assignments, deliver, close))
    return Door(services, loop, threads, Beats(write), streams, Tokens(loop.time), commons)


async def _work(
    services: Services,
    threads: ThreadPoolExecutor,
    use_case: Callable[Concatenate[Session, P], R],
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Runs a use-case in one transaction, in one of the door's threads."""

    def run() -> R:
        with unit_of_work(services.sessions) as session:
            return use_case(session, *args, **kwargs)

    return await asyncio.get_running_loop().run_in_executor(threads, run)


async def _pulse(door: Door) -> None:
    """Says that agents are heard here, until cancelled: what is not said then counts as their silence."""
    while True:
        try:
            await door.work(report_pulse, AGENTS, now=door.services.clock.now())
        except SQLAlchemyError as error:
            log.warning("the door's pulse could not be written: %s", type(error).__name__)
        await asyncio.sleep(EVERY_S)


# ------------------------------------------------------------------ routes


def _door(request: Request) -> Door:
    return cast("Door", request.app.state.agents)


def _token(request: Request) -> str:
    """Raises Unauthenticated."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated
    return token.strip()


async def _body(request: Request) -> bytes:
    """Raises TooLarge."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise TooLarge
    return body


DoorDep = Annotated[Door, Depends(_door)]
BodyDep = Annotated[bytes, Depends(_body)]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "A member cannot be taken; the problem names it."},
    401: {"model": Problem, "description": "Not a token of this node: register again."},
    410: {"model": Problem, "description": "The node is gone: end everything that runs on it, and yourself."},
    503: {"model": Problem, "description": "Try again."},
}
_OTHER_BOOT: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "Another start of this node's agent has registered since."}
}

router = APIRouter(prefix="/agent/v1", route_class=DoorRoute, tags=["agents"], responses=_PROBLEMS)


def _takes(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post("/register", response_model=Welcome, openapi_extra=_takes("Registration"))
async def register(door: DoorDep, body: BodyDep) -> Response:
    """An agent arrives, with the boot token of its node or the node token it has kept."""
    arrived = await door.work(
        agents.register,
        read(REGISTRATION, body),
        settings=door.services.settings,
        beat_interval_s=door.beats.interval_s,
        now=door.services.clock.now(),
    )
    door.tokens.remember(arrived.welcome.node_token, arrived.node_id)
    return JSONResponse(arrived.welcome.to_wire())


@router.post("/beat", response_model=NextBeat, openapi_extra=_takes("Beat"))
async def beat(request: Request, door: DoorDep, body: BodyDep) -> Response:
    """The agent is alive. Written within a fifth of a second, with everybody's."""
    token = _token(request)
    told = read(BEAT, body)
    node_id = door.tokens.find(token)
    if node_id is None:
        node_id = (await door.work(agents.identify, token)).id
        door.tokens.remember(token, node_id)
    interval_s = door.beats.add(Heartbeat(node_id, told.boot, told.sequence, door.services.clock.now()))
    return JSONResponse(asdict(NextBeat(next_s=interval_s)))


@router.post("/reports", status_code=200, openapi_extra=_takes("Batch"))
async def report(request: Request, door: DoorDep, body: BodyDep) -> Response:
    """Facts, in order. Answered when they are committed; a batch that is sent again changes nothing."""
    token = _token(request)
    batch = read(BATCH, body)
    told = [reports.Sequenced(item.sequence, item.report) for item in batch.reports]
    await door.work(reports.accept, token, batch.boot, told, now=door.services.clock.now())
    return JSONResponse({})


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "model": Directive,
        "description": "Newline-delimited JSON, a directive a line: first all that the node should run, then an empty line, then whatever "
        "changes. Further empty lines keep the connection alive.",
    }
}


@router.get("/directives", responses=_STREAM | _OTHER_BOOT)
async def directives(request: Request, door: DoorDep) -> Response:
    """What the node should run. The stream's end tells the control plane that the agent may be gone."""
    node_id, name = await door.work(agents.open_stream, _token(request), now=door.services.clock.now())
    return door.streams.open(node_id, name)


_BUNDLE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}},
        "description": "A gzipped tar archive. `Everstep-Bundle-Version` and `Everstep-Bundle-Sha256` say which; the latter is its `ETag`, too.",
    },
    304: {"description": "`If-None-Match` names this bundle."},
}


@router.head("/bundle", include_in_schema=False)
@router.get("/bundle", responses=_BUNDLE, response_class=Response)
async def agent_bundle(request: Request, door: DoorDep) -> Response:
    """The agent's program, for a host that shows its node token, or its boot token and in `Everstep-Claim` what it was launched under."""
    claim = request.headers.get("everstep-claim")
    await door.work(bundles.admit, _token(request), claim, master_key=door.services.settings.master_key)
    packed = await door.loop.run_in_executor(door.threads, bundle)
    if packed.is_named_by(request.headers.get("if-none-match")):
        return Response(status_code=304, headers=packed.headers)
    return Response(packed.content, headers=packed.headers, media_type="application/gzip")
