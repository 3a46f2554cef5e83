"""``everstep key``: give keys and tokens, list, rotate and revoke them."""

from __future__ import annotations

import os
import re
import shlex
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everstep.cli.asking import HomeOption, JsonOption, console, control_plane, fail, print_json
from everstep.embedded.home import DEFAULT_HOME
from everstep.rest import BAD_INPUT, Rest

app = typer.Typer(help="Access keys and tokens: who may call, and do what.", no_args_is_help=True)


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Kind(StrEnum):
    ACCESS_KEY = "access-key"
    TOKEN = "token"  # noqa: S105  (a kind, not a token)


_KINDS = {Kind.ACCESS_KEY: "AccessKey", Kind.TOKEN: "Token"}


def _key_id(text: str) -> str:
    """An id becomes a part of an address: nothing else may."""
    if not re.fullmatch(r"[\w-]+", text):
        fail(f"{text!r} is no id of a key; `everstep key list` shows them", BAD_INPUT)
    return text


KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The id of a key or token.", callback=_key_id)]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, or what for: logs and the audit log say this name.")],
    role: Annotated[Role, typer.Option("--role", help="Look; look and change; also give keys.")] = Role.OPERATOR,
    team: Annotated[str | None, typer.Option("--team", help="Bounds the holder to this team. [default: your own team]")] = None,
    kind: Annotated[Kind, typer.Option("--kind", help="An access key is for AWS clients, a token for REST and this program.")] = (
        Kind.ACCESS_KEY
    ),
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Give a key. Prints export lines for its holder's shell; nobody is told the secret a second time."""
    wish = {"name": name, "role": role.capitalize(), "kind": _KINDS[kind]} | ({} if team is None else {"team": team})
    with control_plane(home) as rest:
        _tell(rest, rest.post("/v1/keys", wish), as_json=as_json)


@app.command("list")
def listing(
    active: Annotated[bool, typer.Option("--active", help="Only those that can be used now.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """List keys and tokens, oldest first. Secrets are never shown."""
    with control_plane(home) as rest:
        keys = rest.every("/v1/keys", "keys", active=str(active).lower())
    if as_json:
        print_json({"keys": keys})
    else:
        _show(keys)


@app.command()
def rotate(
    key: KeyArgument,
    overlap: Annotated[int, typer.Option("--overlap", min=0, metavar="SECONDS", help="How long the old key goes on to work.")] = 0,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Give the holder of a key a new one of the same name, role and team, and end the old one. Prints as create does."""
    with control_plane(home) as rest:
        _tell(rest, rest.post(f"/v1/keys/{key}/rotate", {"overlap_seconds": overlap}), as_json=as_json)


@app.command()
def revoke(key: KeyArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """End a key at once."""
    with control_plane(home) as rest:
        found = rest.post(f"/v1/keys/{key}/revoke")
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found['key_id']} ({found['name']}) is revoked.")


def _tell(rest: Rest, made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    for name, value in _exports(rest.url, made).items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _exports(url: str, made: dict[str, Any]) -> dict[str, str]:
    """What the holder's shell needs. A signature holds for any region, but AWS's clients want to know one."""
    if made["kind"] == "Token":
        return {"EVERSTEP_URL": url, "EVERSTEP_TOKEN": made["secret"]}
    return {
        "AWS_ENDPOINT_URL_SAGEMAKER": url,
        "AWS_ENDPOINT_URL_EVERSTEP": url,
        "AWS_ACCESS_KEY_ID": made["key_id"],
        "AWS_SECRET_ACCESS_KEY": made["secret"],
        "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
    }


def _show(keys: list[dict[str, Any]]) -> None:
    table = Table("key", "name", "role", "team", "status", "last used", "created", "by", box=None, pad_edge=False)
    for key in keys:
        told = (key["key_id"], key["name"], key["role"], key["team"], key["status"], key["last_used"], key["created_at"])
        table.add_row(*(escape(str(word or "")) for word in (*told, key["created_by"])))
    console().print(table)
