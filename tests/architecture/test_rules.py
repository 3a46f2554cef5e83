"""Rules of style that a tool can hold, and that ruff, mypy and import-linter do not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture import sources
from tests.architecture.sources import PACKAGES, name

VERBS = ("request_", "report_", "settle_")
SPEAKERS_BESIDES = {
    # An event about the noun, written by whoever changes it.
    "models/job/changes.py": {"record"},
    # A wake is neither intent nor fact nor conclusion: as ``move.wake``, for the lease of the node's host.
    "models/node/changes.py": {"record", "wake_host"},
    # Tags are the caller's own labels: wished for and done in one.
    "models/cluster/changes.py": {"put_tags", "drop_tags"},
}
"""Public functions of the writing modules that need no verb. A name that is no longer there fails the test."""

MAY_ASK_THE_MACHINE = ("clock.py", "ids.py", "settings.py", "__main__.py")
ASKS_THE_MACHINE = {
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "os.environ",
    "os.getenv",
    "uuid.uuid4",
    *(
        f"random.{verb}"
        for verb in ("random", "choice", "choices", "randint", "randrange", "uniform", "shuffle", "sample", "gauss")
    ),
}
PURE_ASKS_NOTHING = {
    "time.time",
    "time.monotonic",
    "time.sleep",
    "secrets.token_bytes",
    "secrets.token_hex",
    "secrets.token_urlsafe",
}

_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home/[a-z]\w*/|root/|work/|tmp/venv|Users/\w+/)")


def test_the_verb_of_a_write_says_who_may_speak() -> None:
    for path in sources.modules("models"):
        if path.name in {"changes.py", "reports.py"}:
            public = {node.name for node in sources.tree(path).body if isinstance(node, ast.FunctionDef)} - _private(path)
            besides = SPEAKERS_BESIDES.get(name(path), set())
            assert {verb for verb in public if not verb.startswith(VERBS)} == besides, name(path)


def test_facts_are_reported_in_reports_and_never_concluded_there() -> None:
    told = [verb for path in sources.modules("models") if path.name == "reports.py" for verb, _ in sources.functions(path)]
    assert told
    assert all(verb.startswith(("report_", "_")) for verb in told)


def test_only_move_assigns_a_state() -> None:
    guilty = [
        f"{name(path)}:{line}"
        for path in sources.modules("models", "api", "workers")
        if name(path) != "models/move.py"
        for line in _assigned_states(sources.tree(path))
    ]
    assert guilty == []


def test_the_guard_of_states_sees_every_way_to_assign_one() -> None:
    code = """
row.state = new
row.state: S = new
row.state, x = new, 1
row.a.state += 1
setattr(row, "state", new)
update(Row).values(state=new)
session.execute(update(Row), [{"id": 1, "state": new}])
"""
    assert sorted(set(_assigned_states(ast.parse(code)))) == [2, 3, 4, 5, 6, 7, 8]
    assert list(_assigned_states(ast.parse("old = row.state\nRow(state=new)\nif row.state is new: pass"))) == []


@pytest.mark.parametrize("path", sources.modules(*PACKAGES), ids=name)
def test_time_randomness_and_environment_are_arguments(path: Path) -> None:
    if path.name in MAY_ASK_THE_MACHINE or name(path).startswith("everstep/cli/"):
        return
    is_domain = name(path).startswith(("models/", "workers/plans/", "api/operations/"))
    forbidden = ASKS_THE_MACHINE | (PURE_ASKS_NOTHING if is_domain else set())
    lines = path.read_text(encoding="utf-8").splitlines()
    found = {
        f"{asked} (line {line})"
        for line, asked in _used(sources.tree(path))
        if asked in forbidden and "TID251" not in lines[line - 1]
    }
    assert found == set()


def test_the_guard_of_time_and_chance_sees_through_imports() -> None:
    code = """
from datetime import UTC, datetime as moment
import random as chance, os
moment.now(UTC)
chance.shuffle([])
os.environ["X"]
chance.Random(7).shuffle([])
"""
    found = {asked for _, asked in _used(ast.parse(code))} & ASKS_THE_MACHINE
    assert found == {"datetime.datetime.now", "random.shuffle", "os.environ"}


def test_package_markers_of_models_and_workers_are_empty() -> None:
    assert [name(path) for path in sources.modules("models", "workers") if path.name == "__init__.py" and path.read_text()] == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_every_module_says_what_it_is_for(folder: str) -> None:
    silent = [
        name(path) for path in sources.modules(folder) if path.read_text().strip() and not ast.get_docstring(sources.tree(path))
    ]
    assert silent == []


def test_no_committed_file_names_a_place_of_somebodys_machine() -> None:
    found = []
    for path in sources.tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name(path)}:{number}" for number, line in enumerate(text.splitlines(), 1) if _MACHINE_PATH.search(line)]
    assert found == []


def test_the_guard_of_places_knows_a_machines_place_from_an_example() -> None:
    places = ["/ho" + "me/ann/x", "/ro" + "ot/.cache", "/wo" + "rk/main", "/Us" + "ers/bo/x"]
    assert all(_MACHINE_PATH.search(f"see {place}") for place in places)
    assert not any(_MACHINE_PATH.search(text) for text in ("/home/hosts", "a/work/b", "https://x.org/work/y", "rework/x"))


def test_tests_mirror_the_tree() -> None:
    known = {*PACKAGES, "architecture", "system", "sim", "embedded", "benchmarks", "docs", "clients", "reports", "checkpoint"}
    tests = sources.ROOT / "tests"
    assert {path.name for path in tests.iterdir() if path.is_dir()} - {"__pycache__"} <= known
    assert not list(tests.rglob("__init__.py")), "tests are imported by path; a package would hide the package of the same name"


def test_a_tests_name_is_a_sentence() -> None:
    short = [
        f"{name(path)}::{test}"
        for path in sources.modules("tests")
        for test, _ in sources.functions(path)
        if test.rpartition(".")[2].startswith("test_") and test.count("_") < 3
    ]
    assert short == []


def test_no_test_patches_our_own_modules() -> None:
    guilty = [
        f"{name(path)}:{node.lineno}"
        for path in sources.modules("tests")
        for node in ast.walk(sources.tree(path))
        if isinstance(node, ast.Call) and _patches_ours(node)
    ]
    assert guilty == []


def _private(path: Path) -> set[str]:
    return {node.name for node in sources.tree(path).body if isinstance(node, ast.FunctionDef) and node.name.startswith("_")}


def _assigned_states(tree: ast.Module) -> list[int]:
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="state", ctx=ast.Store()):
                lines.append(node.lineno)
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="state"), *_]):
                lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="values"), keywords=keywords) if any(given.arg == "state" for given in keywords):
                lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="execute" | "scalars"), args=[_, *rows]):
                lines += [
                    inner.lineno
                    for row in rows
                    for inner in ast.walk(row)
                    if isinstance(inner, ast.Constant) and inner.value == "state"
                ]
    return lines


def _used(tree: ast.Module) -> list[tuple[int, str]]:
    """Every dotted name that a module reads, under the name by which its import knows it."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {
                alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, *rest = ast.unparse(node).split(".")
            if first in imported:
                found.append((node.lineno, ".".join([imported[first], *rest])))
    return found


def _patches_ours(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if not called.endswith(("monkeypatch.setattr", "patch", "patch.object")):
        return False
    target = ast.unparse(call.args[0]).strip("'\"") if call.args else ""
    return target.split(".")[0] in PACKAGES
