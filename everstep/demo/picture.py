"""The demonstration on one page: the loss curve with the fault marked, who played which rank, and where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everstep.demo.ledger import Ledger

_INK = "#1f2933"
_FAULT = "#c0392b"
_CURVE = "#1f6feb"


def draw(ledger: Ledger, path: Path) -> None:
    """Writes a PNG (11 × 8.5 inches at 120 dpi)."""
    mpl.use("Agg")
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    figure.suptitle("Everstep: a node was killed, the training went on", fontsize=16, color=_INK)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2), width_ratios=(3, 2))
    _loss_curve(figure.add_subplot(grid[0, :]), ledger)
    _membership(figure.add_subplot(grid[1, 0]), ledger)
    _recovery(figure.add_subplot(grid[1, 1]), ledger)
    figure.savefig(path, dpi=120)


def _loss_curve(axes: Axes, ledger: Ledger) -> None:
    known = [step for step in ledger.steps if step.get("loss") is not None]
    axes.plot([step["number"] for step in known], [step["loss"] for step in known], color=_CURVE, linewidth=1.8)
    axes.set(xlabel="optimizer step", ylabel="loss (nats per character)")
    axes.grid(alpha=0.25)
    generation = ledger.after_kill
    if generation is not None and generation.get("step") is not None:
        axes.axvline(generation["step"], color=_FAULT, linestyle="--", linewidth=1.2)
        note = f" node {ledger.killed} killed with SIGKILL\n {ledger.job['steps_lost']} steps lost, state from a {ledger.restored_from()}"
        axes.annotate(note, (generation["step"], max(step["loss"] for step in known)), color=_FAULT, va="top")


def _membership(axes: Axes, ledger: Ledger) -> None:
    """A row for each rank, a column for each generation; a cell names the node that played the rank."""
    generations = ledger.job.get("generations", [])
    nodes = dict.fromkeys(member["instance_id"] for generation in generations for member in generation["members"])
    colours = {node: mpl.colormaps["Pastel1"](number) for number, node in enumerate(nodes)}
    for column, generation in enumerate(generations):
        for member in generation["members"]:
            node = member["instance_id"]
            axes.barh(member["rank"], 0.94, left=column + 0.03, height=0.8, color=colours[node])
            _cell(axes, column, member["rank"], node, is_killed=node == ledger.killed)
    axes.set(title="who plays which rank", xlabel="generation", ylabel="rank")
    axes.set_xticks([column + 0.5 for column in range(len(generations))], [str(g["number"]) for g in generations])
    axes.set_yticks(range(ledger.job.get("world_size", 0)))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _cell(axes: Axes, column: int, rank: int, node: str, *, is_killed: bool) -> None:
    label = f"{node[:10]}…" + (" ✗" if is_killed else "")
    axes.text(column + 0.5, rank, label, ha="center", va="center", fontsize=8, color=_FAULT if is_killed else _INK)


def _recovery(axes: Axes, ledger: Ledger) -> None:
    """The recovery as a staircase from the kill to the first step, and the goodput of the whole job."""
    before = 0.0
    marks: list[tuple[str, Any]] = list(ledger.timeline().items())
    for row, (_, at) in enumerate(marks):
        axes.barh(row, max(0.0, at - before), left=before, color=_CURVE, alpha=0.8)
        axes.text(max(at, before), row, f" {at:.2f} s", va="center", fontsize=9, color=_INK)
        before = max(before, at)
    axes.set_yticks(range(len(marks)), [name for name, _ in marks])
    axes.invert_yaxis()
    axes.set_xlim(0, before * 1.3 or 1)
    goodput = ledger.job.get("goodput")
    axes.set(title=f"from the kill to the next step (goodput {goodput:.0%})" if goodput else "from the kill to the next step")
    axes.set_xlabel("seconds after SIGKILL")
    axes.spines[["top", "right"]].set_visible(False)
