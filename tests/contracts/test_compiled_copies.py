"""Compiled loops copy arrays only by the dedicated functions."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from daskml_dist import backends
from daskml_dist.backends.compiled import INSIDE


def _sliced(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and any(
        isinstance(each, ast.Slice) for each in ast.walk(node.slice)
    )


def _is_array(value: ast.expr, into_slice: bool) -> bool:
    """Return whether the value assigned to a slice or row is an array; calls return numbers."""
    if isinstance(value, ast.BinOp):
        return _is_array(value.left, into_slice) or _is_array(value.right, into_slice)
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Attribute) and value.func.attr == "view"
    return _sliced(value) or (into_slice and isinstance(value, ast.Subscript | ast.Name))


def copies(source: str) -> list[str]:
    """Return assignments of arrays to slices or rows, as far as the source shows."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(textwrap.dedent(source)))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Subscript)
        and _is_array(node.value, _sliced(node.targets[0]))
    ]


def _compiled() -> Iterator[tuple[str, Any]]:
    """Return the functions of the backends that numba compiles directly."""
    for module in pkgutil.iter_modules(backends.__path__):
        imported = importlib.import_module(f"{backends.__name__}.{module.name}")
        for name, value in vars(imported).items():
            if hasattr(value, "py_func") and value.py_func.__module__.endswith(f".{module.name}"):
                yield f"{module.name}.{name}", value.py_func
    for function in INSIDE:
        yield f"{function.__module__.rpartition('.')[2]}.{function.__name__}", function


def test_no_compiled_function_assigns_arrays() -> None:
    functions = dict(_compiled())
    assert len(functions) > 100
    found = {name: copies(inspect.getsource(function)) for name, function in functions.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}, (
        "numba compiles an error's text for these, two seconds long: call `copy_values` or "
        "`copy_rows` of daskml_dist.backends.intrinsics."
    )


@pytest.mark.parametrize(
    ("line", "is_copy"),
    [
        ("a[:] = b", True),
        ("a[i, 2:] = b[j]", True),
        ("a[:2] = b.view(int)", True),
        ("a[0] = b[:2]", True),
        ("a[0] = b[:2] - c[:2]", True),
        ("a[0] = b[1]", False),
        ("a[0] = b[1] - c[1]", False),
        ("a[:] = 0", False),
        ("a[:] = -inf", False),
        ("a[:] = f(x)", False),
        ("a = b[:2]", False),
    ],
)
def test_copies_are_recognised(line: str, is_copy: bool) -> None:
    assert copies(line) == ([line] if is_copy else [])
