"""`folder`: a source of the files that come to a folder, each once and in order."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.streaming.positions import check_position
from daskml_dist.streaming.sources import Batch, in_columns

__all__ = ["folder"]


def folder(
    pattern: str | os.PathLike[str],
    *,
    target: str | None = None,
    read: Callable[[str], tuple[Any, Any]] | None = None,
    order: str = "name",
    after: Any = None,
    marker: str | None = None,
    idle: float | None = None,
    poll: float = 0.2,
) -> Iterator[Batch]:
    """Give the files of a pattern in order, and wait for those that come.

    Whoever writes them gives each its name once it is whole: write to a name that the pattern does
    not match, on the same file system, and rename.

    Parameters
    ----------
    pattern : str or path
        As of :mod:`glob`, such as ``"landing/*.parquet"``.
    target : str, optional
        Column of Parquet (or, by their suffix, CSV) files that holds the targets.
    read : callable, optional
        Function from a path to X and y, for files of another kind.
    order : {"name", "mtime"}, default="name"
        Names that grow (dates, numbers with leading zeros), or times of the last change.
    after : position, optional
        Where to go on: ``s.position`` of a session. Files up to it are not read.
    marker : str, optional
        Name of a file in the same folder, after which there are no more.
    idle : float, optional
        Seconds without a new file after which the source ends. Without `marker` and `idle` it
        waits until it is interrupted.
    poll : float, default=0.2
        Seconds between two looks at the folder.

    Yields
    ------
    Batch
        With `X`, `y` and `position`: the name within the folder, or time and name.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.
    InvalidDataError
        A file came whose place in the order is before one that was given already: it would be lost.
    """
    if (target is None) == (read is None):
        raise InvalidParameterError(
            'Name the column of the targets, target="...", or give read, a function from a path '
            "to X and y."
        )
    if order not in ("name", "mtime"):
        raise InvalidParameterError(f'order={order!r}: give "name" or "mtime".')
    reads = _reader(target) if read is None else read
    reached = None if after is None else check_position(after)
    return _arrivals(os.fspath(pattern), reads, order, reached, marker, idle, poll)


def _check_order(path: str, position: Any, reached: Any, order: str) -> None:
    """Refuse a file that is to come before what was given."""
    if reached is not None and position <= reached:
        raise InvalidDataError(
            f"{path} came after a file that follows it in the order of {order}s was given: the "
            f"source is at {reached!r}. Name files so that they grow, or use "
            'order="mtime" and rename as soon as they are written.'
        )


def _arrivals(
    pattern: str,
    read: Callable[[str], tuple[Any, Any]],
    order: str,
    reached: Any,
    marker: str | None,
    idle: float | None,
    poll: float,
) -> Iterator[Batch]:
    begun, given = reached, set[str]()
    since = time.monotonic()
    while True:
        # The marker comes last, so what it follows is there when it is.
        ended = marker is not None and os.path.exists(_beside(pattern, marker))
        came = False
        for position, path in _listed(pattern, order):
            if path in given or (begun is not None and position <= begun):
                continue
            _check_order(path, position, reached, order)
            X, y = read(path)
            given.add(path)
            reached, came = position, True
            yield Batch(X, y, position)
            since = time.monotonic()
            break  # look again: others may have come meanwhile
        if came:
            continue
        if ended or (idle is not None and time.monotonic() - since >= idle):
            return
        time.sleep(poll)


def _listed(pattern: str, order: str) -> list[tuple[Any, str]]:
    """Positions and paths of the files that there are, in order."""
    base = _base(pattern)
    found: list[tuple[Any, str]] = []
    for path in glob.glob(pattern, recursive=True):
        try:
            changed = os.stat(path).st_mtime_ns
        except FileNotFoundError:  # taken away meanwhile
            continue
        name = os.path.relpath(path, base) if base else path
        found.append((name if order == "name" else [changed, name], path))
    return sorted(found)


def _base(pattern: str) -> str:
    """Folder that all files of a pattern are in."""
    base = os.path.dirname(pattern)
    while base and glob.has_magic(base):
        base = os.path.dirname(base)
    return base


def _beside(pattern: str, marker: str) -> str:
    return os.path.join(_base(pattern), marker)


def _reader(target: str | None) -> Callable[[str], tuple[Any, Any]]:
    assert target is not None
    cut = in_columns(target)

    def read(path: str) -> tuple[Any, Any]:
        import pandas as pd

        frame = pd.read_csv(path) if ".csv" in os.path.basename(path) else pd.read_parquet(path)
        return cut(frame, path)

    return read
