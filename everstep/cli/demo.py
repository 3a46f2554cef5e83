"""``everstep demo``: the main job of the product, end to end, on this machine."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from everstep.demo import picture
from everstep.demo.console import Stage
from everstep.demo.ledger import Ledger
from everstep.demo.story import PHASES, DemoError, Story
from everstep.embedded import control, state
from everstep.embedded.errors import StackError
from everstep.embedded.home import DEFAULT_HOME, Home


def demo(
    *,
    home: Annotated[Path, typer.Option(help="Directory of the stack; one is started there if none runs.")] = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on standard output.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running afterwards.")] = False,
    steps: Annotated[int, typer.Option(min=30, help="Optimizer steps of the job.")] = 160,
    seed: Annotated[
        int | None, typer.Option(help="Draws the node and the step of the kill; printed, so that a run can be repeated.")
    ] = None,
    phase: Annotated[str | None, typer.Option(help=f"Kill inside a step, in one of: {', '.join(PHASES)}.")] = None,
    picture_path: Annotated[Path, typer.Option("--picture", help="Where the one-page picture is written.")] = Path(
        "everstep-demo.png"
    ),
) -> None:
    """Creates a 4-node cluster through boto3, trains a small GPT on it, kills a node, and shows the training go on."""
    console = Console(stderr=as_json)
    if phase is not None and phase not in PHASES:
        console.print(f"[red]--phase {phase}[/red] is none of: {', '.join(PHASES)}")
        raise typer.Exit(2)
    drawn = secrets.randbelow(10_000) if seed is None else seed
    began = time.monotonic()
    try:
        ledger = _play(Home.at(home), console, steps=steps, seed=drawn, phase=phase, keep=keep)
    except (DemoError, StackError) as error:
        console.print(f"[red]The demonstration failed[/red] (seed {drawn}): {error}")
        raise typer.Exit(1) from error
    picture.draw(ledger, picture_path)
    summary = ledger.summary() | {"seed": drawn, "seconds": round(time.monotonic() - began, 1), "picture": str(picture_path)}
    _print(console, summary)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")


def _play(home: Home, console: Console, *, steps: int, seed: int, phase: str | None, keep: bool) -> Ledger:
    found = state.read(home)
    was_running = found is not None and found.is_supervised
    console.print(
        f"seed {seed} · stack in {home.root}" + (" (runs already)" if was_running else " (starting Postgres, Valkey, API, workers)")
    )
    control.start_detached(home, None if was_running else 0, os.environ, lambda _service, _state: None)
    try:
        with Stage(console, steps=steps) as stage:
            return Story(control.exports(home), home.root, steps=steps, seed=seed, phase=phase, tell=stage.tell).run()
    finally:
        if not keep and not was_running:
            control.shut_down(home)


def _print(console: Console, summary: dict[str, object]) -> None:
    console.print("\n[bold]from the kill to the next step[/bold]")
    for name, at in dict(summary["timeline_s"]).items():  # type: ignore[call-overload]
        console.print(f"  {name:<12} {at:6.3f} s")
    console.print(
        f"\nsteps lost [bold]{summary['steps_lost']}[/bold] · state from a [bold]{summary['restored_from']}[/bold] · survivors kept their "
        f"processes: [bold]{summary['survivor_pids_kept']}[/bold] · loss {summary['loss_first']:.2f} → {summary['loss_last']:.2f} · "
        f"goodput {summary['goodput']:.0%}\npicture: {summary['picture']} · {summary['seconds']} s in all"
    )
