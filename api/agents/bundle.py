"""What a node needs of us, in one file: the agent and the library, with the list of what they import from others.

The same sources give the same bytes, wherever and whenever they are packed: names in order, no times, no owners, nothing compiled. Two API
processes of one release therefore serve one bundle, and a node can tell by its checksum whether it has it already.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from everstep.protocol import VERSION

ROOT = Path(__file__).parents[2]
_PARTS = ("agent", "everstep")
_KINDS = frozenset({".py", ".json", ".toml", ".txt", ".typed", ".yaml"})
_LEVEL = 9
_DIGITS = 12


@dataclass(frozen=True)
class Bundle:
    """``version`` is the release and the first digits of ``sha256``, the digest of ``content``: a gzipped tar archive."""

    version: str
    sha256: str
    content: bytes = field(repr=False)

    @property
    def headers(self) -> Mapping[str, str]:
        return {
            "ETag": f'"{self.sha256}"',
            "Cache-Control": "private, no-cache",
            "Everstep-Bundle-Version": self.version,
            "Everstep-Bundle-Sha256": self.sha256,
        }

    def is_named_by(self, condition: str | None) -> bool:
        """Whether an ``If-None-Match`` header says that the caller has this bundle."""
        named = {tag.strip().removeprefix("W/").strip('"') for tag in (condition or "").split(",")}
        return self.sha256 in named or "*" in named


@cache
def bundle() -> Bundle:
    """Of this process's own sources, packed once: a process serves one bundle for as long as it lives."""
    return pack(ROOT)


def pack(root: Path) -> Bundle:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in _sources(root):
            content = path.read_bytes()
            member = tarfile.TarInfo(path.relative_to(root).as_posix())
            member.size = len(content)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(content))
    content = gzip.compress(archive.getvalue(), _LEVEL, mtime=0)
    digest = hashlib.sha256(content).hexdigest()
    return Bundle(f"{VERSION}+{digest[:_DIGITS]}", digest, content)


def _sources(root: Path) -> Iterator[Path]:
    for part in _PARTS:
        for path in sorted((root / part).rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
            if path.suffix in _KINDS and path.is_file() and "__pycache__" not in path.parts:
                yield path
