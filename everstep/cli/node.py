"""``everstep node``: what is the matter with nodes, labels by hand, and the end of a hold."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape
from rich.table import Table

from everstep.cli.asking import HomeOption, JsonOption, console, control_plane, fail, print_json
from everstep.embedded.home import DEFAULT_HOME
from everstep.rest import BAD_INPUT, Rest

app = typer.Typer(help="The health of nodes: what is the matter, and labels by hand.", no_args_is_help=True, add_completion=False)

Cluster = Annotated[str, typer.Argument(metavar="CLUSTER", help="A cluster's name.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="An instance id, or a logical id.")]


@app.command("list")
def list_nodes(cluster: Cluster, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """The nodes of a cluster, and what they are taken for."""
    with control_plane(home) as rest:
        nodes = _nodes(rest, cluster)
    if as_json:
        print_json({"nodes": nodes})
        return
    table = Table("instance", "group", "logical id", "schedulability", "repairs held", box=None, pad_edge=False)
    for node in nodes:
        words = ("instance_id", "instance_group_name", "node_logical_id", "schedulability", "repairs_held")
        table.add_row(*(escape(str(node[word] or "")) for word in words))
    console().print(table)


@app.command()
def spares(
    cluster: Cluster,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Of this group; needed where there are several.")
    ] = None,
    keep: Annotated[str | None, typer.Option("--keep", metavar="N|auto", help="Keep so many nodes free for what is lost.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Set or (without --keep) show how many free nodes are kept for what jobs lose."""
    wish: dict[str, Any] = {"cluster": cluster} | ({} if group is None else {"instance_group": group})
    if keep is not None and keep != "auto" and not keep.isdecimal():
        fail(f"--keep {keep!r} is no number of nodes, and not auto", BAD_INPUT)
    with control_plane(home) as rest:
        if keep is not None:
            rest.post("/v1/spare-pools", wish | ({"auto": True} if keep == "auto" else {"nodes": int(keep)}))
        found = rest.get("/v1/spare-pools", cluster=cluster)
    if as_json:
        print_json(found)
        return
    table = Table("group", "kept free", "free now", "by", box=None, pad_edge=False)
    for pool in found["pools"]:
        by = "planner" if pool["auto"] else "wish"
        table.add_row(escape(pool["instance_group"]), str(pool["nodes"]), str(pool["free_nodes"]), by)
    console().print(table)


@app.command()
def show(cluster: Cluster, node: Node, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Labels, taints, conditions and accelerators of one node."""
    with control_plane(home) as rest:
        found = rest.get(f"{_path(cluster, node)}/health")
    _print(found, as_json=as_json)


@app.command()
def conditions(
    cluster: Cluster,
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="An instance id, or a logical id; all nodes if left out.")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """What is and was the matter, newest first."""
    with control_plane(home) as rest:
        found = rest.every(f"/v1/clusters/{quote(cluster, safe='')}/node-conditions", "conditions", node_id=node)
    if as_json:
        print_json({"conditions": found})
    else:
        console().print(_table(found))


@app.command()
def label(
    cluster: Cluster,
    node: Node,
    labels: Annotated[list[str], typer.Argument(metavar="NAME=VALUE | NAME-", help="Labels to set, or with a dash to take off.")],
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Put labels on a node. sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReboot has it repaired."""
    wish: dict[str, str] = {}
    removed: list[str] = []
    for word in labels:
        name, equals, value = word.partition("=")
        if equals and name:
            wish[name] = value
        elif not equals and word.endswith("-") and len(word) > 1:
            removed.append(word[:-1])
        else:
            fail(f"{word!r} is neither NAME=VALUE nor NAME-", BAD_INPUT)
    with control_plane(home) as rest:
        found = rest.post(f"{_path(cluster, node)}/labels", {"labels": wish, "removed": removed})
    _print(found, as_json=as_json)


@app.command()
def resume(
    cluster: Cluster,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="An instance group's name.")],
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Let repairs of a group go on that are held back because too many of its nodes had trouble at once."""
    with control_plane(home) as rest:
        found = rest.post(f"/v1/clusters/{quote(cluster, safe='')}/instance-groups/{quote(group, safe='')}/resume-repairs", {})
    if as_json:
        print_json(found)
    else:
        typer.echo(f"Repairs of {group} go on; nothing is held back until {found['free_until']}.")


def _nodes(rest: Rest, cluster: str) -> list[dict[str, Any]]:
    """SageMaker's listing names them; each is asked how it is."""
    listed = rest.every(f"/v1/clusters/{quote(cluster, safe='')}/nodes", "cluster_node_summaries", include_node_logical_ids="true")
    return [rest.get(f"{_path(cluster, one['node_logical_id'])}/health") for one in listed]


def _path(cluster: str, node: str) -> str:
    return f"/v1/clusters/{quote(cluster, safe='')}/nodes/{quote(node, safe='')}"


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found['instance_id'] or '(no instance yet)'} of {found['instance_group_name']}: {found['schedulability']}")
    for word in ("repairs_held", "leave_why"):
        if found[word]:
            typer.echo(f"  {word.replace('_', ' ')}: {found[word]}")
    for name, value in sorted(found["labels"].items()):
        typer.echo(f"  {name}={value}")
    for taint in found["taints"]:
        typer.echo(f"  taint {taint['key']}={taint['value'] or ''}:{taint['effect']}")
    console().print(_table(found["conditions"]))


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("condition", "instance", "code", "type", "status", "repair", "since", "why", box=None, pad_edge=False)
    words = ("condition_id", "instance_id", "code", "type", "status", "repair", "since", "why")
    for one in found:
        table.add_row(*(escape(str(one[word] or "")) for word in words))
    return table
