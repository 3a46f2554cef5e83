"""Writes ``openapi/control-plane.json`` and ``openapi/agent.json`` from the routes: ``python -m api.openapi``; ``--check`` only compares.

The files are for people and for generators of clients; a test keeps them fresh.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from pydantic import TypeAdapter
from starlette.responses import Response

from api.agents import door, wire
from api.own.table import OWN
from api.rest import health, own
from api.rest.described import add_follow, finish
from api.rest.own_described import add_components
from api.rest.sagemaker_described import add_operations

FOLDER = Path(__file__).parent.parent / "openapi"
_CONTROL_PLANE = (
    "The REST door of the control plane. SageMaker's operations are the same as those at POST /, with the same members; times are RFC 3339 text here, "
    "in UTC; in requests seconds since the epoch are taken as well. Names in paths and queries may be in snake_case, too. An ARN in a path is "
    "percent-encoded."
)
_SCHEMAS = "#/components/schemas/{model}"


def documents() -> dict[str, dict[str, Any]]:
    """Every document by the name of its file."""
    return {"control-plane.json": control_plane(), "agent.json": agent()}


def control_plane() -> dict[str, Any]:
    document = _document("Everstep", _CONTROL_PLANE, health, own)
    add_components(document, OWN)
    add_operations(document)
    add_follow(document)
    finish(document)
    return document


def served() -> Response:
    """``GET /openapi.json``."""
    return Response(_rendered(), media_type="application/json")


@lru_cache(maxsize=1)
def _rendered() -> str:
    return render(control_plane())


def agent() -> dict[str, Any]:
    document = _document("Everstep, agents' door", "What a node's agent says to the control plane, and hears from it.", door)
    adapters: tuple[TypeAdapter[Any], ...] = (wire.REGISTRATION, wire.BEAT, wire.BATCH)
    for adapter in adapters:
        schema = adapter.json_schema(ref_template=_SCHEMAS)
        document["components"]["schemas"] |= schema.pop("$defs", {})
        document["components"]["schemas"][schema["title"]] = schema
    token = {"type": "http", "scheme": "bearer", "description": "The node token that a registration answers."}
    document["components"]["securitySchemes"] = {"node": token}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path.endswith("/register") else [{"node": []}]
    return document


def render(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def stale(folder: Path = FOLDER) -> list[str]:
    """The files that do not say what the routes say."""
    return [name for name, document in documents().items() if _text(folder / name) != render(document)]


def main(arguments: list[str]) -> int:
    old = stale()
    if "--check" in arguments:
        for name in old:
            sys.stderr.write(f"openapi/{name} is not fresh: run `python -m api.openapi`\n")
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for name in old:
        (FOLDER / name).write_text(render(documents()[name]), encoding="utf-8")
        sys.stdout.write(f"wrote openapi/{name}\n")
    return 0


def _document(title: str, description: str, *modules: Any) -> dict[str, Any]:
    app = FastAPI(title=title, version="1", description=description)
    for module in modules:
        router: APIRouter = module.router
        app.include_router(router)
    return app.openapi()


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
