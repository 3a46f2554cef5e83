"""What commands that ask a control plane have in common: where it is, how answers are printed, and how a refusal ends the command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from everstep.rest import Rest, RestError

HomeOption = Annotated[
    Path, typer.Option("--home", help="The embedded stack to ask, unless EVERSTEP_URL names another control plane.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@contextmanager
def control_plane(home: Path) -> Iterator[Rest]:
    """A client; what the control plane refuses ends the command with one line."""
    try:
        with Rest.from_environment(os.environ, home) as rest:
            yield rest
    except RestError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def console() -> Console:
    """As wide as the terminal; unbounded into a file, where nothing should be folded."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 240)


def print_json(document: object) -> None:
    typer.echo(json.dumps(document))


def fail(message: str, exit_code: int) -> NoReturn:
    typer.echo(f"everstep: {message}", err=True)
    raise typer.Exit(exit_code)
