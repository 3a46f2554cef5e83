"""The demonstration on a terminal: what has happened, and under it the live state of the job."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from everstep.demo.ledger import Ledger

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48


class Stage:
    """Shows the story. Where the output is no terminal, only the turns of the plot are printed, a line each."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def tell(self, turn: str, ledger: Ledger) -> None:
        if turn:
            self._console.print(Text("• ", style="cyan") + Text(turn))
        if self._live and ledger.job:
            self._live.update(self._state(ledger))

    def _state(self, ledger: Ledger) -> Group:
        job = ledger.job
        line = Table.grid(padding=(0, 2))
        goodput = job.get("goodput")
        line.add_row(
            f"[bold]{job['status']}[/bold]",
            f"step {job['step']}/{self._steps}",
            f"loss {job['loss_last']:.3f}" if job.get("loss_last") is not None else "loss –",
            f"generation {job['generation']}",
            f"goodput {goodput:.0%}" if goodput is not None else "goodput –",
        )
        why = Text(job.get("why") or "", style="dim")
        losses = [step["loss"] for step in ledger.steps if step.get("loss") is not None]
        return Group(line, ProgressBar(total=self._steps, completed=job["step"], width=_SPARK_WIDTH), Text(spark(losses)), why)


def spark(values: list[float], width: int = _SPARK_WIDTH) -> str:
    """The values as a line of bars, the newest on the right, thinned to ``width`` characters."""
    if not values:
        return ""
    stride = max(1, -(-len(values) // width))
    thinned = values[::stride]
    low, high = min(thinned), max(thinned)
    span = (high - low) or 1.0
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int((value - low) / span * len(_SPARKS)))] for value in thinned)
