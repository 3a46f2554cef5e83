"""The wire suite with other versions of botocore than the pinned one: ``python -m tests.clients.botocores oldest newest``.

The server validates and renders by the model that is installed, and boto3 checks what it sends by its own; so both sides take the version that
is asked for. It is put into a folder of its own and comes first on the path of a test process: the environment keeps the pinned one.
``--fetch`` only puts it there, for the default suite's own look at the oldest.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLDEST = "1.43.11"
"""The oldest that is supported. The newest is whatever the index has today."""
ASKED_FOR = "EVERSTEP_TESTS_BOTOCORE"
"""Tells a test process which version it is meant to run with."""
SUITE = (
    "tests/api/aws",
    "tests/api/own",
    "tests/api/test_sigv4.py",
    "tests/everstep/test_client.py",
    "tests/reports",
    "tests/clients/test_botocores.py",
)


def folder_of(which: str) -> Path:
    return Path(sys.prefix) / "botocore" / (OLDEST if which == "oldest" else which)


def version_in(folder: Path) -> str:
    """The version that an installed folder holds; empty when there is none."""
    found = [one.version for one in importlib.metadata.distributions(path=[str(folder)]) if one.name == "botocore"]
    return found[0] if found else ""


def fetch(which: str) -> Path:
    """Installs it unless it is there, with the versions of its dependencies that it wants. The newest is looked for each time."""
    folder = folder_of(which)
    if which == "oldest" and version_in(folder) == OLDEST:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    wanted = [f"{name}=={OLDEST}" if which == "oldest" else name for name in ("boto3", "botocore")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder), *wanted]
    subprocess.run(command, check=True)
    return folder


def environment_with(folder: Path) -> dict[str, str]:
    """This process's environment, with that folder's packages before all others."""
    return {**os.environ, "PYTHONPATH": str(folder), ASKED_FOR: version_in(folder)}


def run_suite(which: str) -> int:
    folder = fetch(which)
    version = version_in(folder)
    if version == importlib.metadata.version("botocore"):
        print(f"botocore {version}, the {which}, is the pinned one, with which `make test` runs the same tests.")
        return 0
    print(f"The wire suite with botocore {version}, the {which}:", flush=True)
    suite = [path for path in SUITE if (ROOT / path).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadscope", "-p", "no:cacheprovider", *suite]
    return subprocess.run(command, cwd=ROOT, env=environment_with(folder), check=False).returncode


def main(arguments: list[str]) -> int:
    versions = [argument for argument in arguments if not argument.startswith("-")]
    if "--fetch" in arguments:
        for which in versions:
            fetch(which)
        return 0
    return max([run_suite(which) for which in versions], default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
