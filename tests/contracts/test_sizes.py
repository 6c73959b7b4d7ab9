"""Sizes of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Lines of code from which a function counts as long, without comments.
LONG_FUNCTION = 50
#: Largest allowed share of long functions.
SHARE = 0.02


def test_few_functions_are_long() -> None:
    sizes = [size for path in (ROOT / "daskml_dist").rglob("*.py") for size in _functions(path)]
    long = sorted((size for size in sizes if size[0] > LONG_FUNCTION), reverse=True)
    assert len(long) <= SHARE * len(sizes), f"Find the ideas within the longest: {long[:9]}"


def _functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of code in the body of each function, and its name."""
    text = path.read_text()
    lines = [line.strip() for line in text.splitlines()]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            inside = lines[body[0].lineno - 1 : node.end_lineno] if body else []
            code = [line for line in inside if line and not line.startswith("#")]
            yield len(code), f"{path.stem}.{node.name}"
