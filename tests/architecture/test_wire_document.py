from __future__ import annotations

from pathlib import Path

from api.aws.document import document

PAGE = Path(__file__).parent.parent.parent / "docs" / "wire.md"


def test_the_wire_document_is_what_the_tables_say():
    assert PAGE.read_text() == document(), "run: python -m api.aws.document > docs/wire.md"
