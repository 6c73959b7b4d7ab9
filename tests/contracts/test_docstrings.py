"""Docstrings open with a noun or verb, and those of functions document each parameter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import daskml_dist
from daskml_dist.estimators.inherited_docs import read_entries

PACKAGE = Path(daskml_dist.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
#: "What a solver ends with." makes the reader guess the thing; "Result of a solver." names it.
QUESTION_WORDS = {
    "How", "That", "What", "When", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Why",
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Names of an entry, as in ``X, y : array-like`` or ``**params``.
_ENTRY = re.compile(r"\*{0,2}\w+(, \*{0,2}\w+)*( : .*)?")


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _returns_bool(node: ast.AST) -> bool:
    returns = node.returns if isinstance(node, FUNCTIONS) else None
    return returns is not None and ast.unparse(returns) == "bool"


def _find_questions(module: ast.Module) -> Iterator[str]:
    """Yield the docstrings that open with a question word, with their lines.

    "Whether ..." is how numpydoc names a truth value, which a function may return.
    """
    for node in ast.walk(module):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            text = ast.get_docstring(node) or ""
            first_word = re.split(r"\W", text, maxsplit=1)[0]
            if first_word in QUESTION_WORDS and not (
                first_word == "Whether" and _returns_bool(node)
            ):
                yield f"line {node.body[0].lineno}: {text.splitlines()[0]}"


def test_docstrings_open_with_a_noun_or_verb() -> None:
    found = {
        str(file.relative_to(PACKAGE)): lines
        for file in FILES
        if (lines := list(_find_questions(_parse(file))))
    }
    assert not found, f"name the thing first: {found}"


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
def test_question_words_are_distinguished_from_nouns(source: str, n_found: int) -> None:
    assert len(list(_find_questions(ast.parse(source)))) == n_found


def _find_undocumented(function: ast.FunctionDef) -> set[str]:
    """Return parameters without an entry, entries without a parameter, and lines that are none."""
    documented = read_entries(ast.get_docstring(function) or "", "Parameters")
    if not documented:
        return set()
    first_lines = {entry.partition("\n")[0] for entry in documented.values()}
    prose = {line for line in first_lines if not _ENTRY.fullmatch(line)}
    names = {name.lstrip("*") for name in documented}
    arguments = function.args
    parameters = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    parameters = {name for name in parameters - {"self", "cls"} if not name.startswith("_")}
    variadic = {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
    if any(ast.unparse(decorator) == "taking_client" for decorator in function.decorator_list):
        parameters.add("client")  # which the decorator adds
    # Those that `**kwargs` accepts may be documented one by one.
    unknown = set() if arguments.kwarg else names - parameters - variadic
    return prose | (parameters - names) | unknown


def test_functions_document_each_parameter() -> None:
    found = {
        f"{file.relative_to(PACKAGE)}:{function.lineno} {function.name}": wrong
        for file in FILES
        for function in ast.walk(_parse(file))
        if isinstance(function, ast.FunctionDef) and (wrong := _find_undocumented(function))
    }
    assert not found


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ("a, b : int", set()),
        ("a : int", {"b"}),
        ("a, b, c : int", {"c"}),
        ("a : int\n    The other one.", {"b", "The other one."}),
    ],
)
def test_entries_are_compared_with_parameters(entries: str, found: set[str]) -> None:
    source = f'def f(a, b):\n    """Do.\n\n    Parameters\n    ----------\n    {entries}\n    """'
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert _find_undocumented(function) == found
