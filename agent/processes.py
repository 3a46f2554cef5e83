"""Processes of a node: how they are started, recorded, watched and ended.

A process outlives the agent that started it. So each has a record on disk (pid and start time name it for ever), is watched through a
pidfd whoever its parent is, and its exit status comes from whichever parent reaped it: this agent, a zygote, or the node's shepherd,
which writes ``exits.jsonl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from everstep.protocol import Generation, Launch, Process

_STATUS_PATIENCE_S = 1.0
_STATUS_POLL_S = 0.01
_TAIL_BYTES = 4096
_TAIL_LINES = 40
_MASTER_PORTS = range(29500, 32500)


@dataclass(frozen=True)
class Exit:
    """How a process ended; both None when nobody knows."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def from_wait_status(cls, status: int) -> Exit:
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.waitstatus_to_exitcode(status))


@dataclass(frozen=True)
class Record:
    """What is on disk about a process."""

    job: str
    process: str
    log: str
    pid: int
    start_time: int
    exit_code: int | None = None
    exit_signal: int | None = None
    has_exited: bool = False

    def write(self, path: Path) -> None:
        draft = path.with_name(path.name + ".draft")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    def is_running(self) -> bool:
        return not self.has_exited and start_time(self.pid) == self.start_time


def read_records(folder: Path) -> list[Record]:
    """Records that cannot be read are left out: a half-written one was never the truth, writes are renames."""
    found: list[Record] = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Record(**json.loads(path.read_text())))
    return found


def start_time(pid: int) -> int | None:
    """In clock ticks since boot; None when there is no such process, or only its corpse."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] in {"Z", "X"} else int(stat[19])


def tail_of(log: str) -> str:
    try:
        with Path(log).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


class Exits:
    """Watches processes and says how each ended. Belongs to the event loop that it was made in."""

    def __init__(self, exits_file: Path) -> None:
        self._file = exits_file
        self._known: dict[int, Exit] = {}
        self._learnt = asyncio.Event()
        self._watches: dict[int, asyncio.Task[None]] = {}

    def learn(self, pid: int, status: int) -> None:
        """A parent of ours has reaped it."""
        self._known[pid] = Exit.from_wait_status(status)
        self._learnt.set()
        self._learnt = asyncio.Event()

    def watch(
        self,
        pid: int,
        ended: Callable[[Exit], None],
        child: subprocess.Popen[bytes] | None = None,
        *,
        sweeps: Callable[[Exit], bool] = lambda _: False,
    ) -> None:
        """Calls ``ended`` once, within milliseconds of the end, or at once if the process is gone already.

        If ``sweeps`` says so of its exit, what it has left in its group is killed first, and gone.
        """
        task = asyncio.get_running_loop().create_task(self._watch(pid, ended, child, sweeps))
        self._watches[pid] = task
        task.add_done_callback(lambda _: self._watches.pop(pid, None))

    async def stop(self) -> None:
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(
        self, pid: int, ended: Callable[[Exit], None], child: subprocess.Popen[bytes] | None, sweeps: Callable[[Exit], bool]
    ) -> None:
        try:
            await until_gone(pid)
        except asyncio.CancelledError:
            if child is not None:
                child.returncode = 0  # it is to outlive us; Popen would warn about a child that it was not told to forget
            raise
        if child is not None:
            code = child.wait()
            found = Exit(signal=-code) if code < 0 else Exit(code=code)
        else:
            found = await self._status(pid)
        if sweeps(found):
            await sweep(pid)
        ended(found)

    async def _status(self, pid: int) -> Exit:
        """The end is seen here a moment before the parent tells how; it is given that moment."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _STATUS_PATIENCE_S
        while (found := self._known.pop(pid, None) or self.reaped_by_shepherd(pid)) is None and loop.time() < deadline:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STATUS_POLL_S):
                    await self._learnt.wait()
        return found or Exit()

    def reaped_by_shepherd(self, pid: int) -> Exit | None:
        """The last line about this pid, because pids are used again."""
        with contextlib.suppress(OSError):
            for line in reversed(self._file.read_text().splitlines()):
                with contextlib.suppress(ValueError, KeyError):
                    seen = json.loads(line)
                    if seen["pid"] == pid:
                        return Exit.from_wait_status(seen["status"])
        return None


async def until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def sweep(leader: int) -> None:
    """Kills what a process that has just ended has left in its group, and returns when that is gone."""
    while left := _group_of(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        await asyncio.gather(*map(until_gone, left))


def _group_of(leader: int) -> list[int]:
    """Living members of a process group."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state not in {"Z", "X"}:
                found.append(int(entry.name))
    return found


def kill(record: Record, number: signal.Signals) -> None:
    """Signals a process and its group, if it is still the one that was recorded."""
    if not record.is_running():
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(record.pid) == record.pid:
            os.killpg(record.pid, number)
        else:
            os.kill(record.pid, number)


# ------------------------------------------------------------------ environment and command


def launch_environment(own: Mapping[str, str], launch: Launch, *, is_alone: bool = False) -> dict[str, str]:
    """What every process of a launch sees. The agent's own secrets and its PYTHONPATH stay out of it.

    One thread for OpenMP unless the job says otherwise, as torchrun does: several ranks share a node, or else it ``is_alone``.
    """
    kept = {
        name: value
        for name, value in own.items()
        if name == "EVERSTEP_NODE_ID" or not (name.startswith("EVERSTEP_") or name in {"PYTHONPATH", "PYTHONHOME"})
    }
    threads = {} if is_alone else {"OMP_NUM_THREADS": "1"}
    return {**kept, **threads, **launch.env}


def process_environment(
    process: Process, generation: Generation | None, launch: Launch, *, job: str, address: str
) -> dict[str, str]:
    """What is particular to one process. RANK and WORLD_SIZE are set only when a generation gives them."""
    environment = {
        "EVERSTEP_JOB_ID": job,
        "EVERSTEP_PROCESS_ID": process.id,
        "EVERSTEP_NODE_ADDRESS": address,
        "EVERSTEP_NAMESPACE": job,
        "EVERSTEP_CHECKPOINT_URL": f"http://{address}:9200",
        "EVERSTEP_SEED": str(launch.seed),
        "EVERSTEP_GENERATION": str(generation.number if generation else 0),
        "LOCAL_RANK": str(process.local_rank),
        "MASTER_ADDR": generation.members[0].address if generation else address,
        "MASTER_PORT": str(_master_port(job, generation)),
    }
    rank = generation.rank_of(process.id) if generation else None
    if generation is not None and rank is not None:
        nodes = list(dict.fromkeys(member.node for member in generation.members))
        here = generation.members[rank].node
        environment["RANK"] = str(rank)
        environment["WORLD_SIZE"] = str(generation.world_size)
        environment["GROUP_RANK"] = str(nodes.index(here))
        environment["LOCAL_WORLD_SIZE"] = str(sum(member.node == here for member in generation.members))
    return environment


def durable_url(own: Mapping[str, str]) -> str:
    """Where checkpoints lie in the object store; empty without one."""
    store = own.get("EVERSTEP_OBJECT_STORE_URL", "").rstrip("/")
    return f"{store}/checkpoints" if store else ""


def _master_port(job: str, generation: Generation | None) -> int:
    """The same on every node, and another for each job and generation, so that scripts of their own rendezvous seldom meet others'."""
    number = generation.number if generation else 0
    return _MASTER_PORTS[zlib.crc32(f"{job}/{number}".encode()) % len(_MASTER_PORTS)]


@dataclass(frozen=True)
class Script:
    """A command of the form ``python script.py …``: which interpreter, which script, which arguments."""

    interpreter: str
    path: str
    arguments: tuple[str, ...]


def as_script(launch: Launch) -> Script | None:
    """None for every other command."""
    command = launch.command
    if len(command) < 2 or not Path(command[0]).name.startswith("python") or not command[1].endswith(".py"):  # noqa: PLR2004
        return None
    return Script(_interpreter(launch), command[1], command[2:])


def resolved(launch: Launch) -> list[str]:
    """The command with its interpreter found."""
    if Path(launch.command[0]).name.startswith("python"):
        return [_interpreter(launch), *launch.command[1:]]
    return list(launch.command)


def _interpreter(launch: Launch) -> str:
    """A path is taken as it is. A bare ``python`` is looked up on the PATH that the job sets; without one it is the agent's own."""
    name = launch.command[0]
    if "/" in name:
        return name
    if "PATH" in launch.env:
        return shutil.which(name, path=launch.env["PATH"]) or name
    return sys.executable


def spawn(command: list[str], environment: Mapping[str, str], working_dir: str, log: Path) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, so that it survives the agent and its group can be signalled."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            cwd=working_dir,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
