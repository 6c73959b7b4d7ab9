"""`folder`: a source of the files that come to a folder, each once and in order."""

from __future__ import annotations

import glob
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.streaming.positions import check_position, is_past
from daskml_dist.streaming.sources import Batch, check_seconds, in_columns, two_of

__all__ = ["folder"]

#: Times that a look took, for which what it found is gone on with.
_SHARE = 10.0


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
        A file cannot be read, was taken away before it was, or came although one that follows it
        in the order had been given already: it would be lost.

    Examples
    --------
    >>> from daskml_dist.streaming import folder
    >>> for batch in folder('clicks/*.parquet', target='click', idle=60.0):  # doctest: +SKIP
    ...     print(batch.position)
    """
    if (target is None) == (read is None):
        raise InvalidParameterError(
            'Name the column of the targets, target="...", or give read, a function from a path '
            "to X and y."
        )
    if order not in ("name", "mtime"):
        raise InvalidParameterError(f'order={order!r}: give "name" or "mtime".')
    if not (marker is None or isinstance(marker, str)):
        raise InvalidParameterError(f"marker={marker!r}: give the name of a file, or None.")
    check_seconds("idle", idle, may_be_none=True)
    check_seconds("poll", poll)
    reads = _reader(target) if read is None else read
    reached = None if after is None else check_position(after)
    return _arrivals(_Files(os.fspath(pattern), order, marker, poll, reached), reads, idle, poll)


def _arrivals(
    files: _Files, read: Callable[[str], Any], idle: float | None, poll: float
) -> Iterator[Batch]:
    since = time.monotonic()
    while True:
        # The marker comes last, so what it follows is there when it is.
        ended = files.ended()
        if (found := files.next()) is not None:
            position, path = found
            yield Batch(*two_of(read(path), path), position)
            since = time.monotonic()
        elif ended or (idle is not None and time.monotonic() - since >= idle):
            return
        else:
            time.sleep(poll)


class _Files:
    """Files of a pattern that have not been given, in their order.

    To look at a folder of many files takes a while, so one look serves for some files.
    """

    def __init__(
        self, pattern: str, order: str, marker: str | None, poll: float, reached: Any
    ) -> None:
        self._pattern, self._order, self._poll = pattern, order, poll
        base = _base(pattern)
        self._marker = None if marker is None else os.path.join(base, marker)
        #: Position of the last file that was given.
        self._reached = reached
        #: Paths of those that were given, and at the first look of those before.
        self._known: set[str] | None = None
        self._waiting: deque[tuple[Any, str]] = deque()
        self._look_at = 0.0

    def ended(self) -> bool:
        """Return whether there will be no more."""
        return self._marker is not None and os.path.exists(self._marker)

    def next(self) -> tuple[Any, str] | None:
        """Position and path of the next file; None: there is none by now."""
        if not self._waiting or time.monotonic() >= self._look_at:
            self._look()
        if not self._waiting:
            return None
        position, path = self._waiting.popleft()
        if self._is_given(position):
            raise InvalidDataError(
                f"{path} came after a file that follows it in the order of {self._order}s was "
                f"given: the source is at {self._reached!r}. Name files so that they grow, or use "
                'order="mtime" and rename as soon as they are written.'
            )
        assert self._known is not None
        self._known.add(path)
        self._reached = position
        return position, path

    def _is_given(self, position: Any) -> bool:
        """Return whether a position is at or before that of the last file."""
        return is_past(position, self._reached)

    def _look(self) -> None:
        begun = time.monotonic()
        found = self._listed()
        if self._known is None:
            # What a stream that goes on has learned; one that comes later would be lost.
            self._known = {path for position, path in found if self._is_given(position)}
        self._waiting = deque(one for one in found if one[1] not in self._known)
        took = time.monotonic() - begun
        self._look_at = begun + max(self._poll, _SHARE * took)

    def _listed(self) -> list[tuple[Any, str]]:
        """Positions and paths of the files that there are, in order."""
        base = _base(self._pattern)
        found: list[tuple[Any, str]] = []
        for path in glob.glob(self._pattern, recursive=True):
            try:
                changed = 0 if self._order == "name" else os.stat(path).st_mtime_ns
            except FileNotFoundError:  # taken away meanwhile
                continue
            name = os.path.relpath(path, base) if base else path
            if path != self._marker:
                found.append((name if self._order == "name" else [changed, name], path))
        return sorted(found)


def _base(pattern: str) -> str:
    """Folder that all files of a pattern are in."""
    base = os.path.dirname(pattern)
    while base and glob.has_magic(base):
        base = os.path.dirname(base)
    return base


def _reader(target: str | None) -> Callable[[str], tuple[Any, Any]]:
    assert target is not None
    cut = in_columns(target)

    def read(path: str) -> tuple[Any, Any]:
        import pandas as pd

        of = pd.read_csv if ".csv" in os.path.basename(path) else pd.read_parquet
        try:
            frame = of(path)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # of pandas, of Arrow
            raise InvalidDataError(
                f"{path} cannot be read: {error}. Have its writer give it this name once it is "
                "whole; or take it out of the folder, and go on: folder(..., after=s.position)."
            ) from error
        return cut(frame, path)

    return read
