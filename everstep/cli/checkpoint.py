"""``everstep checkpoint``: list, show, pin, unpin, delete, export."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstep.cli.asking import HomeOption, JsonOption, console, control_plane, print_json
from everstep.cli.job import JobArgument
from everstep.embedded.home import DEFAULT_HOME

app = typer.Typer(help="A job's saved steps.", no_args_is_help=True)

StepArgument = Annotated[int, typer.Argument(metavar="STEP", help="The number that list shows.", min=0)]
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@app.command("list")
def listing(job: JobArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """List a job's saved steps, newest first, and in which tiers each of them is."""
    with control_plane(home) as rest:
        found = rest.every(f"/v1/jobs/{job}/checkpoints", "checkpoints")
    if as_json:
        print_json({"checkpoints": found})
    else:
        _listed(console(), found)


@app.command()
def show(job: JobArgument, step: StepArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Show who holds each shard of a saved step, whether it is durable, and what was exported of it."""
    with control_plane(home) as rest:
        found = rest.get(f"/v1/jobs/{job}/checkpoints/{step}")
    if as_json:
        print_json(found)
    else:
        _shown(console(), found)


@app.command()
def pin(job: JobArgument, step: StepArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Keep a saved step whatever the retention says, and make it durable."""
    _change(home, f"/v1/jobs/{job}/checkpoints/{step}/pin", {"pinned": True}, as_json=as_json)


@app.command()
def unpin(job: JobArgument, step: StepArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Leave a pinned step to the retention again."""
    _change(home, f"/v1/jobs/{job}/checkpoints/{step}/pin", {"pinned": False}, as_json=as_json)


@app.command()
def delete(job: JobArgument, step: StepArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Delete a saved step from every tier. Refused for a pinned one, and for the newest that a live job could go on from."""
    with control_plane(home) as rest:
        found = rest.delete(f"/v1/jobs/{job}/checkpoints/{step}")
    if as_json:
        print_json(found)
    else:
        _listed(console(), [found])


@app.command()
def export(
    job: JobArgument,
    step: StepArgument,
    form: Annotated[str, typer.Option("--format", help="dcp or safetensors.")] = "safetensors",
    target: Annotated[str | None, typer.Option("--target", help="A URL to write below; left out, beside the checkpoints.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write a saved step in another format. It is done in the background; show tells where it lies."""
    asked = {"format": form} | ({} if target is None else {"target": target})
    with control_plane(home) as rest:
        found = rest.post(f"/v1/jobs/{job}/checkpoints/{step}/exports", asked, key=str(uuid.uuid4()))
    if as_json:
        print_json(found)
    else:
        typer.echo(found["export_id"])


def _change(home: Any, path: str, asked: dict[str, Any], *, as_json: bool) -> None:
    with control_plane(home) as rest:
        found = rest.post(path, asked, key=str(uuid.uuid4()))
    if as_json:
        print_json(found)
    else:
        _listed(console(), [found])


def _listed(to: Console, found: Iterable[Mapping[str, Any]]) -> None:
    table = Table("step", "saved", "ranks", "size", "memory", "durable", "", box=None, pad_edge=False)
    for step in found:
        marks = ["pinned"] * step["is_pinned"] + [step["status"].lower()] * (step["status"] != "Kept")
        table.add_row(
            str(step["step"]),
            _time(step["created_at"]),
            "–" if step["world_size"] is None else str(step["world_size"]),
            _size(step["bytes"]),
            _memory(step),
            _time(step["durable_at"]),
            ", ".join(marks),
        )
    to.print(table)


def _memory(step: Mapping[str, Any]) -> str:
    if step["is_complete_in_memory"]:
        return f"complete, {step['copies']} copies"
    if not step["copies"]:
        return "–"
    of = "" if step["world_size"] is None else f" of {step['world_size'] + 1}"
    return f"{step['shards_in_memory']}{of} shards"


def _shown(to: Console, step: Mapping[str, Any]) -> None:
    _listed(to, [step])
    if step["why"]:
        to.print(escape(step["why"]), soft_wrap=True)
    shards = Table("shard", "kind", "size", "digest", "held by", box=None, pad_edge=False)
    for shard in step["shards"]:
        holders = ", ".join(_holder(one) for one in shard["holders"])
        shards.add_row(str(shard["index"]), shard["kind"] or "–", _size(shard["bytes"]), shard["digest"] or "–", escape(holders))
    to.print(shards)
    for export in step["exports"]:
        told = export["url"] or export["why"] or export["target"] or ""
        to.print(f"{export['export_id']}  {export['format']}  {export['status']}  {escape(told)}", soft_wrap=True)


def _holder(one: Mapping[str, Any]) -> str:
    name = str(one["instance_id"] or one["node_id"])
    return name if one["status"] == "Sealed" else f"{name} ({one['status'].lower()})"


def _time(written: str | None) -> str:
    return "–" if written is None else written[:19].replace("T", " ")


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "–"
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004  (how units of memory are counted)
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
