"""Calls to hosts over SSH, by the system's own client: one connection a call, host keys checked always, nothing asked of a terminal.

What is sent is a program and its request, over standard input: neither appears in a list of processes, here or there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workers.providers.base import ProviderError, Refused
from workers.providers.static_inventory import StaticHost

CALL_S: Final = 50.0
"""Below the limit of a task, whatever is done there."""
_CONNECT_S: Final = 5
_SSH_FAILED: Final = 255
_NO_SUCH_COMMAND: Final = (126, 127)
_TAIL: Final = 300
_PROGRAM: Final = Path(__file__).with_name("static_host.py")
_DENIED: Final = (
    ("Host key verification failed", "its host key is not the one that the inventory has: nothing was run there"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the one that the inventory has: nothing was run there"),
    ("Permission denied", "it does not take the key for this user"),
    ("Load key", "the private key cannot be used"),
    ("Too many authentication failures", "it does not take the key for this user"),
)


class Unreachable(ProviderError):
    """The host does not answer. Nothing follows about what runs there."""


class NotTrusted(Refused):
    """The host is not the one that it should be, or does not let us in: an operator must look."""


class Unfit(ProviderError):
    """It answers, and cannot serve as a node, or did not do what was asked; ``kind`` is the host's own word."""

    def __init__(self, message: str, kind: str = "failed") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Line:
    """``client`` is the program ``ssh``; ``folder`` is where the files of known keys are written, one a host."""

    folder: Path
    client: str = "ssh"

    def call(self, host: StaticHost, verb: str, *, limit_s: float = CALL_S, **request: Any) -> dict[str, Any]:
        """Has a verb of ``static_host`` done on a host.

        Raises:
            Unreachable: no answer; whether it was done is not known.
            NotTrusted: a wrong host key, or a key that is not taken. Nothing was done.
            Unfit: the host's own words why not.
        """
        told = {"verb": verb, "directory": host.directory, "volumes": host.volumes, "service": host.service, **request}
        literal = json.dumps(json.dumps(told))
        program = f"{_PROGRAM.read_text()}\nsys.exit(entry(json.loads({literal})))\n"
        done = self._ssh(host, program.encode(), limit_s)
        stderr = done.stderr.decode(errors="replace")
        if done.returncode == _SSH_FAILED:
            raise _of_client(host, stderr)
        if done.returncode in _NO_SUCH_COMMAND:
            message = f"host {host.name}: {host.python!r} cannot be run there: {_last(stderr)}"
            raise Unfit(message, "refused")
        return _answer(host, done.stdout, stderr)

    def _ssh(self, host: StaticHost, program: bytes, limit_s: float) -> subprocess.CompletedProcess[bytes]:
        command = [self.client, *self._options(host), "-l", host.user, "-p", str(host.port), "--", host.address]
        inner = f"{shlex.quote(host.python)} -I -S -"
        command.append(f"exec sudo -n {inner}" if host.sudo else f"exec {inner}")
        environ = {"PATH": os.defpath, "LC_ALL": "C"}
        try:
            return subprocess.run(command, input=program, env=environ, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired as error:
            message = f"host {host.name} did not answer within {limit_s:.0f} s"
            raise Unreachable(message) from error
        except FileNotFoundError as error:
            message = f"there is no {self.client!r} on the control plane's machine: install OpenSSH's client"
            raise Refused(message) from error

    def _options(self, host: StaticHost) -> list[str]:
        """Nothing of a user's configuration, no agent, no password, no shared connection, and no host that is believed unseen."""
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            f'UserKnownHostsFile="{self._known_hosts(host)}"',
            "GlobalKnownHostsFile=/dev/null",
            "UpdateHostKeys=no",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            f'IdentityFile="{host.key}"',
            "PreferredAuthentications=publickey",
            f"ConnectTimeout={_CONNECT_S}",
            "ConnectionAttempts=1",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "ControlMaster=no",
            "ControlPath=none",
            "ClearAllForwardings=yes",
            "ForwardAgent=no",
            "RequestTTY=no",
            "LogLevel=ERROR",
        ]
        options += [f"HostKeyAlias={host.name}"] if host.host_key else []
        return ["-F", "none", *(word for option in options for word in ("-o", option))]

    def _known_hosts(self, host: StaticHost) -> Path:
        if host.known_hosts is not None:
            return host.known_hosts
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / host.name
        line = f"{host.name} {host.host_key}\n"
        if not path.is_file() or path.read_text() != line:
            fresh = path.with_name(f".{host.name}.{os.getpid()}-{threading.get_ident()}")
            fresh.write_text(line)
            fresh.replace(path)
        return path


def _of_client(host: StaticHost, stderr: str) -> ProviderError:
    for said, meaning in _DENIED:
        if said in stderr:
            return NotTrusted(f"host {host.name} ({host.address}): {meaning}")
    if "no" in stderr and "host key is known" in stderr:
        return NotTrusted(f"host {host.name} ({host.address}): no host key of it is known; put it into the inventory")
    return Unreachable(f"host {host.name} ({host.address}) does not answer: {_last(stderr)}")


def _answer(host: StaticHost, stdout: bytes, stderr: str) -> dict[str, Any]:
    """The last line: what a login script prints comes before it."""
    try:
        answer = json.loads(stdout.decode(errors="replace").strip().rpartition("\n")[2])
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        message = f"host {host.name} did not do it: {_last(stderr) or 'it said nothing'}"
        raise Unfit(message)
    if "error" in answer:
        message = f"host {host.name}: {answer['error']}"
        raise Unfit(message, str(answer.get("kind")))
    return answer


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-_TAIL:] if lines else ""
