"""No module of the package imports itself indirectly, including imports in functions."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import daskml_dist

ROOT = Path(daskml_dist.__file__).parent


def _modules(root: Path) -> dict[str, Path]:
    """Return files by the names of their modules."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return modules that a file imports: at its top, in functions, or only for type checking."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{name.name}" for name in node.names}
            # Importing a module does not need its package to be loaded completely.
            found |= inner if inner <= modules.keys() else {node.module, *inner}
    return found & modules.keys()


def _look(root: Path) -> None:
    modules = _modules(root)
    graph = {name: _imports(path, modules) - {name} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()


def test_there_is_no_import_circle() -> None:
    try:
        _look(ROOT)
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_an_import_circle_is_detected(tmp_path: Path) -> None:
    """The circle consists of an import in a function and one for type checking."""
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").write_text("")
    (house / "one.py").write_text("def f():\n    from house.two import g\n    return g\n")
    _look(house)
    (house / "two.py").write_text("if TYPE_CHECKING:\n    from house import one\n")
    with pytest.raises(CycleError):
        _look(house)
