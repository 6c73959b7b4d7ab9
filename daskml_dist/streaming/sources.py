"""Sources of streams: batches, positions in a source, and the files of a folder.

A position is the place of a batch in its source, so that no batch is learned twice: a number, a
text, a list of positions (compared from the first to the last, like tuples), or a dict of positions
by partition name, where each partition advances independently. JSON can hold it. Positions of one
partition are totally ordered and increase; a dict is only partially ordered, like a vector clock,
so that a batch before the stream in one partition and after it in another is an error. Kafka topics
are read by `kafka_source.py`.
"""

from __future__ import annotations

import glob
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters

#: A listing of the folder is reused for this many times the time that it took (a ratio): listing a
#: folder of a hundred thousand files takes seconds, so listings use at most about a tenth of the
#: time.
_LISTING_REUSE = 10.0


@dataclass(frozen=True, eq=False)
class Batch(NamedParameters):
    """Rows of a source, and their position.

    Parameters
    ----------
    X, y : as in :meth:`Session.learn`
    position : number, str, list or dict
        As in :meth:`Session.learn`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.streaming import Batch
    >>> Batch(np.zeros((2, 3)), np.zeros(2), position=0).X.shape
    (2, 3)
    """

    X: Any
    y: Any
    position: Any


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
    """Yield the files that match a pattern in order, and wait for new ones.

    The writer must give each file its final name only when it is complete: write to a name on the
    same file system that does not match the pattern, and rename.

    Parameters
    ----------
    pattern : str or path
        Pattern of :mod:`glob`, such as ``"landing/*.parquet"``.
    target : str, optional
        Column with the targets, of Parquet files (or of CSV files, recognised by their suffix).
    read : callable, optional
        Function from a path to X and y, for files of another kind.
    order : {"name", "mtime"}, default="name"
        Names that increase (dates, numbers with leading zeros), or times of the last change.
    after : position, optional
        Position after which to start: ``s.position`` of a session. Files up to it are not read.
    marker : str, optional
        Name of a file in the same folder, whose presence ends the source.
    idle : float, optional
        Seconds without a new file after which the source ends. Without `marker` and `idle` it waits
        until interrupted.
    poll : float, default=0.2
        Seconds between two checks of the folder.

    Yields
    ------
    Batch
        With `X`, `y` and `position`: the file's name within the folder, or its time and name.

    Raises
    ------
    InvalidParameterError
        A parameter is invalid.
    InvalidDataError
        A file cannot be read, was removed before it was read, or arrived after a file that follows
        it in the order had been read: its rows would be lost.

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
    if not isinstance(pattern, (str, os.PathLike)):
        raise InvalidParameterError(
            f'pattern={pattern!r}: give one pattern of file names, such as "clicks/*.parquet".'
        )
    if order not in ("name", "mtime"):
        raise InvalidParameterError(f'order={order!r}: give "name" or "mtime".')
    if not (marker is None or isinstance(marker, str)):
        raise InvalidParameterError(f"marker={marker!r}: give the name of a file, or None.")
    check_seconds("idle", idle, may_be_none=True)
    check_seconds("poll", poll)
    reads = _make_file_reader(target) if read is None else read
    reached = None if after is None else check_position(after)
    return _iterate_arrivals(
        _FolderFiles(os.fspath(pattern), order, marker, poll, reached), reads, idle, poll
    )


def _iterate_arrivals(
    files: _FolderFiles, read_file: Callable[[str], Any], idle: float | None, poll: float
) -> Iterator[Batch]:
    """Yield the batches of files as they arrive, until the marker or the longest wait."""
    since = time.monotonic()
    while True:
        # Checked before the files are listed: a writer writes the marker after its last file, so if
        # the marker exists now, the next listing has all files.
        ended = files.has_ended()
        if (arrival := files.take_next()) is not None:
            position, path = arrival
            yield Batch(*unpack_X_y(read_file(path), path), position)
            since = time.monotonic()
        elif ended or (idle is not None and time.monotonic() - since >= idle):
            return
        else:
            time.sleep(poll)


class _FolderFiles:
    """Files of a pattern that have not been returned yet, in order.

    Listing a folder of many files is slow, so one listing is used for several files.
    """

    def __init__(
        self, pattern: str, order: str, marker: str | None, poll: float, reached: Any
    ) -> None:
        self._pattern, self._order, self._poll = pattern, order, poll
        base = _find_base_folder(pattern)
        self._marker = None if marker is None else os.path.join(base, marker)
        #: Position of the last file that was returned.
        self._reached = reached
        #: Paths of the files that were returned, and of files before the start of a resumed stream;
        #: None before the first listing.
        self._seen_paths: set[str] | None = None
        #: Position and path of the listed files that were not returned yet, in order.
        self._waiting: deque[tuple[Any, str]] = deque()
        #: Time of `time.monotonic` at which the folder is listed again.
        self._list_at = 0.0

    def has_ended(self) -> bool:
        """Return whether the marker exists, so that no more files will come."""
        return self._marker is not None and os.path.exists(self._marker)

    def take_next(self) -> tuple[Any, str] | None:
        """Return position and path of the next file; None if there is none yet."""
        if not self._waiting or time.monotonic() >= self._list_at:
            self._list_files()
        if not self._waiting:
            return None
        position, path = self._waiting.popleft()
        # A late file: the session would skip it as learned, and its rows would be lost without an
        # error.
        if is_past(position, self._reached):
            raise InvalidDataError(
                f"{path} came after a file that follows it in the order of {self._order}s was "
                f"given: the source is at {self._reached!r}. Name files so that they grow, or use "
                'order="mtime" and rename as soon as they are written.'
            )
        assert self._seen_paths is not None
        self._seen_paths.add(path)
        self._reached = position
        return position, path

    def _list_files(self) -> None:
        """List the folder, and keep the files that have not been returned."""
        start = time.monotonic()
        files = self._find_files()
        if self._seen_paths is None:
            # A resumed stream has learned the files up to its position that exist at the first
            # listing. A file that arrives later at such a position was not learned, so it is not
            # known and raises in `take_next`.
            self._seen_paths = {
                path for position, path in files if is_past(position, self._reached)
            }
        self._waiting = deque(file for file in files if file[1] not in self._seen_paths)
        seconds = time.monotonic() - start
        self._list_at = start + max(self._poll, _LISTING_REUSE * seconds)

    def _find_files(self) -> list[tuple[Any, str]]:
        """Return positions and paths of the existing files, in order."""
        base = _find_base_folder(self._pattern)
        files: list[tuple[Any, str]] = []
        for path in glob.glob(self._pattern, recursive=True):
            try:
                changed = 0 if self._order == "name" else os.stat(path).st_mtime_ns
            except FileNotFoundError:  # removed in the meantime
                continue
            name = os.path.relpath(path, base) if base else path
            if path != self._marker:
                # The name breaks ties between files of the same time.
                files.append((name if self._order == "name" else [changed, name], path))
        return sorted(files)


def _find_base_folder(pattern: str) -> str:
    """Return the folder that all files of a pattern are in."""
    base = os.path.dirname(pattern)
    while base and glob.has_magic(base):
        base = os.path.dirname(base)
    return base


def _make_file_reader(target: str | None) -> Callable[[str], tuple[Any, Any]]:
    """Return the function that reads X and y from a Parquet or CSV file."""
    assert target is not None
    split = split_columns(target)

    def read(path: str) -> tuple[Any, Any]:
        import pandas as pd

        # Anywhere in the name: a CSV file may be compressed, as "clicks.csv.gz" is.
        read_frame = pd.read_csv if ".csv" in os.path.basename(path) else pd.read_parquet
        try:
            frame = read_frame(path)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # of pandas or Arrow
            raise InvalidDataError(
                f"{path} cannot be read: {error}. Rename files to their final name only when "
                "they are complete; or remove this one from the folder and continue: "
                "folder(..., after=s.position)."
            ) from error
        return split(frame, path)

    return read


def check_position(position: Any) -> Any:
    """Return a position as JSON would return it, with lists for tuples."""
    if isinstance(position, list | tuple):
        return [check_position(part) for part in position]
    if isinstance(position, dict) and all(isinstance(name, str) for name in position):
        return {name: check_position(part) for name, part in position.items()}
    if hasattr(position, "item") and getattr(position, "ndim", None) == 0:
        position = position.item()  # a NumPy scalar, which JSON cannot hold
    finite = not isinstance(position, float) or math.isfinite(position)
    if isinstance(position, str | int | float) and finite:
        return position
    raise InvalidParameterError(
        f"position={position!r}: give a finite number, a text, a list of these, or a dict of "
        "positions by the text that names a partition."
    )


def is_past(position: Any, reached: Any) -> bool:
    """Return whether a position is at or before another; for a dict, in all its partitions."""
    if reached is None:
        return False
    if isinstance(position, dict) != isinstance(reached, dict):
        raise _incomparable_error(position, reached)
    if isinstance(position, dict):
        past = [is_past(part, reached.get(name)) for name, part in position.items()]
        # The batch can be neither skipped nor learned: some rows would be lost, or count twice.
        if any(past) and not all(past):
            raise InvalidParameterError(
                f"A batch of position {position} holds rows that were learned and others that "
                f"were not: the stream is at {reached}. Give each partition's rows in a call of "
                "their own, or begin where the stream stands."
            )
        return all(past) and bool(past)
    try:
        return bool(position <= reached)
    except TypeError:
        raise _incomparable_error(position, reached) from None


def advance_position(position: Any, reached: Any) -> Any:
    """Return the position of a stream at `reached` that has learned a batch at `position`."""
    if position is None:
        return reached
    # Partitions that the batch does not name keep their position.
    if isinstance(position, dict) and isinstance(reached, dict):
        parts = {name: advance_position(part, reached.get(name)) for name, part in position.items()}
        return {**reached, **parts}
    return position


def _incomparable_error(position: Any, reached: Any) -> InvalidParameterError:
    """Return the error for a position of another kind than the stream's."""
    return InvalidParameterError(
        f"The position {position!r} cannot be compared with {reached!r}, where the stream is. Give "
        "positions of one kind."
    )


def split_columns(target: str) -> Callable[[Any, str], tuple[Any, Any]]:
    """Return a function that splits a dataframe, read from a named source, into X and y."""

    def cut(frame: Any, source: str) -> tuple[Any, Any]:
        if target not in frame.columns:
            raise InvalidDataError(
                f"{source} has no column {target!r}; its columns are {list(frame.columns)[:20]}. "
                "Name the target's: target=..."
            )
        return frame.drop(columns=target), frame[target]

    return cut


def unpack_X_y(result: Any, source: str) -> tuple[Any, Any]:
    """Return the X and y that a user's function made from a named source."""
    if isinstance(result, tuple | list) and len(result) == 2:
        return result[0], result[1]
    raise InvalidParameterError(
        f"read gave {type(result).__name__} for {source}. It must return X and y: return X, y."
    )


def check_seconds(name: str, value: Any, *, may_be_none: bool = False) -> None:
    """Raise if a parameter is not a time in seconds."""
    if value is None and may_be_none:
        return
    if isinstance(value, Real) and 0 <= float(value) < math.inf:
        return
    or_none = ", or None" if may_be_none else ""
    raise InvalidParameterError(f"{name}={value!r}: give seconds, a finite number >= 0{or_none}.")
