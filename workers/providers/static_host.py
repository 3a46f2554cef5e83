"""What is done on a host of the inventory, by a program that is sent to it over SSH as text: the standard library alone.

``<directory>/claim.json`` says whose the host is. It is made exclusively and removed last, so a host that was touched has it: whoever lost his
note of a launch finds it again there, and a host without it is clean. Every verb may be called twice, and after a crash at any line.

One verb at a time changes a host, whoever sent it, for a call goes on here when its caller has given it up: ``_alone``. So the claim that it found
stays true until it has ended; whoever comes meanwhile is told ``busy``.

The answer is one line of JSON on standard output: what ``look`` sees, or ``{"error": …}`` in words.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

_UNIT = "everstep-node.service"
_UNIT_FILE = Path("/etc/systemd/system") / _UNIT
_MARK = "EVERSTEP_NODE_ID"
_GRACE_S = 4.0
"""Longer than the shepherd's own grace, so that it ends its flock itself."""
_KILL_S = 2.0
_COMMAND_S = 25.0
_BUSY_S = 0.5
_FRESH_KEEPS = ("claim.json", "attached")
_TAIL = 500
_FINAL = re.compile("^(done|failed)")


class Problem(Exception):
    """It was not done, in words. ``kind``: ``taken``, ``gone``, ``in use``, ``busy``, ``refused`` or ``failed``."""

    def __init__(self, message: str, kind: str = "failed") -> None:
        super().__init__(message)
        self.kind = kind


def look(told: dict[str, Any]) -> dict[str, Any]:
    """What is seen of the host, of what it is claimed for, and of what runs there for it."""
    directory = Path(told["directory"])
    claim = _claim(directory)
    place = next(folder for folder in (directory, *directory.parents) if folder.exists())
    room = os.statvfs(place)
    return {
        "python": list(sys.version_info[:3]),
        "time": time.time(),
        "boot": _text(Path("/proc/sys/kernel/random/boot_id")),
        "up_s": float(_text(Path("/proc/uptime")).split()[0] or 0),
        "free_mib": room.f_bavail * room.f_frsize >> 20,
        "is_writable": place.is_dir() and os.access(place, os.W_OK | os.X_OK),
        "claim": claim,
        "setup": _text(directory / "setup.state"),
        "processes": len(_members(claim["instance_id"])) if claim else 0,
    }


def adopt(told: dict[str, Any]) -> dict[str, Any]:
    """Takes the host for a claim, and sets it up unless that has been done. Raises Problem: taken."""
    directory = Path(told["directory"])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    wish = told["claim"]
    if _claim(directory) is None and any(not entry.name.startswith(".claim.") for entry in directory.iterdir()):
        message = f"{directory} holds what is not ours; empty it, or give the host another directory"
        raise Problem(message, "refused")
    draft = directory / f".claim.{wish['instance_id']}"
    _write(draft, wish)
    with suppress(FileExistsError):
        os.link(draft, directory / "claim.json")
    draft.unlink()
    _own(directory, wish["claim"], otherwise="taken")
    _set_up(told)
    return look(told)


def restart(told: dict[str, Any]) -> dict[str, Any]:
    """Starts the node anew unless it is at the start that is asked for. Ends everything first; ``is_fresh`` leaves nothing on the disk.

    With a ``reboot`` command the whole host goes down, once: it is given again only to a host that has not gone down since it was noted.
    """
    directory = Path(told["directory"])
    wish = told["claim"]
    noted = _own(directory, wish["claim"])
    if told["reboot"] and told["service"] == "auto" and not Path("/run/systemd/system").is_dir():
        message = "there is no systemd that would start the node after a reboot; leave reboot_command out, or set service"
        raise Problem(message, "refused")
    is_noted = noted["start"] >= wish["start"]
    if is_noted and (not noted.get("boot") or noted["boot"] != look(told)["boot"]):  # it has gone down
        _set_up(told)
        return look(told)
    if not is_noted:
        _end(told, noted["instance_id"])
        if told["is_fresh"]:
            _empty(directory, keep=_FRESH_KEEPS)
            _command(told["command"], "the inventory's reimage_command")
        (directory / "setup.state").unlink(missing_ok=True)
        boot = look(told)["boot"] if told["reboot"] else None
        _write(directory / "claim.json", {**noted, "start": wish["start"], "image": wish["image"], "boot": boot})
    _set_up(told)
    if told["reboot"]:
        if not _text(directory / "setup.state").startswith("done"):
            message = "the agent is not set up yet; the host is rebooted when it is"
            raise Problem(message)
        subprocess.Popen(["sh", "-c", f"sleep 1; {told['reboot']}"], start_new_session=True, **_NOWHERE)
    return look(told)


def release(told: dict[str, Any]) -> dict[str, Any]:
    """Ends and removes all that is ours, looks whether anything stayed, and only then gives the host back."""
    directory = Path(told["directory"])
    noted = _claim(directory)
    instance_id = told["claim"]["instance_id"]
    if noted and noted["claim"] != told["claim"]["claim"]:
        return look(told)
    _end(told, instance_id)
    if noted:
        _command(told["command"], "the inventory's clean_command")
        for name in [*noted.get("volumes", {}), *noted.get("interfaces", ())]:
            _leave(told, instance_id, name)
        _empty(directory, keep=("claim.json",))
    left = [str(path) for path in directory.glob("*") if path.name != "claim.json"] if noted else []
    left += [memory for memory in (told["memory"], f"{told['memory']}.batches") if Path(memory).exists()]
    if left or _members(instance_id):
        message = f"the host is not clean: {', '.join(left) or 'processes do not end'}"
        raise Problem(message)
    (directory / "claim.json").unlink(missing_ok=True)
    return look(told)


def attach(told: dict[str, Any]) -> dict[str, Any]:
    """A volume with its device, or an interface: in the note of the one that has it, and in ours. Raises Problem: in use."""
    directory, name, device = Path(told["directory"]), told["name"], told["device"]
    noted = _own(directory, told["claim"]["claim"])
    volumes, interfaces = dict(noted.get("volumes", {})), set(noted.get("interfaces", ()))
    for other, taken in volumes.items():
        if device and taken == device and other != name:
            message = f"{device} is {other}"
            raise Problem(message, "in use")
    _take(told, noted["instance_id"], name)
    if device:
        (Path(told["volumes"]) / name).mkdir(exist_ok=True)
        for link in (name, Path(device).name):
            _link(directory / "attached" / link, Path(told["volumes"]) / name)
        volumes[name] = device
    else:
        interfaces.add(name)
    _write(directory / "claim.json", {**noted, "volumes": volumes, "interfaces": sorted(interfaces)})
    return look(told)


def detach(told: dict[str, Any]) -> dict[str, Any]:
    directory, name = Path(told["directory"]), told["name"]
    noted = _own(directory, told["claim"]["claim"])
    volumes = dict(noted.get("volumes", {}))
    device = volumes.pop(name, None)
    for link in (name, *((Path(device).name,) if device else ())):
        (directory / "attached" / link).unlink(missing_ok=True)
    _write(directory / "claim.json", {**noted, "volumes": volumes})
    _leave(told, noted["instance_id"], name)
    return look(told)


# ------------------------------------------------------------------ the claim


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Holds the lock on the directory, which is made for it and goes again if nothing has come into it. Raises Problem: busy."""
    deadline = time.monotonic() + _BUSY_S
    while (held := _held(directory)) is None:
        if time.monotonic() > deadline:
            message = "something else is being done to this host just now"
            raise Problem(message, "busy")
        time.sleep(0.02)
    try:
        yield
    finally:
        with suppress(OSError):
            directory.rmdir()
        for descriptor in held:
            os.close(descriptor)


def _held(directory: Path) -> tuple[int, ...] | None:
    """The lock's descriptor; none where we can have no directory, and so nothing to lock. None: somebody else has it, or has removed it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return None if isinstance(error, FileNotFoundError) else ()
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), directory.stat()):
            return (descriptor,)
    os.close(descriptor)
    return None


def _claim(directory: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((directory / "claim.json").read_text())
    except OSError:
        return None
    except ValueError as error:
        message = f"{directory}/claim.json cannot be read: {error}; remove it if nothing of ours runs there"
        raise Problem(message, "refused") from error
    return found


def _own(directory: Path, claim: str, otherwise: str = "gone") -> dict[str, Any]:
    noted = _claim(directory)
    if noted is None or noted["claim"] != claim:
        message = "the host is claimed for somebody else" if noted else "the host is not claimed any more"
        raise Problem(message, otherwise)
    return noted


def _take(told: dict[str, Any], instance_id: str, name: str) -> None:
    store = Path(told["volumes"])
    if not store.is_dir():
        message = f"{store} is no directory on this host: mount what all hosts share there"
        raise Problem(message, "refused")
    own = store / f".{name}.{instance_id}"
    own.write_text(instance_id)
    with suppress(FileExistsError):
        os.link(own, store / f"{name}.host")
    own.unlink()
    holder = _text(store / f"{name}.host")
    if holder != instance_id:
        message = f"{name} is attached to {holder}"
        raise Problem(message, "in use")


def _leave(told: dict[str, Any], instance_id: str, name: str) -> None:
    if told["volumes"] and _text(Path(told["volumes"]) / f"{name}.host") == instance_id:
        (Path(told["volumes"]) / f"{name}.host").unlink(missing_ok=True)


# ------------------------------------------------------------------ starting and ending

_NOWHERE: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
"""What outlives us must not hold the connection open."""


def _set_up(told: dict[str, Any]) -> None:
    """Runs the script that came with the request, unless that is done, and waits for it for a while: it goes on without us.

    The script holds a token: it goes in by a pipe, and is on no command line.
    """
    directory = Path(told["directory"])
    if _text(directory / "setup.state").startswith("done"):
        return
    if _members(told["claim"]["instance_id"]):
        _await_end(told["claim"]["instance_id"], told["wait_s"], or_done=directory / "setup.state")
        return
    (directory / "setup.state").unlink(missing_ok=True)
    descriptor = os.open(directory / "setup.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    environ = {**os.environ, _MARK: told["claim"]["instance_id"]}  # noqa: TID251  (this program is an entry point)
    child = subprocess.Popen(
        ["sh"], stdin=subprocess.PIPE, stdout=descriptor, stderr=descriptor, env=environ, cwd=directory, start_new_session=True
    )
    os.close(descriptor)
    with suppress(OSError, subprocess.TimeoutExpired):
        child.communicate(told["script"].encode(), timeout=told["wait_s"])
    state = _text(directory / "setup.state")
    if child.returncode and not _FINAL.match(state):
        (directory / "setup.state").write_text(f"failed: the set-up ended with {child.returncode}; see {directory}/setup.log\n")


def _end(told: dict[str, Any], instance_id: str) -> None:
    """Ends every process of the node, and gives back its memory. Raises Problem if one stays."""
    directory = Path(told["directory"])
    if _UNIT_FILE.exists() and f"{directory}/start" in _text(_UNIT_FILE):
        for command in (("disable", "--now", _UNIT), ("reset-failed", _UNIT)):
            subprocess.run(["systemctl", *command], check=False, timeout=_COMMAND_S, **_NOWHERE)
        _UNIT_FILE.unlink(missing_ok=True)
    shepherd = _shepherd(directory)
    if shepherd in _members(instance_id):
        _signal([shepherd], signal.SIGTERM)
        _await_end(instance_id, _GRACE_S)
    for _ in range(3):  # a process may be forked while we look
        _signal(_members(instance_id), signal.SIGKILL)
        _await_end(instance_id, _KILL_S)
    if _members(instance_id):
        message = f"processes of {instance_id} do not end: {_members(instance_id)}"
        raise Problem(message)
    memory = Path(told["memory"])
    if memory.is_mount():
        subprocess.run(["umount", "--lazy", str(memory)], check=False, timeout=_COMMAND_S, **_NOWHERE)
    for folder in (memory, memory.with_name(f"{memory.name}.batches")):
        shutil.rmtree(folder, ignore_errors=True)


def _shepherd(directory: Path) -> int:
    with suppress(OSError, ValueError, KeyError):
        return int(json.loads((directory / "node" / "shepherd.json").read_text())["pid"])
    return 0


def _members(instance_id: str) -> list[int]:
    """The live processes that carry the node's name in their environment, as all of a node do."""
    mark, found = f"{_MARK}={instance_id}".encode(), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # gone meanwhile, or another user's
            is_ours = mark in (folder / "environ").read_bytes().split(b"\0")
            if is_ours and (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                found.append(int(folder.name))
    return sorted(found)


def _signal(members: list[int], number: int) -> None:
    for pid in members:
        with suppress(OSError):
            os.kill(pid, number)


def _await_end(instance_id: str, seconds: float, or_done: Path | None = None) -> None:
    deadline = time.monotonic() + seconds
    while _members(instance_id) and time.monotonic() < deadline and not (or_done and _FINAL.match(_text(or_done))):
        time.sleep(0.05)


def _empty(directory: Path, keep: tuple[str, ...]) -> None:
    for entry in directory.iterdir() if directory.is_dir() else ():
        if entry.name not in keep and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name not in keep:
            entry.unlink(missing_ok=True)


def _command(command: str | None, what: str) -> None:
    if command is None:
        return
    try:
        done = subprocess.run(
            ["sh", "-c", command], check=False, capture_output=True, text=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        message = f"{what} does not end within {_COMMAND_S:.0f} s"
        raise Problem(message) from error
    if done.returncode != 0:
        message = f"{what} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-_TAIL:]}"
        raise Problem(message)


# ------------------------------------------------------------------ files


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def _write(path: Path, noted: dict[str, Any]) -> None:
    """In one piece: a crash leaves the whole note or none."""
    fresh = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(noted, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


_VERBS = {verb.__name__: verb for verb in (look, adopt, restart, release, attach, detach)}


def entry(told: dict[str, Any]) -> int:
    """Does what is asked, and tells what became of it."""
    try:
        if sys.version_info < (3, 11):  # noqa: UP036  (a host may have an older one: it is told, not met with a traceback)
            message = f"its Python is {sys.version.split()[0]}; 3.11 or newer is needed"
            raise Problem(message, "refused")  # noqa: TRY301
        with _alone(Path(told["directory"])) if told["verb"] != "look" else nullcontext():
            answer = _VERBS[told["verb"]](told)
    except Problem as problem:
        answer = {"error": str(problem), "kind": problem.kind}
    except OSError as error:
        answer = {"error": f"{type(error).__name__}: {error}", "kind": "failed"}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0
