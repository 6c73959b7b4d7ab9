"""Repeated experiments of the papers behind the policies, as tables and pictures.

``python -m benchmarks papers [NAME ...] [--tiny] [--pictures DIR] [--data DIR]``

Each module covers one paper: `measure` computes the figures, `table` prints and `draw` draws them.
Every title states what is measured and what is simulated. docs/papers.md discusses the results.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
from pathlib import Path
from typing import Any

__all__ = ["main", "names", "paper"]


def names() -> list[str]:
    """Return the papers by the names of their modules, sorted by year."""
    found = (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return sorted(found, key=lambda name: (name[-4:], name))


def paper(name: str) -> Any:
    """Return a paper's module: it has `measure(tiny, real)`, `table` and `draw` of its figures."""
    return importlib.import_module(f"{__name__}.{name}")


def main(arguments: list[str]) -> None:
    """Print the tables of the chosen papers, and draw pictures if a folder for them is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks papers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    parser.add_argument("--tiny", action="store_true", help="small enough for a test")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw with matplotlib")
    parser.add_argument("--data", type=Path, metavar="DIR", help="real data in place of made data")
    chosen = parser.parse_args(arguments)
    if strange := set(chosen.names) - set(names()):
        parser.error(f"no paper is named {sorted(strange)}; choose from {names()}")
    if chosen.data is not None:
        os.environ["DASKML_DIST_DATA"] = str(chosen.data)
    for name in chosen.names or names():
        module = paper(name)
        figures = module.measure(tiny=chosen.tiny, real=chosen.data is not None)
        print(module.table(figures), end="\n\n", flush=True)
        if chosen.pictures is not None:
            chosen.pictures.mkdir(parents=True, exist_ok=True)
            module.draw(figures, chosen.pictures / f"{name}.png")
