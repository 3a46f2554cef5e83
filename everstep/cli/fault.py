"""``everstep fault``: break something on purpose, and see what came of it."""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everstep.cli.asking import HomeOption, JsonOption, console, control_plane, fail, print_json
from everstep.embedded.home import DEFAULT_HOME
from everstep.rest import BAD_INPUT, Rest

_KINDS = "kill-rank, hang-rank, kill-node, corrupt-shard, bucket-outage, xid, spot-notice, spot-reclaim, partition or slow-node; list; clear"
_TARGETS = (
    "JOB_ID/RANK for faults of ranks, an instance id for those of nodes, either for partition, JOB_ID/STEP/SHARD for corrupt-shard, nothing "
    "for bucket-outage; for list a job's id, for clear a fault's."
)
_WITHOUT_TARGET = {"bucket-outage": "object-store"}
"""There is one of it: nobody has to name it."""


def fault(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=_KINDS)],
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help=_TARGETS)] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="How long a fault lasts that does; of a notice, until its deadline.")
    ] = None,
    code: Annotated[int | None, typer.Option("--code", help="The number of an xid.", show_default="74")] = None,
    device: Annotated[
        int | None, typer.Option("--device", help="The accelerator's place on its host, of an xid.", show_default="0")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Break something on purpose. `fault list [JOB_ID]` shows what was asked for; `fault clear [ID]` ends one fault, or all that last."""
    more = {name: value for name, value in (("seconds", seconds), ("code", code), ("device", device)) if value is not None}
    if more and kind in {"list", "clear"}:
        fail(f"fault {kind}: --{next(iter(more))} is for a fault that is to strike", BAD_INPUT)
    with control_plane(home) as rest:
        match kind:
            case "list":
                _list(rest, target, as_json=as_json)
            case "clear":
                _clear(rest, target, as_json=as_json)
            case _:
                _inject(rest, kind, target, more, as_json=as_json)


def _inject(rest: Rest, kind: str, target: str | None, more: dict[str, float | int], *, as_json: bool) -> None:
    target = target or _WITHOUT_TARGET.get(kind)
    if target is None:
        fail(f"fault {kind}: TARGET is missing: {_TARGETS}", BAD_INPUT)
    asked = {"kind": kind, "target": target, **more}
    # The key makes it safe to send again what may have arrived already: the second time would strike the replacement.
    found = rest.post("/v1/faults", asked, key=str(uuid.uuid4()))
    if as_json:
        print_json(found)
    else:
        typer.echo(found["fault_id"])


def _list(rest: Rest, job_id: str | None, *, as_json: bool) -> None:
    faults = rest.every("/v1/faults", "faults", job_id=job_id)
    if as_json:
        print_json({"faults": faults})
    else:
        _show(faults)


def _clear(rest: Rest, fault_id: str | None, *, as_json: bool) -> None:
    if fault_id is not None and not re.fullmatch(r"[\w-]+", fault_id):
        fail(f"{fault_id!r} is no id of a fault; `everstep fault list` shows them", BAD_INPUT)
    ids = [fault_id] if fault_id else [found["fault_id"] for found in rest.every("/v1/faults", "faults", live="true")]
    cleared = [rest.delete(f"/v1/faults/{one}") for one in ids]
    if as_json:
        print_json({"faults": cleared})
    else:
        _show(cleared)


def _show(faults: list[dict[str, Any]]) -> None:
    table = Table("fault", "kind", "target", "status", "instance", "by", "note", box=None, pad_edge=False)
    for found in faults:
        told = (found["fault_id"], found["kind"], found["target"], found["status"], found["instance_id"], found["requested_by"])
        table.add_row(*(escape(str(word or "")) for word in (*told, found["note"])))
    console().print(table)
