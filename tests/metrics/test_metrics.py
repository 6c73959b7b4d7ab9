"""Metrics: scikit-learn's values, of Dask collections in one pass with nothing gathered."""

from __future__ import annotations

import inspect
import itertools
import pickle
from typing import Any

import dask
import numpy as np
import pytest
from dask.delayed import Delayed
from distributed import Client
from numpy.typing import NDArray

from daskml_dist import metrics
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import METRICS
from tests.metrics.rows import (
    BINARY,
    CHUNKS,
    KINDS,
    PROBA,
    WEIGHTS,
    N,
    assert_equal,
    data_for,
    lazy,
    metric_of,
    parameters_of,
    takes_weights,
    truth_of,
    weights_of,
)
from tests.quick import quick

#: One of each way to read and to sum.
READERS = {
    "accuracy_score",
    "average_precision_score",
    "confusion_matrix",
    "log_loss",
    "mean_absolute_error",
    "mean_squared_error",
    "r2_score",
    "roc_auc_score",
    "root_mean_squared_error",
}
WEIGHED = [name for name in METRICS if takes_weights(name)]
CASES = [(n, k, w) for n in METRICS for k in KINDS for w in WEIGHTS if w == "none" or n in WEIGHED]
#: Readers of each kind of rows, with each kind of weights in turn; of all others, one of each.
_IN_TURN = set(zip(KINDS, itertools.cycle(WEIGHTS), strict=False))
QUICK = [
    case
    for case in CASES
    if (case[0] in READERS and case[1:] in _IN_TURN)
    or case[1:] == ("unknown", "float" if case[0] in WEIGHED else "none")
]


@pytest.mark.parametrize("case", quick(CASES, *QUICK), ids="-".join)
def test_equals_scikit_learn(case: tuple[str, str, str]) -> None:
    name, kind, weights = case
    y_true, y_pred = data_for(name)
    make_true, make_pred = KINDS[kind]
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    if WEIGHTS[weights] is not None:
        theirs = {"sample_weight": WEIGHTS[weights]}
        ours = {"sample_weight": weights_of(kind, WEIGHTS[weights])}
    expected = truth_of(name)(y_true, y_pred, **theirs)
    assert_equal(metric_of(name)(make_true(y_true), make_pred(y_pred), **ours), expected)


@pytest.mark.parametrize("name", METRICS)
def test_signature_is_part_of_scikit_learns(name: str) -> None:
    ours = inspect.signature(METRICS[name]).parameters
    theirs = inspect.signature(truth_of(name).func).parameters
    # What scikit-learn has not, or has in its newer versions alone.
    own_parameters = {
        "compute",
        "group",
        "max_thresholds",
        "return_bound",
        "labels",
        "scale_by_half",
        "y_pred",
    }
    assert set(list(ours)[2:]) - set(theirs) <= own_parameters
    options = list(theirs)[2:]
    assert [p for p in list(ours)[2:] if p in options] == [
        p for p in options if p in list(ours)[2:]
    ]
    assert all(p.kind is p.KEYWORD_ONLY or p == theirs.get(p.name) for p in list(ours.values())[2:])
    assert METRICS[name] is getattr(metrics, name)


@pytest.mark.parametrize("name", WEIGHED)
def test_one_weight_for_all_rows(name: str) -> None:
    y_true, y_pred = data_for(name)
    weight = np.full(N, 0.5)
    expected = truth_of(name)(y_true, y_pred, sample_weight=weight)
    assert_equal(metric_of(name)(y_true, y_pred, sample_weight=0.5), expected)
    assert_equal(metric_of(name)(lazy(y_true), lazy(y_pred), sample_weight=0.5), expected)


@pytest.mark.parametrize("name", quick(METRICS, "accuracy_score", "roc_auc_score", "r2_score"))
def test_on_a_cluster(name: str, client: Client) -> None:
    y_true, y_pred = data_for(name)
    with dask.config.set(scheduler=client):
        found = metric_of(name)(lazy(y_true, (2,) * 30), lazy(y_pred, (2,) * 30))
    assert_equal(found, truth_of(name)(y_true, y_pred))


@pytest.mark.parametrize("name", METRICS)
def test_one_pass(name: str) -> None:
    calls = []

    def source(block: NDArray[Any]) -> NDArray[Any]:
        calls.append(len(block))
        return block

    columns = np.column_stack([*data_for(name), WEIGHTS["float"]])
    rows = lazy(columns).map_blocks(source, meta=np.empty((0, 3)))
    weights = {"sample_weight": rows[:, 2]} if takes_weights(name) else {}
    metric_of(name)(rows[:, 0], rows[:, 1], **weights)
    assert sorted(calls) == sorted(CHUNKS)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("factor", [1, 50])
def test_nothing_is_gathered(name: str, factor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    reduce = metrics._columns.reduce_parts

    def spy(collection: Any, summarise: Any, merge: Any) -> Any:
        def summarise_and_weigh(*part: Any) -> Any:
            summary = summarise(*part)
            sizes.append(len(pickle.dumps(summary)))
            return summary

        return reduce(collection, summarise_and_weigh, merge)

    monkeypatch.setattr(metrics._columns, "reduce_parts", spy)
    y_true, y_pred = (np.tile(column, factor) for column in data_for(name))
    metric_of(name)(lazy(y_true, (N * factor,)), lazy(y_pred, (N * factor,)))
    assert max(sizes) < 1100  # whatever the rows, of which there are up to 3000


#: Metrics that have a lazy score, with their options.
LAZY_SCORES: list[tuple[str, dict[str, Any]]] = [
    ("accuracy_score", {}),
    ("accuracy_score", {"normalize": False}),
    ("explained_variance_score", {}),
    ("log_loss", {}),
    ("mean_absolute_error", {"multioutput": "raw_values"}),
    ("mean_squared_error", {}),
    ("r2_score", {}),
    ("root_mean_squared_error", {}),
]


def test_lazy_scores_are_computed_together_in_one_pass() -> None:
    read = []

    def record_rows(rows: Any) -> Any:
        read.append(len(rows))
        return rows

    assert {name for name in METRICS if "compute" in parameters_of(name)} == {
        name for name, _ in LAZY_SCORES
    }
    weight = WEIGHTS["float"]
    scores, expected = [], []
    predicted = {
        name: lazy(data_for(name)[1]).map_blocks(record_rows, dtype=float) for name in METRICS
    }
    for name, options in LAZY_SCORES:
        y_true, y_pred = data_for(name)
        lazy_options = {**options, "sample_weight": lazy(weight), "compute": False}
        scores.append(METRICS[name](lazy(y_true), predicted[name], **lazy_options))
        expected.append(truth_of(name)(y_true, y_pred, sample_weight=weight, **options))
        # Rows in memory need no cluster.
        in_memory = METRICS[name](y_true, y_pred, sample_weight=weight, compute=False, **options)
        assert_equal(in_memory, expected[-1])
    read.clear()  # of what Dask makes of rows beforehand
    assert all(isinstance(score, Delayed) for score in scores)
    for found, wanted in zip(dask.compute(*scores, scheduler="sync"), expected, strict=True):
        assert_equal(found, wanted)
    # Accuracy is given twice, and rows are read once.
    assert len(read) == len(lazy(BINARY).chunks[0]) * (len(LAZY_SCORES) - 1)
    with pytest.raises(InvalidParameterError, match="compute=False"):
        metrics.accuracy_score(lazy(PROBA > 0.3), lazy(PROBA > 0.3), compute=False)
    empty = lazy(BINARY)[lazy(BINARY) > 5]
    with pytest.raises(InvalidDataError, match="no rows"):
        metrics.accuracy_score(empty, empty, compute=False).compute()
