"""Rows that commands read from files, with the arguments that name them.

Tables (Parquet, CSV) become Dask DataFrames, of which only the schema is read until a fit needs
rows; NumPy's files and svmlight's are read completely, into this process's memory. Every mistake in
the arguments or the files is raised as an error that names an option or the file.
"""

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
import scipy.sparse
from dask.base import compute
from scipy.sparse import issparse
from sklearn.datasets import load_svmlight_file

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest

#: Suffixes of files of svmlight's text format, whose rows are sparse and contain their target.
_SVMLIGHT = (".svm", ".svmlight", ".libsvm")
_SUFFIXES = (".parquet", ".csv", ".npy", ".npz", *_SVMLIGHT)
#: Kinds of NumPy's dtypes that are numbers: booleans, signed and unsigned integers, floats.
_NUMERIC_KINDS = "biuf"
#: Separators other than commas that occur in files with the suffix .csv.
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass
class FileRows:
    """Features and target that files hold.

    Parameters
    ----------
    name : str
        Path of the file, or the number of files and their kind, for messages.
    X, y : dask DataFrame and Series, ndarray, or sparse array and ndarray
        y is None if no target was named.
    left_out : list of str
        Columns that are not used: they hold no numbers, and no option names them.
    categories, texts : tuple of str
        Columns of X to be one-hot encoded, and to be turned into tf-idf weights of their words.
    """

    name: str
    X: Any
    y: Any
    left_out: list[str]
    categories: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def is_lazy(self) -> bool:
        """Return whether the rows are Dask collections."""
        return hasattr(self.X, "dask")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the rows of a fit or of its plan."""
    add_files(parser)
    parser.add_argument(
        "--target",
        help="target column; a number for .npy, a name for .npz; not needed for svmlight files",
    )
    parser.add_argument(
        "--features", metavar="A,B,...", help="columns to learn from; default: all numeric ones"
    )
    parser.add_argument(
        "--drop-missing", action="store_true", help="leave out rows with missing values"
    )
    # `read_rows` reports a missing --target by the command's own parser. Commands without
    # `add_columns_of_texts` still have its arguments, set to None.
    parser.set_defaults(usage_error=parser.error, categories=None, text=None)


def add_columns_of_texts(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name columns of categories and texts."""
    parser.add_argument(
        "--categories", metavar="A,B,...", help="categorical columns, to be one-hot encoded"
    )
    parser.add_argument(
        "--text", metavar="A,B,...", help="text columns, whose words are counted (tf-idf)"
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name files of rows."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help=f"{', '.join(_SUFFIXES)}; also folders, and patterns with *",
    )
    parser.add_argument(
        "--zero-based",
        action="store_true",
        help="features in svmlight files are numbered from 0, not 1",
    )


def read_rows(arguments: argparse.Namespace) -> FileRows:
    """Return features and target of the files that the arguments name."""
    paths, kind, name = _find_files(arguments)
    # argparse cannot require --target, since it depends on the files whether it is needed.
    if (arguments.target is None) != (kind in _SVMLIGHT):
        arguments.usage_error(
            "the following arguments are required: --target"
            if arguments.target is None
            else f"--target {arguments.target}: svmlight files contain their target; leave it out"
        )
    return _read_files(paths, kind, name, arguments, None)


def read_features(arguments: argparse.Namespace, model: Any) -> FileRows:
    """Return the rows of files for predictions of a fitted model, and a target if one is named.

    Columns of tables are those that the model was fitted to, else all numeric ones; svmlight files
    get the model's number of features. Arrays are not changed: the model checks them.
    """
    return _read_files(*_find_files(arguments), arguments, model)


def _read_files(
    paths: list[str], kind: str, name: str, arguments: argparse.Namespace, model: Any
) -> FileRows:
    """Return the rows of files of one kind, for a fit (`model` is None) or for a fitted model."""
    with _name_files_in_errors(name):
        if kind in _SVMLIGHT:
            return _read_svmlight(paths, name, arguments, getattr(model, "n_features_in_", None))
        if kind in (".npy", ".npz"):
            return _read_arrays(paths, kind, name, arguments)
        return _read_tables(paths, kind, name, arguments, getattr(model, "feature_names_in_", None))


def _find_files(arguments: argparse.Namespace) -> tuple[list[str], str, str]:
    """Return the paths of the files, their common suffix, and a name for messages."""
    paths = _expand_paths(arguments.files)
    kinds = {_find_file_kind(path) for path in paths}
    if len(kinds) > 1:
        raise InvalidDataError(f"Files of several kinds: {sorted(kinds)}. Give files of one kind.")
    (kind,) = kinds
    return paths, kind, paths[0] if len(paths) == 1 else f"{len(paths)} {kind} files"


def read_here(rows: FileRows) -> tuple[Any, Any]:
    """Return X and y of files in this process's memory; raise if they hold no rows."""
    # Arrays are already in memory and are returned unchanged; tables are read only now.
    with _name_files_in_errors(rows.name):
        X, y = compute(rows.X, rows.y)
    if not X.shape[0]:
        raise _no_rows(rows.name)
    return X, y


@contextmanager
def _name_files_in_errors(name: str) -> Iterator[None]:
    """Raise errors of the reading libraries as `InvalidDataError`, with the name of the files."""
    try:
        yield
    except (InvalidDataError, InvalidParameterError):  # ValueErrors too, and already with a remedy
        raise
    # pyarrow, pandas and NumPy raise ValueErrors; NumPy also EOFError for an empty file, and
    # BadZipFile for a damaged .npz.
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidDataError(f"{name} cannot be read: {str(error).strip()}") from error


def _no_rows(name: str) -> InvalidDataError:
    """Return the error of files without rows."""
    return InvalidDataError(f"{name} holds no rows. Name files that have rows.")


def _expand_paths(patterns: list[str]) -> list[str]:
    """Return the existing paths of names and patterns; raise for one without any."""
    paths = []
    for text in patterns:
        # Some shells do not expand patterns, and quotes prevent it.
        matching = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        existing = [path for path in matching if Path(path).exists()]
        if not existing:
            folder = Path(text).parent
            names = [str(folder / p.name) for p in folder.iterdir()] if folder.is_dir() else []
            raise InvalidDataError(f"There is no file {text}.{suggest_nearest(text, names)}")
        paths += existing
    return paths


def _find_file_kind(path: str) -> str:
    """Return the suffix that determines how a file, or the files of a folder, are read."""
    if Path(path).is_dir():
        # Datasets of Parquet may also hold other files (_metadata, _SUCCESS) and subfolders by
        # partition; a folder is a CSV dataset only if all its files are .csv.
        inside = {p.suffix for p in Path(path).rglob("*") if p.suffix in _SUFFIXES}
        return ".csv" if inside == {".csv"} else ".parquet"
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidDataError(f"{path}: unknown kind of file. Use one of {', '.join(_SUFFIXES)}.")
    return suffix


def _read_tables(
    paths: list[str],
    kind: str,
    name: str,
    arguments: argparse.Namespace,
    fitted: Any = None,
) -> FileRows:
    """Return the rows of Parquet or CSV; `fitted` are the columns that a model was fitted to."""
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
    target = None if arguments.target is None else _find_column(arguments.target, frame.columns)
    categories, texts = (
        _parse_columns(listed, frame) for listed in (arguments.categories, arguments.text)
    )
    left_out: list[str] = []
    # The features: the model's, else those of --features with --categories and --text, else all
    # columns but the target that hold numbers or are named by --categories or --text.
    if fitted is not None:
        columns = [_find_column(column, frame.columns) for column in fitted]
    elif arguments.features is not None:
        columns = list(  # a column that two options name is taken once, at its first place
            dict.fromkeys([*_parse_columns(arguments.features, frame), *categories, *texts])
        )
        _check_numbers([c for c in columns if c not in (*categories, *texts)], frame)
    else:
        named = {*categories, *texts}
        candidates = [c for c in frame.columns if c != target]
        columns = [c for c in candidates if c in named or frame.dtypes[c].kind in _NUMERIC_KINDS]
        left_out = [c for c in candidates if c not in columns]
    if not columns:
        # Columns of a CSV file without rows hold no numbers either, as pandas sees them.
        if not len(frame.head(1, npartitions=-1)):
            raise _no_rows(name)
        raise InvalidDataError(
            f"{name} has no numeric column besides {target!r}. Name columns by --categories or "
            "--text."
        )
    # Missing values in unused columns do not count: these columns are removed before `dropna`. The
    # target may be named among the features.
    frame = frame[columns if target is None else list(dict.fromkeys([*columns, target]))]
    if arguments.drop_missing:
        frame = frame.dropna()
    y = None if target is None else frame[target]
    return FileRows(name, frame[columns], y, left_out, tuple(categories), tuple(texts))


def _parse_columns(column_list: str | None, frame: Any) -> list[str]:
    """Return the columns of a frame that an argument names, separated by commas."""
    return (
        []
        if column_list is None
        else [_find_column(name, frame.columns) for name in column_list.split(",")]
    )


def _check_numbers(columns: list[str], frame: Any) -> None:
    """Raise if columns of ``--features`` hold no numbers."""
    for column in columns:
        if frame.dtypes[column].kind not in _NUMERIC_KINDS:
            raise InvalidParameterError(
                f"--features: column {column!r} holds no numbers ({frame.dtypes[column]}). Name it "
                f"by --categories {column} (a OneHotEncoder's columns) or, if it holds texts of "
                f"several words, by --text {column} (a TfidfVectorizer's)."
            )


def _check_commas(files: list[str]) -> None:
    """Raise if the header of a CSV file has another separator than commas.

    pandas would read such a file as one column, and the error would be about that column's name.
    """
    for path in sorted(match for pattern in files for match in glob.glob(pattern)):
        with open(path, encoding="utf-8", errors="replace") as file:
            header = file.readline()
        separator = next((mark for mark in _SEPARATORS if mark in header), None)
        if separator is not None and "," not in header:
            raise InvalidDataError(
                f"{path} is separated by {_SEPARATORS[separator]}, not by commas: its first line "
                f"is {header.strip()[:80]!r}. Write it with commas: "
                f"pandas.read_csv({path!r}, sep={separator!r}).to_csv({path!r}, index=False)."
            )


def _check_columns(paths: list[str]) -> None:
    """Raise if files of Parquet have different columns: Dask reads the schema of only one."""
    from pyarrow.parquet import read_schema

    # Folders are separate datasets, whose schema Dask reads.
    files = [path for path in paths if Path(path).is_file()]
    names = {path: set(read_schema(path).names) for path in files}
    for path in files[1:]:
        if differing := names[path] ^ names[files[0]]:
            raise InvalidDataError(
                f"{files[0]} and {path} do not form one table: {sorted(differing)} are columns "
                "of only one of them. Name files with the same columns."
            )


def _find_column(name: str, columns: Any) -> str:
    """Return a column's name; raise if there is no such column."""
    if name not in list(columns):
        raise InvalidParameterError(
            f"There is no column {name!r}. Use one of {list(columns)}."
            f"{suggest_nearest(name, columns)}"
        )
    return name


def _check_no_columns(arguments: argparse.Namespace) -> None:
    """Raise if arguments name columns for files without named columns."""
    for option in ("features", "categories", "text"):
        if getattr(arguments, option) is not None:
            raise InvalidParameterError(
                f"--{option} names columns of tables, and arrays have no column names."
            )


def _read_arrays(paths: list[str], kind: str, name: str, arguments: argparse.Namespace) -> FileRows:
    """Return rows and targets of NumPy files, one file after the other."""
    _check_no_columns(arguments)
    pairs = [(_read_npz if kind == ".npz" else _read_npy)(path, arguments.target) for path in paths]
    # Files are parts of one table: rows are joined, in the order of the arguments.
    X = np.concatenate([pair[0] for pair in pairs])
    y = None if arguments.target is None else np.concatenate([pair[1] for pair in pairs])
    if arguments.drop_missing:
        is_complete = _mask_whole_rows(X, y)
        X, y = X[is_complete], y[is_complete]  # type: ignore[index]
    return FileRows(name, X, y, [])


def _read_svmlight(
    paths: list[str], name: str, arguments: argparse.Namespace, n_features: int | None = None
) -> FileRows:
    """Return sparse rows (CSR) and their targets.

    Features are numbered from 1, as in LIBSVM, or from 0 if the arguments request it. A guess from
    the indices of a file, as scikit-learn offers, could shift the columns of a file to predict.
    """
    _check_no_columns(arguments)
    first = 0 if arguments.zero_based else 1
    parts = []
    for path in paths:
        # Read as if numbered from 0, with an empty column 0 if the numbers begin with 1: entries in
        # that column show that a file's numbers begin with 0.
        width = None if n_features is None else n_features + first
        X, y = load_svmlight_file(path, n_features=width, zero_based=True)
        if first and X[:, [0]].nnz:
            raise InvalidDataError(
                f"{path} has a feature numbered 0, so its numbers start from 0: give --zero-based."
            )
        parts.append((X[:, first:], y))
    # A file does not list features that are 0 in all its rows: the widest file determines their
    # number.
    width = max(X.shape[1] for X, _ in parts)
    for X, _ in parts:
        X.resize(X.shape[0], width)
    X, y = scipy.sparse.vstack([X for X, _ in parts], "csr"), np.concatenate([y for _, y in parts])
    if arguments.drop_missing:
        is_complete = _mask_whole_rows(X, y)
        X, y = X[is_complete], y[is_complete]
    return FileRows(name, X, y, [])


def _read_npz(path: str, target: str | None) -> tuple[Any, Any]:
    """Return the array X of a file, and the array named `target`, or None without one."""
    with open(path, "rb") as file, np.load(file) as arrays:
        if "X" not in arrays or (target is not None and target not in arrays):
            raise InvalidParameterError(
                f"{path} has the arrays {list(arrays)}: it must have one named X, and the one that "
                f"--target names.{suggest_nearest(target or 'X', arrays)}"
            )
        return arrays["X"], None if target is None else arrays[target]


def _read_npy(path: str, target: str | None) -> tuple[Any, Any]:
    """Return the columns of an array, without column number `target`, and that column."""
    array = np.load(path)
    if target is None:
        return array, None
    try:
        column = range(array.shape[1])[int(target)]  # negative ones count from the last
    except (ValueError, IndexError) as error:
        raise InvalidParameterError(
            f"--target {target}: {path} has shape {array.shape}; give the number of its column, "
            "such as --target -1 for the last."
        ) from error
    return np.delete(array, column, axis=1), array[:, column]


def check_gaps(model: Any, name: str, X: Any, y: Any) -> None:
    """Raise if rows in memory have missing values that a model does not support.

    The fit would raise too, but could not name the options of the command.
    """
    counts = {"the target": int(_find_missing(y).sum())}  # no model takes gaps in its target
    if not model.__sklearn_tags__().input_tags.allow_nan and getattr(X, "ndim", 1) == 2:
        names = getattr(X, "columns", range(X.shape[1]))
        missing = np.asarray(_find_missing(X).sum(axis=0)).ravel()
        counts |= {f"column {n!r}": int(c) for n, c in zip(names, missing, strict=True)}
    if gaps := [f"{n} in {where}" for where, n in counts.items() if n]:
        raise InvalidDataError(
            f"{name} has missing values: {', '.join(gaps)}. Leave such rows out with "
            "--drop-missing, or fill the gaps first. Some estimators accept missing values, for "
            "example --estimator HistGradientBoostingClassifier."
        )


@contextmanager
def name_gap_option() -> Iterator[None]:
    """Add the option ``--drop-missing`` to errors about NaN that a fit on a cluster raises."""
    try:
        yield
    except InvalidDataError as error:
        if "NaN" not in str(error):
            raise
        raise InvalidDataError(f"{error} Or leave such rows out with --drop-missing.") from error


def _mask_whole_rows(X: Any, y: Any) -> Any:
    """Return a mask of the rows in memory without missing values in X or y."""
    # Sums over all dimensions except the rows', for rows of tables, arrays and sparse matrices.
    with_gaps = np.asarray(_find_missing(X).sum(axis=tuple(range(1, X.ndim)))).ravel() > 0
    return ~(with_gaps | _find_missing(y))


def _find_missing(values: Any) -> Any:
    """Return the places of missing values, as a mask of the same kind and shape.

    Infinite values of arrays count as missing, since checks of rows refuse both; pandas' do not.
    """
    if issparse(values):  # entries that are not stored are zeros, so none of them is missing
        mask = values.copy()
        mask.data = (~np.isfinite(values.data)).astype(np.int8)
        return mask
    if hasattr(values, "isna"):
        return values.isna()
    return ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
