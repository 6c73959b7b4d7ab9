"""Selectors of columns and their scores equal scikit-learn's, for any chunks and containers."""

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
from scipy import sparse, stats
from sklearn import feature_selection as sklearns

from daskml_dist import feature_selection as ours
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection import GridSearchCV
from tests.fake_cupy import DeviceArray
from tests.quick import in_turn

N, NAMES = 300, list("abcdef")
CUTS = 100, 40, 0, 160
rng = np.random.default_rng(0)
COUNTS = rng.poisson(1.0, size=(N, len(NAMES)))
COUNTS[:, 4] = 0
NUMBERS = rng.normal(size=(N, len(NAMES)))
NUMBERS[:, 1] *= 1e-3
NUMBERS[:, 4] = 0.5
LABELS = np.array(["no", "yes", "other"])[
    (NUMBERS[:, 0] + COUNTS[:, 2] + rng.normal(size=N) > 1).astype(int) + (NUMBERS[:, 3] > 1)
]
TARGET = NUMBERS[:, 0] - NUMBERS[:, 1] * 2e3 + COUNTS[:, 2] + rng.normal(size=N)

#: Score functions, with the rows and the target that they are for.
SCORES = {
    "f_classif": (NUMBERS, LABELS),
    "chi2": (COUNTS, LABELS),
    "f_regression": (NUMBERS, TARGET),
    "r_regression": (NUMBERS, TARGET),
}


def _array(values: Any) -> da.Array:
    return da.from_array(values, chunks=(CUTS, *values.shape[1:]))


def _frame(values: Any) -> Any:
    if values.ndim == 1:
        return dd.from_pandas(pd.Series(values), npartitions=3)
    return dd.from_pandas(pd.DataFrame(values, columns=NAMES), npartitions=3)


def _sparse(values: Any) -> da.Array:
    blocks = _array(values)
    return blocks if values.ndim == 1 else blocks.map_blocks(sparse.csr_array)


FORMS: dict[str, Callable[[Any], Any]] = {
    "array": _array,
    "column chunks": lambda v: _array(v).rechunk({1: 4}) if v.ndim == 2 else _array(v),
    "unknown chunks": lambda v: _array(v)[da.ones(N, dtype=bool, chunks=50)],
    "frame": _frame,
    "sparse": _sparse,
}


def _as_pair(found: Any) -> tuple[Any, Any]:
    return found if isinstance(found, tuple) else (found, found)


@pytest.mark.filterwarnings("ignore:Features .* are constant:UserWarning")
@pytest.mark.filterwarnings("ignore:.*encountered in (true_)?divide:RuntimeWarning")
@pytest.mark.parametrize(("name", "form"), in_turn(SCORES, FORMS))
def test_scores_equal_scikit_learn(name: str, form: str) -> None:
    X, y = SCORES[name]
    expected = _as_pair(getattr(sklearns, name)(X, y))
    found = _as_pair(getattr(ours, name)(FORMS[form](X), FORMS[form](y)))
    # scikit-learn divides a rounding error by the constant's norm, 0.
    varies = X.std(axis=0) > 0 if name == "r_regression" else slice(None)
    for scores, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(scores[varies], theirs[varies], rtol=1e-9, atol=1e-300)
    in_memory = _as_pair(getattr(ours, name)(X, y))
    np.testing.assert_array_equal(in_memory[0], expected[0])


def test_a_large_mean_loses_no_digits() -> None:
    """scikit-learn's sums of squares lose most digits here."""
    X = NUMBERS[:, :4] + 1e6
    groups = [X[LABELS == label] - 1e6 for label in np.unique(LABELS)]
    found, _ = ours.f_classif(_array(X), _array(LABELS))
    np.testing.assert_allclose(found, stats.f_oneway(*groups).statistic, rtol=1e-5)
    expected = [np.corrcoef(column, TARGET)[0, 1] for column in (X - 1e6).T]
    np.testing.assert_allclose(ours.r_regression(_array(X), _array(TARGET)), expected, rtol=1e-5)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("force_finite", [True, False])
def test_regression_options(center: bool, force_finite: bool) -> None:
    options = {"center": center, "force_finite": force_finite}
    X = np.column_stack([NUMBERS[:, :4], np.ones(N), TARGET])
    for name in ("r_regression", "f_regression"):
        expected = _as_pair(getattr(sklearns, name)(X[:, :4], TARGET, **options))
        found = _as_pair(getattr(ours, name)(_array(X), _array(TARGET), **options))
        for scores, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(scores[:4], theirs, rtol=1e-9)
    statistic, p_values = found
    if center:  # of the constant
        assert (statistic[4], p_values[4]) == (0, 1) if force_finite else np.isnan(statistic[4])
    assert statistic[5] > 1e12  # the target itself
    assert p_values[5] < 1e-300


#: Selectors, and the rows and targets that they are for.
SELECTORS: dict[str, tuple[dict[str, Any], str]] = {
    "SelectKBest": ({"k": 2}, "f_classif"),
    "SelectPercentile": ({"percentile": 40, "score_func": sklearns.chi2}, "chi2"),
    "SelectFpr": ({"alpha": 0.01, "score_func": ours.f_regression}, "f_regression"),
    "SelectFdr": ({"alpha": 0.01, "score_func": sklearns.f_regression}, "f_regression"),
    "SelectFwe": ({"score_func": partial(sklearns.f_regression, center=False)}, "f_regression"),
    "GenericUnivariateSelect": ({"mode": "k_best", "param": 3}, "f_classif"),
}


def test_each_selector_is_tested() -> None:
    classes = {name for name in ours.__all__ if inspect.isclass(getattr(ours, name))}
    assert classes == {*SELECTORS, "VarianceThreshold"}


@pytest.mark.filterwarnings("ignore:Features .* are constant:UserWarning")
@pytest.mark.filterwarnings("ignore:.*encountered in (true_)?divide:RuntimeWarning")
@pytest.mark.parametrize(("name", "form"), in_turn(SELECTORS, FORMS))
def test_selections_equal_scikit_learn(name: str, form: str) -> None:
    params, rows = SELECTORS[name]
    X, y = SCORES[rows]
    theirs = getattr(sklearns, name)(**params).fit(X, y)
    lazy, target = FORMS[form](X), FORMS[form](y)
    selector = getattr(ours, name)(**params).fit(lazy, target)
    np.testing.assert_array_equal(selector.get_support(), theirs.get_support())
    assert 0 < selector.get_support().sum() < X.shape[1]
    chosen = selector.transform(lazy)
    assert isinstance(chosen, da.Array)
    values = chosen.compute()
    values = values.toarray() if sparse.issparse(values) else values
    np.testing.assert_array_equal(values, theirs.transform(X))
    assert values.dtype == X.dtype
    if form == "frame":
        assert list(selector.feature_names_in_) == NAMES
        frame = selector.set_output(transform="pandas").transform(lazy)
        assert list(frame.columns) == list(selector.get_feature_names_out())
        assert isinstance(frame, dd.DataFrame)
    in_memory = getattr(ours, name)(**params).fit(X, y)
    np.testing.assert_array_equal(in_memory.transform(X), theirs.transform(X))


@pytest.mark.parametrize("threshold", [0.0, 0.5])
@pytest.mark.parametrize("form", FORMS)
def test_variances_equal_scikit_learn(form: str, threshold: float) -> None:
    X = COUNTS if form == "sparse" else np.where(rng.random(NUMBERS.shape) < 0.1, np.nan, NUMBERS)
    theirs = sklearns.VarianceThreshold(threshold).fit(X)
    lazy = FORMS[form](X)
    found = ours.VarianceThreshold(threshold).fit(lazy)
    np.testing.assert_allclose(found.variances_, theirs.variances_, rtol=1e-9, atol=1e-15)
    values = found.transform(lazy).compute()
    values = values.toarray() if sparse.issparse(values) else values
    np.testing.assert_array_equal(values, theirs.transform(X))


@pytest.mark.filterwarnings("ignore:Features .* are constant:UserWarning")
@pytest.mark.filterwarnings("ignore:.*encountered in (true_)?divide:RuntimeWarning")
def test_rows_on_a_gpu_stay_there() -> None:
    rows = DeviceArray(NUMBERS)
    for selector in (ours.VarianceThreshold(), ours.SelectKBest(k=2)):
        selector.fit(NUMBERS, LABELS)
        found = selector.transform(rows)
        assert isinstance(found, DeviceArray)
        np.testing.assert_array_equal(found.get(), selector.transform(NUMBERS))


def test_tensors_are_transformed() -> None:
    torch = pytest.importorskip("torch")
    rows = np.array([[1.0, 0.0], [2.0, 0.0]])
    found = ours.VarianceThreshold().fit(torch.tensor(rows)).transform(torch.tensor(rows))
    np.testing.assert_array_equal(found, rows[:, :1])


def test_a_score_function_of_the_users_own_gets_the_collections() -> None:
    def spread(X: da.Array, y: da.Array) -> da.Array:
        assert isinstance(X, da.Array)
        assert isinstance(y, da.Array)
        return X.std(axis=0)

    selector = ours.SelectKBest(spread, k=2).fit(_array(NUMBERS), _array(LABELS))
    np.testing.assert_allclose(selector.scores_, NUMBERS.std(axis=0))
    assert selector.pvalues_ is None


def test_a_search_chooses_the_number_of_features() -> None:
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline(ours.SelectKBest(), LogisticRegression())
    search = GridSearchCV(pipeline, {"selectkbest__k": [1, 2]}, cv=2)
    search.fit(_array(NUMBERS), _array((TARGET > 0).astype(int)))
    assert search.best_params_ == {"selectkbest__k": 2}


@pytest.mark.parametrize(
    ("fit", "error", "remedy"),
    [
        (
            lambda: ours.SelectKBest(sklearns.mutual_info_classif).fit(_array(NUMBERS), LABELS),
            InvalidParameterError,
            r"score_func=mutual_info_classif .* Use f_classif",
        ),
        (
            lambda: ours.SelectKBest().fit(_array(NUMBERS)),
            InvalidDataError,
            r"requires y to be passed: pass fit\(X, y\)",
        ),
        (
            lambda: ours.f_classif(_array(NUMBERS), _array(np.zeros(N, int))),
            InvalidDataError,
            "y holds one class.* two or more classes",
        ),
        (
            lambda: ours.chi2(_array(NUMBERS), _array(LABELS)),
            InvalidDataError,
            "negative values, and chi2 compares counts. Use f_classif",
        ),
        (
            lambda: ours.chi2(NUMBERS, LABELS),
            InvalidDataError,
            "must be non-negative. Use f_classif",
        ),
        (
            lambda: ours.f_classif(_array(NUMBERS), _array(TARGET)),
            InvalidDataError,
            "y is continuous, and f_classif compares classes. Use f_regression",
        ),
        (
            lambda: ours.SelectKBest(ours.chi2).fit(_array(COUNTS), _array(TARGET)),
            InvalidDataError,
            "y is continuous, and chi2 compares classes. Use f_regression",
        ),
        (
            lambda: ours.chi2(COUNTS, TARGET),
            InvalidDataError,
            r"(?s)Unknown label type: \(.*Use f_regression",
        ),
        (
            lambda: ours.f_classif(NUMBERS, np.array([1, "a"] * (N // 2), dtype=object)),
            InvalidTypeError,
            "instances of 'str' and 'int'. Convert the values to one type",
        ),
        (
            lambda: ours.f_regression(_array(NUMBERS), _array(LABELS)),
            InvalidDataError,
            "y is not numeric.*use a classifier",
        ),
        (
            lambda: ours.r_regression(_array(np.where(NUMBERS > 2, np.nan, NUMBERS)), TARGET),
            InvalidDataError,
            "Block [0-9]: Input X contains NaN",
        ),
        (
            lambda: ours.r_regression(_array(NUMBERS), None),
            InvalidDataError,
            "r_regression requires y to be passed",
        ),
        (
            lambda: ours.chi2(_array(COUNTS), None),
            InvalidDataError,
            "chi2 requires y to be passed",
        ),
        (
            lambda: ours.VarianceThreshold().fit(_sparse(np.where(COUNTS > 2, np.inf, COUNTS))),
            InvalidDataError,
            "Input X contains infinity",
        ),
        (
            lambda: ours.VarianceThreshold(9.0).fit(_array(NUMBERS)),
            InvalidDataError,
            "No feature in X meets the variance threshold 9.*lower",
        ),
        (
            lambda: ours.SelectKBest(lambda X, y: np.ones(2)).fit(_array(NUMBERS), LABELS),
            InvalidParameterError,
            r"scores of shape \(2,\) for rows of shape .* score for each feature",
        ),
        (
            lambda: ours.SelectKBest(k=-1).fit(_array(NUMBERS), LABELS),
            InvalidParameterError,
            "The 'k' parameter",
        ),
    ],
)
def test_mistakes_raise_with_a_remedy(fit: Callable[[], Any], error: Any, remedy: str) -> None:
    with pytest.raises(error, match=remedy):
        fit()
