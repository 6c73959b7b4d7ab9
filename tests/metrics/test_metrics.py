"""Metrics: scikit-learn's values, of Dask collections in one pass with nothing gathered."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from distributed import Client
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist import metrics
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import METRICS
from daskml_dist.metrics._columns import ScoredRows
from daskml_dist.metrics._runs import make_run, merge_runs
from tests.quick import quick

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


@pytest.fixture(autouse=True)
def _in_process() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


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


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_equals_scikit_learn(name: str, kind: str, weights: str) -> None:
    y_true, y_pred = data_for(name)
    weight = WEIGHTS[weights]
    expected = getattr(sklearn.metrics, name)(y_true, y_pred, sample_weight=weight)
    make_true, make_pred = KINDS[kind]
    given = None if weight is None else make_true(weight)
    found = METRICS[name](make_true(y_true), make_pred(y_pred), sample_weight=given)
    assert_equal(found, expected)


@pytest.mark.parametrize("name", METRICS)
def test_signature_is_part_of_scikit_learns(name: str) -> None:
    ours = inspect.signature(METRICS[name]).parameters
    theirs = inspect.signature(getattr(sklearn.metrics, name)).parameters
    own = {"max_thresholds", "return_bound"}
    assert [p for p in list(ours)[2:] if p not in own] == [p for p in theirs if p in list(ours)[2:]]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[2:])
    assert METRICS[name] is getattr(metrics, name)


@pytest.mark.parametrize("name", METRICS)
def test_one_weight_for_all_rows(name: str) -> None:
    y_true, y_pred = data_for(name)
    weight = np.full(N, 0.5)
    expected = getattr(sklearn.metrics, name)(y_true, y_pred, sample_weight=weight)
    assert_equal(METRICS[name](y_true, y_pred, sample_weight=0.5), expected)
    assert_equal(METRICS[name](lazy(y_true), lazy(y_pred), sample_weight=0.5), expected)


@pytest.mark.parametrize("name", quick(METRICS, "accuracy_score", "roc_auc_score", "r2_score"))
def test_on_a_cluster(name: str, client: Client) -> None:
    y_true, y_pred = data_for(name)
    with dask.config.set(scheduler=client):
        found = METRICS[name](lazy(y_true, (2,) * 30), lazy(y_pred, (2,) * 30))
    assert_equal(found, getattr(sklearn.metrics, name)(y_true, y_pred))


@pytest.mark.parametrize("name", METRICS)
def test_one_pass(name: str) -> None:
    calls = []

    def source(block: NDArray[Any]) -> NDArray[Any]:
        calls.append(len(block))
        return block

    columns = np.column_stack([*data_for(name), WEIGHTS["float"]])
    rows = lazy(columns).map_blocks(source, meta=np.empty((0, 3)))
    METRICS[name](rows[:, 0], rows[:, 1], sample_weight=rows[:, 2])
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
    METRICS[name](lazy(y_true, (N * factor,)), lazy(y_pred, (N * factor,)))
    assert max(sizes) < 1100  # whatever the rows, of which there are up to 3000


# --- labels ----------------------------------------------------------------------------------

TEXT = np.array(["a", "bb", "ccc"])


@pytest.mark.parametrize("make", [lazy, unknown, series, with_empty_partition])
@pytest.mark.parametrize("dtype", ["U", "O"])
def test_strings(make: Callable[[Any], Any], dtype: str) -> None:
    y_true, y_pred = TEXT[CLASSES].astype(dtype), TEXT[GUESSES].astype(dtype)
    for name in ("accuracy_score", "confusion_matrix"):
        expected = getattr(sklearn.metrics, name)(y_true, y_pred)
        assert_equal(METRICS[name](make(y_true), make(y_pred)), expected)
    binary = TEXT[BINARY].astype(dtype)
    for name in ("log_loss", "roc_auc_score"):
        expected = getattr(sklearn.metrics, name)(binary, SCORES)
        assert_equal(METRICS[name](make(binary), make(SCORES)), expected)
    found = metrics.average_precision_score(make(binary), make(SCORES), pos_label="a")
    expected = sklearn.metrics.average_precision_score(binary, SCORES, pos_label="a")
    assert_equal(found, expected)


def test_booleans_and_categories() -> None:
    truth = BINARY.astype(bool)
    assert_equal(
        metrics.roc_auc_score(lazy(truth), lazy(SCORES)),
        sklearn.metrics.roc_auc_score(truth, SCORES),
    )
    named = pd.Series(TEXT[CLASSES], dtype="category")
    assert metrics.accuracy_score(dd.from_pandas(named, npartitions=3), series(named)) == 1.0


@pytest.mark.parametrize("normalize", ["true", "pred", "all", None])
@pytest.mark.parametrize("labels", [None, [2, 0], [0, 1, 2, 7]])
def test_confusion_matrix_options(normalize: str | None, labels: Any) -> None:
    expected = sklearn.metrics.confusion_matrix(
        CLASSES, GUESSES, labels=labels, normalize=normalize
    )
    found = metrics.confusion_matrix(
        lazy(CLASSES), lazy(GUESSES), labels=labels, normalize=normalize
    )
    assert_equal(found, expected)


def test_confusion_matrix_keeps_labels_without_weight() -> None:
    weight = (CLASSES != 1).astype(int) * (GUESSES != 1)
    expected = sklearn.metrics.confusion_matrix(CLASSES, GUESSES, sample_weight=weight)
    found = metrics.confusion_matrix(lazy(CLASSES), lazy(GUESSES), sample_weight=lazy(weight))
    assert found.shape == (3, 3)
    assert_equal(found, expected)


def test_confusion_matrix_of_many_labels_in_a_block_is_sparse() -> None:
    many = np.arange(50_000)
    _, counts = metrics.classification._count_pairs(ScoredRows(many, many, None))
    assert counts.nnz == len(many)


def test_accuracy_as_a_sum() -> None:
    found = metrics.accuracy_score(lazy(CLASSES), lazy(GUESSES), normalize=False)
    assert found == sklearn.metrics.accuracy_score(CLASSES, GUESSES, normalize=False)


# --- log loss --------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("labels", [None, [0, 1, 2]])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_log_loss_of_three_labels(normalize: bool, labels: Any, weights: str) -> None:
    options = {"normalize": normalize, "labels": labels, "sample_weight": WEIGHTS[weights]}
    expected = sklearn.metrics.log_loss(CLASSES, PROBA, **options)
    tables = [
        lazy(PROBA),
        unknown(PROBA),
        da.from_array(PROBA, chunks=(CHUNKS, (2, 1))),
    ]
    for table in tables:
        truth = unknown(CLASSES) if np.isnan(table.shape[0]) else CLASSES
        if options["sample_weight"] is not None and np.isnan(table.shape[0]):
            options["sample_weight"] = unknown(WEIGHTS[weights])
        assert_equal(metrics.log_loss(truth, table, **options), expected)
    frame = dd.from_pandas(pd.DataFrame(PROBA), npartitions=3)
    assert_equal(
        metrics.log_loss(series(CLASSES), frame, normalize=normalize, labels=labels),
        sklearn.metrics.log_loss(CLASSES, PROBA, normalize=normalize, labels=labels),
    )


def test_log_loss_where_labels_are_missing() -> None:
    expected = sklearn.metrics.log_loss(CLASSES * 0, PROBA, labels=[0, 1, 2])
    assert_equal(metrics.log_loss(lazy(CLASSES * 0), lazy(PROBA), labels=[0, 1, 2]), expected)


def test_log_loss_clips() -> None:
    for dtype in ("float32", "float64"):
        sure = BINARY.astype(dtype)
        sure[3] = 1 - sure[3]
        found = metrics.log_loss(lazy(BINARY), lazy(sure))
        np.testing.assert_allclose(found, sklearn.metrics.log_loss(BINARY, sure), rtol=1e-5)


def test_log_loss_warns_as_scikit_learn() -> None:
    with pytest.warns(UserWarning, match="do not sum to one"):
        found = metrics.log_loss(lazy(CLASSES), lazy(PROBA * 0.9))
    with pytest.warns(UserWarning, match="do not sum to one"):
        assert_equal(found, sklearn.metrics.log_loss(CLASSES, PROBA * 0.9))
    with pytest.warns(UserWarning, match=r"Labels passed were \[2, 0, 1\]"):
        found = metrics.log_loss(lazy(CLASSES), lazy(PROBA), labels=[2, 0, 1])
    assert_equal(found, sklearn.metrics.log_loss(CLASSES, PROBA))


# --- R^2 -------------------------------------------------------------------------------------


def test_r2_with_a_large_mean() -> None:
    y_true = 1e8 + np.random.default_rng(0).normal(size=N)
    y_pred = y_true + 0.1 * np.random.default_rng(1).normal(size=N)
    expected = sklearn.metrics.r2_score(y_true - 1e8, y_pred - 1e8)
    assert metrics.r2_score(lazy(y_true), lazy(y_pred)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("force_finite", [True, False])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_r2_of_a_constant(force_finite: bool, shift: float) -> None:
    constant = np.full(N, 0.1)
    found = metrics.r2_score(lazy(constant), lazy(constant + shift), force_finite=force_finite)
    if force_finite:
        assert found == (0.0 if shift else 1.0)
    else:
        assert found == -math.inf if shift else math.isnan(found)


def test_r2_of_one_row() -> None:
    with pytest.warns(UndefinedMetricWarning, match="less than two samples"):
        assert math.isnan(metrics.r2_score(lazy([1.0], (1,)), lazy([2.0], (1,))))


def test_r2_of_a_block_without_weight() -> None:
    weight = np.r_[np.zeros(7), np.ones(N - 7)]
    expected = sklearn.metrics.r2_score(CLASSES[7:], GUESSES[7:])
    found = metrics.r2_score(lazy(CLASSES), lazy(GUESSES), sample_weight=lazy(weight))
    assert_equal(found, expected)


def test_negative_weights_as_scikit_learn_in_sums() -> None:
    weight = np.r_[-1.0, np.ones(N - 1)]
    for name in ("accuracy_score", "mean_squared_error", "confusion_matrix"):
        expected = getattr(sklearn.metrics, name)(CLASSES, GUESSES, sample_weight=weight)
        found = METRICS[name](lazy(CLASSES), lazy(GUESSES), sample_weight=lazy(weight))
        assert_equal(found, expected)


# --- ranking ---------------------------------------------------------------------------------

RANKING = ["roc_auc_score", "average_precision_score"]


def many_rows(n: int = 20_000, *, sorted_rows: bool = False) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(8)
    truth = (rng.random(n) < 0.2).astype(int)
    scores = rng.normal(size=n) + truth
    if sorted_rows:
        scores.sort()
    return truth, scores, rng.random(n)


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize("sorted_rows", [False, True])
@pytest.mark.parametrize("limit", [20, 300])
@pytest.mark.parametrize("n_blocks", [1, 7, 40])
def test_bound_holds(name: str, sorted_rows: bool, limit: int, n_blocks: int) -> None:
    truth, scores, weight = many_rows(sorted_rows=sorted_rows)
    expected = getattr(sklearn.metrics, name)(truth, scores, sample_weight=weight)
    columns = [da.from_array(c, chunks=-(-len(c) // n_blocks)) for c in (truth, scores, weight)]
    found, bound = METRICS[name](
        *columns[:2], sample_weight=columns[2], max_thresholds=limit, return_bound=True
    )
    assert abs(found - expected) <= bound
    levels = 1 + math.ceil(math.log(n_blocks, 16)) if n_blocks > 1 else 1
    assert 0 < bound < 3 * levels / limit * (1 if name == "roc_auc_score" else 4)


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize("limit", [None, 20_000])
def test_exact_without_bins(name: str, limit: int | None) -> None:
    truth, scores, weight = many_rows()
    expected = getattr(sklearn.metrics, name)(truth, scores, sample_weight=weight)
    columns = [da.from_array(c, chunks=501) for c in (truth, scores, weight)]
    found, bound = METRICS[name](
        *columns[:2], sample_weight=columns[2], max_thresholds=limit, return_bound=True
    )
    assert_equal(found, expected)
    assert bound == 0.0


@pytest.mark.parametrize("name", RANKING)
def test_ties_are_exact_with_few_scores(name: str) -> None:
    truth, scores, _ = many_rows()
    scores = np.round(scores, 1)
    found, bound = METRICS[name](
        da.from_array(truth, chunks=501),
        da.from_array(scores, chunks=501),
        max_thresholds=len(np.unique(scores)),
        return_bound=True,
    )
    assert_equal(found, getattr(sklearn.metrics, name)(truth, scores))
    assert bound == 0.0


@pytest.mark.parametrize("name", RANKING)
def test_bound_holds_where_bins_and_ties_meet(name: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth, scores = rng.integers(0, 2, 200), rng.integers(0, 30, 200).astype(float)
        columns = [da.from_array(c, chunks=13) for c in (truth, scores)]
        found, bound = METRICS[name](*columns, max_thresholds=9, return_bound=True)
        expected = getattr(sklearn.metrics, name)(truth, scores)
        assert abs(found - expected) <= bound + 1e-14


def test_bound_in_memory() -> None:
    assert metrics.roc_auc_score(BINARY, SCORES, return_bound=True) == (
        sklearn.metrics.roc_auc_score(BINARY, SCORES),
        0.0,
    )


def test_runs_stay_short() -> None:
    truth, scores, weight = many_rows()
    runs = [make_run(truth[i::20], scores[i::20], weight[i::20], 100) for i in range(20)]
    merged = merge_runs(runs, 100)
    assert all(len(run.low) <= 100 for run in [*runs, merged])
    np.testing.assert_allclose(merged.weights.sum(axis=0), np.bincount(truth, weight))
    assert (merged.low <= merged.high).all()
    assert (np.diff(merged.low) > 0).all()


def test_partial_roc_auc() -> None:
    found = metrics.roc_auc_score(lazy(BINARY), lazy(SCORES), max_fpr=0.3)
    assert_equal(found, sklearn.metrics.roc_auc_score(BINARY, SCORES, max_fpr=0.3))


@pytest.mark.parametrize("average", ["macro", "weighted", "micro", None])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_roc_auc_of_several_classes(average: Any, weights: str) -> None:
    weight = WEIGHTS[weights]
    expected = sklearn.metrics.roc_auc_score(
        CLASSES, PROBA, average=average, multi_class="ovr", sample_weight=weight
    )
    for make in (np.asarray, lazy, unknown):
        found = metrics.roc_auc_score(
            make(CLASSES),
            make(PROBA),
            average=average,
            multi_class="ovr",
            labels=[0, 1, 2],
            sample_weight=None if weight is None else make(weight),
        )
        assert_equal(found, expected)


def test_bound_of_several_classes() -> None:
    expected = sklearn.metrics.roc_auc_score(CLASSES, PROBA, multi_class="ovr")
    found, bound = metrics.roc_auc_score(
        lazy(CLASSES),
        lazy(PROBA),
        multi_class="ovr",
        labels=[0, 1, 2],
        max_thresholds=10,
        return_bound=True,
    )
    assert 0 < abs(found - expected) <= bound


def test_one_class() -> None:
    ones = np.ones(N, int)
    for make in (np.asarray, lazy):
        with pytest.warns(UndefinedMetricWarning, match="Only one class is present"):
            assert math.isnan(metrics.roc_auc_score(make(ones), make(SCORES)))
        with pytest.warns(UserWarning, match="No positive class found"):
            assert metrics.average_precision_score(make(ones * 0), make(SCORES)) == 0.0


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("make", [np.asarray, lazy])
def test_nan(name: str, make: Callable[[Any], Any]) -> None:
    y_true, y_pred = (column.astype(float) for column in data_for(name))
    block = "Block 2: " if make is lazy else ""
    row = "row 3" if make is lazy else "row 10"
    for which in (0, 1):
        columns = [y_true.copy(), y_pred.copy()]
        columns[which][10] = np.nan
        with pytest.raises(InvalidDataError, match=rf"^{block}Input y_\w+ contains NaN.*{row}"):
            METRICS[name](*map(make, columns))
    weight = np.ones(N)
    weight[10] = np.nan
    with pytest.raises(InvalidDataError, match=f"^{block}Input sample_weight contains NaN"):
        METRICS[name](make(y_true), make(y_pred), sample_weight=make(weight))


@pytest.mark.parametrize("name", METRICS)
def test_missing_labels_and_lengths(name: str) -> None:
    y_true, y_pred = data_for(name)
    with pytest.raises(InvalidDataError, match="inconsistent numbers of samples"):
        METRICS[name](y_true[:-1], y_pred)
    with pytest.raises(InvalidDataError, match="inconsistent numbers of samples"):
        METRICS[name](lazy(y_true[:-1], (30, 29)), lazy(y_pred))
    other = (8, 0, 29, 1, 22)
    with pytest.raises(InvalidDataError, match=r"Block \d: .*y_true has \d+ rows.*compute_chunk"):
        METRICS[name](unknown(y_true, other), unknown(y_pred))
    with pytest.raises(InvalidDataError, match=r"cannot be aligned.*y is y_true"):
        METRICS[name](unknown(y_true, (30, 30)), unknown(y_pred))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("make", [np.asarray, lazy])
def test_several_targets(name: str, make: Callable[[Any], Any]) -> None:
    y_true, y_pred = data_for(name)
    two = np.column_stack([y_true, y_true])
    with pytest.raises(InvalidDataError, match=r"1d array.*Pass one column"):
        METRICS[name](make(two), make(y_pred))
    if list(inspect.signature(METRICS[name]).parameters)[1] == "y_pred":
        with pytest.raises(InvalidDataError, match=r"y_pred should be a 1d.*Pass one column"):
            METRICS[name](make(y_true), make(two))


@pytest.mark.parametrize("name", METRICS)
def test_no_rows(name: str) -> None:
    y_true, y_pred = data_for(name)
    nothing = da.from_array(np.zeros(N, bool), chunks=(CHUNKS,))
    with pytest.raises(InvalidDataError, match="no rows"):
        METRICS[name](lazy(y_true)[nothing], lazy(y_pred)[nothing])


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("make", [np.asarray, lazy])
def test_no_weight(name: str, make: Callable[[Any], Any]) -> None:
    y_true, y_pred = data_for(name)
    with pytest.raises(InvalidDataError, match="sum to zero"):
        METRICS[name](make(y_true), make(y_pred), sample_weight=make(np.zeros(N)))


def test_mixed_labels() -> None:
    for name in ("accuracy_score", "confusion_matrix"):
        with pytest.raises(InvalidDataError, match="Mix of label input types"):
            METRICS[name](lazy(TEXT[CLASSES]), lazy(GUESSES))
    with pytest.raises(InvalidDataError, match="continuous values, not labels"):
        metrics.accuracy_score(lazy(BINARY), lazy(SCORES))
    mixed = lazy(np.array([1, "a"] * (N // 2), dtype=object))
    with pytest.raises(InvalidDataError, match="different types"):
        metrics.confusion_matrix(mixed, mixed)


def test_missing_strings() -> None:
    named = pd.Series(TEXT[CLASSES])
    named[3] = None
    for make in (series, np.asarray):
        with pytest.raises(InvalidDataError, match="y_true contains NaN"):
            metrics.accuracy_score(make(named), make(TEXT[GUESSES]))


@pytest.mark.parametrize("make", [np.asarray, lazy])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("confusion_matrix", {"normalize": "rows"}),
        ("confusion_matrix", {"labels": []}),
        ("roc_auc_score", {"max_thresholds": 0}),
        ("average_precision_score", {"max_thresholds": -1}),
        ("log_loss", {"labels": [1]}),
    ],
)
def test_parameters(make: Callable[[Any], Any], name: str, options: dict[str, Any]) -> None:
    y_true, y_pred = data_for(name)
    with pytest.raises(InvalidParameterError):
        METRICS[name](make(y_true), make(y_pred), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"multi_class": "raise"},
        {"multi_class": "ovo"},
        {"labels": None},
        {"labels": [0, 1]},
        {"labels": [2, 1, 0]},
        {"average": "samples"},
        {"max_fpr": 0.5},
    ],
)
def test_parameters_of_several_classes(options: dict[str, Any]) -> None:
    options = {"multi_class": "ovr", "labels": [0, 1, 2]} | options
    with pytest.raises(InvalidParameterError):
        metrics.roc_auc_score(lazy(CLASSES), lazy(PROBA), **options)


def test_scores_that_do_not_fit() -> None:
    fit = {"multi_class": "ovr", "labels": [0, 1, 2]}
    with pytest.raises(InvalidDataError, match=r"y_score\[:, 1\]"):
        metrics.roc_auc_score(lazy(BINARY), lazy(PROBA[:, :2]))
    with pytest.raises(InvalidDataError, match=r"y_score\[:, 1\]"):
        metrics.average_precision_score(lazy(BINARY), lazy(PROBA))
    with pytest.raises(InvalidDataError, match="more than two labels"):
        metrics.roc_auc_score(lazy(CLASSES), lazy(SCORES))
    with pytest.raises(InvalidDataError, match="sum up to 1"):
        metrics.roc_auc_score(lazy(CLASSES), lazy(PROBA * 2), **fit)
    with pytest.raises(InvalidDataError, match=r"contains values \[3\]"):
        metrics.roc_auc_score(lazy(CLASSES + 1), lazy(PROBA), **fit)
    for name in (*RANKING, "r2_score"):
        with pytest.raises(InvalidDataError, match="Negative values in sample_weight"):
            METRICS[name](lazy(BINARY), lazy(SCORES), sample_weight=lazy(-np.ones(N)))


def test_positive_label_that_is_not_there() -> None:
    for make in (np.asarray, lazy):
        with pytest.raises(InvalidDataError, match="pos_label=5 is not a valid label"):
            metrics.average_precision_score(make(BINARY), make(SCORES), pos_label=5)


def test_probabilities_that_do_not_fit() -> None:
    with pytest.raises(InvalidDataError, match="no probabilities"):
        metrics.log_loss(lazy(BINARY), lazy(SCORES * 3))
    with pytest.raises(InvalidDataError, match="only one label"):
        metrics.log_loss(lazy(BINARY * 0), lazy(SCORES))
    with pytest.raises(InvalidDataError, match="Pass one column a label"):
        metrics.log_loss(lazy(CLASSES), lazy(SCORES))
    with pytest.raises(InvalidDataError, match="Pass one column a label"):
        metrics.log_loss(lazy(BINARY), lazy(PROBA))
    with pytest.raises(InvalidDataError, match=r"contains values \[2\]"):
        metrics.log_loss(lazy(CLASSES), lazy(SCORES), labels=[0, 1])
