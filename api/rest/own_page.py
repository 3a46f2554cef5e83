"""Writes ``docs/own-operations.md`` from the table of own operations: ``python -m api.rest.own_page``; ``--check`` only compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_pascal

from api.auth import need_of
from api.aws.errors import code_of
from api.own.kinds import Own
from api.own.table import OWN
from api.rest.errors import status_of
from models.errors import DomainError

PAGE: Final = Path(__file__).parents[2] / "docs" / "own-operations.md"
HEAD: Final = """\
# Everstep's own operations

Written by `python -m api.rest.own_page` from the tables in `api/own/`; do not edit. What SageMaker has is in [wire.md](wire.md).

Each operation is served at three doors, which say the same:

| door | how |
| --- | --- |
| REST | method and path below, described by `openapi/control-plane.json`; members of a query are in snake_case, bodies take both spellings |
| AWS JSON 1.1 | `POST /` with `X-Amz-Target: Everstep.<Operation>`, signed (SigV4) for the service `everstep` or `sagemaker`, in any region |
| boto3, `aws` | `everstep.client("everstep").<operation>(…)`; for the `aws` command line see below |

REST writes every member, null where there is nothing; the other doors leave such members out. Times are RFC 3339 text in REST and seconds since
the epoch in AWS JSON. A number that JSON has no word for is the text `NaN`, `Infinity` or `-Infinity` everywhere; `everstep.client` makes it a
number again. Members of type *document* are objects whose keys are somebody's own words; they are passed through as they stand.

A listing answers pages: `NextToken` goes on, at whichever door, and belongs to the question that it was issued for. `ClientToken` (in REST also
the header `Idempotency-Key`) makes a repeated request the same request; boto3 fills it in.

## The `aws` command line

```sh
eval "$(everstep env)"
model=$(python -c 'import everstep.client as c; print(next((c.MODELS / "everstep").glob("*/service-2.json")))')
aws configure add-model --service-name everstep --service-model "file://$model"
aws everstep list-jobs --live
```

With the files beside it, the command also pages by itself and has `aws everstep wait`:

```sh
mkdir -p ~/.aws/models && cp -r "$(dirname "$(dirname "$model")")" ~/.aws/models/
```

## Waiters

`client.get_waiter("job_training")` waits until a job trains (or has succeeded), `job_succeeded` until it has succeeded, `job_ended` until it
has ended, however. `everstep.client("sagemaker")` has `cluster_in_service`, `cluster_deleted` and `node_running`.
"""


def document() -> str:
    """The whole page."""
    overview = _table(("Operation", "REST", "Role", "What it does"), (_row(own) for own in OWN))
    return "\n".join([HEAD, "## Operations\n", overview, *(_section(own) for own in OWN)])


def main(arguments: list[str]) -> int:
    is_fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == document()
    if "--check" in arguments:
        if not is_fresh:
            sys.stderr.write(f"docs/{PAGE.name} is not fresh: run `python -m api.rest.own_page`\n")
        return 0 if is_fresh else 1
    PAGE.write_text(document(), encoding="utf-8")
    return 0


def _row(own: Own) -> tuple[str, ...]:
    description = own.description.replace("``", "`")
    return f"[`{own.name}`](#{own.name.lower()})", f"`{own.method} {own.path}`", need_of(own.name).value, description


def _section(own: Own) -> str:
    takes = own.takes.model_json_schema(by_alias=True)
    gives = own.gives.model_json_schema(by_alias=True, mode="serialization")
    told = _told(own.takes.model_json_schema(), own.takes.__doc__)
    description = own.description.replace("``", "`")
    parts = [f"## {own.name}\n", f"`{own.method} {own.path}` → {own.status}. {description}{f' {told}' if told else ''}\n"]
    if takes["properties"]:
        parts.append(_table(("Takes", "Type", "Allowed", "Default"), _members(takes)))
    parts.append(f"Gives {', '.join(f'`{name}`' for name in gives['properties'])}.\n")
    if own.errors:
        parts.append(f"May answer {', '.join(map(_error, own.errors))}, besides what any operation may.\n")
    return "\n".join(parts)


def _members(schema: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    required = schema.get("required", ())
    for name, member in schema["properties"].items():
        inner = _without_null(member, schema.get("$defs", {}))
        default = "required" if name in required else _code(member.get("default"))
        yield f"`{name}`", _kind(inner, schema.get("$defs", {})), _allowed(inner), default


def _without_null(member: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    arms = [arm for arm in member.get("anyOf", [member]) if arm.get("type") != "null"]
    inner: dict[str, Any] = arms[0]
    return parts[inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner


def _kind(member: dict[str, Any], parts: dict[str, Any]) -> str:
    match member.get("type"):
        case "array":
            return f"list of {_kind(_without_null(member['items'], parts), parts)}"
        case "object" if "properties" in member:
            return f"{{{', '.join(member['properties'])}}}"
        case "object" if isinstance(member.get("additionalProperties"), dict):
            return f"map to {_kind(member['additionalProperties'], parts)}"
        case "object":
            return "document"
        case kind:
            return "timestamp" if member.get("format") == "date-time" else str(kind or "string")


def _allowed(member: dict[str, Any]) -> str:
    told = [_code(word) for word in member.get("enum", ())]
    for sign, keys in (("≥", ("minimum", "minLength", "minItems")), ("≤", ("maximum", "maxLength", "maxItems"))):
        told += [f"{sign} {member[key]}" for key in keys if key in member]
    told += [f"{sign} {member[key]}" for sign, key in ((">", "exclusiveMinimum"), ("<", "exclusiveMaximum")) if key in member]
    return ", ".join(told + ([f"`{member['pattern']}`"] if "pattern" in member else []))


def _error(cls: type[DomainError]) -> str:
    error = cls.__new__(cls)
    return f"`{code_of(error).name}` ({status_of(error).value} in REST)"


def _told(schema: dict[str, Any], docstring: str | None) -> str:
    """A class's own docstring, its members called as the wire calls them."""
    told = " ".join(str(schema.get("description", "")).split()) if docstring else ""
    return re.sub(r"``(\w+)``", lambda found: f"`{to_pascal(found[1])}`", told).replace("``", "`")


def _code(value: Any) -> str:
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
