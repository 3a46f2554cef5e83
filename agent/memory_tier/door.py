"""The HTTP door of a node's memory tier, on port 9200: the protocol of AWS's package, and what our own library and the other nodes ask besides.

Bodies are opaque: nothing here, nor behind it, ever unpickles one.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from agent.memory_tier import routes_namespaces, routes_tier
from agent.memory_tier.http import Refusal
from agent.memory_tier.http_server import Exchange, Limits, Server
from agent.memory_tier.routes import Behind
from agent.memory_tier.routes_shards import Shards

__all__ = ["Behind", "Door", "Limits"]


class Door:
    """Open from ``start`` to ``stop``. ``clock`` is monotonic, in seconds."""

    def __init__(
        self, behind: Behind, *, address: str, port: int, clock: Callable[[], float], limits: Limits | None = None
    ) -> None:
        self._behind = behind
        self._shards = Shards(behind)
        self._server = Server(address, port, serve=self._serve, seen=self._seen, clock=clock, limits=limits)

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        """Raises OSError: somebody else has the port."""
        self._server.start()

    def stop(self) -> None:
        """Ends every connection; what was half received is given back."""
        self._behind.arrivals.end()
        self._server.stop()
        self._behind.relay.close()

    def _serve(self, exchange: Exchange) -> None:
        match exchange.request.parts:
            case ("v1", "cp", *parts):
                self._serve_clients(exchange, parts)
            case ("v1", "tier", *parts):
                self._serve_tiers(exchange, parts)
            case ("healthz",):
                routes_tier.health(self._behind, exchange)
            case ("metrics",):
                routes_tier.counted(self._behind, exchange, self._server.connections)
            case _:
                raise _unknown(exchange)

    def _serve_clients(self, exchange: Exchange, parts: list[str]) -> None:
        match parts:
            case ["checkpoints", name, index, step]:
                self._shards.shard(exchange, name, index, step)
            case ["checkpoints", name, "latest"]:
                self._shards.latest(exchange, name)
            case ["namespaces", name]:
                routes_namespaces.namespace(self._behind, exchange, name)
            case ["cluster", "reset"]:
                routes_namespaces.reset(self._behind, exchange)
            case _:
                raise _unknown(exchange)

    def _serve_tiers(self, exchange: Exchange, parts: list[str]) -> None:
        match parts:
            case ["inventory"]:
                routes_tier.inventory(self._behind, exchange)
            case ["steps", name]:
                routes_tier.steps(self._behind, exchange, name)
            case ["steps", name, step]:
                routes_tier.step(self._behind, exchange, name, step)
            case ["complete"]:
                routes_tier.complete(self._behind, exchange)
            case ["discard"]:
                routes_tier.discard(self._behind, exchange)
            case _:
                raise _unknown(exchange)

    def _seen(self, exchange: Exchange) -> None:
        self._behind.counts.add("everstep_tier_requests_total", route=exchange.route, status=str(exchange.status))


def _unknown(exchange: Exchange) -> Refusal:
    path = "/".join(exchange.request.parts)[:200]
    return Refusal(HTTPStatus.NOT_FOUND, f"this door has no path /{path}; docs/memory-tier-door.md lists those that it has")
