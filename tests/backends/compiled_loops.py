"""Functions of the package that numba compiles, and signs that they process entries in blocks."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from daskml_dist import backends
from daskml_dist.backends.compiled import INSIDE

__all__ = ["compiled_functions", "signs_of_a_width"]

#: Intrinsics that load, add and store whole vectors of a processor, by module.
_VECTORS = {
    "intrinsics": "load_vector multiply_add add_vectors broadcast_number store_vector "
    "store_four_sums zero_vector",
    "als_kernels": "add_outer_rows add_outer_four_rows add_scaled_row add_vector_rows "
    "add_vector_rows_wide dot_vectors dot_four_rows",
}
_HERE = backends.__name__


def compiled_functions() -> dict[str, tuple[Callable[..., Any], bool]]:
    """Return all functions of the backends that numba compiles, by ``module.name``.

    With each function stands whether its sums may be reordered (fastmath's ``reassoc``): only then
    does LLVM vectorise sums, which end in a loop over the remaining entries.
    """
    found: dict[str, tuple[Callable[..., Any], bool]] = {}
    for module in pkgutil.iter_modules(backends.__path__):
        imported = importlib.import_module(f"{_HERE}.{module.name}")
        for name, value in vars(imported).items():
            if hasattr(value, "py_func") and value.py_func.__module__ == imported.__name__:
                fast = value.targetoptions.get("fastmath", False)
                reordered = fast is True or (isinstance(fast, set) and "reassoc" in fast)
                found[f"{module.name}.{name}"] = value.py_func, reordered
        for name, reordered in _bound_later(inspect.getsource(imported)):
            function = vars(imported).get(name)
            if inspect.isfunction(function):
                stem = function.__module__.removeprefix(f"{_HERE}.")
                found[f"{stem}.{function.__name__}"] = function, reordered
    for function, options in INSIDE.items():
        stem = function.__module__.removeprefix(f"{_HERE}.")
        found[f"{stem}.{function.__name__}"] = function, "reassoc" in options.get("fastmath", ())
    return found


def _bound_later(source: str) -> Iterator[tuple[str, bool]]:
    """Yield the names of functions that are compiled with other functions substituted for calls."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "compiled_with" and isinstance(node.args[0], ast.Name):
                reordered = any(keyword.arg == "reassociates" for keyword in node.keywords)
                yield node.args[0].id, reordered
        # A table of functions that are compiled once a loss is known.
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if ast.unparse(node.targets[0]) == "KERNELS":
                yield from ((v.id, False) for v in node.value.values if isinstance(v, ast.Name))


def signs_of_a_width(function: Callable[..., Any]) -> list[str]:
    """Return the lines that show that a function handles several rows or entries together.

    Loop steps other than 1, remainders of a number, constants of the module (sizes of tiles, rows
    prefetched), bits of words, and whole vectors.
    """
    names, found = function.__globals__, list[str]()
    whole = ast.parse(textwrap.dedent(inspect.getsource(function)))
    named = _places_and_kinds(whole)
    for node in ast.walk(whole):
        if _is_step(node) or _is_remainder(node, names) or _is_word(node):
            found.append(ast.unparse(node).split("\n")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            of = getattr(names.get(node.func.id), "__module__", None) or ""
            if node.func.id in _VECTORS.get(of.removeprefix(f"{_HERE}."), "").split():
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Name) and node not in named and _is_size(node.id, names):
            found.append(node.id)
    return found


def _places_and_kinds(whole: ast.AST) -> set[ast.AST]:
    """Return the names that hold a position in an array, or one of several kinds."""
    found = set[ast.AST]()
    for node in ast.walk(whole):
        if isinstance(node, ast.Subscript):
            found.update(ast.walk(node.slice))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.GtE):
            found.update(node.comparators)
    return found


def _is_step(node: ast.AST) -> bool:
    """Return whether a node is a loop, or its counter, with a step other than 1."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return len(node.args) == 3 and ast.unparse(node.args[2]) not in ("1", "-1")
    if isinstance(node, ast.While):
        steps = [each for each in ast.walk(node) if isinstance(each, ast.AugAssign)]
        return any(_number(each.value) > 1 for each in steps if isinstance(each.op, ast.Add))
    return False


def _is_remainder(node: ast.AST, names: dict[str, Any]) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return False
    right = node.right
    return _number(right) > 1 or (isinstance(right, ast.Name) and _is_size(right.id, names))


def _is_word(node: ast.AST) -> bool:
    """Return whether a node is the position of a bit in 64-bit words."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.RShift | ast.BitAnd):
        return False
    return _number(node.right) in (6, 63)


def _is_size(name: str, names: dict[str, Any]) -> bool:
    """Return whether a constant counts rows, entries or bytes, instead of being a bit pattern."""
    value = names.get(name)
    return type(value) is int and name.isupper() and 1 < value <= 1 << 24


def _number(node: ast.expr) -> int:
    """Return a literal number, also ``np.uint64(2)``; 0 for everything else."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return _number(node.args[0])
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else 0
