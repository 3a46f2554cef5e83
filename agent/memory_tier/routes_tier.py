"""``/v1/tier``, what the tiers of a cluster and our own library ask; and ``/metrics`` and ``/healthz``, which anybody may."""

from __future__ import annotations

import json
from http import HTTPStatus

from agent.memory_tier import metrics
from agent.memory_tier.announced import Announcement
from agent.memory_tier.http import Refusal
from agent.memory_tier.http_server import Exchange
from agent.memory_tier.metrics import Sample
from agent.memory_tier.routes import Behind, admit, admit_peer, asked_number, number, only
from everstep.shards import NAMESPACE

_LONGEST_ANNOUNCEMENT = 4 << 10
_MOST_STEPS = 1000


def inventory(behind: Behind, exchange: Exchange) -> None:
    """All seals, for peers; of one namespace, for whoever may read it."""
    exchange.route = "inventory"
    only(exchange.request, "GET", "HEAD")
    name = exchange.request.query.get("namespace")
    if name is None:
        admit_peer(behind, exchange)
    else:
        admit(behind, exchange, name)
    seals = [seal.to_wire() for seal in behind.store.seals(name)]
    gone_back = [] if name is None else [[after, at] for after, at in behind.discards(name)]
    exchange.answer_json(HTTPStatus.OK, {"node": behind.node, "seals": seals, "discards": gone_back})


def steps(behind: Behind, exchange: Exchange, name: str) -> None:
    exchange.route = "steps"
    only(exchange.request, "GET", "HEAD")
    admit(behind, exchange, name)
    limit = min(_MOST_STEPS, asked_number(exchange.request, "limit", 1))
    behind.settle()
    found = behind.locating.steps(name, limit)
    exchange.answer_json(HTTPStatus.OK, {"steps": [one.to_wire() for one in found]})


def step(behind: Behind, exchange: Exchange, name: str, step_text: str) -> None:
    exchange.route = "step"
    only(exchange.request, "GET", "HEAD")
    admit(behind, exchange, name)
    asked = number(step_text, "step")
    behind.settle()
    found = behind.locating.find(name, asked)
    if found is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"step {asked} of namespace {name} cannot be had whole from any tier now")
    exchange.answer_json(HTTPStatus.OK, found.to_wire())


def complete(behind: Behind, exchange: Exchange) -> None:
    """A peer's announcement."""
    exchange.route = "complete"
    only(exchange.request, "POST")
    admit_peer(behind, exchange)
    behind.locating.heard(_announced(exchange.receive(_LONGEST_ANNOUNCEMENT)))
    exchange.answer_json(HTTPStatus.OK, {})


def discard(behind: Behind, exchange: Exchange) -> None:
    """A peer says that training went back."""
    exchange.route = "discard"
    only(exchange.request, "POST")
    admit_peer(behind, exchange)
    try:
        told = json.loads(exchange.receive(_LONGEST_ANNOUNCEMENT))
        name, after, at = str(told["namespace"]), int(told["after"]), float(told["at"])
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        why = 'what is given up is told as {"namespace": …, "after": step, "at": seconds}'
        raise Refusal(HTTPStatus.BAD_REQUEST, why) from error
    behind.discarded(name, after, at)
    exchange.answer_json(HTTPStatus.OK, {})


def health(behind: Behind, exchange: Exchange) -> None:
    exchange.route = "healthz"
    only(exchange.request, "GET", "HEAD")
    exchange.answer_json(HTTPStatus.OK, {"node": behind.node, "status": "ok"})


def counted(behind: Behind, exchange: Exchange, connections: int) -> None:
    exchange.route = "metrics"
    only(exchange.request, "GET", "HEAD")
    usage = behind.store.usage
    of_store = {
        "everstep_tier_allocated_bytes": usage.allocated,
        "everstep_tier_used_bytes": usage.used,
        "everstep_tier_free_bytes": max(0, usage.allocated - usage.used),
        "everstep_tier_shards": usage.shards,
        "everstep_tier_spare_bytes": usage.spare,
        "everstep_tier_refusals_total": usage.refusals,
        "everstep_tier_corruptions_total": behind.store.corruptions,
        "everstep_tier_connections": connections,
    }
    samples = [*(Sample(name, value) for name, value in of_store.items()), *behind.counts.samples(), *behind.gauges()]
    exchange.answer(HTTPStatus.OK, metrics.render(samples).encode(), {"Content-Type": metrics.CONTENT_TYPE})


def _announced(body: bytes) -> Announcement:
    """Raises Refusal. Who tells no ``world_size`` and ``copies`` is a tier of an earlier version."""
    try:
        told = json.loads(body)
        counts = (told["step"], told.get("world_size") or 0, told.get("copies") or 0)
        is_good = NAMESPACE.fullmatch(told["namespace"]) and isinstance(told["save"], str)
        is_good = is_good and all(isinstance(one, int) and one >= 0 for one in counts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_good = None
    if not is_good:
        raise Refusal(
            HTTPStatus.BAD_REQUEST, 'an announcement is {"namespace": …, "step": …, "save": …, "world_size": …, "copies": …}'
        )
    return Announcement(told["namespace"], told["step"], told["save"], told.get("world_size"), counts[2])
