"""The composition root of the API process: ``uvicorn --factory api.app:create_app``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import Depends, FastAPI
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from api import openapi
from api.agents import door
from api.agents.shutdown import on_signals
from api.auth import store_bootstrap
from api.aws import dispatch
from api.deps import Services, authenticated
from api.limits import Meter
from api.rest import errors, health, metrics, own, sagemaker
from api.rest.envelope import Envelope
from api.rest.follow import open_desk
from api.rest.follow_route import FollowRoute
from api.settings import Settings
from everstep.protocol import VERSION
from models.clock import Clock, WallClock
from models.image.changes import request_release_of_ours
from models.session import connect, sessions, unit_of_work

POOL_SIZE = 16
"""Connections of one API process for calls that change something, and as many for those that look. Requests beyond them wait for one."""


class _Application(FastAPI):
    """``first`` is asked before everything else: the AWS door needs none of the layers around the routes, which would cost it a tenth."""

    first: Route | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.first is not None and self.first.matches(scope)[0] is Match.FULL:
            scope["app"] = self
            await self.first.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(settings: Settings | None = None, clock: Clock | None = None) -> FastAPI:
    """The application. Without settings it is a process of its own: they come from the environment, and its log goes to standard error.

    Raises:
        SettingsError: a variable is missing or unreadable.
    """
    if settings is None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        settings = Settings.from_environment()
    engine = connect(settings.database_url, pool_size=POOL_SIZE)
    reading = connect(settings.database_url, pool_size=POOL_SIZE, is_reading=True)
    services = Services(
        settings=settings,
        sessions=sessions(engine),
        clock=clock or WallClock(),
        meter=Meter(settings.rate_limit, settings.rate_limit * 2),
        readers=sessions(reading),
    )
    app = _Application(title="Everstep", version="1", openapi_url=None, lifespan=_lifespan(services, engine, reading))
    app.state.services = services
    app.first = dispatch.route(settings.master_key)
    app.router.routes[:0] = [FollowRoute(), *sagemaker.routes(settings.master_key)]
    app.include_router(health.router)
    app.include_router(metrics.router, include_in_schema=False)
    app.add_api_route("/openapi.json", openapi.served, include_in_schema=False)
    app.include_router(own.router, dependencies=[Depends(authenticated)])
    app.include_router(door.router, include_in_schema=False)  # described by a document of its own: openapi/agent.json
    errors.install(app)
    app.add_middleware(Envelope)
    return app


def _lifespan(services: Services, *engines: Engine) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_store_bootstrap, services)
        async with door.open_door(app), open_desk(services) as app.state.desk:
            with on_signals(app.state.desk.followers.shut_down):
                yield
        for engine in engines:
            engine.dispose()

    return lifespan


def _store_bootstrap(services: Services) -> None:
    with unit_of_work(services.sessions) as session:
        store_bootstrap(session, services.settings, now=services.clock.now())
        request_release_of_ours(session, VERSION, now=services.clock.now())
