"""What lands in a user's environment, and what a fresh machine installs."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no build directory of an earlier state of the tree takes part."""
    copy = tmp_path_factory.mktemp("wheel")
    for name in ("everstep", "models", "api"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "out", "."]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next((copy / "out").glob("everstep-*.whl"))


def test_the_wheel_holds_everstep_alone(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"everstep", f"everstep-{PROJECT['version']}.dist-info"}


def test_the_wheel_has_every_file_of_the_package(wheel):
    kept = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("everstep/")}
    ours = {
        str(path.relative_to(ROOT)) for path in (ROOT / "everstep").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert kept == ours


def test_the_library_asks_for_no_other_package():
    assert PROJECT["dependencies"] == []


def test_every_dependency_is_pinned():
    pinned = {canonical(line.split("==")[0]) for line in CONSTRAINTS}
    asked = [word for extra in PROJECT["optional-dependencies"].values() for word in extra]
    missing = {name for word in asked if (name := canonical(re.match(r"[\w.-]+", word)[0])) not in pinned}
    assert not missing


def test_every_constraint_is_a_plain_version():
    """No local suffix, path or host: it has to mean the same on every machine."""
    assert [line for line in CONSTRAINTS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)] == []


def test_torch_is_installed_before_anything_that_may_ask_for_it():
    makefile = (ROOT / "Makefile").read_text()
    assert makefile.index("pip install --quiet $(TORCH)") < makefile.index("-e '.[server,train,dev]'")
