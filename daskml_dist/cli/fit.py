"""Fit an estimator to files, score it on rows held out, and save it.

python -m daskml_dist fit rows.parquet --target label --policy sync --output model.skops
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from daskml_dist.cli._models import add_arguments as add_estimator
from daskml_dist.cli._models import check_output, encoding_columns, make_estimator, save
from daskml_dist.cli._places import add_arguments as add_places
from daskml_dist.cli._places import open_client
from daskml_dist.cli._rows import (
    FileRows,
    add_columns_of_texts,
    check_gaps,
    name_gap_option,
    read_here,
    read_rows,
)
from daskml_dist.cli._rows import add_arguments as add_rows
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_rows(parser)
    add_columns_of_texts(parser)
    add_estimator(parser)
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the split and of the fit"
    )
    parser.add_argument(
        "--test", type=float, default=0.25, help="share of rows to hold out for testing; 0: none"
    )
    parser.add_argument(
        "--output", metavar="MODEL", help="model file: .skops, .safetensors, .onnx, .joblib or .pkl"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="save checkpoints of the fit to this file, and resume from it",
    )
    add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    # All arguments are checked before files are read, and files before a cluster starts.
    check_output(arguments.output, has_texts=arguments.text is not None)
    if not 0 <= arguments.test < 1:
        raise InvalidParameterError(f"--test {arguments.test}: use a share from 0 to below 1.")
    model = _make_model(arguments)
    rows = read_rows(arguments)
    with open_client(arguments) as client:
        X, X_test, y, y_test = _split_rows(model, rows, arguments, client)
        _tell_rows(rows, arguments)
        # The columns of the rows determine which of them pass through the encoder unchanged.
        model = encoding_columns(model, getattr(X, "columns", ()), rows.categories, rows.texts)
        with name_gap_option():
            _fit(model, X, y)
        scores = [f"train {float(model.score(X, y)):.4f}"]
        if X_test is not None:
            scores.append(f"test {float(model.score(X_test, y_test)):.4f}")
        print(f"score: {', '.join(scores)}")
        sample = _take_sample(X) if (arguments.output or "").endswith(".onnx") else None
    # The model of an interrupted fit is saved too, in its last state.
    if arguments.output is not None:
        load = save(model, arguments.output, sample)
        size = Path(arguments.output).stat().st_size
        print(f"saved: {arguments.output}, {size:,} bytes; {load}")
    # 130 is 128 + SIGINT, as in shells: scripts see that the fit did not finish.
    history = getattr(_last_step(model), "history_", None)
    return 130 if getattr(history, "interrupted", False) else 0


def _fit(model: Any, X: Any, y: Any) -> None:
    """Fit a model and print it with its time; raise an interrupt that leaves no usable model."""
    since = time.perf_counter()
    try:
        model.fit(X, y)
    except KeyboardInterrupt:
        # Some fits keep the coefficients that they had reached; others have no parameters to
        # predict with.
        if not hasattr(_last_step(model), "n_features_in_"):
            raise
        print("interrupted: the model is that of the latest step", file=sys.stderr)
    seconds = time.perf_counter() - since
    last = _last_step(model)
    n_iter = getattr(last, "n_iter_", None)
    passes = f"{n_iter} passes in " if isinstance(n_iter, int) else ""
    print(f"{last}: {passes}{seconds:.2f} s")


def _take_sample(X: Any) -> Any:
    """Return the first rows of a table, in memory; None of arrays."""
    if not hasattr(X, "head"):
        return None
    # The first partitions may be empty.
    return X.head(npartitions=-1) if is_dask(X) else X.head()


def _last_step(model: Any) -> Any:
    """Return the last step of a pipeline, or the estimator itself."""
    return model.steps[-1][1] if hasattr(model, "steps") else model


def _make_model(arguments: argparse.Namespace) -> Any:
    """Return the estimator that the arguments describe."""
    params: dict[str, Any] = {"policy": arguments.policy}
    model = make_estimator(arguments.estimator, arguments.set, **params)
    model_params = model.get_params(deep=False)
    # A random_state given by --set is more specific than --seed.
    if "random_state" in model_params and model_params["random_state"] is None:
        model.set_params(random_state=arguments.seed)
    if arguments.checkpoint is not None:
        from daskml_dist.training.checkpoint import Checkpoint

        if "checkpoint" not in model_params:
            raise InvalidParameterError(f"{arguments.estimator} does not support checkpoints.")
        model.set_params(checkpoint=Checkpoint(arguments.checkpoint, resume=True))
    return model


def _split_rows(model: Any, rows: FileRows, arguments: argparse.Namespace, client: Any) -> Any:
    """Return X, X_test, y and y_test, in this process's memory without a cluster.

    On a cluster rows stay lazy, so gaps in them are found by the fit (`name_gap_option`).
    """
    X, y = rows.X, rows.y
    # Missing values are counted before the split, in all rows.
    if client is None:
        X, y = read_here(rows)
        check_gaps(model, rows.name, X, y)
    if not arguments.test:
        return X, None, y, None
    from daskml_dist.model_selection import train_test_split

    # Fails if rows are too few for both parts.
    try:
        return train_test_split(X, y, test_size=arguments.test, random_state=arguments.seed)
    except ValueError as error:
        raise InvalidParameterError(
            f"{rows.name} cannot be split by --test {arguments.test:g} --seed {arguments.seed} "
            f"({error}) Use another share or seed; --test 0 holds out no rows."
        ) from error


def _tell_rows(rows: FileRows, arguments: argparse.Namespace) -> None:
    """Print the number of features of the rows, and the columns that are left out."""
    left_out = ""
    if rows.left_out:
        left_out = f"; left out, not numeric: {', '.join(rows.left_out)} (--categories, --text)"
    target = "" if arguments.target is None else f", target {arguments.target}"
    print(f"{rows.name}: {rows.X.shape[1]} features{target}{left_out}")
