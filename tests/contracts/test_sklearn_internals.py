"""Canaries: each private name of scikit-learn that the package uses still exists."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import daskml_dist
from daskml_dist import sklearn_internals

ROOT = Path(daskml_dist.__file__).parent


@pytest.mark.parametrize("name", sklearn_internals.PRIVATE_NAMES)
def test_each_private_name_exists(name: str) -> None:
    getattr(sklearn_internals, name)  # the error says which feature needs it


def test_the_error_of_a_moved_name_says_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Any] = {
        "lost": ("sklearn.utils:_lost", "a test"),
        "gone": ("sklearn._g:", "b"),
    }
    monkeypatch.setattr(sklearn_internals, "PRIVATE_NAMES", table)
    for name, place, use in (
        ("lost", "sklearn.utils._lost", "a test"),
        ("gone", "sklearn._g", "b"),
    ):
        with pytest.raises(ImportError, match=rf"has no {place}, which is needed for: {use}\."):
            getattr(sklearn_internals, name)
    with pytest.raises(AttributeError, match="has no attribute 'unlisted'"):
        sklearn_internals.unlisted  # noqa: B018


def _users_of_scikit_learn() -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules that may import scikit-learn, since parsing all takes seconds."""
    for path in ROOT.rglob("*.py"):
        if "sklearn" in (text := path.read_text()):
            yield path, ast.parse(text)


def test_no_other_module_imports_a_private_name() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path, tree in _users_of_scikit_learn()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("sklearn")
        for name in (alias.name for alias in node.names)
        if any(part.startswith("_") for part in (*module.split("."), name))
    }
    assert not found


def test_no_other_module_reads_a_private_name() -> None:
    """For example, as an attribute of a public module or class of scikit-learn."""
    found = set[str]()
    for path, tree in _users_of_scikit_learn():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        theirs = {
            alias.asname or alias.name
            for node in imports
            if (node.module or "").startswith("sklearn")
            for alias in node.names
        }
        found |= {
            f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if node.value.id in theirs
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        }
    assert not found
