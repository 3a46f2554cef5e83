"""The inventory: hosts of one's own, in a YAML file that people write. Each mistake is one sentence that names the host and the member."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import yaml

from workers.providers.bootstrap import DIRECTORY

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_FOLDER: Final = re.compile(r"(/[A-Za-z0-9_.+-]+)+")
_KEY: Final = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+")
_TYPE: Final = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LARGEST_PORT: Final = 65535
_OTHERS_BITS: Final = 0o077
_SERVICES: Final = ("auto", "systemd", "none")


class BadInventory(ValueError):
    """The inventory cannot be used; the message names the host, the member and the remedy."""


@dataclass(frozen=True)
class StaticHost:
    """One host. ``directory`` is ours alone; ``volumes`` is a folder that all hosts share, for what can be attached.

    ``clean_command``, ``reimage_command`` and ``reboot_command`` are run by a shell on the host; without the last, a reboot starts the node's
    processes anew and leaves the machine up.
    """

    name: str
    address: str
    key: Path
    instance_types: tuple[str, ...]
    user: str = "root"
    port: int = 22
    host_key: str | None = None
    known_hosts: Path | None = None
    node_address: str | None = None
    zone: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    vcpus: int | None = None
    memory_mib: int | None = None
    directory: str = DIRECTORY
    memory_directory: str = "/dev/shm/everstep"  # noqa: S108  (memory that the node's processes share, a folder a node)
    volumes: str | None = None
    python: str = "python3"
    sudo: bool = False
    service: str = "auto"
    min_free_mib: int = 2048
    reboot_command: str | None = None
    reimage_command: str | None = None
    clean_command: str | None = None


class Inventory:
    """The hosts as the file lists them now: it is read again when it has changed. A mistake in it leaves the hosts as they were, and is logged."""

    def __init__(self, path: Path) -> None:
        """Raises BadInventory."""
        self._path = path
        self._stamp = _stamp(path)
        self._hosts = read(path)

    def __call__(self) -> tuple[StaticHost, ...]:
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._hosts = read(self._path)
            except BadInventory as error:
                log.error("the inventory is taken as it was before its last change: %s", error)  # noqa: TRY400  (the message says it all)
        return self._hosts


def read(path: Path) -> tuple[StaticHost, ...]:
    """The hosts of an inventory, in its order.

    Raises:
        BadInventory: it cannot be read, or a member is missing, unknown or cannot be taken.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        message = f"the inventory {path} cannot be read: {error.strerror}"
        raise BadInventory(message) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = f"the inventory {path} is no YAML: {error}"
        raise BadInventory(message) from error
    if not isinstance(document, dict) or not isinstance(document.get("hosts"), list):
        _bad(f"the inventory {path}", "must be a mapping with a list `hosts`")
    _known(document, {"hosts", "defaults"}, f"the inventory {path}")
    defaults = document.get("defaults") or {}
    if not isinstance(defaults, dict):
        _bad(f"the inventory {path}", "`defaults` must be a mapping")
    hosts = tuple(_host(number, defaults, entry, path.parent) for number, entry in enumerate(document["hosts"]))
    _all_different(hosts)
    return hosts


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _host(number: int, defaults: Mapping[str, Any], entry: Any, base: Path) -> StaticHost:
    where = f"hosts[{number}]"
    if not isinstance(entry, dict):
        _bad(where, "must be a mapping")
    where = f"host {entry['name']!r}" if isinstance(entry.get("name"), str) else where
    told = {**defaults, **entry}
    _known(told, {each.name for each in fields(StaticHost)}, where)
    for name in ("name", "address", "key", "instance_types"):
        if told.get(name) is None:
            _bad(where, f"`{name}` is missing")
    host = StaticHost(**{name: _value(name, value, where, base) for name, value in told.items() if value is not None})
    _check(host, where)
    return host


def _value(name: str, value: Any, where: str, base: Path) -> Any:
    """A member as its field has it."""
    if name in {"port", "vcpus", "memory_mib", "min_free_mib"}:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            _bad(where, f"`{name}` is {value!r}; it must be a whole number from 1")
        return value
    if name == "sudo":
        if not isinstance(value, bool):
            _bad(where, f"`sudo` is {value!r}; it must be true or false")
        return value
    if name == "instance_types":
        types = [value] if isinstance(value, str) else value
        if not isinstance(types, list) or not types or not all(isinstance(each, str) and _TYPE.fullmatch(each) for each in types):
            _bad(where, f"`instance_types` is {value!r}; it must be a type such as ml.p5.48xlarge, or a list of them")
        return tuple(types)
    if name in {"labels", "environ"}:
        return _texts(name, value, where)
    if not isinstance(value, str) or not value or "\n" in value.strip() or "\0" in value:
        _bad(where, f"`{name}` is {value!r}; it must be one line of text")
    text = value.strip()
    return base / Path(text).expanduser() if name in {"key", "known_hosts"} else text


def _texts(name: str, value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(part, str) for item in value.items() for part in item):
        _bad(where, f"`{name}` must map texts to texts; put numbers into quotes")
    if name == "environ":
        for variable in value:
            if not _VARIABLE.fullmatch(variable) or variable in {"PATH", "PYTHONPATH"}:
                _bad(where, f"`environ` has {variable!r}, which is no variable that can be set here")
    return dict(value)


def _check(host: StaticHost, where: str) -> None:
    shapes: tuple[tuple[str, re.Pattern[str], str], ...] = (
        ("name", _NAME, "lower-case letters, digits, dots and dashes"),
        ("address", _ADDRESS, "a host name or an IP address"),
        ("node_address", _ADDRESS, "a host name or an IP address"),
        ("user", _USER, "the name of a user"),
        ("directory", _FOLDER, "an absolute path of letters, digits and ._+-"),
        ("memory_directory", _FOLDER, "an absolute path of letters, digits and ._+-"),
        ("volumes", _FOLDER, "an absolute path of letters, digits and ._+-"),
        ("host_key", _KEY, "a public key such as 'ssh-ed25519 AAAA…', without a host name before it"),
    )
    for name, shape, wanted in shapes:
        value = getattr(host, name)
        if value is not None and (not shape.fullmatch(value) or ".." in Path(value).parts):
            _bad(where, f"`{name}` is {value!r}; it must be {wanted}")
    if host.port > _LARGEST_PORT:
        _bad(where, f"`port` is {host.port}; it must be at most {_LARGEST_PORT}")
    if host.service not in _SERVICES:
        _bad(where, f"`service` is {host.service!r}; it must be one of {', '.join(_SERVICES)}")
    if (host.host_key is None) == (host.known_hosts is None):
        _bad(
            where,
            "give either `host_key` (what `ssh-keyscan` prints, after the name) or `known_hosts` (a file): no host is trusted unseen",
        )
    if host.known_hosts is not None and not host.known_hosts.is_file():
        _bad(where, f"`known_hosts` is {host.known_hosts}, which is no file")
    if not host.key.is_file():
        _bad(where, f"`key` is {host.key}, which is no file; it must be a private key")
    if host.key.stat().st_mode & _OTHERS_BITS:
        _bad(where, f"`key` {host.key} can be read by others: chmod 600 it")


def _all_different(hosts: tuple[StaticHost, ...]) -> None:
    """Two entries for one machine would be given to two nodes."""
    names: set[str] = set()
    places: dict[tuple[str, int, str], str] = {}
    for host in hosts:
        if host.name in names:
            _bad(f"host {host.name!r}", "`name` is another host's, too")
        names.add(host.name)
        other = places.setdefault((host.address.lower(), host.port, host.directory), host.name)
        if other != host.name:
            _bad(f"host {host.name!r}", f"`address`, `port` and `directory` are those of host {other!r}")


def _known(told: Mapping[Any, Any], names: set[str], where: str) -> None:
    for name in told:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            _bad(where, f"`{name}` is no member that a host has" + (f"; did you mean `{near[0]}`?" if near else ""))


def _bad(where: str, what: str) -> None:
    message = f"{where}: {what}"
    raise BadInventory(message)
