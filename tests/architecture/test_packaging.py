"""What lands in a user's training environment, and what it drags along."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture import sources

HEAVY = (
    "torch",
    "numpy",
    "pydantic",
    "fastapi",
    "sqlalchemy",
    "celery",
    "redis",
    "boto3",
    "botocore",
    "httpx",
    "typer",
    "rich",
    "yaml",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """Built from a copy: setuptools leaves its work in the tree that it builds."""
    copy = tmp_path_factory.mktemp("source")
    for part in sources.PACKAGES:
        shutil.copytree(sources.ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(sources.ROOT / path, copy / path)
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            "--no-index",
            "-w",
            str(target),
            str(copy),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    (built,) = target.glob("everstep-*.whl")
    return zipfile.Path(built)


def test_the_wheel_holds_everstep_alone(wheel: zipfile.Path) -> None:
    tops = {entry.name for entry in wheel.iterdir()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"everstep"}


def test_the_wheel_requires_nothing_unless_asked_for_an_extra(wheel: zipfile.Path) -> None:
    (meta,) = [entry for entry in wheel.iterdir() if entry.name.endswith(".dist-info")]
    wanted = [line for line in (meta / "METADATA").read_text().splitlines() if line.startswith("Requires-Dist:")]
    assert wanted
    assert [line for line in wanted if "extra ==" not in line] == []


def test_the_wheel_carries_every_file_that_the_package_reads(wheel: zipfile.Path) -> None:
    package = sources.ROOT / "everstep"
    wanted = {
        path.relative_to(sources.ROOT).as_posix()
        for path in sources.tracked()
        if path.is_relative_to(package) and path.suffix in {".py", ".json", ".yaml", ".toml", ".txt", ".typed"}
    }
    assert wanted - set(wheel.root.namelist()) == set()


VOCABULARY = {
    f"everstep.{name}"
    for name in (
        "protocol",
        "local_protocol",
        "examination",
        "hardware",
        "notices",
        "gathered",
        "standby",
        "evidence",
        "tiers",
        "shards",
        "handover",
    )
}


@pytest.mark.parametrize("module", ["everstep", *sorted(VOCABULARY)])
def test_importing_the_library_imports_nothing_that_a_user_may_not_have(module: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(sources.ROOT)!r}); import {module}; print(' '.join(sys.modules))"
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in told.stdout.split()}
    assert loaded & {*HEAVY, "api", "workers", "models", "agent"} == set()


def test_the_agent_knows_of_ours_the_vocabulary_alone() -> None:
    known = {
        imported for path in sources.modules("agent") for imported in _imports(path) if imported.split(".")[0] in sources.PACKAGES
    }
    assert {imported for imported in known if not imported.startswith("agent")} <= VOCABULARY


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(sources.tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "everstep":
            found |= {f"everstep.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize(
    "python",
    [
        "echo 'Python 3.11 or newer is needed' >&2; exit 1",
        'test "$1" = -c && exit 0; mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo "ensurepip is not available" >&2; exit 1',
    ],
)
def test_a_python_that_will_not_do_leaves_no_environment_behind_to_be_taken_the_next_time(tmp_path: Path, python: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(sources.ROOT / name, tmp_path / name)
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{python}\n")
    fake.chmod(0o755)
    made = subprocess.run(["make", "venv", f"PYTHON={fake}"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode != 0
    assert "needed" in made.stderr or "ensurepip" in made.stderr
    assert not (tmp_path / ".venv").exists()
