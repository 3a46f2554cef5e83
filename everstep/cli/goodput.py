"""``everstep goodput``: where the time of accelerators went, and how much of it was productive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from everstep.cli.asking import HomeOption, JsonOption, console, control_plane, fail, print_json
from everstep.embedded.home import DEFAULT_HOME
from everstep.rest import BAD_INPUT


def goodput(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The id that submit printed.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Of all jobs that this cluster has had.")] = None,
    team: Annotated[str | None, typer.Option("--team", help="Of all jobs of this team.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Tell where the time of a job went, or of all jobs of a cluster or a team: live, and to the second."""
    asked = {"job_id": job, "cluster": cluster, "team": team}
    named = {name: value for name, value in asked.items() if value is not None}
    if len(named) != 1:
        fail("name a job, or --cluster NAME, or --team NAME: exactly one of them", BAD_INPUT)
    with control_plane(home) as rest:
        found = rest.get("/v1/goodput", **named)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: Mapping[str, Any]) -> None:
    shares = [
        f"{name} {'–' if found[key] is None else format(found[key], '.1%')}"
        for name, key in (("goodput", "goodput"), ("ETTR", "ettr"))
    ]
    words = f"{found['steps']} steps, {found['steps_lost']} done again   recoveries {found['recoveries']}   restarts {found['restarts']}"
    out = console()
    out.print(f"{'   '.join(shares)}   {words}   evictions {found['evictions']}")
    table = Table("account", "seconds", "share", box=None, pad_edge=False)
    for one in found["accounts"]:
        if one["seconds"]:
            table.add_row(one["account"], f"{one['seconds']:.3f}", f"{one['share']:.2%}")
    table.add_row("all", f"{found['allocated_s']:.3f}", "")
    out.print(table)
