"""``everstep job``: submit, list, show, logs, stop, resize, why."""

from __future__ import annotations

import os
import re
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from everstep import documents
from everstep.cli import job_shown
from everstep.cli.asking import HomeOption, JsonOption, console, control_plane, fail, print_json
from everstep.cli.job_shown import ENDED
from everstep.embedded.home import DEFAULT_HOME
from everstep.rest import BAD_INPUT, Rest

app = typer.Typer(help="Training jobs.", no_args_is_help=True)


def _job_id(text: str) -> str:
    """An id becomes a part of an address: nothing else may."""
    if not re.fullmatch(r"[\w-]+", text):
        fail(f"{text!r} is no id of a job; `everstep job list` shows them", BAD_INPUT)
    return text


JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The id that submit printed.", callback=_job_id)]
WaitOption = Annotated[bool, typer.Option("--wait", help="Return when the job has ended; exit status 0 if it succeeded.")]

_POLL_S = 1.0


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job file, YAML or JSON.")],
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Overrides a key of the file.")] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Submit the job that a file describes. A relative working_dir starts at the file; the default is where the file lies."""
    document = _load(file, settings or [])
    with control_plane(home) as rest:
        # The key makes it safe to send again what may have arrived already.
        answer = rest.post("/v1/jobs", document, key=str(uuid.uuid4()))
        job_id, redundancy = answer["job_id"], answer["redundancy"]
        job_shown.redundant(Console(stderr=True, quiet=as_json, highlight=False), redundancy)
        if wait:
            _finish(rest, job_id, as_json=as_json)
    if as_json:
        print_json({"job_id": job_id, "redundancy": redundancy})
    else:
        typer.echo(job_id)


@app.command("list")
def listing(
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only jobs of this cluster.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Only jobs that have not ended.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """List jobs, newest first."""
    with control_plane(home) as rest:
        jobs = rest.every("/v1/jobs", "jobs", cluster=cluster, live=str(live).lower())
    if as_json:
        print_json({"jobs": jobs})
    else:
        job_shown.listed(console(), jobs)


@app.command()
def show(job: JobArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Show a job: how far it is, who takes part, and the timeline of its memberships."""
    with control_plane(home) as rest:
        found = rest.get(f"/v1/jobs/{job}")
    if as_json:
        print_json(found)
    else:
        job_shown.shown(console(), found)


@app.command()
def logs(
    job: JobArgument,
    rank: Annotated[int | None, typer.Option("--rank", help="Only the process that plays this rank now.")] = None,
    lines: Annotated[int, typer.Option("--lines", min=0, max=10_000, help="How many of the last lines of each process.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Print what a job's processes have written. It lags by a second; whole logs are files on the nodes."""
    if follow and as_json:
        fail("--follow and --json do not go together: one JSON document has an end", BAD_INPUT)
    with control_plane(home) as rest:
        found = rest.get(f"/v1/jobs/{job}/logs", lines=lines)
        if as_json:
            print_json({"processes": _of_rank(found["processes"], rank)})
            return
        ends = _print_logs(_of_rank(found["processes"], rank), {})
        while follow:
            has_ended = found["status"] in ENDED  # then once more: the last lines come a second after the end
            time.sleep(_POLL_S)
            found = rest.get(f"/v1/jobs/{job}/logs", lines=10_000)
            ends = _print_logs(_of_rank(found["processes"], rank), ends)
            if has_ended:
                break


@app.command()
def stop(job: JobArgument, wait: WaitOption = False, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Ask for a job's end. Does nothing for one that has ended."""
    with control_plane(home) as rest:
        found = rest.post(f"/v1/jobs/{job}/stop")
        while wait and found["status"] not in ENDED:
            time.sleep(_POLL_S)
            found = rest.get(f"/v1/jobs/{job}")
    if as_json:
        print_json({"job_id": job, "status": found["status"]})
    else:
        typer.echo(f"{job} is {found['status']}" + ("." if found["status"] in ENDED else "; a stop was requested."))


@app.command()
def resize(
    job: JobArgument,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="How many nodes the job is to have: one of its sizes.")],
    as_json: JsonOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Ask for another number of nodes, of an elastic job. It trains on meanwhile."""
    with control_plane(home) as rest:
        found = rest.post(f"/v1/jobs/{job}/resize", {"replicas": replicas})
    if as_json:
        print_json({name: found[name] for name in ("job_id", "status", "replicas", "wished_replicas")})
    else:
        typer.echo(f"{job} has {found['replicas']} nodes; {found['wished_replicas']} are asked for.")


@app.command()
def why(job: JobArgument, as_json: JsonOption = False, home: HomeOption = DEFAULT_HOME) -> None:
    """Explain why a job waits, recovers, shrank or failed, and what led to it."""
    with control_plane(home) as rest:
        found = rest.get(f"/v1/jobs/{job}")
        events = rest.every(f"/v1/jobs/{job}/events", "events")
    if as_json:
        members = ("job_id", "status", "why", "failure", "replicas", "wished_replicas")
        print_json({name: found[name] for name in members} | {"events": events})
    else:
        job_shown.explained(console(), found, events[-20:])


# ------------------------------------------------------------------ the job file


def _load(file: Path, settings: list[str]) -> dict[str, Any]:
    """The job file as it is sent: overrides applied, working_dir absolute."""
    try:
        document = documents.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fail(f"{file}: {reason}", BAD_INPUT)
    for setting in settings:
        _override(document, setting)
    spelling = "WorkingDir" if "WorkingDir" in document else "working_dir"
    given = document.get(spelling, ".")
    if isinstance(given, str):
        document[spelling] = os.path.normpath(file.resolve().parent / Path(given).expanduser())
    return document


def _override(document: dict[str, Any], setting: str) -> None:
    """``seed=3``, ``command=[python, a.py]``, ``env.LR=0.1``: values are YAML, those of the environment are text as it stands."""
    key, equals, text = setting.partition("=")
    outer, dot, inner = key.partition(".")
    if not equals or not outer or (dot and not inner):
        fail(f"--set {setting!r}: KEY=VALUE is expected", BAD_INPUT)
    if dot:
        holder = document.setdefault(outer, {})
        if not isinstance(holder, dict):
            fail(f"--set {setting!r}: {outer} is no mapping", BAD_INPUT)
        holder[inner] = text
        return
    try:
        document[key] = documents.parse(f"value: {text}")["value"]
    except documents.Unreadable as error:
        fail(f"--set {setting!r}: {error}", BAD_INPUT)


# ------------------------------------------------------------------ waiting and printing


def _finish(rest: Rest, job_id: str, *, as_json: bool) -> NoReturn:
    """Waits for the job's end and leaves with its verdict. Tells on standard error how it goes."""
    progress = Console(stderr=True, quiet=as_json, highlight=False)
    told = None
    while True:
        job = rest.get(f"/v1/jobs/{job_id}")
        now = (job["status"], job["generation"], job["step"] // 10)
        if now != told:
            told = now
            job_shown.progressed(progress, job)
        if job["status"] in ENDED:
            break
        time.sleep(_POLL_S)
    if as_json:
        print_json(job)
    else:
        job_shown.shown(console(), job)
    raise typer.Exit(0 if job["status"] == "Succeeded" else 1)


def _of_rank(processes: list[dict[str, Any]], rank: int | None) -> list[dict[str, Any]]:
    return processes if rank is None else [process for process in processes if process["rank"] == rank]


def _print_logs(processes: list[dict[str, Any]], before: dict[str, int]) -> dict[str, int]:
    """Prints what is new since ``before``, which maps a process to the end of what was printed of it."""
    ends = dict(before)
    for process in processes:
        name = process["process_id"]
        new = process["end"] - before.get(name, 0)
        text = process["text"].encode()[-new:].decode(errors="replace") if new > 0 else ""
        label = "spare" if process["rank"] is None else f"rank {process['rank']}"
        for line in text.splitlines():
            typer.echo(f"[{label} {process['instance_id']}] {line}")
        ends[name] = process["end"]
    return ends
