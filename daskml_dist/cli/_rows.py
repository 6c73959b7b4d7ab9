"""Rows of files: Parquet, CSV and NumPy's, as Dask collections or in memory."""

from __future__ import annotations

import argparse
import glob
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from dask.base import compute

from daskml_dist.cli._gaps import whole_rows
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.nearest import nearest

__all__ = ["FileRows", "add_arguments", "read", "read_here"]

_SUFFIXES = (".parquet", ".csv", ".npy", ".npz")
#: What else than commas separates values in files that are called so.
_OTHERS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass
class FileRows:
    """Features and target of files.

    Parameters
    ----------
    name : str
        Of the files.
    X, y : dask DataFrame and Series, or ndarray
    left_out : list of str
        Columns that hold no numbers, and were not asked for.
    """

    name: str
    X: Any
    y: Any
    left_out: list[str]

    @property
    def is_lazy(self) -> bool:
        """Whether they are Dask collections."""
        return hasattr(self.X, "dask")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name rows."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="Parquet, CSV, .npy or .npz; folders and * too"
    )
    parser.add_argument(
        "--target", required=True, help="column of the target; a number in .npy, a name in .npz"
    )
    parser.add_argument(
        "--features", metavar="A,B,...", help="columns to learn from; default: all that are numbers"
    )
    parser.add_argument("--drop-missing", action="store_true", help="leave rows with gaps out")


def read(arguments: argparse.Namespace) -> FileRows:
    """Rows of the files that the arguments name.

    Raises
    ------
    InvalidDataError
        There are none, or of no known kind.
    InvalidParameterError
        There is no such column.
    """
    paths = _paths(arguments.files)
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise InvalidDataError(f"Files of several kinds: {sorted(kinds)}. Give those of one kind.")
    (kind,) = kinds
    name = paths[0] if len(paths) == 1 else f"{len(paths)} {kind} files"
    with _named(name):
        if kind in (".npy", ".npz"):
            return _of_arrays(paths, kind, name, arguments)
        return _of_tables(paths, kind, name, arguments)


def read_here(rows: FileRows) -> tuple[Any, Any]:
    """X and y of files in this process's memory.

    Raises
    ------
    InvalidDataError
        They cannot be read, or hold no rows.
    """
    with _named(rows.name):
        X, y = compute(rows.X, rows.y)
    if not len(X):
        raise _no_rows(rows.name)
    return X, y


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors of the libraries that read, with the name of the files."""
    try:
        yield
    except (InvalidDataError, InvalidParameterError):
        raise
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidDataError(f"{name} cannot be read: {str(error).strip()}") from error


def _no_rows(name: str) -> InvalidDataError:
    return InvalidDataError(f"{name} holds no rows. Name files that do.")


def _paths(given: list[str]) -> list[str]:
    found = []
    for text in given:
        matching = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        there = [path for path in matching if Path(path).exists()]
        if not there:
            around = Path(text).parent
            names = [str(around / p.name) for p in around.iterdir()] if around.is_dir() else []
            raise InvalidDataError(f"There is no file {text}.{nearest(text, names)}")
        found += there
    return found


def _kind(path: str) -> str:
    if Path(path).is_dir():
        inside = {p.suffix for p in Path(path).rglob("*") if p.suffix in _SUFFIXES}
        return ".csv" if inside == {".csv"} else ".parquet"
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidDataError(f"{path}: of an unknown kind. Use one of {', '.join(_SUFFIXES)}.")
    return suffix


def _of_tables(paths: list[str], kind: str, name: str, arguments: argparse.Namespace) -> FileRows:
    if find_spec("pandas") is None or find_spec("pyarrow") is None:
        raise InvalidDataError(f'Reading {kind} needs: pip install "daskml-dist[dataframe]"')
    import dask.dataframe as dd

    if kind == ".csv":
        files = [f"{path}/*.csv" if Path(path).is_dir() else path for path in paths]
        _check_commas(files)
        frame = dd.read_csv(files)
    else:
        _check_columns(paths)
        frame = dd.read_parquet(paths[0] if len(paths) == 1 else paths)
    target, columns = _column(arguments.target, frame.columns), list(frame.columns)
    if arguments.features is None:
        columns = [c for c in columns if c != target and frame.dtypes[c].kind in "biuf"]
        left_out = [c for c in frame.columns if c != target and c not in columns]
    else:
        columns = [_column(c, frame.columns) for c in arguments.features.split(",")]
        left_out = []
    if not columns:
        if not len(frame.head(1, npartitions=-1)):
            raise _no_rows(name)
        raise InvalidDataError(f"{name} has no column of numbers beside {target!r}.")
    frame = frame[[*columns, target]]
    if arguments.drop_missing:
        frame = frame.dropna()
    return FileRows(name, frame[columns], frame[target], left_out)


def _check_commas(files: list[str]) -> None:
    """Check that the first line of each file, which names columns, is not separated otherwise."""
    for path in sorted(found for pattern in files for found in glob.glob(pattern)):
        with open(path, encoding="utf-8", errors="replace") as file:
            header = file.readline()
        between = next((mark for mark in _OTHERS if mark in header), None)
        if between is not None and "," not in header:
            raise InvalidDataError(
                f"{path} is separated by {_OTHERS[between]}, not by commas: its first line is "
                f"{header.strip()[:80]!r}. Write it with commas: "
                f"pandas.read_csv({path!r}, sep={between!r}).to_csv({path!r}, index=False)."
            )


def _check_columns(paths: list[str]) -> None:
    """Check that files of Parquet have the same columns: Dask looks for those of one alone."""
    from pyarrow.parquet import read_schema

    files = [path for path in paths if Path(path).is_file()]
    names = {path: set(read_schema(path).names) for path in files}
    for path in files[1:]:
        if differing := names[path] ^ names[files[0]]:
            raise InvalidDataError(
                f"{files[0]} and {path} are no one table: {sorted(differing)} are columns of one "
                "of them alone. Name files of the same columns."
            )


def _column(name: str, columns: Any) -> str:
    if name not in list(columns):
        raise InvalidParameterError(
            f"There is no column {name!r}. Use one of {list(columns)}.{nearest(name, columns)}"
        )
    return name


def _of_arrays(paths: list[str], kind: str, name: str, arguments: argparse.Namespace) -> FileRows:
    if arguments.features is not None:
        raise InvalidParameterError("--features names columns of tables; arrays have none.")
    pairs = [(_npz if kind == ".npz" else _npy)(path, arguments.target) for path in paths]
    X, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    if arguments.drop_missing:
        whole = whole_rows(X, y)
        X, y = X[whole], y[whole]
    return FileRows(name, X, y, [])


def _npz(path: str, target: str) -> tuple[Any, Any]:
    with open(path, "rb") as file, np.load(file) as arrays:
        if target not in arrays or "X" not in arrays:
            raise InvalidParameterError(
                f"{path} has the arrays {list(arrays)}: it must have one named X, and the one that "
                f"--target names.{nearest(target, arrays)}"
            )
        return arrays["X"], arrays[target]


def _npy(path: str, target: str) -> tuple[Any, Any]:
    array = np.load(path)
    try:
        column = range(array.shape[1])[int(target)]
    except (ValueError, IndexError) as error:
        raise InvalidParameterError(
            f"--target {target}: {path} has shape {array.shape}; give the number of its column, "
            "such as --target -1 for the last."
        ) from error
    return np.delete(array, column, axis=1), array[:, column]
