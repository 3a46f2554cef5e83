from __future__ import annotations

from pathlib import Path

from api.aws.document import UNDECIDED, document
from api.aws.table.sagemaker import SAGEMAKER

PAGE = Path(__file__).parent.parent.parent / "docs" / "wire.md"


def test_the_wire_document_is_what_the_tables_say():
    assert PAGE.read_text() == document(), "run: python -m api.aws.document > docs/wire.md"


def test_every_member_of_every_operation_has_its_word_in_the_wire_document():
    _, _, members = document().partition("\n## Members\n")
    rows = [row for row in members.partition("\n## Behaviour")[0].splitlines() if row.startswith("| `")]
    assert len(rows) > 1000
    assert [row for row in rows if UNDECIDED in row or "|  |" in row] == []
    assert [name for name in SAGEMAKER if f"\n### {name}\n" not in members] == []
