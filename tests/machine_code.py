"""Removal of machine code that numba caches beside a source, if code that it contains has changed.

numba compiles a function together with functions of other files that it calls, but checks only the
date of the function's own file: after a change of the other files it would continue to run their
old code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

__all__ = ["drop_stale"]


def drop_stale(package: Path) -> list[str]:
    """Delete cached functions older than a source that they may contain; return their names.

    Parameters
    ----------
    package : Path
        Folder of the package; only modules in it are considered.
    """

    @cache
    def imported(source: Path) -> frozenset[Path]:
        return frozenset(_imported(source, package))

    dropped = []
    for path in sorted(package.rglob("__pycache__/*.nbc")):
        source = path.parent.parent / f"{path.name.split('.')[0]}.py"
        try:
            compiled_at = path.stat().st_mtime
        except FileNotFoundError:  # another session has just deleted it
            continue
        if any(each.stat().st_mtime > compiled_at for each in _reached(source, imported)):
            path.unlink(missing_ok=True)
            dropped.append(path.name)
    return dropped


def _reached(source: Path, imported: Callable[[Path], Iterable[Path]]) -> set[Path]:
    """Return the sources that a source imports, directly or indirectly, and the source itself."""
    reached: set[Path] = set()
    ahead = {source} if source.exists() else set()
    while ahead:
        reached |= ahead
        ahead = {each for source in ahead for each in imported(source)} - reached
    return reached


def _imported(source: Path, package: Path) -> Iterator[Path]:
    """Yield the sources of the package from which a source imports names."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            first, *rest = node.module.split(".")
            if first == package.name:
                at = package.joinpath(*rest)
                names = [at / alias.name for alias in node.names]
                yield from (
                    path for path in (f.with_suffix(".py") for f in (at, *names)) if path.exists()
                )


if __name__ == "__main__":
    print(*drop_stale(Path(__file__).resolve().parents[1] / "daskml_dist"), sep="\n")
