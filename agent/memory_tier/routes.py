"""What the routes of the door share: what stands behind it, who is let in, numbers in paths, and errors that have a status of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from agent.memory_tier.arriving import Arrivals, Unfinished
from agent.memory_tier.authority import Authority, Caller, Forbidden
from agent.memory_tier.http import Refusal, Request
from agent.memory_tier.http_server import Exchange
from agent.memory_tier.locating import Locating
from agent.memory_tier.metrics import Counts, Sample
from agent.memory_tier.namespaces import Namespaces
from agent.memory_tier.relaying import Relay
from agent.memory_tier.seals import MOST_INDEX
from agent.memory_tier.store import Corrupt, Gone, NoRoom, Store

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Behind:
    """``now`` is in Unix seconds. ``gauges`` are what others know of this tier, for the metrics.

    ``discards`` tells where training of a namespace went back to, and when. ``discarded`` is told when another node's tier says that training of a namespace went back to a step, and when.
    ``settle`` waits, not for ever, until what an earlier process has left has been hashed: before that it does not count.
    """

    node: str
    store: Store
    namespaces: Namespaces
    authority: Authority
    locating: Locating
    relay: Relay
    arrivals: Arrivals
    counts: Counts
    now: Callable[[], float]
    gauges: Callable[[], Iterable[Sample]] = tuple
    settle: Callable[[], object] = tuple
    discards: Callable[[str], Iterable[tuple[int, float]]] = lambda _: ()
    discarded: Callable[[str, int, float], object] = lambda _namespace, _after, _at: None


def admit(behind: Behind, exchange: Exchange, namespace: str) -> Caller:
    """Raises Refusal."""
    with refusals():
        return behind.authority.admit(namespace, shown=exchange.request.headers.get("authorization"), source=exchange.source)


def admit_peer(behind: Behind, exchange: Exchange) -> None:
    """Raises Refusal."""
    with refusals():
        behind.authority.admit_peer(shown=exchange.request.headers.get("authorization"))


@contextmanager
def refusals() -> Iterator[None]:
    """Gives what the tier refuses its status."""
    try:
        yield
    except NoRoom as refused:
        raise Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(refused)) from refused
    except Unfinished as refused:
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(refused)) from refused
    except Corrupt as refused:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(refused)) from refused
    except Forbidden as refused:
        raise Refusal(HTTPStatus.FORBIDDEN, str(refused)) from refused
    except Gone as refused:
        raise Refusal(HTTPStatus.NOT_FOUND, str(refused)) from refused
    except ValueError as refused:
        raise Refusal(HTTPStatus.BAD_REQUEST, str(refused)) from refused


def delete_elsewhere(behind: Behind, exchange: Exchange, caller: Caller, namespace: str) -> bool:
    """Has the other nodes delete what this request deletes here, else their replicas would bring it back; False if one could not be told.

    A peer's own request goes no further.
    """
    if caller is Caller.PEER:
        return True
    path = "/" + "/".join(quote(part, safe="") for part in exchange.request.parts)
    return behind.locating.delete_elsewhere(namespace, path)


def number(text: str, what: str, *, most: int | None = None) -> int:
    """A number from 0 on, written in one way only: two names for one shard would be two shards. Raises Refusal."""
    if not _NUMBER.fullmatch(text) or (most is not None and int(text) > most):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{what} {text[:40]!r} must be a whole number from 0 to {most or '10^18 - 1'}")
    return int(text)


def index_of(text: str) -> int:
    """Raises Refusal."""
    return number(text, "index", most=MOST_INDEX)


def asked_number(request: Request, name: str, default: int) -> int:
    """A parameter. Raises Refusal."""
    told = request.query.get(name)
    return default if told is None else number(told, name)


def only(request: Request, *methods: str) -> None:
    """Raises Refusal."""
    if request.method not in methods:
        allowed = ", ".join(methods)
        why = f"{request.method} is not for this path; {allowed} {'is' if len(methods) == 1 else 'are'}"
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, why, {"Allow": allowed})
