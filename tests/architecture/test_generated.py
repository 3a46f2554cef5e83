"""What is written by a program is as fresh as what it is written from."""

from __future__ import annotations

import re
from pathlib import Path

from api.aws import service_model
from api.rest import own_page
from models.machine import Machine
from models.states_page import MACHINES, PAGE, main, page
from tests.architecture import sources


def test_the_page_of_states_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m models.states_page"


def test_the_shipped_service_model_is_what_the_table_of_our_operations_says() -> None:
    assert service_model.stale() == [], "run python -m api.aws.service_model"


def test_the_page_of_our_operations_is_what_their_table_says() -> None:
    assert own_page.PAGE.read_text(encoding="utf-8") == own_page.document(), "run python -m api.rest.own_page"


def test_the_page_of_states_shows_every_machine_of_the_domain() -> None:
    defined = {
        value
        for path in sources.modules("models")
        for value in re.findall(r"^(\w+) = Machine\(", path.read_text(), flags=re.MULTILINE)
    }
    shown = {machine.noun for machine in MACHINES}
    assert len(MACHINES) == len(shown) == len(defined)
    assert all(isinstance(machine, Machine) for machine in MACHINES)


def test_the_check_tells_a_fresh_page_from_a_stale_one(tmp_path: Path) -> None:
    copy = tmp_path / "states.md"
    assert main(["--check", str(copy)]) == 1
    assert main([str(copy)]) == 0
    assert main(["--check", str(copy)]) == 0
    copy.write_text(copy.read_text() + "an edit by hand\n")
    assert main(["--check", str(copy)]) == 1


def test_decisions_are_short_and_quotable() -> None:
    pages = sorted((sources.ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in pages] == list(range(1, len(pages) + 1))
    for path in pages:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 35, path.name
        assert [line for line in lines if line.startswith("## ")] == [
            "## Context",
            "## Decision",
            "## Consequences",
            "## Alternatives",
        ]
        decision = lines[lines.index("## Decision") + 1 : lines.index("## Consequences")]
        quoted = [line for line in decision if line.startswith("> ")]
        assert len(quoted) == 1, f"{path.name}: the decision is one line that can be quoted"
