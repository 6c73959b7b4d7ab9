"""Docstrings of functions document their parameters: all of them, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from daskml_dist.estimators.inherited_docs import read_entries
from tests.docs.blocks import ROOT

#: Names of an entry, as in ``X, y : array-like`` or ``**params``.
_ENTRY = re.compile(r"\*{0,2}\w+(, \*{0,2}\w+)*( : .*)?")


def _undocumented(function: ast.FunctionDef) -> set[str]:
    """Return parameters without an entry, entries without a parameter, and lines that are none."""
    text = ast.get_docstring(function) or ""
    documented = read_entries(text, "Parameters")
    if not documented:
        return set()
    lines = {entry.partition("\n")[0] for entry in documented.values()}
    prose = {line for line in lines if not _ENTRY.fullmatch(line)}
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


def _read_functions(file: Path) -> list[ast.FunctionDef]:
    """Return the functions and methods of a file whose docstring has parameters."""
    source = file.read_text(encoding="utf-8")
    if "Parameters\n" not in source:
        return []
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]


def test_each_parameter_has_an_entry() -> None:
    wrong = {
        f"{file.relative_to(ROOT)}:{function.lineno} {function.name}": found
        for file in sorted((ROOT / "daskml_dist").rglob("*.py"))
        for function in _read_functions(file)
        if (found := _undocumented(function))
    }
    assert not wrong
