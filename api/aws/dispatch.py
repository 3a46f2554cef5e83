"""The AWS-JSON door: ``POST`` with ``X-Amz-Target``, any path. The table of operations is the router.

Order matters: who calls is settled before anything about the request is told; nothing is written before the request is wholly valid; the
answer leaves after the commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any, Final

from botocore.model import OperationModel, ServiceModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from api.auth import is_mutating
from api.aws.body import Unreadable, read_object
from api.aws.errors import CRASH, UnknownOperation, code_of
from api.aws.hands import Hands
from api.aws.own import perform as perform_own
from api.aws.own import read as read_own
from api.aws.pages import PageTokens
from api.aws.render import render
from api.aws.schema import sagemaker
from api.aws.service_model import everstep
from api.aws.support import read_request
from api.aws.table.kinds import Listing, Operation, perform
from api.aws.table.refusals import REFUSALS
from api.aws.table.sagemaker import SAGEMAKER
from api.aws.validate import read_members
from api.deps import Services, authenticate_signature, read_body, services_of, signed_request, work_of
from api.ids import new_request_id
from api.operations.audit import Call
from api.operations.work import Work
from api.own.kinds import Own
from api.own.table import OWN
from api.sigv4 import SignedRequest

CONTENT_TYPE: Final = "application/x-amz-json-1.1"
MOST_AT_ONCE: Final = 40
"""Calls that are carried out at the same time; further ones wait for their turn."""
log = logging.getLogger(__name__)


Served = Callable[[OperationModel, dict[str, Any], Work, PageTokens], Any]
"""Carries out one operation: members as they were sent in, members of the answer by wire name out."""


@dataclass(frozen=True)
class Service:
    """A service model and the part of it that is served. ``refusals`` say of others what to do instead."""

    model: ServiceModel
    operations: Mapping[str, Served]
    refusals: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> tuple[OperationModel, Served]:
        """Raises UnknownOperation: not in the model, or not served."""
        if name not in self.model.operation_names:
            message = f"{self.model.service_name} has no operation {name!r}."
            raise UnknownOperation(message)
        if name in self.refusals:
            message = f"{name} is not supported by Everstep. {self.refusals[name]}"
            raise UnknownOperation(message)
        if name not in self.operations:
            message = f"{name} is not supported by Everstep. Supported operations: {', '.join(sorted(self.operations))}."
            raise UnknownOperation(message)
        return self.model.operation_model(name), self.operations[name]


@dataclass
class _Known:
    """What has become known of a request, for the log: it is wanted also when the request fails."""

    request_id: str
    caller: str = "nobody"


class Door:
    """Serves the services of a table by the prefix of their targets."""

    def __init__(self, services: dict[str, Service], tokens: PageTokens) -> None:
        self._services = services
        self._tokens = tokens
        self._hands = Hands(MOST_AT_ONCE, "aws-door")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.answer(Request(scope, receive))
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """Never raises: whatever goes wrong has a code, and a crash is logged with its traceback under the request's id."""
        request_id, started = new_request_id(), perf_counter()
        known = _Known(request_id)
        target = request.headers.get("x-amz-target", "")
        try:
            signed = signed_request(request, await read_body(request))
            members = await self._hands.do(partial(self._serve, services_of(request), signed, target, known))
            response = _respond(200, members, request_id)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Exception as error:  # noqa: BLE001  (the last line: nothing may leave as HTML, or without a request id)
            response = _refuse(error, request_id, target)
        # Who waits for something asks again and again: answers to those who only look are told to whoever debugs.
        level = logging.INFO if response.status_code != HTTPStatus.OK or is_mutating(target.rpartition(".")[2]) else logging.DEBUG
        if log.isEnabledFor(level):
            took_ms = (perf_counter() - started) * 1000
            log.log(level, "%s %s by %s: %d in %.1f ms", request_id, target or "-", known.caller, response.status_code, took_ms)
        return response

    def _serve(self, services: Services, request: SignedRequest, target: str, known: _Known) -> dict[str, Any]:
        caller = authenticate_signature(services, request)
        known.caller = f"{caller.name} ({caller.key_id})"
        model, operation = self._find(target)
        asked = _asked(request.body)
        call = Call(target.partition(".")[0].lower(), model.name, {} if isinstance(asked, Unreadable) else asked, known.request_id)
        with work_of(services, caller, call) as work:
            if isinstance(asked, Unreadable):
                raise asked
            # Rendered before the commit: an answer that cannot be written takes its transaction with it.
            answer: dict[str, Any] = render(model.output_shape, operation(model, asked, work, self._tokens))
        return answer

    def _find(self, target: str) -> tuple[OperationModel, Served]:
        prefix, dot, name = target.rpartition(".")
        if not dot or prefix not in self._services:
            known = " or ".join(f"{prefix}.<operation>" for prefix in self._services)
            message = f"X-Amz-Target {target!r} names no operation: it must be {known}." if target else "X-Amz-Target is missing."
            raise UnknownOperation(message)
        return self._services[prefix].find(name)


class TargetRoute(Route):
    """Matches by header: endpoints may be configured with any path prefix, which SDKs send and sign unchanged.

    ``app`` answers what matches, and needs nothing of what an application puts around its routes.
    """

    def __init__(self, door: Door) -> None:
        super().__init__("/", door)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope["method"] != "POST":
            return Match.NONE, {}
        has_target = any(name == b"x-amz-target" for name, _ in scope["headers"])
        return (Match.FULL, {"endpoint": self.endpoint}) if has_target or scope["path"] == "/" else (Match.NONE, {})


def route(master_key: bytes) -> TargetRoute:
    """The route of this door. It must come before all others."""
    services = {
        "SageMaker": Service(sagemaker(), {name: _of_sagemaker(operation) for name, operation in SAGEMAKER.items()}, REFUSALS),
        "Everstep": Service(everstep(), {own.name: _of_ours(own) for own in OWN}),
    }
    return TargetRoute(Door(services, PageTokens(master_key)))


def _of_sagemaker(operation: Operation | Listing) -> Served:
    def serve(model: OperationModel, asked: dict[str, Any], work: Work, tokens: PageTokens) -> dict[str, Any]:
        return perform(model.name, operation, work, read_request(model, operation, asked), tokens)

    return serve


def _of_ours(own: Own) -> Served:
    def serve(model: OperationModel, asked: dict[str, Any], work: Work, tokens: PageTokens) -> dict[str, Any]:
        members = read_members(model.input_shape, asked)
        return perform_own(own, work, read_own(own, members), tokens).model_dump(by_alias=True)

    return serve


def _asked(body: bytes) -> dict[str, Any] | Unreadable:
    """That a body cannot be read is told only to who may call the operation, and is entered like any other refusal."""
    try:
        return read_object(body)
    except Unreadable as error:
        return error


def _refuse(error: Exception, request_id: str, target: str) -> Response:
    code = code_of(error)
    if code is CRASH:
        log.error("%s %s crashed", request_id, target, exc_info=error)
    elif code.message is not None:
        log.warning("%s %s: %s", request_id, target, error)
    message = code.message or str(error)
    headers = {"x-amzn-errortype": code.name}
    return _respond(code.status, {"__type": code.name, "message": message, "Message": message}, request_id, headers)


def _respond(status: int, members: dict[str, Any], request_id: str, headers: dict[str, str] | None = None) -> Response:
    return Response(
        json.dumps(members).encode(),
        status,
        {"x-amzn-requestid": request_id, **(headers or {})},
        media_type=CONTENT_TYPE,
    )
