"""A TypeScript client: openapi-typescript makes its types from the checked-in document, tsc checks a program that uses them, node runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from api.openapi import FOLDER
from tests.api.serving import TOKEN, Server

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on this machine"),
]
PROGRAM = Path(__file__).parent / "typescript"


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"CI": "1"})
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, its libraries, and the types of the document."""
    folder = tmp_path_factory.mktemp("typescript")
    shutil.copytree(PROGRAM, folder, dirs_exist_ok=True)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=folder)
    # A member with a default may be left out: without the option the generator's types say that it may not.
    options = ("--default-non-nullable", "false", "-o", "everstep.d.ts")
    run("npx", "openapi-typescript", str(FOLDER / "control-plane.json"), *options, cwd=folder)
    return folder


def test_a_typescript_program_compiles_against_the_document_and_drives_the_server(server: Server, project: Path) -> None:
    run("npx", "tsc", "-p", ".", cwd=project)
    assert run("node", "built/drive.js", server.url, TOKEN, cwd=project) == "driven\n"


def test_a_value_that_the_document_does_not_have_does_not_compile(project: Path) -> None:
    program = (PROGRAM / "drive.ts").read_text().replace('SortBy: "NAME"', 'SortBy: "FLAVOUR"')
    (project / "drive.ts").write_text(program)
    refused = subprocess.run(["npx", "tsc", "-p", "."], cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert "FLAVOUR" in refused.stdout
