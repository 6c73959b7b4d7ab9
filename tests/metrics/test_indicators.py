"""Metrics of several labels a row: scikit-learn's values of indicators on Dask collections."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import METRICS
from tests.metrics.rows import WEIGHTS, N, assert_equal, lazy, unknown
from tests.quick import in_turn

RNG = np.random.default_rng(8)
TRUTH = (RNG.random((N, 4)) < [0.5, 0.2, 0.8, 0.4]).astype(int)
TRUTH[:7], TRUTH[7:30, 1] = 0, 0  # rows without labels, and a block without one
GUESS = np.where(RNG.random((N, 4)) < 0.7, TRUTH, 1 - TRUTH)
GUESS[5:12] = 0
SCORES = np.round(np.clip(0.4 * TRUTH + 0.6 * RNG.random((N, 4)), 0.02, 0.98), 2)
AVERAGED = ("f1_score", "precision_score", "recall_score", "jaccard_score", "fbeta_score")
AVERAGES = ("micro", "macro", "weighted", "samples", None)
KEPT: dict[str, dict[str, Any]] = {"fbeta_score": {"beta": 0.5}}


def frame(values: Any) -> Any:
    return dd.from_pandas(pd.DataFrame(values), npartitions=4)


KINDS = {"known": lazy, "unknown": unknown, "frame": frame}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {"average": average, "zero_division": 0.0, **KEPT.get(name, {})})
        for name in AVERAGED
        for average in AVERAGES
    ),
    *(("precision_recall_fscore_support", {"average": a, "zero_division": 1}) for a in AVERAGES),
    ("f1_score", {"average": "macro", "labels": [2, 0], "zero_division": 0.0}),
    ("recall_score", {"average": None, "labels": [1], "zero_division": 0.0}),
    ("jaccard_score", {"average": "samples", "labels": [3], "zero_division": 0.0}),
    ("accuracy_score", {}),
    ("accuracy_score", {"normalize": False}),
    ("zero_one_loss", {}),
    ("zero_one_loss", {"normalize": False}),
    ("hamming_loss", {}),
    ("multilabel_confusion_matrix", {}),
    ("multilabel_confusion_matrix", {"labels": [3, 1]}),
    ("classification_report", {"zero_division": 0.0}),
    ("classification_report", {"zero_division": 0.0, "digits": 4, "labels": [2, 1]}),
    ("classification_report", {"zero_division": 0.0, "target_names": list("abcd")}),
]


@cache
def _expected(weights: str) -> list[Any]:
    """scikit-learn's values of all cases, for rows of every kind."""
    weight = WEIGHTS[weights]
    options = {} if weight is None else {"sample_weight": weight}
    return [getattr(sklearn.metrics, name)(TRUTH, GUESS, **options, **more) for name, more in CASES]


@pytest.mark.parametrize(("kind", "weights"), in_turn(KINDS, WEIGHTS))
def test_labels_equal_scikit_learn(kind: str, weights: str) -> None:
    make, weight = KINDS[kind], WEIGHTS[weights]
    ours = {} if weight is None else {"sample_weight": lazy(weight)}
    if weight is not None and kind == "frame":
        ours = {"sample_weight": dd.from_pandas(pd.Series(weight), npartitions=4)}
    for (name, options), expected in zip(CASES, _expected(weights), strict=True):
        found = METRICS[name](make(TRUTH), make(GUESS), **ours, **options)
        assert_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_labels", [2, 4])
@pytest.mark.parametrize("scale_by_half", ["auto", True, False])
def test_brier_scores_of_indicators(kind: str, n_labels: int, scale_by_half: Any) -> None:
    truth, scores = TRUTH[:, :n_labels], SCORES[:, :n_labels]
    total = np.sum((truth - scores) ** 2, axis=1)
    halved = n_labels == 2 if scale_by_half == "auto" else scale_by_half
    rows = KINDS[kind](truth), KINDS[kind](scores)
    found = METRICS["brier_score_loss"](*rows, scale_by_half=scale_by_half)
    assert found == pytest.approx(total.mean() / (2 if halved else 1), rel=1e-12)
    if kind == "known":
        weight = np.arange(N) % 3
        found = METRICS["brier_score_loss"](*rows, sample_weight=lazy(weight), scale_by_half=False)
        assert found == pytest.approx(np.average(total, weights=weight), rel=1e-12)


def test_report_as_a_dict() -> None:
    expected = sklearn.metrics.classification_report(
        TRUTH, GUESS, output_dict=True, zero_division=0
    )
    found = METRICS["classification_report"](
        lazy(TRUTH), lazy(GUESS), output_dict=True, zero_division=0
    )
    assert found.keys() == expected.keys()
    for row, scores in expected.items():
        assert found[row] == pytest.approx(scores, rel=1e-12)


@pytest.mark.parametrize("average", [*AVERAGES, "nothing"])
def test_warnings_are_scikit_learns(average: Any) -> None:
    def collect_warnings(*columns: Any) -> set[str]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of garbage, at any time
            try:
                METRICS["f1_score"](*columns, average=average)
            except InvalidParameterError as error:
                return {str(error)}
        return {str(one.message) for one in found}

    truth, guess = TRUTH.copy(), GUESS.copy()
    truth[:, 2] = guess[:, 2] = 0
    assert collect_warnings(lazy(truth), lazy(guess)) == collect_warnings(truth, guess)


@pytest.mark.parametrize(
    "of",
    [
        lambda a: a.astype(object),
        lambda a: a.astype(">i8"),
        lambda a: tuple(map(tuple, a)),
        lambda a: pd.DataFrame(a).convert_dtypes(dtype_backend="pyarrow"),
    ],
    ids=["objects", "big-endian", "tuples", "Arrow"],
)
def test_indicators_in_memory_of_any_dtype(of: Any) -> None:
    expected = sklearn.metrics.f1_score(TRUTH, GUESS, average="macro")
    assert METRICS["f1_score"](of(TRUTH), of(GUESS), average="macro") == expected
    expected = sklearn.metrics.roc_auc_score(TRUTH, SCORES)
    assert METRICS["roc_auc_score"](of(TRUTH), SCORES, sample_weight=1.0) == expected


def test_weights_of_indicators_are_checked() -> None:
    weights = [[1.0]] * N
    with pytest.raises(InvalidDataError, match="one column such as"):
        METRICS["average_precision_score"](TRUTH, SCORES, sample_weight=weights)


def test_invalid_label_indicators_are_refused() -> None:
    with pytest.raises(InvalidDataError, match="not label indicators"):
        METRICS["f1_score"](lazy(TRUTH * 2), lazy(GUESS), average="macro")
    with pytest.raises(InvalidDataError, match=r"different number of output \(4!=3\)"):
        METRICS["f1_score"](lazy(TRUTH), lazy(GUESS[:, :3]), average="macro")
    for name in ("confusion_matrix", "cohen_kappa_score", "matthews_corrcoef"):
        with pytest.raises(InvalidDataError, match="multilabel-indicator is not supported"):
            METRICS[name](lazy(TRUTH), lazy(GUESS))
    with pytest.raises(InvalidDataError, match="average='binary'"):
        METRICS["f1_score"](lazy(TRUTH), lazy(GUESS))
    with pytest.raises(InvalidParameterError, match=r"labels must be in \[0, n labels\)"):
        METRICS["f1_score"](lazy(TRUTH), lazy(GUESS), average="macro", labels=[4])
    with pytest.raises(InvalidParameterError, match="samplewise"):
        METRICS["multilabel_confusion_matrix"](lazy(TRUTH), lazy(GUESS), samplewise=True)
    with pytest.raises(InvalidDataError, match="sum to zero"):
        METRICS["hamming_loss"](lazy(TRUTH), lazy(GUESS), sample_weight=lazy(np.zeros(N)))


# --- scores and probabilities of each label --------------------------------------------------


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ["roc_auc_score", "average_precision_score"])
def test_rankings_equal_scikit_learn(name: str, weights: str) -> None:
    truth, weight = TRUTH.copy(), WEIGHTS[weights]
    truth[:, 0] = np.arange(N) % 2
    truth[:7, 0] = 1  # a block of one class
    truth[truth.sum(axis=1) == 4, 3] = 0
    truth[truth.sum(axis=1) == 0, 0] = 1
    for average in AVERAGES:
        options = {"average": average}
        expected = getattr(sklearn.metrics, name)(truth, SCORES, sample_weight=weight, **options)
        for make in KINDS.values() if weight is None else (lazy, unknown):
            weight_options = {} if weight is None else {"sample_weight": make(weight)}
            assert_equal(
                METRICS[name](make(truth), make(SCORES), **weight_options, **options), expected
            )
        few, bound = METRICS[name](
            lazy(truth), lazy(SCORES), return_bound=True, max_thresholds=8, **options
        )
        exact = getattr(sklearn.metrics, name)(truth, SCORES, **options)
        assert (np.abs(few - exact) <= bound + 1e-12).all()


@pytest.mark.parametrize("name", ["roc_auc_score", "average_precision_score"])
def test_rankings_of_a_label_that_no_row_has(name: str) -> None:
    truth = TRUTH.copy()
    truth[:, 2] = 0
    for average in ("macro", "weighted", None):
        with pytest.warns(UserWarning, match="[Cc]lass"):
            expected = METRICS[name](truth, SCORES, average=average)
        with pytest.warns(UserWarning, match="[Cc]lass"):
            found = METRICS[name](lazy(truth), lazy(SCORES), average=average)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    nothing = METRICS[name](lazy(truth * 0), lazy(SCORES), average="weighted")
    assert nothing == 0.0
    with pytest.raises(InvalidDataError, match=r"different number of output \(4!=3\)"):
        METRICS[name](lazy(TRUTH), lazy(SCORES[:, :3]))
    with pytest.raises(InvalidParameterError, match="average"):
        METRICS[name](lazy(TRUTH), lazy(SCORES), average="each")


@pytest.mark.filterwarnings("ignore:Only one class")
def test_rows_of_weight_0_without_a_score_do_not_count() -> None:
    truth = TRUTH.copy()
    truth[truth.sum(axis=1) % 4 == 0] = [1, 0, 0, 1]
    truth[:7] = 0  # a block of rows of one class, which have no area under a curve
    weight = np.arange(N) // 7 % 3
    options = {"average": "samples"}
    expected = sklearn.metrics.roc_auc_score(truth, SCORES, sample_weight=weight, **options)
    found = METRICS["roc_auc_score"](
        lazy(truth), lazy(SCORES), sample_weight=lazy(weight), **options
    )
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_loss_equals_scikit_learn(dtype: str) -> None:
    proba = (SCORES / SCORES.sum(axis=1, keepdims=True)).astype(dtype)
    for weight in WEIGHTS.values():
        for options in ({}, {"normalize": False}):
            expected = sklearn.metrics.log_loss(TRUTH, proba, sample_weight=weight, **options)
            weights = {} if weight is None else {"sample_weight": unknown(weight)}
            found = METRICS["log_loss"](unknown(TRUTH), unknown(proba), **weights, **options)
            assert found == pytest.approx(expected, rel=1e-12 if dtype == "float64" else 1e-6)
    with pytest.warns(UserWarning, match="do not sum to one"):
        METRICS["log_loss"](lazy(TRUTH), lazy(SCORES))
