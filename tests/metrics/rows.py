"""Labels, predictions and weights, in memory and lazy, that tests of metrics score."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from daskml_dist.metrics import METRICS

N = 60
CHUNKS = (7, 0, 30, 1, 22)
RNG = np.random.default_rng(3)
BINARY = RNG.integers(0, 2, N)
BINARY[:7], BINARY[37] = 1, 0  # blocks of one class
SCORES = np.clip(np.round(0.3 * BINARY + 0.7 * RNG.random(N), 1), 0.05, 0.95)  # with ties
CLASSES = RNG.integers(0, 3, N)
GUESSES = np.where(RNG.random(N) < 0.6, CLASSES, RNG.integers(0, 3, N))
PROBA = RNG.dirichlet([1, 1, 1], N)
WEIGHTS = {"none": None, "float": RNG.random(N) + 0.1, "whole": RNG.integers(0, 4, N)}


def lazy(values: Any, chunks: Any = CHUNKS) -> Any:
    return da.from_array(np.asarray(values), chunks=(chunks, *np.shape(values)[1:]))


def unknown(values: Any, chunks: Any = CHUNKS) -> Any:
    array = lazy(values, chunks)
    return array[da.from_array(np.ones(len(array), bool), chunks=array.chunks[0])]


def series(values: Any) -> Any:
    return dd.from_pandas(pd.Series(values), npartitions=3)


def frame_column(values: Any) -> Any:
    return dd.from_pandas(pd.DataFrame({"a": values}), npartitions=3)


def with_empty_partition(values: Any) -> Any:
    frame = pd.DataFrame({"a": [*values, *values[:10]], "keep": [True] * N + [False] * 10})
    whole = dd.from_pandas(frame, npartitions=7)
    return whole[whole["keep"]]["a"]


# Kinds of (y_true, y_pred); weights come as the first.
KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "arrays": (np.asarray, np.asarray),
    "pandas": (pd.Series, pd.Series),
    "list": (list, np.asarray),
    "column": (lambda v: np.asarray(v)[:, None], lambda v: np.asarray(v)[:, None]),
    "dask": (lazy, lazy),
    "unknown": (unknown, unknown),
    "half known": (unknown, lazy),
    "other chunks": (lambda v: lazy(v, (25, 35)), lazy),
    "dask columns": (lambda v: lazy(v)[:, None], lambda v: lazy(v)[:, None]),
    "series": (series, series),
    "frames": (frame_column, frame_column),
    "empty partition": (with_empty_partition, with_empty_partition),
    "truth in memory": (np.asarray, lazy),
    "prediction in memory": (lazy, pd.Series),
}


def data_for(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels that are numbers too for metrics of `y_pred`, scores of two labels for the others."""
    second = list(inspect.signature(METRICS[name]).parameters)[1]
    return (CLASSES, GUESSES) if second == "y_pred" else (BINARY, SCORES)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


TEXT = np.array(["a", "bb", "ccc"])


RANKING = ["roc_auc_score", "average_precision_score"]
