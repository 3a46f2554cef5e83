"""``up``, ``down``, ``status`` and ``env``: the embedded stack as an operator sees it."""

import json
import os
import shlex
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from everstep.embedded import control
from everstep.embedded.errors import StackError
from everstep.embedded.home import DEFAULT_HOME, Home
from everstep.embedded.settings import StackSettings
from everstep.embedded.state import Phase, ServiceState, StackState
from everstep.embedded.survey import Survey, survey

HomeOption = Annotated[Path, typer.Option("--home", help="The directory of the stack: its data, keys and logs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

NOT_READY = 3
"""Exit status of ``status`` when the stack is not ready (systemctl's number for the same)."""


def up(
    home: HomeOption = DEFAULT_HOME,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Where the API listens; 0: any free port. [default: 8600]")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the stack is ready, and leave it running.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the stack: Postgres, Valkey, API, workers, beat and relay. Does nothing when it runs already."""
    place = Home.at(home)
    progress = Progress(quiet=as_json)

    def ready(found: StackState) -> None:
        progress.finish()
        _tell_ready(place, found, as_json=as_json, foreground=not detach)

    try:
        with progress.shown():
            if detach:
                ready(control.start_detached(place, port, os.environ, progress.tell))
            else:
                _run_here(place, port, progress, ready)
    except (StackError, LookupError, OSError) as error:
        progress.finish()
        _fail(str(error), as_json=as_json)


def down(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """End the stack and every local node with it. The data stay."""
    place = Home.at(home)
    try:
        ended = control.shut_down(place)
    except (StackError, OSError) as error:
        _fail(str(error), as_json=as_json)
    if as_json:
        _print_json({"home": str(place.root), "was_running": ended.was_running, "nodes_ended": ended.nodes})
    elif ended.was_running or ended.nodes:
        typer.echo(f"Ended the stack in {place.root}" + (f" and {ended.nodes} local nodes." if ended.nodes else "."))
    else:
        typer.echo(f"Nothing runs in {place.root}.")


def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show what runs, in which version, and why something is not ready. Exit status 0: ready, 3: not ready."""
    try:
        seen = survey(Home.at(home), os.environ)
    except StackError as error:
        _fail(str(error), as_json=as_json)
    if as_json:
        _print_json(seen.to_wire())
    else:
        _print_survey(seen)
    if not seen.is_ready:
        raise typer.Exit(NOT_READY)


def env(home: HomeOption = DEFAULT_HOME) -> None:
    """Print export lines for a shell: eval "$(everstep env)"."""
    try:
        exports = control.exports(Home.at(home))
    except StackError as error:
        _fail(str(error))
    for name, value in exports.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


class Progress:
    """Tells on standard error how far a start has come, so that standard output stays for the result."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._began = time.monotonic()
        self._live: Status | None = None
        self._told: set[str] = set()

    def shown(self) -> AbstractContextManager[object]:
        if not self._console.is_terminal:
            return nullcontext()
        self._live = self._console.status("Starting")
        return self._live

    def tell(self, name: str, state: ServiceState) -> None:
        if state.phase is Phase.READY and name not in self._told:
            self._told.add(name)
            self._console.print(f"[green]✓[/green] {name:<12} [dim]{time.monotonic() - self._began:5.1f} s[/dim]")
        elif state.phase is Phase.CRASHED:
            self._told.discard(name)
            self._console.print(f"[yellow]![/yellow] {name:<12} {escape(state.why or '')}; starting it again")
        elif state.phase is Phase.STARTING and self._live:
            self._live.update(f"Starting {name} [dim]{escape(state.why or '')[:80]}[/dim]")

    def finish(self) -> None:
        if self._live:
            self._live.stop()


def _run_here(place: Home, port: int | None, progress: Progress, ready: control.OnReady) -> None:
    settings = StackSettings.from_environ(os.environ)
    try:
        control.run_here(place, port, settings, progress.tell, ready)
    except control.AlreadyRunningError:
        ready(control.attach(place, port))


def _tell_ready(place: Home, found: StackState, *, as_json: bool, foreground: bool) -> None:
    if as_json:
        _print_json({"home": str(place.root), "url": found.url, "port": found.port, "supervisor_pid": found.supervisor_pid})
        return
    suffix = "" if place.root == Home.at(DEFAULT_HOME).root else f" --home {shlex.quote(str(place.root))}"
    typer.echo(f"Ready on {found.url}")
    typer.echo(f'Sign in from a shell with:  eval "$(everstep env{suffix})"')
    if foreground and found.supervisor_pid == os.getpid():
        typer.echo(f"Ctrl-C ends the stack; its local nodes go on until `everstep down{suffix}`.")


def _print_survey(seen: Survey) -> None:
    console = Console(highlight=False)
    table = Table("service", "state", "pid", "restarts", "version", "why", box=None, pad_edge=False)
    for row in seen.services:
        colour = "green" if row.is_ready else "yellow"
        pid = "" if row.pid is None else str(row.pid)
        table.add_row(row.name, f"[{colour}]{row.phase}[/]", pid, str(row.restarts), row.version or "", escape(row.why or ""))
    if seen.services:
        console.print(table)
    console.print(f"{'Ready' if seen.is_ready else 'Not ready'}: {escape(seen.why or seen.url or '')}", soft_wrap=True)


def _print_json(document: object) -> None:
    typer.echo(json.dumps(document))


def _fail(message: str, *, as_json: bool = False) -> NoReturn:
    if as_json:
        _print_json({"error": message})
    typer.echo(f"everstep: {message}", err=True)
    raise typer.Exit(1)
