"""The agent's bundle: its bytes, and the route that gives them to nodes and nobody else."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from api.agents.bundle import ROOT, bundle, pack
from models.clock import WallClock
from models.node import queries as nodes
from models.node.changes import settle_node
from models.node.states import NodeState
from models.session import Sessions, unit_of_work
from tests.live import Place, ThreadedApi

PATH = "/agent/v1/bundle"


def ask(api: ThreadedApi, token: str | None, method: str = "GET", **headers: str) -> httpx.Response:
    shown = {"authorization": f"Bearer {token}"} if token else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, f"{api.url}{PATH}", headers=shown | named, timeout=20.0)


def node_token(api: ThreadedApi, place: Place) -> str:
    answer = api.post("/agent/v1/register", place.registration())
    assert answer.status_code == 200, answer.text
    return str(answer.json()["node_token"])


def names(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        return tar.getnames()


def test_a_boot_token_with_its_claim_opens_the_bundle_and_its_checksum_is_true(api: ThreadedApi, place: Place):
    answer = ask(api, place.boot_token, everstep_claim=place.node_id)
    assert answer.status_code == 200, answer.text
    digest = hashlib.sha256(answer.content).hexdigest()
    assert answer.headers["everstep-bundle-sha256"] == digest
    assert answer.headers["etag"] == f'"{digest}"'
    assert answer.headers["everstep-bundle-version"].endswith(f"+{digest[:12]}")
    assert answer.content == bundle().content


def test_a_node_token_opens_the_bundle_without_any_claim(api: ThreadedApi, place: Place):
    assert ask(api, node_token(api, place)).status_code == 200


@pytest.mark.parametrize("shown", ["nothing", "nonsense", "no claim", "another claim"])
def test_whoever_is_no_node_is_not_given_the_bundle(api: ThreadedApi, place: Place, shown: str):
    claims = {"nonsense": place.node_id, "another claim": "node-of-nobody"}
    token = {"nothing": None, "nonsense": "guessed"}.get(shown, place.boot_token)
    headers = {"everstep_claim": str(claims[shown])} if shown in claims else {}
    answer = ask(api, token, **headers)
    assert (answer.status_code, len(answer.content) < 1000) == (401, True)


def test_a_node_that_is_gone_is_told_so_instead(api: ThreadedApi, place: Place, sessions: Sessions):
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id, lock=True)
        for state in (NodeState.RELEASING, NodeState.GONE):
            settle_node(session, node, state, why="a test", now=WallClock().now())
    assert ask(api, place.boot_token, everstep_claim=place.node_id).status_code == 410


def test_whoever_has_the_bundle_is_not_sent_it_again(api: ThreadedApi, place: Place):
    shown = {"everstep_claim": place.node_id}
    etag = ask(api, place.boot_token, "HEAD", **shown).headers["etag"]
    again = ask(api, place.boot_token, if_none_match=f'"old", W/{etag}', **shown)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert ask(api, place.boot_token, if_none_match='"old"', **shown).status_code == 200


def test_a_head_tells_all_that_a_get_would_and_sends_no_content(api: ThreadedApi, place: Place):
    head = ask(api, place.boot_token, "HEAD", everstep_claim=place.node_id)
    get = ask(api, place.boot_token, everstep_claim=place.node_id)
    assert (head.status_code, head.content) == (200, b"")
    told = ("etag", "content-length", "content-type", "everstep-bundle-version", "everstep-bundle-sha256")
    assert [head.headers[name] for name in told] == [get.headers[name] for name in told]


def copied(folder: Path) -> Path:
    for part in ("agent", "everstep"):
        shutil.copytree(ROOT / part, folder / part)
    return folder


def test_the_same_sources_give_the_same_bytes_elsewhere_and_at_another_time(tmp_path: Path):
    there = copied(tmp_path / "there")
    compiled = there / "agent" / "__pycache__" / "loop.cpython-311.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(b"compiled")
    (there / "agent" / ".loop.py.swp").write_bytes(b"somebody edits")
    for path in there.rglob("*.py"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o755)
    assert pack(there) == pack(ROOT)


def test_another_line_of_source_is_another_version_of_the_bundle(tmp_path: Path):
    there = copied(tmp_path)
    with (there / "agent" / "loop.py").open("a") as file:
        file.write("# another line\n")
    assert pack(there).version != pack(ROOT).version


def test_a_bundle_holds_the_agent_and_the_library_and_nothing_of_the_control_plane():
    found = names(bundle().content)
    assert {"agent/shepherd.py", "agent/requirements.txt", "everstep/__init__.py", "everstep/protocol.py"} <= set(found)
    assert {name.split("/")[0] for name in found} == {"agent", "everstep"}
    assert not [name for name in found if "__pycache__" in name or name.endswith(".pyc")]
    assert found == sorted(found)


def test_the_agent_starts_from_an_unpacked_bundle_alone(tmp_path: Path):
    with tarfile.open(fileobj=io.BytesIO(bundle().content), mode="r:gz") as tar:
        tar.extractall(tmp_path, filter="data")
    environ = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-P", "-m", "agent"]
    done = subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "EVERSTEP_NODE_ID is not set" in done.stderr) == (2, True), done.stderr


# ------------------------------------------------------------------ what it needs of others


def required() -> dict[str, str]:
    lines = (ROOT / "agent" / "requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_a_node_gets_the_versions_that_the_tests_run_against():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert required() == {name: pinned.get(name) for name in required()}


def test_what_is_required_requires_nothing_that_is_not_listed():
    """Without the extras of a package, and what only other Pythons or systems need."""
    names = {name.replace("-", "_").lower() for name in required()}
    for name in required():
        for line in metadata.requires(name) or ():
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": "", "python_version": "3.11"}):
                assert wanted.name.replace("-", "_").lower() in names, f"{name} needs {line}"


def test_every_package_that_the_agent_imports_at_its_start_is_required():
    ours = {"agent", "everstep"}
    imported = set()
    for path in (ROOT / "agent").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    others = {name for name in imported - ours if name not in sys.stdlib_module_names}
    assert {"httpx", "xxhash", "obstore"} <= others <= set(required()), others - set(required())
