"""The botocore service model of Everstep's own operations, made from their table: ``python -m api.aws.service_model``; ``--check`` only compares.

The door speaks it, and ``everstep.client("everstep")`` and the AWS CLI load it from ``everstep/service_models``; a test keeps the files fresh.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from botocore.model import ServiceModel

from api.aws.errors import ERRORS, code_of
from api.aws.service_shapes import Shapes
from api.limits import Throttled
from api.own.kinds import Own
from api.own.table import OWN
from models import errors as domain

VERSION: Final = "2026-11-30"
FOLDER: Final = Path(__file__).parents[2] / "everstep" / "service_models" / "everstep" / VERSION
METADATA: Final = {
    "apiVersion": VERSION,
    "auth": ["aws.auth#sigv4"],
    "endpointPrefix": "everstep",
    "jsonVersion": "1.1",
    "protocol": "json",
    "protocols": ["json"],
    "serviceFullName": "Everstep",
    "serviceId": "Everstep",
    "signatureVersion": "v4",
    "signingName": "everstep",
    "targetPrefix": "Everstep",
    "uid": f"everstep-{VERSION}",
}
ALWAYS: Final[tuple[type[Exception], ...]] = (domain.Invalid, domain.Forbidden, Throttled)
"""What any operation may answer besides its own errors, of what a caller can act on."""
_MEANT: Final = {
    "ValidationException": "The request is not valid, or asks for what is not there yet; the message says what to do.",
    "AccessDeniedException": "The caller may not do this.",
    "ResourceNotFound": "What is named does not exist, or is not the caller's to see.",
    "ResourceInUse": "A thing of this name exists already.",
    "ResourceLimitExceeded": "A limit would be passed.",
    "ConflictException": "What is named is in a state that does not allow this.",
    "ThrottlingException": "Too many requests; clients try again by themselves.",
}


def _until(*states: str, failed: tuple[str, ...] = ()) -> list[dict[str, str]]:
    said = [(state, "success") for state in states] + [(state, "failure") for state in failed]
    return [{"matcher": "path", "argument": "Status", "expected": word, "state": state} for word, state in said]


WAITERS: Final = {
    "JobTraining": ("Wait until a job trains, or has done so.", _until("Training", "Succeeded", failed=("Failed", "Stopped"))),
    "JobSucceeded": ("Wait until a job has succeeded.", _until("Succeeded", failed=("Failed", "Stopped"))),
    "JobEnded": ("Wait until a job has ended, however.", _until("Succeeded", "Failed", "Stopped")),
}


def documents() -> dict[str, dict[str, Any]]:
    """Every document by the name of its file."""
    return {
        "service-2.json": service(),
        "paginators-1.json": paginators(),
        "waiters-2.json": waiters(),
        "endpoint-rule-set-1.json": endpoints(),
    }


@lru_cache(maxsize=1)
def everstep() -> ServiceModel:
    """The model that the door speaks."""
    return ServiceModel(service(), "everstep")


def service() -> dict[str, Any]:
    shapes = Shapes()
    operations = {own.name: _operation(own, shapes) for own in sorted(OWN, key=lambda own: own.name)}
    return {
        "version": "2.0",
        "metadata": METADATA,
        "operations": operations,
        "shapes": dict(sorted(shapes.found.items())),
        "documentation": "Jobs, faults, goodput and keys of an Everstep control plane.",
    }


def paginators() -> dict[str, Any]:
    common = {"input_token": "NextToken", "output_token": "NextToken", "limit_key": "MaxResults"}
    return {
        "pagination": {own.name: common | {"result_key": own.rows} for own in sorted(OWN, key=lambda own: own.name) if own.rows}
    }


def waiters() -> dict[str, Any]:
    common = {"operation": "DescribeJob", "delay": 2, "maxAttempts": 1800}
    return {
        "version": 2,
        "waiters": {name: common | {"description": told, "acceptors": acceptors} for name, (told, acceptors) in WAITERS.items()},
    }


def endpoints() -> dict[str, Any]:
    """Nobody else serves Everstep: without an endpoint, a client must not sign a request for a host of AWS's."""
    is_set = {"fn": "isSet", "argv": [{"ref": "Endpoint"}]}
    found = {"url": {"ref": "Endpoint"}, "properties": {}, "headers": {}}
    missing = "AWS_ENDPOINT_URL_EVERSTEP is not set: `everstep env` prints it"
    return {
        "version": "1.0",
        "parameters": {
            "Region": {"builtIn": "AWS::Region", "required": False, "type": "String", "documentation": "The region."},
            "Endpoint": {
                "builtIn": "SDK::Endpoint",
                "required": False,
                "type": "String",
                "documentation": "Where Everstep is served.",
            },
        },
        "rules": [
            {"conditions": [is_set], "endpoint": found, "type": "endpoint"},
            {"conditions": [], "error": missing, "type": "error"},
        ],
    }


def render(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def stale(folder: Path = FOLDER) -> list[str]:
    """The files that do not say what the table says."""
    return [name for name, document in documents().items() if _text(folder / name) != render(document)]


def main(arguments: list[str]) -> int:
    old = stale()
    if "--check" in arguments:
        for name in old:
            sys.stderr.write(f"{FOLDER.name}/{name} is not fresh: run `python -m api.aws.service_model`\n")
        return 1 if old else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in old:
        (FOLDER / name).write_text(render(documents()[name]), encoding="utf-8")
        sys.stdout.write(f"wrote {name} of the service model\n")
    return 0


def _operation(own: Own, shapes: Shapes) -> dict[str, Any]:
    shapes.add_input(f"{own.name}Request", own.takes)
    shapes.add_output(f"{own.name}Response", own.gives)
    codes = {ERRORS_BY_NAME[name] for name in {code_of(cls.__new__(cls)).name for cls in (*ALWAYS, *own.errors)}}
    for name, status in sorted(codes):
        shapes.add_error(name, status, _MEANT[name])
    return {
        "name": own.name,
        "http": {"method": "POST", "requestUri": "/"},
        "input": {"shape": f"{own.name}Request"},
        "output": {"shape": f"{own.name}Response"},
        "errors": [{"shape": name} for name, _ in sorted(codes)],
        "documentation": own.description,
    }


ERRORS_BY_NAME: Final = {code.name: (code.name, code.status) for code in ERRORS.values()}


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
