"""Sizes of files and functions: a room that fills up wants another room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Lines of a file at most.
LONGEST_FILE = 400
#: Lines of a function's body, without its docstring, from which it counts as long.
LONG_FUNCTION = 25
#: Share of long functions at most.
SHARE = 0.02


@pytest.mark.parametrize("folder", ["daskml_dist", "tests", "benchmarks"])
def test_no_file_is_longer_than_one_can_keep_in_mind(folder: str) -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert sizes
    long = {str(path.relative_to(ROOT)): n for path, n in sizes.items() if n > LONGEST_FILE}
    assert not long, f"Split them by ideas: {long}"


def test_few_functions_are_long() -> None:
    sizes = [size for path in (ROOT / "daskml_dist").rglob("*.py") for size in _functions(path)]
    long = sorted((size for size in sizes if size[0] > LONG_FUNCTION), reverse=True)
    assert len(long) <= SHARE * len(sizes), f"Find the ideas within the longest: {long[:9]}"


def _functions(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of the body of each function, and its name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            last = node.end_lineno or 0
            lines = last - body[0].lineno + 1 if body else 0
            yield lines, f"{path.stem}.{node.name}"
