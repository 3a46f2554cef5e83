"""The program ``everstep``: every command, put together.

Commands of the stack are here at once. All others are imported when they are asked for, so that ``everstep up`` costs no import of
boto3 or matplotlib, and works where the extra that another command needs is not installed. A new noun is one module and one line in
``ELSEWHERE``: the module has a ``typer.Typer`` called ``app``, or one function with the name of the command.
"""

import importlib
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

from everstep.cli import stack

ELSEWHERE = {
    "job": "everstep.cli.job",
    "goodput": "everstep.cli.goodput",
    "key": "everstep.cli.key",
    "checkpoint": "everstep.cli.checkpoint",
    "fault": "everstep.cli.fault",
    "node": "everstep.cli.node",
    "spot": "everstep.cli.spot",
    "demo": "everstep.cli.demo",
}


class Commands(TyperGroup):
    """The commands of the stack, then those of ``ELSEWHERE`` in its order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *ELSEWHERE]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        try:
            module = importlib.import_module(ELSEWHERE[cmd_name])
        except ModuleNotFoundError as error:
            if str(error.name).startswith("everstep"):
                raise
            return _unavailable(cmd_name, str(error.name))
        return _command_of(module, cmd_name)


app = typer.Typer(
    cls=Commands,
    help="A control plane for training clusters, on this machine or on yours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (stack.up, stack.down, stack.status, stack.env):
    app.command()(command)


def _command_of(module: ModuleType, name: str) -> Any:
    found: typer.Typer | None = getattr(module, "app", None)
    if found is None:
        found = typer.Typer(add_completion=False)
        found.command(name)(getattr(module, name))
    made = typer.main.get_command(found)
    made.name = name
    return made


def _unavailable(name: str, missing: str) -> Any:
    """Stands in for a command whose libraries are not installed: it is listed, and says what to do when it is called."""
    stand_in = typer.Typer(add_completion=False)

    @stand_in.command(name, help=f"(needs {missing}, which is not installed)", context_settings={"ignore_unknown_options": True})
    def explain(_: list[str] = typer.Argument(None, hidden=True)) -> None:  # noqa: B008 - how typer is told
        typer.echo(f"everstep: `{name}` needs {missing}: pip install 'everstep[server,train]'", err=True)
        raise typer.Exit(1)

    made = typer.main.get_command(stand_in)
    made.name = name
    return made


if __name__ == "__main__":
    app()
