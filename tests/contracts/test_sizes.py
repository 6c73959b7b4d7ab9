"""Sizes of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Lines of a function's body, without its docstring, from which it counts as long.
LONG_FUNCTION = 25
#: Share of long functions at most.
SHARE = 0.02


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
