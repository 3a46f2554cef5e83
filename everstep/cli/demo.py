"""``everstep demo``: the main job of the product, end to end, on this machine."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from everstep.demo import picture
from everstep.demo.console import Stage
from everstep.demo.ledger import Ledger
from everstep.demo.story import PHASES, DemoError, Story
from everstep.embedded import control, ports, state
from everstep.embedded.errors import StackError
from everstep.embedded.home import DEFAULT_HOME, Home
from everstep.embedded.settings import DEFAULT_PORT

_REQUESTS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    console = Console(stderr=as_json, soft_wrap=True)
    _check(console, phase, picture_path)
    drawn = secrets.randbelow(10_000) if seed is None else seed
    began = time.monotonic()
    try:
        with _interruptible():
            ledger = _play(Home.at(home), console, steps=steps, seed=drawn, phase=phase, keep=keep)
    except (DemoError, StackError, LookupError, OSError) as error:
        _say_why(console, drawn, str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print("Interrupted; what the demonstration had started was ended" + (", but for the stack." if keep else "."))
        raise typer.Exit(130) from None
    picture.draw(ledger, picture_path)
    summary = ledger.summary() | {"seed": drawn, "seconds": round(time.monotonic() - began, 1), "picture": str(picture_path)}
    _print(console, summary)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    if broken := ledger.broken_claims():
        _say_why(console, drawn, f"it is not so that {', that '.join(broken)}")
        raise typer.Exit(1)


def _check(console: Console, phase: str | None, picture_path: Path) -> None:
    """Before a minute's work, not after it."""
    if phase is not None and phase not in PHASES:
        console.print(f"[red]--phase {escape(phase)}[/red] is none of: {', '.join(PHASES)}")
        raise typer.Exit(2)
    if not os.access(picture_path.parent, os.W_OK) or picture_path.is_dir():
        console.print(f"[red]--picture {escape(str(picture_path))}[/red]: no file can be written there; name another one")
        raise typer.Exit(2)


def _say_why(console: Console, seed: int, why: str) -> None:
    console.print(f"[red]The demonstration failed[/red] (seed {seed}): {escape(why)}", soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """The first request to end comes up as KeyboardInterrupt; those after it must not end the clean-up."""

    def end(_number: int, _frame: object) -> None:
        _ignore_further()
        raise KeyboardInterrupt

    heeded = [number for number in _REQUESTS_TO_END if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's stays ignored
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_further() -> None:
    for number in _REQUESTS_TO_END:
        signal.signal(number, signal.SIG_IGN)


def _play(home: Home, console: Console, *, steps: int, seed: int, phase: str | None, keep: bool) -> Ledger:
    found = state.read(home)
    was_running = found is not None and found.is_supervised
    console.print(
        f"seed {seed} · stack in {home.root}" + (" (runs already)" if was_running else " (starting Postgres, Valkey, API, workers)")
    )
    port = None if was_running else DEFAULT_PORT if found is None and ports.is_free(DEFAULT_PORT) else 0
    control.start_detached(home, port, os.environ, lambda _service, _state: None)
    try:
        with Stage(console, steps=steps) as stage:
            return Story(control.exports(home), home.root, steps=steps, seed=seed, phase=phase, tell=stage.tell).run()
    finally:
        if not keep and not was_running:
            _ignore_further()
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
