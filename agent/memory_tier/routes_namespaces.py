"""``/v1/cp/namespaces`` and ``/v1/cp/cluster``, as AWS's package speaks them: a namespace is asked for, made if it is not there, and deleted.

What a namespace says (how many shards a step has, how many steps stay) is that of its first writer on this node. Shards are taken in whether it was
made here or not: only one of a job's ranks makes it, on its own node.
"""

from __future__ import annotations

from http import HTTPStatus

from agent.memory_tier.authority import Caller
from agent.memory_tier.http import Refusal
from agent.memory_tier.http_server import Exchange
from agent.memory_tier.namespaces import STEPS_RETAINED, Namespace
from agent.memory_tier.routes import Behind, admit, asked_number, delete_elsewhere, only, refusals

_MOST_RETAINED = 1000


def namespace(behind: Behind, exchange: Exchange, name: str) -> None:
    exchange.route = "namespace"
    only(exchange.request, "GET", "HEAD", "POST", "DELETE")
    caller = admit(behind, exchange, name)
    if exchange.request.method == "POST":
        _create(behind, exchange, name)
    elif exchange.request.method == "DELETE":
        _delete(behind, exchange, caller, name)
    else:
        made = behind.namespaces.get(name)
        if made is None:
            raise Refusal(HTTPStatus.NOT_FOUND, f"namespace {name} has not been made on node {behind.node}")
        exchange.answer_json(HTTPStatus.OK, _told(made))


def reset(behind: Behind, exchange: Exchange) -> None:
    """Raises Refusal, always: one caller's mistake would cost every job of the node its checkpoints."""
    exchange.route = "reset"
    only(exchange.request, "POST")
    why = (
        f"the memory tier of node {behind.node} is not reset by a request; DELETE /v1/cp/namespaces/NAMESPACE deletes what is yours"
    )
    raise Refusal(HTTPStatus.FORBIDDEN, why)


def _create(behind: Behind, exchange: Exchange, name: str) -> None:
    request = exchange.request
    if "num_ranks" not in request.query:
        raise Refusal(HTTPStatus.BAD_REQUEST, "num_ranks is missing: the number of data shards of a step, and one for its metadata")
    num_ranks = asked_number(request, "num_ranks", 0)
    retained = min(_MOST_RETAINED, asked_number(request, "steps_retained", STEPS_RETAINED))
    with refusals():
        made = behind.namespaces.create(name, num_ranks=num_ranks, steps_retained=retained)
    exchange.answer_json(HTTPStatus.CREATED, _told(made))


def _delete(behind: Behind, exchange: Exchange, caller: Caller, name: str) -> None:
    """From all memory tiers. What is in the object store is the control plane's to delete."""
    was_there = behind.namespaces.delete(name)
    gone = behind.store.drop(name, why="its namespace was deleted at the door")
    is_everywhere = delete_elsewhere(behind, exchange, caller, name)
    if not was_there and not gone:
        raise Refusal(HTTPStatus.NOT_FOUND, f"namespace {name} is not on node {behind.node}")
    exchange.answer_json(HTTPStatus.OK, {"deleted": len(gone), "everywhere": is_everywhere})


def _told(made: Namespace) -> dict[str, object]:
    return {"namespace": made.name, "num_ranks": made.num_ranks, "steps_to_retain_per_rank": made.steps_retained}
