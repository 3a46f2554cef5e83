"""The project's own files, as its rules see them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "workers", "models", "agent", "everstep")


def modules(*folders: str) -> list[Path]:
    """Every Python file under these folders, tests' data and caches left out."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if "__pycache__" not in path.parts)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a module, however deep, with its qualified name."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", child
            is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from inside(child, f"{prefix}{child.name}." if is_scope else prefix)

    return inside(tree(path), "")


def tracked() -> list[Path]:
    """Every file that is committed or about to be. Without git (an unpacked archive): every file of the tree's own folders."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        )
        return [ROOT / path for path in listed.stdout.decode().split("\0") if path and (ROOT / path).is_file()]
    folders = (*PACKAGES, "tests", "docs", "migrations", "benchmarks", "openapi")
    deep = (path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts)
    return [path for path in (*ROOT.glob("*"), *deep) if path.is_file()]
