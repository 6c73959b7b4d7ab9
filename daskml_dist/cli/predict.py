"""Predict rows of files with a model written by `fit --output`.

    python -m daskml_dist predict new.parquet --model model.skops --output predictions.csv

Without --output the predictions are printed as CSV. With --target the score is printed, too. A
pickle (.pkl, .joblib) runs code as it is read: read a model file of these only if you trust whoever
wrote it.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from dask.base import compute
from numpy.typing import NDArray

from daskml_dist.cli._models import load
from daskml_dist.cli._places import add_arguments as add_places
from daskml_dist.cli._places import open_client
from daskml_dist.cli._rows import add_files, read_features, read_here
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest

_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")
_SUFFIXES = (".csv", ".parquet", ".npy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_files(parser)
    parser.add_argument("--model", required=True, metavar="MODEL", help="file of a fitted model")
    parser.add_argument(
        "--method",
        default="predict",
        choices=_METHODS,
        help="method of the model; default: predict",
    )
    parser.add_argument("--target", help="column of the true values, to compute the score")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"output file, ending in {', '.join(_SUFFIXES)}; default: print CSV",
    )
    parser.add_argument(
        "--trusted", action="append", default=[], metavar="CLASS",
        help="a class outside this package that the model file may contain; repeatable",
    )  # fmt: skip
    # Arguments for rows of a fit: here the columns are the model's, and each row gets a prediction.
    parser.set_defaults(features=None, categories=None, text=None, drop_missing=False)
    add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    _check_output(arguments.output)
    model = load(arguments.model, arguments.trusted)
    method = getattr(model, arguments.method, None)
    if method is None:
        available = [name for name in _METHODS if hasattr(model, name)]
        raise InvalidParameterError(
            f"--method {arguments.method}: {model} has none. Use one of {available}."
        )
    rows = read_features(arguments, model)
    with open_client(arguments) as client:
        # On a cluster rows stay lazy, and only the predictions are sent to this process.
        X, y = (rows.X, rows.y) if client is not None and rows.is_lazy else read_here(rows)
        predictions = np.asarray(compute(method(X))[0])
        score = None if y is None else float(model.score(X, y))
    names = _names(arguments.method, predictions, getattr(model, "classes_", None))
    # Predictions on standard output are for another program: the score must not be among them.
    stream = sys.stdout if arguments.output is not None else sys.stderr
    if arguments.output is None:
        _print(names, predictions)
    else:
        _write(Path(arguments.output), names, predictions)
        print(f"saved: {arguments.output}, {len(predictions):,} rows")
    if score is not None:
        print(f"score: {score:.4f}", file=stream)
    return 0


def _check_output(path: str | None) -> None:
    """Raise before predictions are made if they could not be written."""
    if path is None:
        return
    if Path(path).suffix not in _SUFFIXES:
        raise InvalidParameterError(
            f"--output {path}: end it with one of {', '.join(_SUFFIXES)}."
            f"{suggest_nearest(Path(path).suffix, _SUFFIXES)}"
        )
    folder = Path(path).absolute().parent
    if not folder.is_dir() or Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise InvalidParameterError(f"--output {path}: the file cannot be written. Name another.")


def _names(method: str, predictions: NDArray[Any], classes: Any) -> list[str]:
    """Return the names of the columns of predictions: method, and class or number of the column."""
    if predictions.ndim == 1:
        return [method.removeprefix("predict_").replace("predict", "prediction")]
    labels: Any = range(predictions.shape[1])
    # Outputs may have other columns than one per class, such as decisions between pairs of classes.
    if classes is not None and len(classes) == predictions.shape[1]:
        labels = classes
    return [f"{method.removeprefix('predict_')}_{label}" for label in labels]


def _write(path: Path, names: list[str], predictions: NDArray[Any]) -> None:
    """Write predictions in the format of a path's suffix."""
    # Labels that are strings are Python objects, which .npy could hold only as a pickle: they
    # become NumPy's strings of fixed width.
    values = np.asarray(predictions.tolist()) if predictions.dtype.kind == "O" else predictions
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        columns = list(values.reshape(len(values), -1).T)
        pyarrow.parquet.write_table(pyarrow.table(columns, names=names), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            _write_csv(file, names, predictions)


def _print(names: list[str], predictions: NDArray[Any]) -> None:
    """Print predictions as CSV; a reader that stops early (`| head`) is no error."""
    try:
        _write_csv(sys.stdout, names, predictions)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output at its exit, which would raise again: it is now /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_csv(file: TextIO, names: list[str], predictions: NDArray[Any]) -> None:
    """Write a header of names, and a line for each row."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(predictions.reshape(len(predictions), -1).tolist())
