"""A docstring opens with its noun, and a function's may open with its verb.

"What a solver ends with." makes the reader guess the thing; "Result of a solver." names it. So no
docstring opens with a question word. The one exception are functions and properties that return
a bool: "Whether ..." is how numpydoc names a truth value, while a class or a module is none.
Descriptions of parameters and attributes are not meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import daskml_dist

HOUSE = Path(daskml_dist.__file__).parent
OPENERS = {
    "How",
    "That",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Whom",
    "Whose",
    "Why",
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Every folder: subpackages at any depth, and the package itself.
ROOMS = sorted(path.parent for path in HOUSE.rglob("__init__.py"))


def is_predicate(node: ast.AST) -> bool:
    returns = node.returns if isinstance(node, FUNCTIONS) else None
    return returns is not None and ast.unparse(returns) == "bool"


def questions(source: str) -> Iterator[str]:
    """Return openings of a module's docstrings that are question words, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            text = ast.get_docstring(node) or ""
            opener = re.split(r"\W", text, maxsplit=1)[0]
            if opener in OPENERS and not (opener == "Whether" and is_predicate(node)):
                yield f"line {node.body[0].lineno}: {text.splitlines()[0]}"


@pytest.mark.parametrize(
    "room",
    ROOMS,
    ids=lambda room: ".".join(room.relative_to(HOUSE.parent).parts),
)
def test_docstrings_open_with_their_noun(room: Path):
    found = {
        path.name: lines
        for path in sorted(room.glob("*.py"))
        if (lines := list(questions(path.read_text(encoding="utf-8"))))
    }
    assert not found, f"{room}: name the thing first: {found}"


@pytest.mark.parametrize(
    ("source", "n_found"),
    [
        ('"""What a room holds."""', 1),
        ('"""Room of things, and what it holds."""', 0),
        ('class A:\n    """Whether it is one."""', 1),
        ('def f() -> bool:\n    """Whether it is so."""', 0),
        ('def f() -> bool:\n    """Why it is so."""', 1),
        ('def f() -> bool | None:\n    """Whether it is so."""', 1),
        ('class A:\n    async def f(self):\n        """How it goes."""', 1),
        ('def f():\n    """Whatever it is."""', 0),
    ],
)
def test_question_words_are_distinguished_from_nouns(source: str, n_found: int):
    assert len(list(questions(source))) == n_found
