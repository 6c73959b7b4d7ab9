"""Intervals and sets of labels: their coverage, and the definitions written down in NumPy."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, QuantileRegressor
from sklearn.model_selection import LeaveOneOut

from daskml_dist.conformal import (
    ConformalClassifier,
    ConformalizedQuantileRegressor,
    ConformalRegressor,
    _score_tables,
)
from daskml_dist.conformal._score_tables import find_conformal_rank
from daskml_dist.conformal._scores import draw_shares
from daskml_dist.data import column_statistics
from daskml_dist.ensemble import HistGradientBoostingRegressor
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError
from daskml_dist.inference import Predictor
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDRegressor
from daskml_dist.model_selection import KFold
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.serving.model_interface import find_predictor

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 3))
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=N) * (1 + np.abs(X[:, 0]))
LABELS = (Y > 0).astype(int) + (Y > 2)
NEW = RNG.normal(size=(50, 3))
CHUNKS = [(240,), (60, 60, 60, 60), (1, 100, 0, 139)]


def lazy(values: Any, chunks: tuple[int, ...] = (60, 60, 60, 60)) -> da.Array:
    return da.from_array(values, chunks=(chunks, *((-1,) * (values.ndim - 1))))


class Zero(RegressorMixin, BaseEstimator):
    """Regressor that predicts 0."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any) -> Zero:
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X))


def at_rank(scores: Any, alpha: float) -> Any:
    """Return the score of rank ceil((1 - alpha)(n + 1))."""
    return np.sort(scores)[int(np.ceil((1 - alpha) * (len(scores) + 1) - 1e-9)) - 1]


def fold_fits(model: Any, cv: Any) -> tuple[list[Any], Any]:
    """Return the fit of each fold, and each row's fold."""
    fits, folds = [], np.empty(N, int)
    for k, (train, test) in enumerate(cv.split(X)):
        fits.append(clone(model).fit(X[train], Y[train]))
        folds[test] = k
    return fits, folds


# --- coverage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "alpha"), [(99, 0.1), (40, 0.2)])
def test_coverage_has_its_beta_law(n: int, alpha: float) -> None:
    """Given the calibration rows, coverage is distributed as Beta(k, n + 1 - k) (Vovk 2012)."""
    rng = np.random.default_rng(n)
    covered = []
    for _ in range(300):
        rows, y = np.zeros((n, 1)), rng.normal(size=n)
        model = ConformalRegressor(FrozenEstimator(Zero()), alpha=alpha).fit(rows, y)
        high = model.predict_interval(rows[:1])[0, 1]
        covered.append(2 * stats.norm.cdf(high) - 1)
    k = find_conformal_rank(n, alpha)
    assert stats.kstest(covered, stats.beta(k, n + 1 - k).cdf).pvalue > 0.01
    assert abs(np.mean(covered) - k / (n + 1)) < 4 * np.std(covered) / np.sqrt(300)


@pytest.mark.slow
def test_coverage_has_its_beta_law_in_many_repeats() -> None:
    """1,000 repeats, of intervals and of sets of labels."""
    rng, n, alpha = np.random.default_rng(1), 199, 0.1
    X, p = rng.normal(size=(3000, 2)), GaussianNB()
    labels = (X[:, 0] + rng.normal(size=3000) > 0).astype(int)
    frozen = FrozenEstimator(p.fit(X[:1000], labels[:1000]))
    found = []
    for _ in range(1000):
        at = rng.integers(1000, 3000, n)
        rows = X[at] + rng.normal(size=(n, 2)) * 1e-3
        model = ConformalClassifier(frozen, conformity="aps", alpha=alpha, random_state=0)
        sets = model.fit(rows, labels[at]).predict_set(X[1000:])
        found.append(sets[np.arange(2000), labels[1000:]].mean())
    k = find_conformal_rank(n, alpha)
    assert stats.kstest(found, stats.beta(k, n + 1 - k).cdf).pvalue > 1e-3


def test_ranks_of_many_rows_are_whole() -> None:
    """Products that are a little less than a whole number in floats, of any size."""
    for n in (10**3, 10**6, 10**9):
        for percent in range(1, 100):
            expected = n - n * percent // 100
            assert find_conformal_rank(n - 1, percent / 100) == expected, (n, percent)


def test_ranks_of_the_quantile() -> None:
    for n in (9, 10, 99, 100, 1234):
        for alpha in (0.1, 0.29, 0.05, 0.5):
            assert find_conformal_rank(n, alpha) == int(np.ceil(round((1 - alpha) * (n + 1), 9)))


def test_groups_are_each_covered() -> None:
    rng = np.random.default_rng(2)
    rows = np.column_stack([rng.normal(size=4000), rng.integers(0, 3, 4000)])
    y = rng.normal(size=4000) * (1 + 3 * rows[:, 1])
    model = ConformalRegressor(FrozenEstimator(Zero()), group_by=1)
    intervals = model.fit(rows[:2000], y[:2000]).predict_interval(rows[2000:])
    inside = (intervals[:, 0] <= y[2000:]) & (y[2000:] <= intervals[:, 1])
    for group in range(3):
        of = rows[2000:, 1] == group
        assert abs(inside[of].mean() - 0.9) < 0.04
        scores = np.abs(y[:2000][rows[:2000, 1] == group])
        assert_allclose(intervals[of, 1], at_rank(scores, 0.1))
    with pytest.raises(InvalidDataError, match=r"group 7\.0, which no calibration row has"):
        model.predict_interval([[0.0, 7.0]])
    with pytest.raises(InvalidDataError, match=r"2 calibration rows of group 5\.0"):
        ConformalRegressor(FrozenEstimator(Zero()), group_by=1).fit(
            np.r_[rows[:100], [[0, 5.0], [1, 5.0]]], np.r_[y[:100], 1, 2]
        )


def test_a_shift_of_the_rows_is_covered() -> None:
    rng = np.random.default_rng(3)
    rows, new = rng.normal(size=(4000, 1)), rng.normal(1.0, 1.0, size=(4000, 1))

    def draw(x: Any) -> Any:
        return np.abs(x[:, 0]) * rng.normal(size=len(x))

    def ratio(x: Any) -> Any:
        return np.exp(x[:, 0] - 0.5)

    y, y_new = draw(rows), draw(new)

    def coverage(**params: Any) -> Any:
        model = ConformalRegressor(FrozenEstimator(Zero()), **params).fit(rows, y)
        return (np.abs(y_new) <= model.predict_interval(new)[:, 1]).mean()

    assert coverage() < 0.85
    assert abs(coverage(likelihood_ratio=ratio) - 0.9) < 0.03
    both = np.r_[rows, new]
    source = LogisticRegression().fit(both, np.r_[np.zeros(4000), np.ones(4000)])
    assert abs(coverage(likelihood_ratio=source) - 0.9) < 0.03
    # The definition, for one row: the least score of enough weight, the row's own at infinity.
    model = ConformalRegressor(FrozenEstimator(Zero()), likelihood_ratio=ratio).fit(rows, y)
    order = np.argsort(np.abs(y))
    reached = np.cumsum(ratio(rows)[order])
    share = reached / (reached[-1] + ratio(new[:1])[0])
    expected = np.abs(y)[order][np.searchsorted(share, 0.9)]
    assert_allclose(model.predict_interval(new[:1])[0, 1], expected)


# --- definitions ----------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_split_conformal(chunks: tuple[int, ...], symmetric: bool) -> None:
    frozen = FrozenEstimator(Ridge().fit(X[:100], Y[:100]))
    model = ConformalRegressor(frozen, symmetric=symmetric)
    residuals, predicted = Y - frozen.predict(X), frozen.predict(NEW)
    low = high = at_rank(np.abs(residuals), 0.1)
    if not symmetric:
        low, high = at_rank(-residuals, 0.05), at_rank(residuals, 0.05)
    expected = np.column_stack([predicted - low, predicted + high])
    assert_allclose(clone(model).fit(X, Y).predict_interval(NEW), expected)
    model.fit(lazy(X, chunks), lazy(Y, chunks))
    assert_allclose(model.predict_interval(NEW), expected)
    found = model.predict_interval(da.from_array(NEW, chunks=(20, 3)))
    assert found.chunks == ((20, 20, 10), (2,))
    assert_allclose(found, expected)
    assert_allclose(model.predict(NEW), predicted)
    assert_allclose(
        model.predict_interval(NEW, alpha=0.3)[:, 1] - predicted,
        at_rank(np.abs(residuals), 0.3) if symmetric else at_rank(residuals, 0.15),
    )


@pytest.mark.parametrize("member", [Ridge(), LinearRegression()], ids=["ours", "scikit-learn's"])
def test_a_split_is_made(member: Any) -> None:
    for rows, y in ((X, Y), (lazy(X), lazy(Y))):
        model = ConformalRegressor(member, random_state=0).fit(rows, y)
        assert model.n_splits_ == 1
        assert model.fold_estimators_ is None
        assert sum(table.weight for table in model.tables_.tables.values()) == N // 4
        inside = (model.predict_interval(X)[:, 0] <= Y) & (Y <= model.predict_interval(X)[:, 1])
        assert inside.mean() > 0.8
        assert 0 < model.score(rows, y) < 1


def test_relative_residuals() -> None:
    y = np.exp(0.3 * Y) + 5
    frozen = FrozenEstimator(LinearRegression().fit(X, y))
    assert frozen.predict(X).min() > 0
    found = ConformalRegressor(frozen, conformity="relative").fit(X, y).predict_interval(NEW)
    width = at_rank(np.abs(y - frozen.predict(X)) / frozen.predict(X), 0.1)
    at = frozen.predict(NEW)
    assert_allclose(found, np.column_stack([at * (1 - width), at * (1 + width)]))
    with pytest.raises(InvalidDataError, match="some are <= 0"):
        ConformalRegressor(Ridge(), conformity="relative").fit(X, Y)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("cv", [KFold(4), LeaveOneOut()], ids=["CV+", "jackknife+"])
def test_plus(cv: Any, symmetric: bool) -> None:
    """The order statistics of Barber et al. 2021, of all predictions and residuals."""
    member = LinearRegression()
    fits, folds = fold_fits(member, cv)
    held_out = np.array([fits[k].predict(X[i : i + 1])[0] for i, k in enumerate(folds)])
    of_row = np.stack([fits[k].predict(NEW) for k in folds], axis=1)
    residuals = Y - held_out
    alpha = 0.1 if symmetric else 0.05
    down, up = (np.abs(residuals),) * 2 if symmetric else (-residuals, residuals)
    k = int(np.floor(alpha * (N + 1) + 1e-9))
    low = np.sort(of_row - down, axis=1)[:, k - 1]
    high = np.sort(of_row + up, axis=1)[:, N - k]
    model = ConformalRegressor(member, cv=cv, symmetric=symmetric).fit(X, Y)
    assert_allclose(model.predict_interval(NEW), np.column_stack([low, high]))
    assert_allclose(model.predict(NEW), member.fit(X, Y).predict(NEW))
    if isinstance(cv, KFold):
        model.fit(lazy(X), lazy(Y))
        found = model.predict_interval(da.from_array(NEW, chunks=(20, 3)))
        assert_allclose(found, np.column_stack([low, high]))


def test_other_ways_to_join_folds() -> None:
    fits, folds = fold_fits(Ridge(), KFold(4))
    predicted = np.stack([fit.predict(NEW) for fit in fits])
    residuals = np.abs([Y[i] - fits[k].predict(X[i : i + 1])[0] for i, k in enumerate(folds)])
    width = at_rank(residuals, 0.1)
    found = ConformalRegressor(Ridge(), cv=KFold(4), method="minmax").fit(X, Y)
    expected = np.column_stack([predicted.min(axis=0) - width, predicted.max(axis=0) + width])
    assert_allclose(found.predict_interval(NEW), expected, rtol=1e-6)
    found = ConformalRegressor(Ridge(), cv=KFold(4), method="base").fit(lazy(X), lazy(Y))
    at = Ridge().fit(X, Y).predict(NEW)
    assert_allclose(
        found.predict_interval(NEW), np.column_stack([at - width, at + width]), rtol=1e-6
    )


def test_cv_plus_intervals_with_groups() -> None:
    """Each group has its own ranks; a fold may lack it."""

    def group(rows: Any) -> Any:
        return np.where(np.asarray(rows)[:, 0] > 0, "right", "left")

    fits, folds = fold_fits(LinearRegression(), KFold(3))
    residuals = np.abs([Y[i] - fits[k].predict(X[i : i + 1])[0] for i, k in enumerate(folds)])
    found = ConformalRegressor(LinearRegression(), cv=KFold(3), group_by=group).fit(X, Y)
    intervals = found.predict_interval(NEW)
    for label in ("left", "right"):
        of, at = group(X) == label, group(NEW) == label
        high = np.stack([fits[k].predict(NEW[at]) for k in folds[of]], axis=1) + residuals[of]
        rank = find_conformal_rank(of.sum(), 0.1)
        assert_allclose(intervals[at, 1], np.sort(high, axis=1)[:, rank - 1])


@pytest.mark.parametrize("symmetric", [True, False])
def test_quantile_regression(symmetric: bool) -> None:
    halves = [FrozenEstimator(QuantileRegressor(quantile=q, alpha=0).fit(X, Y)) for q in (0.1, 0.9)]
    low, high = (one.predict(X) for one in halves)
    down, up = low - Y, Y - high
    moved = (at_rank(np.maximum(down, up), 0.2),) * 2
    if not symmetric:
        moved = at_rank(down, 0.1), at_rank(up, 0.1)
    new_low, new_high = (one.predict(NEW) for one in halves)
    expected = np.column_stack([new_low - moved[0], new_high + moved[1]])
    for rows, y in ((X, Y), (lazy(X), lazy(Y))):
        model = ConformalizedQuantileRegressor(tuple(halves), alpha=0.2, symmetric=symmetric)
        assert_allclose(model.fit(rows, y).predict_interval(NEW), expected)
        assert_allclose(model.predict(NEW), (new_low + new_high) / 2)


@pytest.mark.parametrize(
    "member",
    [
        QuantileRegressor(alpha=0),
        HistGradientBoostingRegressor(loss="quantile", quantile=0.5, max_iter=5),
        SGDRegressor(loss="quantile", random_state=0),
    ],
    ids=lambda member: type(member).__name__,
)
def test_quantiles_are_set(member: Any) -> None:
    model = ConformalizedQuantileRegressor(member, alpha=0.2, random_state=0).fit(X, Y)
    inside = (model.predict_interval(X) * [1, -1] <= np.column_stack([Y, -Y])).all(axis=1)
    assert 0.65 < inside.mean() < 0.98
    assert model.predict(NEW).shape == (50,)


def test_models_without_quantiles_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="no quantile parameter"):
        ConformalizedQuantileRegressor(Ridge()).fit(X, Y)
    with pytest.raises(InvalidParameterError, match='Use loss="quantile"'):
        ConformalizedQuantileRegressor(HistGradientBoostingRegressor()).fit(X, Y)
    with pytest.raises(InvalidParameterError, match="makes 3 splits"):
        ConformalizedQuantileRegressor(QuantileRegressor(alpha=0), cv=3).fit(X, Y)


# --- labels ----------------------------------------------------------------------------------


def scores_of(p: Any, kind: str, shares: Any) -> Any:
    """Return the score of every label, label by label."""
    if kind == "lac":
        return 1 - p
    found = np.empty_like(p)
    for i, row in enumerate(p):
        order = sorted(range(len(row)), key=lambda k: (-row[k], k))
        for rank, k in enumerate(order):
            found[i, k] = row[order[: rank + 1]].sum() - shares[i] * row[k]
            if kind == "raps":
                found[i, k] += 0.1 * max(rank + 1 - 2, 0)
            if kind == "top_k":
                found[i, k] = rank + 1
    return found


@pytest.mark.parametrize("kind", ["lac", "aps", "raps", "top_k"])
@pytest.mark.parametrize("randomized", [True, False])
def test_sets(kind: str, randomized: bool) -> None:
    frozen = FrozenEstimator(GaussianNB().fit(X[:100], LABELS[:100]))
    model = ConformalClassifier(
        frozen, conformity=kind, randomized=randomized, raps_weight=0.1, raps_size=2, random_state=0
    )
    model.fit(lazy(X), lazy(LABELS))
    p, new = frozen.predict_proba(X), frozen.predict_proba(NEW)
    shares = [draw_shares(of, model._seed) * randomized for of in (p, new)]
    limit = at_rank(scores_of(p, kind, shares[0])[np.arange(N), LABELS], 0.1)
    expected = scores_of(new, kind, shares[1]) <= limit + 1e-12
    assert_array_equal(model.predict_set(NEW), expected)
    assert_array_equal(model.predict_set(da.from_array(NEW, chunks=(7, 3))), expected)
    assert_array_equal(clone(model).fit(X, LABELS).predict_set(NEW), expected)
    assert_array_equal(model.predict(NEW), frozen.predict(NEW))
    assert_allclose(model.predict_proba(da.from_array(NEW, chunks=(7, 3))), new)


def test_random_shares_are_even_and_of_a_row_alone() -> None:
    p = RNG.dirichlet(np.ones(3), 4000)
    shares = draw_shares(p, 3)
    assert stats.kstest(shares, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(shares, p[:, 0])[0, 1]) < 0.05
    assert_array_equal(draw_shares(p[::-1], 3)[::-1], shares)
    assert not np.array_equal(draw_shares(p, 4), shares)


def test_each_class_is_covered() -> None:
    member = LogisticRegression()
    model = ConformalClassifier(member, group_by="class", alpha=0.1, random_state=0)
    big = np.random.default_rng(5).normal(size=(6000, 3))
    labels = (big[:, 0] + np.random.default_rng(6).normal(size=6000) > 1.2).astype(int)
    sets = model.fit(big[:3000], labels[:3000]).predict_set(big[3000:])
    for k in (0, 1):
        assert abs(sets[labels[3000:] == k, k].mean() - 0.9) < 0.05
    plain = ConformalClassifier(member, random_state=0).fit(big[:3000], labels[:3000])
    assert plain.predict_set(big[3000:])[labels[3000:] == 1, 1].mean() < 0.8


def test_sets_of_several_folds() -> None:
    """A label is taken where fewer held-out rows conform better than (1 - alpha)(n + 1)."""
    fits, folds = [], np.empty(N, int)
    for k, (train, test) in enumerate(KFold(4).split(X)):
        fits.append(GaussianNB().fit(X[train], LABELS[train]))
        folds[test] = k
    scores = np.array(
        [1 - fits[k].predict_proba(X[i : i + 1])[0, LABELS[i]] for i, k in enumerate(folds)]
    )
    expected = np.empty((50, 3), bool)
    for i, row in enumerate(NEW):
        for label in range(3):
            score = np.array([1 - fit.predict_proba(row[None])[0, label] for fit in fits])[folds]
            expected[i, label] = (scores < score).sum() < 0.9 * (N + 1)
    for rows, y in ((X, LABELS), (lazy(X), lazy(LABELS))):
        model = ConformalClassifier(GaussianNB(), cv=KFold(4)).fit(rows, y)
        assert_array_equal(model.predict_set(NEW), expected)


def test_sets_need_not_be_empty() -> None:
    sure = FrozenEstimator(GaussianNB().fit(X, LABELS))
    model = ConformalClassifier(sure, alpha=0.6).fit(X, LABELS)
    sets = model.predict_set(NEW)
    assert not sets.any(axis=1).all()
    filled = ConformalClassifier(sure, alpha=0.6, allow_empty=False).fit(X, LABELS)
    likely = sure.predict_proba(NEW).argmax(axis=1)
    added = filled.predict_set(NEW) & ~sets
    assert_array_equal(np.flatnonzero(added.any(axis=1)), np.flatnonzero(~sets.any(axis=1)))
    assert filled.predict_set(NEW)[np.arange(50), likely][~sets.any(axis=1)].all()


# --- many rows -----------------------------------------------------------------------------


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few scores, so that sketches leave some out."""
    monkeypatch.setattr(_score_tables, "MAX_KEPT_SCORES", 50)
    for module in (_score_tables, column_statistics):
        monkeypatch.setattr(module, "SKETCH_SIZE", 20)


@pytest.mark.usefixtures("few_kept")
@pytest.mark.parametrize("chunks", CHUNKS)
def test_quantiles_of_more_scores_than_are_kept_are_exact(chunks: tuple[int, ...]) -> None:
    frozen = FrozenEstimator(LinearRegression().fit(X, Y))
    model = ConformalRegressor(frozen, alpha=0.2).fit(lazy(X, chunks), lazy(Y, chunks))
    (table,) = model.tables_.tables.values()
    assert len(table.values) <= 50
    assert table.error > 0
    residuals = np.abs(Y - frozen.predict(X))
    widths = model.predict_interval(NEW)[:, 1] - frozen.predict(NEW)
    assert_allclose(widths, at_rank(residuals, 0.2))
    # Of another level the bound of the sketch's error is added: never less.
    widths = model.predict_interval(NEW, alpha=0.4)[:, 1] - frozen.predict(NEW)
    assert at_rank(residuals, 0.4) <= widths.min() <= at_rank(residuals, 0.1)


@pytest.mark.usefixtures("few_kept")
def test_intervals_of_folds_are_wider_by_the_error_of_sketches() -> None:
    exact = ConformalRegressor(LinearRegression(), alpha=0.4, cv=KFold(3))
    rough = clone(exact).fit(lazy(X), lazy(Y)).predict_interval(NEW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_score_tables, "MAX_KEPT_SCORES", 2**20)
        narrow = exact.fit(X, Y).predict_interval(NEW)
    assert (rough[:, 0] <= narrow[:, 0] + 1e-12).all()
    assert (rough[:, 1] >= narrow[:, 1] - 1e-12).all()
    assert (np.diff(rough) < 2 * np.diff(narrow)).all()


# --- inputs ----------------------------------------------------------------------------------


def test_frames_with_a_column_of_groups_on_a_cluster(client: Any) -> None:
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=Y, site=np.arange(N) % 2)
    many = dd.from_pandas(frame, npartitions=3)
    model = ConformalRegressor(Ridge(), cv=3, group_by="site").fit(many, "y")
    assert list(model.feature_names_in_) == ["a", "b", "c", "site"]
    found = model.predict_interval(many.drop(columns="y")).compute()
    assert found.shape == (N, 2)
    expected = model.predict_interval(frame.drop(columns="y"))
    assert_allclose(found, expected)
    assert 0.8 < ((found[:, 0] <= Y) & (Y <= found[:, 1])).mean() < 1


def test_lazy_rows_are_taken_whatever_a_made_up_row_would_be() -> None:
    """Groups that no row of ones is in, and scores that refuse some predictions."""
    rows = np.column_stack([X, np.arange(N) % 3 + 4])
    chunks = (100, 0, 140)
    frozen = FrozenEstimator(LinearRegression().fit(rows, Y))
    model = ConformalRegressor(frozen, group_by=3).fit(rows, Y)
    found = model.predict_interval(lazy(rows, chunks))
    assert found.chunks == (chunks, (2,))
    assert_allclose(found, model.predict_interval(rows))
    y = np.exp(0.1 * Y)
    line = FrozenEstimator(LinearRegression().fit(X - 10, y))
    assert line.predict(np.ones((1, 3))) != 0
    model = ConformalRegressor(line, conformity="relative").fit(X - 10, y)
    found = model.predict_interval(lazy(X - 10, chunks))
    assert_allclose(found, model.predict_interval(X - 10))
    sets = ConformalClassifier(FrozenEstimator(GaussianNB().fit(rows, LABELS)), group_by=3)
    sets.fit(rows, LABELS)
    found = sets.predict_set(lazy(rows, chunks))
    assert found.dtype == bool
    assert_array_equal(found, sets.predict_set(rows))


def test_ratios_of_any_scale_mean_the_same() -> None:
    """Their sum is no number of rows; intervals of another level are not refused by it."""
    frozen = FrozenEstimator(LinearRegression().fit(X, Y))

    def ratio(rows: Any) -> Any:
        return np.exp(rows[:, 0])

    def tiny(rows: Any) -> Any:
        return np.exp(rows[:, 0]) * 2.0**-20

    plain, scaled = (
        ConformalRegressor(frozen, likelihood_ratio=one).fit(X, Y) for one in (ratio, tiny)
    )
    for alpha in (None, 0.05, 0.3):
        expected = plain.predict_interval(NEW, alpha=alpha)
        assert_allclose(scaled.predict_interval(NEW, alpha=alpha), expected)
    assert np.isinf(plain.predict_interval(NEW, alpha=1e-4)).all()


def test_a_row_that_nothing_bounds_has_an_infinite_interval() -> None:
    frozen = FrozenEstimator(LinearRegression().fit(X, Y))
    model = ConformalRegressor(frozen, likelihood_ratio=lambda rows: np.zeros(len(rows)))
    assert np.isinf(model.fit(X, Y).predict_interval(NEW)).all()


def test_many_small_groups_are_distinguished() -> None:
    """Groups of a few scattered rows each."""
    groups = np.random.default_rng(0).permutation(np.arange(N) % (N // 4))
    rows = np.column_stack([X, groups])
    frozen = FrozenEstimator(LinearRegression().fit(rows, Y))
    model = ConformalRegressor(frozen, alpha=0.3, group_by=3).fit(rows, Y)
    widths = np.diff(model.predict_interval(rows))[:, 0] / 2
    scores = np.abs(Y - frozen.predict(rows))
    # ceil(0.7 * 5) = 4: the largest of the four rows of a group.
    assert_allclose(widths, [scores[groups == of].max() for of in groups])
    rows[3, 3] = -7
    with pytest.raises(InvalidDataError, match=r"group -7\.0, which no calibration row has"):
        model.predict_interval(rows)


def test_a_fit_that_fails_leaves_nothing_to_predict_by() -> None:
    model = ConformalRegressor(LinearRegression(), random_state=0).fit(X, Y)
    with pytest.raises(InvalidDataError, match="needs 9 or more"):
        model.fit(X[:12], -Y[:12])
    with pytest.raises(NotFittedError):
        model.predict_interval(X)


def test_the_middle_of_two_quantiles_is_lazy_too() -> None:
    pair = tuple(QuantileRegressor(quantile=q, alpha=0) for q in (0.1, 0.9))
    model = ConformalizedQuantileRegressor(pair, alpha=0.2, random_state=0).fit(X, Y)
    found = model.predict(lazy(NEW, (20, 30)))
    assert isinstance(found, da.Array)
    assert_allclose(found, model.predict(NEW))


def test_unusable_calibration_rows_are_named() -> None:
    class Missing(Zero):
        def predict(self, X: Any) -> Any:
            return np.where(np.arange(len(X)) == 3, np.nan, 0.0)

    with pytest.raises(InvalidDataError, match="predicts NaN"):
        ConformalRegressor(FrozenEstimator(Missing())).fit(X, Y)
    rows = X.copy()
    rows[5, 0] = np.nan
    with pytest.raises(InvalidDataError, match="group_by has missing labels"):
        ConformalRegressor(FrozenEstimator(Zero()), group_by=0).fit(rows, Y)
    mixed = np.array([None, "a"] * (N // 2), dtype=object)
    with pytest.raises(InvalidDataError, match="several types, or missing ones"):
        ConformalRegressor(FrozenEstimator(Zero()), group_by=lambda rows: mixed).fit(X, Y)
    # A level that is set later has to be possible too.
    model = ConformalRegressor(FrozenEstimator(Zero())).fit(X[:20], Y[:20])
    with pytest.raises(InvalidDataError, match="needs 99 or more"):
        model.set_params(alpha=0.01).predict_interval(X)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"alpha": 0.0}, "between 0 and 1, both excluded"),
        ({"alpha": 1.0}, "between 0 and 1, both excluded"),
        ({"alpha": "ten"}, "between 0 and 1, both excluded"),
        ({"conformity": "absolut"}, "Did you mean 'absolute'"),
        ({"method": "minus"}, "use one of"),
        ({"group_by": 1.5}, "a column's name or position"),
        ({"group_by": "site"}, "names no column of X"),
        ({"likelihood_ratio": 3}, "a function of rows"),
        ({"likelihood_ratio": LogisticRegression()}, "not fitted"),
        ({"likelihood_ratio": lambda rows: -np.ones(len(rows))}, "a number >= 0 for each row"),
        ({"cv": 3, "likelihood_ratio": len}, "Leave cv=None"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        ConformalRegressor(Ridge(), **params).fit(X, Y)


def test_too_few_rows_raise_with_the_attainable_coverage() -> None:
    frozen = FrozenEstimator(LinearRegression().fit(X, Y))
    with pytest.raises(InvalidDataError, match=r"8 calibration rows, and alpha=0\.1 needs 9") as e:
        ConformalRegressor(frozen).fit(X[:8], Y[:8])
    assert "can cover 0.8889 of new rows at most (alpha >= 0.1111)" in str(e.value)
    model = ConformalRegressor(frozen).fit(X[:9], Y[:9])
    assert_allclose(
        np.diff(model.predict_interval(X[:1])), 2 * np.abs(Y - frozen.predict(X))[:9].max()
    )
    with pytest.raises(InvalidDataError, match="needs 19 or more"):
        model.predict_interval(X[:1], alpha=0.05)
    with pytest.raises(InvalidParameterError, match="both excluded"):
        model.predict_interval(X[:1], alpha=1.5)


def test_bad_targets_are_named() -> None:
    frozen = FrozenEstimator(LinearRegression().fit(X, Y))
    y = Y.copy()
    y[3] = np.nan
    with pytest.raises(InvalidDataError, match="y contains NaN"):
        ConformalRegressor(frozen).fit(X, y)
    known = FrozenEstimator(GaussianNB().fit(X, LABELS > 0))
    with pytest.raises(InvalidDataError, match=r"not learned: \[2\]"):
        ConformalClassifier(known).fit(X, LABELS)
    with pytest.raises(InvalidParameterError, match="has no predict_proba"):
        ConformalClassifier(Ridge()).fit(X, LABELS)
    with pytest.raises(InvalidDataError, match="several classes"):
        ConformalClassifier(GaussianNB()).fit(X, np.zeros(N))


def test_intervals_and_sets_are_outputs_of_a_service() -> None:
    intervals = ConformalRegressor(Ridge(), random_state=0).fit(X, Y)
    found = find_predictor(Predictor(intervals), "predict_interval")(NEW)
    assert_allclose(found, intervals.predict_interval(NEW))
    sets = ConformalClassifier(GaussianNB(), random_state=0).fit(X, LABELS)
    assert_array_equal(find_predictor(Predictor(sets), "predict_set")(NEW), sets.predict_set(NEW))


# --- a peer ---------------------------------------------------------------------------------


def test_intervals_are_those_of_mapie() -> None:
    """Equal intervals of the same scores, split and CV+ and jackknife+, and sets of LAC."""
    regression = pytest.importorskip("mapie.regression", reason="mapie is not installed")
    from mapie.classification import SplitConformalClassifier
    from sklearn import model_selection

    member = LinearRegression().fit(X[:100], Y[:100])
    theirs = regression.SplitConformalRegressor(member, confidence_level=0.9, prefit=True)
    _, expected = theirs.conformalize(X[100:], Y[100:]).predict_interval(NEW)
    ours = ConformalRegressor(FrozenEstimator(member)).fit(X[100:], Y[100:])
    assert_allclose(ours.predict_interval(NEW), expected[:, :, 0])
    for cv in (model_selection.KFold(4), LeaveOneOut()):
        for method in ("plus", "minmax", "base"):
            theirs = regression.CrossConformalRegressor(
                LinearRegression(), confidence_level=0.9, cv=cv, method=method
            )
            _, expected = theirs.fit_conformalize(X, Y).predict_interval(NEW)
            ours = ConformalRegressor(LinearRegression(), cv=cv, method=method).fit(X, Y)
            assert_allclose(ours.predict_interval(NEW), expected[:, :, 0])
    bayes = GaussianNB().fit(X[:100], LABELS[:100]).to_sklearn()
    sets = SplitConformalClassifier(bayes, confidence_level=0.9, prefit=True)
    _, expected = sets.conformalize(X[100:], LABELS[100:]).predict_set(NEW)
    ours_of_labels = ConformalClassifier(FrozenEstimator(bayes)).fit(X[100:], LABELS[100:])
    assert_array_equal(ours_of_labels.predict_set(NEW), expected[:, :, 0])
