"""Pages of the longer examples: what each does, how it is run, and its source.

Before Sphinx reads its sources, the folder ``docs/scripts`` is written anew from the files of
``examples``: a page a script, and ``index``. Nothing is to be added by hand for a new one.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: Scripts that others call, which show nothing by themselves.
HELPERS = {"fetch.py"}


def scripts() -> list[Path]:
    """Return the example scripts, by name."""
    return sorted(path for path in EXAMPLES.glob("*.py") if path.name not in HELPERS)


def title_of(path: Path) -> str:
    """Return the first line of a script's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem
    return text.splitlines()[0].rstrip(".")


@cache  # each page of the reference asks for the names of all scripts
def names_used(path: Path) -> set[str]:
    """Return the full names of what a script imports from the package."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("daskml_dist")
        for alias in node.names
    }


def _heading(title: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n"


def page_of(path: Path) -> str:
    """Return the source of a script's page."""
    source = path.read_text(encoding="utf-8")
    _, *rest = (ast.get_docstring(ast.parse(source)) or "").split("\n\n", 1)
    # The docstrings hold command lines as indented blocks after a colon.
    text = "\n\n".join(rest).replace(":\n\n    ", "::\n\n    ")
    return (
        f"{_heading(title_of(path))}{text}\n\n"
        f".. literalinclude:: ../../examples/{path.name}\n   :language: python\n"
    )


def page_of_all() -> str:
    """Return the source of the page that lists all scripts."""
    text = _heading("Example scripts")
    text += "Whole programs of the folder ``examples``, to be run from a clone.\n\n"
    lines = [f"- :doc:`{path.name} <{path.stem}>`: {title_of(path)}." for path in scripts()]
    pages = "\n".join(f"   {path.name} <{path.stem}>" for path in scripts())
    return text + "\n".join(lines) + f"\n\n.. toctree::\n   :hidden:\n\n{pages}\n"


def write(app: Sphinx) -> None:
    """Write the pages that have changed, and remove the ones whose script is gone."""
    folder = Path(app.srcdir) / "scripts"
    folder.mkdir(exist_ok=True)
    pages = {"index": page_of_all(), **{path.stem: page_of(path) for path in scripts()}}
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
