"""Machine code that numba keeps beside a source, dropped where something that it holds has changed.

numba compiles a function together with those of other files that it calls, and keeps the result by
the date of the function's own file alone: after a change of the others it would go on running them
as they were.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

__all__ = ["drop_stale"]


def drop_stale(package: Path) -> list[str]:
    """Names of the kept functions that are older than a source they may be made of; none is left.

    Parameters
    ----------
    package : Path
        Folder of the package; modules are looked for in it alone.
    """

    @cache
    def imported(source: Path) -> frozenset[Path]:
        return frozenset(_imported(source, package))

    dropped = []
    for kept in sorted(package.rglob("__pycache__/*.nbc")):
        source = kept.parent.parent / f"{kept.name.split('.')[0]}.py"
        try:
            made = kept.stat().st_mtime
        except FileNotFoundError:  # another session has just dropped it
            continue
        if any(each.stat().st_mtime > made for each in _reached(source, imported)):
            kept.unlink(missing_ok=True)
            dropped.append(kept.name)
    return dropped


def _reached(source: Path, imported: Callable[[Path], Iterable[Path]]) -> set[Path]:
    """Sources that one imports, by whatever way, and itself."""
    reached: set[Path] = set()
    ahead = {source} if source.exists() else set()
    while ahead:
        reached |= ahead
        ahead = {each for source in ahead for each in imported(source)} - reached
    return reached


def _imported(source: Path, package: Path) -> Iterator[Path]:
    """Sources of the package from which one takes names."""
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
