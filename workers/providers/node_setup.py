"""Makes a node of the host that it runs on. Sent to hosts as text (see ``bootstrap``): the standard library alone, and little of it.

``python3 -I -S setup.py told.json`` fetches the agent's bundle with the token that lies beside it, compares its checksum, gives it an
interpreter that has what it imports, writes how it is started, and starts it: under systemd where that runs, else in a session of its own.
Everything may be done twice; what is there already is kept. ``setup.state`` says how far it came, in words.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path, PurePosixPath
from typing import Any

UNIT = "everstep-node.service"
UNITS = Path("/etc/systemd/system")
_CALL_S = 20.0
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_METADATA_S = 60.0
"""Less than systemd's patience with a service that starts."""
_FINAL = (400, 401, 403, 404, 410)
_HAS_ALL = (
    "import os, sys\n"
    "there = {name.lower() for folder in sys.path if os.path.isdir(folder) for name in os.listdir(folder)}\n"
    "lines = [line.strip().lower() for line in open(sys.argv[1]) if '==' in line]\n"
    "sys.exit(any(line.replace('==', '-') + '.dist-info' not in there for line in lines))"
)
"""Whether an interpreter has each package of a list in just that version, by their folders: they are not imported for it."""
_START = """#!/bin/sh
set -eu
umask 077
set -a
. {directory}/node.env
set +a
{ask}cd {directory}/node
{python} -I -S {code}/agent/shepherd.py </dev/null >>agent.log 2>&1
sed 's/.*"pid": *\\([0-9]*\\).*/\\1/' shepherd.json >shepherd.pid
"""
_SERVICE = """[Unit]
Description=Everstep node
Wants=network-online.target
After=network-online.target

[Service]
Type=forking
ExecStart={directory}/start
PIDFile={directory}/node/shepherd.pid
Restart=on-failure
RestartSec=1
KillMode=process
SendSIGKILL=no
TimeoutStopSec=20
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
"""


class Failed(Exception):
    """It cannot be done on this host, in words."""


def main(told: dict[str, Any], path: str) -> None:
    """``path`` is where the node's programs are looked for. Raises Failed, or what the system raises."""
    directory = Path(told["directory"])
    node = directory / "node"
    (node / "state").mkdir(mode=0o700, parents=True, exist_ok=True)
    environ = told["environ"] | (_of_metadata(told["metadata_url"]) if told["metadata_url"] else {})
    code = _bundle(told, directory)
    python = _python(directory, code / "agent" / "requirements.txt")
    environ |= {
        "PATH": f"{python.parent}:{path}",
        "PYTHONPATH": str(code),
        "PYTHONUNBUFFERED": "1",
        "EVERSTEP_API_URL": told["api_url"],
        "EVERSTEP_BOOT_TOKEN": _token(directory),
        "EVERSTEP_HOST_DIR": str(node),
        "EVERSTEP_AGENT_STATE": str(node / "state"),
    }
    environ.setdefault("EVERSTEP_VOLUMES", str(node / "attached"))
    _write(directory / "node.env", "".join(f"{name}={shlex.quote(value)}\n" for name, value in environ.items()), 0o600)
    _write(directory / "start", _start_script(told, directory, python, code), 0o700)
    if told["starts"] and not is_running(node):
        _start(told["service"], directory)


def is_running(node: Path) -> bool:
    """Whether the shepherd that noted itself last is alive: its process id, and the time at which that started."""
    try:
        key = json.loads((node / "shepherd.json").read_text())
        stat = Path(f"/proc/{key['pid']}/stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return False
    return int(stat[19]) == key["started"] and stat[0] not in (b"Z", b"X")


# ------------------------------------------------------------------ the bundle


def _bundle(told: dict[str, Any], directory: Path) -> Path:
    """Where the bundle is unpacked: a folder of its checksum's, whole or not there at all."""
    wanted: str | None = told["sha256"] or _tagged_checksum(told)
    if wanted and (directory / "bundles" / wanted).is_dir():
        return directory / "bundles" / wanted
    content, digest = _fetched(told, directory)
    found = hashlib.sha256(content).hexdigest()
    if found != digest or (wanted and found != wanted):
        message = f"the bundle's checksum is {found}, not {wanted or digest}: it was changed on its way, or the control plane is being updated"
        raise Failed(message)
    place = directory / "bundles" / found
    fresh = place.with_name(f"{found}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    if not place.is_dir():
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
            _unpack(tar, fresh)
        fresh.rename(place)
    return place


def _tagged_checksum(told: dict[str, Any]) -> str | None:
    """What whoever launched the instance wrote on it, by a line of his own. Without his word nothing is unpacked. Raises Failed."""
    if not told["bundle_tag"]:
        return None
    try:
        return _ask_metadata(told["metadata_url"], f"tags/instance/{told['bundle_tag']}")
    except (OSError, http.client.HTTPException) as error:
        message = f"the instance's tag {told['bundle_tag']} does not tell the bundle's checksum: {error}"
        raise Failed(message) from error


def _unpack(tar: tarfile.TarFile, place: Path, *, has_filters: bool = hasattr(tarfile, "data_filter")) -> None:
    """Files and folders below ``place``, and nothing else. Python has filters since 3.11.4. Raises Failed, TarError."""
    if has_filters:
        tar.extractall(place, filter="data")
        return
    for member in tar.getmembers():
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
            message = f"the bundle holds {member.name!r}, which is no file or folder of its own"
            raise Failed(message)
    tar.extractall(place)  # noqa: S202  (looked through above)


def _fetched(told: dict[str, Any], directory: Path) -> tuple[bytes, str]:
    """The bundle and its checksum as it is told beside it. Tried until the patience is at its end, unless the answer is final."""
    shown = {"Authorization": f"Bearer {_token(directory)}", "Everstep-Claim": told["claim"]}
    request = urllib.request.Request(told["api_url"].rstrip("/") + "/agent/v1/bundle", headers=shown)
    deadline = time.monotonic() + told["patience_s"]
    pause_s = _PAUSE_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_CALL_S) as answer:
                return answer.read(), answer.headers["Everstep-Bundle-Sha256"]
        except (OSError, http.client.HTTPException) as error:
            code = getattr(error, "code", None)
            if code in _FINAL or time.monotonic() + pause_s > deadline:
                message = f"{request.full_url} does not give the bundle: {error}"
                raise Failed(message) from error
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def _token(directory: Path) -> str:
    return (directory / "token").read_text().strip()


# ------------------------------------------------------------------ what it runs with


def _python(directory: Path, requirements: Path) -> Path:
    """This interpreter if it has what is required, in those versions; else an environment of its own, which sees the system's packages."""
    own = Path(sys.executable)
    if _has_all(own, requirements):
        return own
    named = hashlib.sha256(f"{own}\n{requirements.read_text()}".encode()).hexdigest()[:16]
    place = directory / "environments" / named
    python = place / "bin" / "python"
    if not _has_all(python, requirements):
        shutil.rmtree(place, ignore_errors=True)
        _run(str(own), "-m", "venv", "--system-site-packages", str(place))
        options = ("--no-input", "--disable-pip-version-check", "--no-warn-script-location")
        _run(str(python), "-m", "pip", "install", "--quiet", *options, "-r", str(requirements))
    return python


def _has_all(python: Path, requirements: Path) -> bool:
    return (
        python.exists() and subprocess.run([python, "-c", _HAS_ALL, requirements], check=False, capture_output=True).returncode == 0
    )


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        message = f"{' '.join(command[:4])} … ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
        raise Failed(message)


# ------------------------------------------------------------------ how it is started


def _start_script(told: dict[str, Any], directory: Path, python: Path, code: Path) -> str:
    """``start_tag``: which start of the host this is, the provider writes on the instance, whose metadata tell it at each boot."""
    setup = f"{shlex.quote(sys.executable)} -I -S {directory}/setup.py {directory}/told.json"
    asked = f"if start=$({setup} start); then EVERSTEP_HOST_START=$start; export EVERSTEP_HOST_START; fi\n"
    ask = asked if told["start_tag"] else ""  # what it was told at first stands if there is no answer
    return _START.format(
        directory=shlex.quote(str(directory)), ask=ask, python=shlex.quote(str(python)), code=shlex.quote(str(code))
    )


def _start(service: str, directory: Path) -> None:
    has_systemd = Path("/run/systemd/system").is_dir() and os.geteuid() == 0
    if service == "systemd" or (service == "auto" and has_systemd):
        _write(UNITS / UNIT, _SERVICE.format(directory=directory), 0o644)
        _run("systemctl", "daemon-reload")
        _run("systemctl", "enable", "--quiet", UNIT)
        _run("systemctl", "restart", UNIT)
        return
    # The shepherd detaches itself. No descriptor of ours is for it, or whoever waits for our end would wait for its.
    done = subprocess.run(
        [directory / "start"], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if done.returncode != 0:
        message = f"the node's first process did not start: see {directory}/node/agent.log"
        raise Failed(message)


# ------------------------------------------------------------------ what an instance's metadata tell


def _of_metadata(url: str) -> dict[str, str]:
    told = {"EVERSTEP_NODE_ID": "instance-id", "EVERSTEP_NODE_ADDRESS": "local-ipv4"}
    return {name: _ask_metadata(url, path) for name, path in told.items()}


def _ask_metadata(url: str, path: str, patience_s: float = _METADATA_S) -> str:
    """Asks again for a while: the network may come up after us. Raises OSError, HTTPException."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _metadata(url, path)
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", None) in _FINAL or time.monotonic() + _PAUSE_S > deadline:
                raise
        time.sleep(_PAUSE_S)


def _metadata(url: str, path: str) -> str:
    """With a session token, as version 2 of the service wants it."""
    lasting = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/latest/api/token", method="PUT", headers=lasting), timeout=5
    ) as answer:
        token = answer.read().decode()
    request = urllib.request.Request(f"{url}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token})
    with urllib.request.urlopen(request, timeout=5) as answer:
        found: bytes = answer.read()
    return found.decode().strip()


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all, and never readable by others for a moment."""
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    fresh.chmod(mode)
    fresh.replace(path)


def _entry(arguments: list[str]) -> int:
    told = json.loads(Path(arguments[0]).read_text())
    if arguments[1:] == ["start"]:
        sys.stdout.write(_ask_metadata(told["metadata_url"], f"tags/instance/{told['start_tag']}"))
        return 0
    state = Path(told["directory"]) / "setup.state"
    _write(state, "running\n", 0o600)
    try:
        main(told, os.environ.get("PATH", os.defpath))  # noqa: TID251  (an entry point)
    except Exception as error:  # noqa: BLE001  (whoever waits for the state must not wait for ever)
        says = str(error) if isinstance(error, (Failed, OSError)) else f"{type(error).__name__}: {error}"
        _write(state, f"failed: {says}\n", 0o600)
        sys.stderr.write(f"everstep: {says}\n")
        return 1
    _write(state, "done\n", 0o600)
    return 0


if __name__ == "__main__":
    sys.exit(_entry(sys.argv[1:]))
