"""``everstep spot``: what spot capacity costs and saves, what providers have said of it, and what stands in when there is none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everstep.cli.asking import HomeOption, JsonOption, console, control_plane, fail, print_json
from everstep.embedded.home import DEFAULT_HOME
from everstep.rest import BAD_INPUT

app = typer.Typer(help="Spot capacity: savings, prices, notices, policies.", no_args_is_help=True)

ClusterOption = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Of this cluster.")]
ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="The name or ARN of a cluster.")]
GroupOption = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="One spot group. [default: every one that has no policy of its own]")
]


def _moment(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is no time; write it as 2031-05-01T12:00", BAD_INPUT)
    return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).isoformat()


SinceOption = Annotated[str | None, typer.Option("--since", metavar="TIME", help="ISO 8601; UTC unless it says otherwise.")]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="As --since. [default: now]")]


@app.command()
def savings(
    cluster: ClusterOption = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Of this job.")] = None,
    team: Annotated[str | None, typer.Option("--team", help="Of this team's jobs.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """What hosts cost at the prices in force, beside the list price."""
    asked = {"cluster": cluster, "job_id": job, "team": team, "since": _moment(since), "until": _moment(until)}
    with control_plane(home) as rest:
        found = rest.get("/v1/spot-savings", **{name: value for name, value in asked.items() if value is not None})
    if as_json:
        print_json(found)
        return
    share = "" if found["saved_share"] is None else f" ({found['saved_share']:.1%} of the list price)"
    typer.echo(f"{found['nodes']} hosts, {found['interruptions']} of them taken back by their provider")
    typer.echo(
        f"cost   ${_cents(found['total_cost'])}: ${_cents(found['spot_cost'])} spot, ${_cents(found['on_demand_cost'])} on demand"
    )
    typer.echo(f"saved  ${_cents(found['saved'])}{share}")
    if found["unpriced_hours"]:
        typer.echo(f"not counted: {found['unpriced_hours']:.2f} node-hours for which no price is known")
    _table(found["by_type"], ("instance_type", "capacity_type", "node_hours", "cost", "saved"))


@app.command()
def prices(
    instance_type: Annotated[str | None, typer.Option("--type", metavar="NAME", help="Of this instance type.")] = None,
    zone: Annotated[str | None, typer.Option("--zone", help="Of this zone.")] = None,
    on_demand: Annotated[bool, typer.Option("--on-demand", help="List prices instead.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """The prices that were collected, oldest first."""
    asked = {"instance_type": instance_type, "zone": zone, "capacity_type": "OnDemand" if on_demand else "Spot"}
    with control_plane(home) as rest:
        found = rest.every("/v1/spot-prices", "prices", **{name: value for name, value in asked.items() if value is not None})
    if as_json:
        print_json({"prices": found})
        return
    _table(found, ("at", "instance_type", "zone", "price_per_hour"))


@app.command()
def notices(
    cluster: ClusterArgument,
    is_open: Annotated[bool, typer.Option("--open", help="Only those that are not over.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """What providers have said of a cluster's nodes, and what became of it."""
    with control_plane(home) as rest:
        found = rest.every("/v1/spot-notices", "notices", cluster=cluster, open=str(is_open).lower())
    if as_json:
        print_json({"notices": found})
        return
    _table(found, ("announced_at", "kind", "state", "node_id", "instance_type", "zone", "deadline"))


@app.command()
def policy(
    cluster: ClusterArgument,
    group: GroupOption = None,
    fallback: Annotated[list[str] | None, typer.Option("--fallback", metavar="GROUP", help="Stands in; may be repeated.")] = None,
    after: Annotated[int | None, typer.Option("--after", min=0, metavar="SECONDS", help="Fall back when waited so long.")] = None,
    max_price: Annotated[str | None, typer.Option("--max-price", metavar="DOLLARS", help="What an hour may cost.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Do not return to spot.")] = False,
    leave_on_rebalance: Annotated[bool, typer.Option("--leave-on-rebalance", help="Leave on a mere recommendation.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Forget the policy.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Set, drop or (without options) show the policy of a cluster's spot groups."""
    named: dict[str, Any] = {"cluster": cluster} | ({} if group is None else {"instance_group": group})
    wish = {"fallback_groups": fallback, "fall_back_after_seconds": after, "max_price_per_hour": max_price}
    given: dict[str, Any] = {name: value for name, value in wish.items() if value is not None}
    with control_plane(home) as rest:
        if drop:
            rest.delete("/v1/spot-policies", **named)
        elif given or stay or leave_on_rebalance:
            rest.post("/v1/spot-policies", named | given | {"return_to_spot": not stay, "leave_on_rebalance": leave_on_rebalance})
        found = rest.get("/v1/spot-policies", cluster=cluster)
    if as_json:
        print_json(found)
        return
    shown = ("instance_group", "fallback_groups", "fall_back_after_seconds", "max_price_per_hour", "return_to_spot")
    _table(found["policies"], shown)
    if found["loans"]:
        _table(found["loans"], ("borrower", "lender", "since", "why"))


def _cents(dollars: str) -> str:
    return f"{float(dollars):,.2f}"


def _table(rows: list[dict[str, Any]], members: tuple[str, ...]) -> None:
    table = Table(*(member.replace("_", " ") for member in members), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(_text(row.get(member))) for member in members))
    console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
