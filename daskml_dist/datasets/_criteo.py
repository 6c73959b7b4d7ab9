"""Reader of the click data sets published by Criteo, as lazy dataframes.

A row of "Display Advertising Challenge" and of the "1TB Click Logs" has a label, 13 counts and 26
ids of 32 bits. Text files have lines of 40 columns separated by tabs; ids are hexadecimal, and
missing values are empty.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import load_pandas
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.parameters.checks import count_bytes

_LABEL = "label"
_COUNT_COLUMNS = tuple(f"I{j}" for j in range(1, 14))
_IDS = tuple(f"C{j}" for j in range(1, 27))
_COLUMNS = (_LABEL, *_COUNT_COLUMNS, *_IDS)
_PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
#: Number of characters of an unreadable line that the error shows.
_SHOWN_CHARACTERS = 120


def read_criteo(
    path: Any,
    *,
    columns: Sequence[str] | None = None,
    blocksize: Any = "64 MiB",
    storage_options: dict[str, Any] | None = None,
) -> Any:
    """Read files of Criteo's click logs as a Dask dataframe.

    Parameters
    ----------
    path : str, path-like or list of these
        Files, a folder, or a pattern with ``*``, on any file system of fsspec. Parquet files (by
        their suffix) must have the columns by name, with ids as integers or hexadecimal texts; all
        other files are text, gzipped if their names end in ``.gz``.
    columns : list of str, default=None
        Columns to read, by default all.
    blocksize : int, str or None, default="64 MiB"
        Bytes of text in a partition, cut at ends of lines; None: one partition for each file, as
        always with gzipped files.
    storage_options : dict, default=None
        Options of the file system.

    Returns
    -------
    dask DataFrame
        ``label`` as int8, ``I1`` to ``I13`` as float32 with NaN, and ``C1`` to ``C26`` as pandas'
        nullable UInt32.

    Raises
    ------
    InvalidParameterError
        A column has no such name, or `blocksize` is not a size.
    InvalidDataError
        There are no files, or Parquet files lack columns. When partitions are computed: a line
        cannot be read; the error names its file and block.

    See Also
    --------
    daskml_dist.feature_extraction.FieldHasher : Converts such a frame to rows for a click model.
    make_clicks : Generates such rows.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from daskml_dist.datasets import read_criteo
    >>> line = "\\t".join(["1", "7", *[""] * 12, "05db9164", *[""] * 25]) + "\\n"
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "day_0.txt").write_text(line)
    >>> frame = read_criteo(folder / "day_*.txt", columns=["label", "I1", "C1", "C2"])
    >>> frame.compute()
       label   I1        C1    C2
    0      1  7.0  98275684  <NA>
    """
    names_read = _check_columns(columns)
    size = _check_blocksize(blocksize)
    load_pandas()  # Dask's own error would not explain how to install it
    import dask.dataframe as dd

    fs, paths = _find_files(path, storage_options or {})
    are_parquet = [file_path.lower().endswith(_PARQUET_SUFFIXES) for file_path in paths]
    if any(are_parquet) and not all(are_parquet):
        raise InvalidDataError(
            f"{path} names files of Parquet and of text. Read each kind with a separate call, "
            "and join them: dask.dataframe.concat([...])."
        )
    meta = _make_frame({name: _make_empty(name) for name in names_read})
    if all(are_parquet):
        frame = dd.read_parquet([fs.unstrip_protocol(file_path) for file_path in paths],
                                storage_options=storage_options)  # fmt: skip
        if missing := [name for name in names_read if name not in frame.columns]:
            raise InvalidDataError(
                f"{path} has no columns {missing}; it has {list(frame.columns)}. Write it with the "
                "names label, I1 to I13 and C1 to C26, or read fewer by columns=[...]."
            )
        return frame[names_read].map_partitions(_convert_frame, meta=meta)
    pieces = [piece for file_path in paths for piece in _cut_file(fs, file_path, size)]
    return dd.from_map(
        partial(_read_piece, fs), pieces, meta=meta, columns=names_read, label="read-criteo"
    )


def _check_columns(columns: Sequence[str] | None) -> list[str]:
    """Return the columns to read."""
    if columns is None:
        return list(_COLUMNS)
    if isinstance(columns, str):
        raise InvalidParameterError(f"columns={columns!r}: use a list, such as [{columns!r}].")
    for name in columns:
        if name not in _COLUMNS:
            raise InvalidParameterError(
                f"columns: there is no {name!r}. Use label, I1 to I13 and C1 to C26."
                f"{suggest_nearest(name, _COLUMNS)}"
            )
    return list(columns)


def _check_blocksize(blocksize: Any) -> int | None:
    """Return the bytes of a block; None for whole files."""
    if blocksize is None:
        return None
    if not (size := count_bytes(blocksize)):
        raise InvalidParameterError(
            f'blocksize={blocksize!r}: use a number of bytes, a string such as "64 MiB", or None.'
        )
    return size


def _find_files(path: Any, storage_options: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return the file system and the paths of the files that a path names, sorted."""
    from fsspec.core import get_fs_token_paths  # type: ignore[import-untyped]

    user_paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    fs, _, expanded = get_fs_token_paths(
        [os.fspath(name) for name in user_paths],
        mode="rb",
        storage_options=storage_options,
        expand=True,
    )
    named = {fs._strip_protocol(os.fspath(name)) for name in user_paths}
    paths: list[str] = []
    for name in expanded:
        if not fs.exists(name):
            raise InvalidDataError(f"There is no file {name}. Name files, a folder or a pattern.")
        inside = sorted(fs.find(name)) if fs.isdir(name) else [name]
        # Names with these prefixes are metadata of other writers: _SUCCESS, _metadata, .crc files.
        # A file that is named itself is read, whatever its name.
        paths += [
            file
            for file in inside
            if file in named or not file.rpartition("/")[2].startswith(("_", "."))
        ]
    if not paths:
        raise InvalidDataError(f"{path} names no files. Name files, a folder or a pattern.")
    return fs, paths


@dataclass(frozen=True)
class _Piece:
    """Range of bytes of a text file; `length` is None if it extends to the end.

    `version` changes with the file, which changes Dask's names of the rows.
    """

    path: str
    version: str
    block_number: int
    start: int
    length: int | None


def _cut_file(fs: Any, path: str, blocksize: int | None) -> list[_Piece]:
    """Return the pieces of a file; blocks begin and end at line ends near their bounds."""
    from fsspec.utils import infer_compression  # type: ignore[import-untyped]

    if blocksize is None or infer_compression(path) is not None:
        return [_Piece(path, fs.ukey(path), 0, 0, None)]
    version, starts = fs.ukey(path), range(0, max(int(fs.size(path)), 1), blocksize)
    return [_Piece(path, version, k, start, blocksize) for k, start in enumerate(starts)]


def _read_piece(fs: Any, piece: _Piece, columns: Sequence[str] = _COLUMNS) -> Any:
    """Return the lines that begin in a piece of a file, as a frame."""
    from fsspec.core import OpenFile
    from fsspec.utils import infer_compression, read_block

    with OpenFile(fs, piece.path, compression=infer_compression(piece.path)) as file:
        if piece.length is None:
            data = file.read()
        else:
            data = read_block(file, piece.start, piece.length, b"\n")
    return _parse_text(data, piece, columns)


def _parse_text(data: bytes, piece: _Piece, columns: Sequence[str]) -> Any:
    """Return lines of text as a frame; raise for the first unreadable line."""
    from daskml_dist.datasets._criteo_kernels import HEX_VALUES, parse_lines

    text = np.frombuffer(data, np.uint8)
    max_rows = int(np.count_nonzero(text == ord("\n"))) + 1  # the last line may lack a line feed
    labels = np.empty(max_rows, np.int8)
    numbers = np.empty((len(_COUNT_COLUMNS), max_rows), np.float32)
    ids = np.empty((len(_IDS), max_rows), np.uint32)
    are_missing = np.empty((len(_IDS), max_rows), np.bool_)
    n_rows, line, wrong = parse_lines(text, HEX_VALUES, labels, numbers, ids, are_missing)
    if wrong >= 0:
        line_text = data.split(b"\n", line + 1)[line][:_SHOWN_CHARACTERS].decode(errors="replace")
        raise InvalidDataError(
            f"{piece.path}, block {piece.block_number} (from byte {piece.start}), line {line + 1} "
            f"of the block: {_COLUMNS[wrong]} or what follows it cannot be read in {line_text!r}. "
            "A line is a label of 0 or 1, 13 whole numbers and 26 ids of at most 8 hexadecimal "
            "digits, separated by tabs, and empty where they are missing. Correct the line or "
            "leave it out."
        )
    parsed: dict[str, Any] = {}
    for name in columns:
        if name == _LABEL:
            parsed[name] = labels[:n_rows]
        elif name in _COUNT_COLUMNS:
            parsed[name] = numbers[_COUNT_COLUMNS.index(name), :n_rows]
        else:
            j = _IDS.index(name)
            parsed[name] = _make_ids(ids[j, :n_rows], are_missing[j, :n_rows])
    return _make_frame(parsed)


def _make_empty(name: str) -> Any:
    """Return a column without rows."""
    if name == _LABEL:
        return np.empty(0, np.int8)
    if name in _COUNT_COLUMNS:
        return np.empty(0, np.float32)
    return _make_ids(np.empty(0, np.uint32), np.empty(0, np.bool_))


def _make_ids(values: NDArray[np.uint32], are_missing: NDArray[np.bool_]) -> Any:
    """Return ids as a nullable pandas array."""
    return load_pandas().arrays.IntegerArray(values, are_missing)


def _make_frame(columns: dict[str, Any]) -> Any:
    """Return a frame of columns, without copying them."""
    return load_pandas().DataFrame(columns, copy=False)


def _convert_frame(frame: Any) -> Any:
    """Return a frame of Parquet columns with the types that text files have."""
    return _make_frame({name: _convert_column(frame[name], name) for name in frame.columns})


def _convert_column(column: Any, name: str) -> Any:
    """Return a Parquet column with the type that text files have."""
    try:
        if name in _COUNT_COLUMNS:
            return column.to_numpy(dtype=np.float32, na_value=np.nan)
        if name == _LABEL:
            labels = column.to_numpy(dtype=np.int8)
            if not np.isin(labels, (0, 1)).all():
                raise ValueError("labels other than 0 and 1")
            return labels
        return _convert_ids(column)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidDataError(
            f"Column {name!r} cannot be read: {error}. Its values should be "
            f"{'0 or 1' if name == _LABEL else 'numbers' if name in _COUNT_COLUMNS else ''}"
            f"{'integers below 2**32 or hexadecimal strings of them' if name in _IDS else ''}: "
            "correct the file, or leave the column out with columns=[...]."
        ) from error


def _convert_ids(column: Any) -> Any:
    """Return integers, or hexadecimal texts of integers, as ids."""
    pandas = load_pandas()
    are_missing = np.asarray(column.isna())
    if column.dtype.kind in "iuf":
        # Older files store integers with missing values as floats, which represent all 32-bit
        # integers.
        floats = column.to_numpy(dtype=np.float64, na_value=0.0)
        floats = np.where(are_missing, 0.0, floats)
        if not ((floats >= 0) & (floats < 2.0**32) & (floats == np.floor(floats))).all():
            raise ValueError("numbers that are not integers from 0 to 2**32 - 1")
        return _make_ids(floats.astype(np.uint32), are_missing)
    codes, distinct = pandas.factorize(column)
    # There are few distinct texts, and each is parsed once. Empty texts are missing values too.
    values = np.array([int(text or "0", 16) for text in distinct] + [0], np.uint32)
    are_empty = np.array([not text for text in distinct] + [True])
    return _make_ids(values[codes], are_empty[codes])
