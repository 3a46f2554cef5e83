"""Jobs as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_COLOURS = {
    "Succeeded": "green",
    "Training": "green",
    "Failed": "red",
    "Stopped": "dim",
    "Recovering": "yellow",
    "Evicting": "yellow",
}
ENDED = frozenset({"Succeeded", "Failed", "Stopped"})

Job = Mapping[str, Any]


def listed(console: Console, jobs: Iterable[Job]) -> None:
    table = Table("job", "name", "cluster", "status", "step", "loss", "goodput", "why", box=None, pad_edge=False)
    for job in jobs:
        table.add_row(
            job["job_id"],
            job["name"],
            job["cluster"],
            status(job),
            str(job["step"]),
            number(job["loss_last"]),
            share(job["goodput"]),
            escape(job["why"] or ""),
        )
    console.print(table)


def shown(console: Console, job: Job) -> None:
    """A job, the timeline of its memberships, and its processes."""
    console.print(f"[bold]{escape(job['name'])}[/]  {job['job_id']}  on {escape(job['cluster'])}  {status(job)}")
    if job["why"]:
        console.print(escape(job["why"]), soft_wrap=True)
    losses = f"{number(job['loss_first'])} → {number(job['loss_last'])}"
    step = job["step"] or ("unknown" if job["spec"].get("recovery") == "process" else 0)
    console.print(
        f"step {step}   loss {losses}   generation {job['generation']} of {job['world_size']} ranks   "
        f"goodput {share(job['goodput'])}   steps lost {job['steps_lost']}   restarts {job['restarts']}   evictions {job['evictions']}"
    )
    if step == "unknown":
        console.print("Its script does not tell its steps. It can: everstep.report_step(step, loss), after each.")
    redundant(console, job["redundancy"])
    _checkpoint(console, job["checkpoint"])
    _failure(console, job)
    _generations(console, job["generations"])
    _processes(console, job["processes"])


def redundant(console: Console, told: Mapping[str, Any]) -> None:
    """How many copies of the state there are, and what the worst fault costs."""
    if told["warning"]:
        console.print(f"[yellow]warning: {escape(told['warning'])}[/]", soft_wrap=True)
    if told["description"] not in (told["warning"] or ""):
        console.print(escape(told["description"]), soft_wrap=True)


def _checkpoint(console: Console, saving: Mapping[str, Any]) -> None:
    """Only where there is something to tell: a job that never saves has nothing of it."""
    if saving["newest_in_memory"] is None and saving["newest_durable"] is None:
        return
    age_s = saving["age_of_last_durable_step_s"]
    words = "none durable yet" if age_s is None else f"durable: step {saving['newest_durable']}, {age_s:.0f} s ago"
    memory = saving["newest_in_memory"]
    console.print(f"checkpoints   in memory: {'none complete' if memory is None else f'step {memory}'}   {words}")


def explained(console: Console, job: Job, events: Iterable[Mapping[str, Any]]) -> None:
    console.print(f"{escape(job['name'])} is {status(job)}: {escape(job['why'] or 'nothing is known')}", soft_wrap=True)
    if job["replicas"] != job["wished_replicas"]:
        console.print(f"It has {job['replicas']} of the {job['wished_replicas']} nodes that are asked for.")
    _failure(console, job)
    for event in events:
        console.print(f"{event['at'][11:19]}  {event['level']:<5}  {escape(event['description'])}", soft_wrap=True)


def progressed(console: Console, job: Job) -> None:
    """A line for whoever waits for the job's end."""
    why = escape(job["why"] or "")
    console.print(f"{status(job)}  step {job['step']}  loss {number(job['loss_last'])}  {why}", soft_wrap=True)


def status(job: Job) -> str:
    text = job["status"] + (" (stopping)" if job["is_stopping"] and job["status"] not in ENDED else "")
    return f"[{_COLOURS.get(job['status'], 'cyan')}]{text}[/]"


def number(value: float | str | None) -> str:
    return "–" if value is None else f"{float(value):.4f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _failure(console: Console, job: Job) -> None:
    """Unless the reason has said it all."""
    if job["failure"] and job["failure"] not in (job["why"] or ""):
        console.print(f"[red]{escape(job['failure'])}[/]", soft_wrap=True)


def _generations(console: Console, generations: Iterable[Mapping[str, Any]]) -> None:
    table = Table("generation", "ranks", "step", "lost", "decided", "formed", "first step", "cause", box=None, pad_edge=False)
    for each in generations:
        begin = each["evidence_at"] or each["decided_at"]
        after = [_after(begin, each[name]) for name in ("decided_at", "formed_at", "first_step_at")]
        table.add_row(
            str(each["number"]),
            str(each["world_size"]),
            _text(each["step"]),
            str(each["steps_lost"]),
            *after,
            escape(each["cause"]),
        )
    if table.row_count:
        console.print(table)


def _processes(console: Console, processes: Iterable[Mapping[str, Any]]) -> None:
    table = Table("process", "node", "rank", "status", "pid", "ended", box=None, pad_edge=False)
    for each in processes:
        ended = f"signal {each['signal']}" if each["signal"] else _text(each["exit_code"])
        rank = "spare" if each["rank"] is None else str(each["rank"])
        table.add_row(each["process_id"], each["instance_id"], rank, each["status"], _text(each["pid"]), ended)
    if table.row_count:
        console.print(table)


def _after(begin: str, end: str | None) -> str:
    if end is None:
        return "–"
    return f"+{(datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds():.2f} s"


def _text(value: object) -> str:
    return "–" if value is None else str(value)
