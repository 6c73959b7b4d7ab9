"""Labels, predictions and weights, in memory and lazy, for the tests of metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.calibration
import sklearn.metrics
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


# Kinds of (y_true, y_pred); weights have the first kind, without columns.
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


def weights_of(kind: str, values: Any) -> Any:
    """Return weights of the kind of y_true, always one-dimensional."""
    weights = KINDS[kind][0](values)
    if getattr(weights, "ndim", 1) == 1:
        return weights
    return weights["a"] if hasattr(weights, "columns") else weights[:, 0]


#: Options of metrics whose defaults are not meaningful on these rows.
OPTIONS: dict[str, dict[str, Any]] = {
    "fbeta_score": {"beta": 2.0},
    "top_k_accuracy_score": {"k": 1},
}


def parameters_of(name: str) -> list[str]:
    return list(inspect.signature(METRICS[name]).parameters)


def takes_weights(name: str) -> bool:
    return "sample_weight" in parameters_of(name)


def takes_scores(name: str) -> bool:
    return parameters_of(name)[1] in ("y_score", "y_proba", "y_prob")


def takes_targets(name: str) -> bool:
    return "multioutput" in parameters_of(name)


def truth_of(name: str) -> Callable[..., Any]:
    """Return the function of scikit-learn with its options."""
    module = sklearn.metrics if hasattr(sklearn.metrics, name) else sklearn.calibration
    return partial(getattr(module, name), **OPTIONS.get(name, {}))


def metric_of(name: str) -> Callable[..., Any]:
    return partial(METRICS[name], **OPTIONS.get(name, {}))


def data_for(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scores of two labels, two labels, or labels that are also positive numbers."""
    if takes_scores(name):
        return BINARY, SCORES
    if "pos_label" in parameters_of(name) or name == "class_likelihood_ratios":
        return BINARY, GUESSES % 2
    one = 1 if METRICS[name].__module__.endswith("classification") else 1.0
    return CLASSES + one, GUESSES + one


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, str):
        assert_equal_text(found, expected)
    elif expected is None:
        assert found is None
    else:
        assert type(found) in (type(expected), float)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
        assert np.asarray(found).dtype == np.asarray(expected).dtype


def assert_equal_text(found: str, expected: str) -> None:
    """Compare texts word by word, except for the last digits of sums of weights."""
    words = found.split(), expected.split()
    assert len(words[0]) == len(words[1])
    for one, other in zip(*words, strict=True):
        assert one == other or float(one) == pytest.approx(float(other), rel=1e-12)


TEXT = np.array(["a", "bb", "ccc"])


RANKING = ["roc_auc_score", "average_precision_score"]
