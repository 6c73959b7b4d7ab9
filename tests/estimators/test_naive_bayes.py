"""Naive Bayes in one pass equals scikit-learn for any blocks."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.naive_bayes
from distributed import Client
from numpy.testing import assert_allclose
from scipy import sparse

from daskml_dist import Run, naive_bayes
from daskml_dist.backends.numpy_backend import CSRRows
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.models.naive_bayes import merge_moments
from daskml_dist.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 700)
NOISE = RNG.normal(size=(700, 5)) + Y[:, None]
COUNTS = RNG.poisson(0.2 + 0.3 * (Y[:, None] == np.arange(12) % 3)).astype(float)
WEIGHT = RNG.integers(0, 4, 700).astype(float)

FITTED = {
    "GaussianNB": ["theta_", "var_", "class_count_", "class_prior_", "epsilon_"],
    "BernoulliNB": ["feature_count_", "feature_log_prob_", "class_count_", "class_log_prior_"],
    "MultinomialNB": ["feature_count_", "feature_log_prob_", "class_count_", "class_log_prior_"],
    "ComplementNB": ["feature_count_", "feature_log_prob_", "feature_all_", "class_count_"],
    "CategoricalNB": ["category_count_", "feature_log_prob_", "n_categories_", "class_count_"],
}
WEIGHTS = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
NAMES = pytest.mark.parametrize("name", naive_bayes.__all__)


def _rows(name: str) -> Any:
    return NOISE if name == "GaussianNB" else COUNTS


def _peer(name: str, X: Any, weight: Any = None, **params: Any) -> Any:
    return getattr(sklearn.naive_bayes, name)(**params).fit(X, Y, weight)


def _assert_same(name: str, ours: Any, peer: Any, rtol: float = 1e-9) -> None:
    for attribute in FITTED[name]:
        found, expected = getattr(ours, attribute), getattr(peer, attribute)
        if not isinstance(expected, list):
            found, expected = [found], [expected]
        for a, b in zip(found, expected, strict=True):
            assert_allclose(a, b, rtol, err_msg=attribute)


@NAMES
@WEIGHTS
def test_equals_scikit_learn(name: str, weight: Any) -> None:
    X = _rows(name)
    ours = getattr(naive_bayes, name)(run=Run(n_lanes=3)).fit(X, Y, weight)
    peer = _peer(name, X, weight)
    _assert_same(name, ours, peer)
    assert len(ours.history_) == (2 if name == "CategoricalNB" else 1)
    for method in ["predict_joint_log_proba", "predict_log_proba", "predict_proba", "predict"]:
        assert_allclose(getattr(ours, method)(X), getattr(peer, method)(X), 1e-9)
    assert ours.score(X, Y, weight) == pytest.approx(peer.score(X, Y, weight))


@pytest.mark.parametrize("name", ["BernoulliNB", "ComplementNB", "MultinomialNB"])
@pytest.mark.parametrize(
    "params", [{"alpha": 0.3, "fit_prior": False}, {"class_prior": [0.2, 0.3, 0.5]}]
)
@WEIGHTS
def test_sparse_counts(name: str, params: dict[str, Any], weight: Any) -> None:
    X = sparse.csr_array(COUNTS)
    ours = getattr(naive_bayes, name)(run=Run(n_lanes=2), **params).fit(X, Y, weight)
    peer = _peer(name, X, weight, **params)
    _assert_same(name, ours, peer)
    assert_allclose(ours.predict_proba(X), peer.predict_proba(X), 1e-9)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_binarize(container: Any, threshold: float | None) -> None:
    counts = np.minimum(COUNTS, 1.0) if threshold is None else COUNTS
    ours = BernoulliNB(binarize=threshold).fit(container(counts), Y)
    peer = _peer("BernoulliNB", counts, binarize=threshold)
    _assert_same("BernoulliNB", ours, peer)
    assert_allclose(ours.predict_proba(container(counts)), peer.predict_proba(counts), 1e-9)


@WEIGHTS
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_variances_keep_their_precision_with_a_large_mean(container: Any, weight: Any) -> None:
    # Classes are far from each other, so that a single shift would not suffice.
    X = 1e6 * (1 + Y[:, None]) + RNG.normal(size=(len(Y), 4))
    ours = GaussianNB(run=Run(n_lanes=4)).fit(container(X), Y, weight)
    _assert_same("GaussianNB", ours, _peer("GaussianNB", X, weight))
    wide = X.astype(np.longdouble)[Y == 1]
    share = None if weight is None else weight[Y == 1].astype(np.longdouble)
    mean = np.average(wide, axis=0, weights=share)
    exact = np.average((wide - mean) ** 2, axis=0, weights=share)
    assert_allclose(ours.var_[1] - ours.epsilon_, exact.astype(float), 1e-9, atol=1e-4)
    assert_allclose(ours.theta_[1], mean.astype(float), 1e-13)


@WEIGHTS
def test_a_fit_reads_only_stored_entries(weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X = sparse.random_array((len(Y), 40), density=0.2, format="csr", rng=RNG)
    dense = X.toarray()
    monkeypatch.setattr(CSRRows, "toarray", None)
    ours = GaussianNB(run=Run(n_lanes=2)).fit(X, Y, weight)
    _assert_same("GaussianNB", ours, _peer("GaussianNB", dense, weight))


def test_a_first_outlier_does_not_reduce_precision() -> None:
    X = RNG.normal(size=(len(Y), 2))
    X[0] = 1e8
    ours = GaussianNB(var_smoothing=0.0).fit(X, Y)
    _assert_same("GaussianNB", ours, _peer("GaussianNB", X, var_smoothing=0.0))


def test_moments_merge_in_any_order() -> None:
    X = RNG.normal(size=(60, 3)) + 1e3

    def moments(rows: Any) -> Any:
        mean = rows.mean(axis=0) if len(rows) else np.zeros(3)
        return np.concatenate([[len(rows)], mean, ((rows - mean) ** 2).sum(axis=0)])[None]

    for cuts in ([10, 10, 40], [59], [0, 30]):
        total = np.zeros((1, 7))
        for part in np.split(X, cuts):
            merge_moments(total, moments(part))
        assert_allclose(total, moments(X), 1e-11)


@NAMES
def test_float32_rows_are_summed_in_float64(name: str) -> None:
    X = (_rows(name) + 100.0).astype(np.float32)
    ours = getattr(naive_bayes, name)().fit(X, Y)
    _assert_same(name, ours, _peer(name, X.astype(np.float64)))


@NAMES
@WEIGHTS
def test_partial_fits_equal_a_fit_of_all_rows(name: str, weight: Any) -> None:
    X = _rows(name)
    parts = getattr(naive_bayes, name)()
    for at in np.array_split(np.arange(len(Y)), 3):
        some = None if weight is None else weight[at]
        parts.partial_fit(X[at], Y[at], classes=[0, 1, 2], sample_weight=some)
    _assert_same(name, parts, getattr(naive_bayes, name)().fit(X, Y, weight))
    assert parts.fit(X, Y).class_count_.sum() == len(Y), "fit forgets what came before"


def test_a_part_without_a_class() -> None:
    clf = GaussianNB().partial_fit(NOISE[Y < 2], Y[Y < 2], classes=[0, 1, 2])
    assert clf.class_count_[2] == 0
    clf.partial_fit(NOISE[Y == 2], Y[Y == 2])
    _assert_same("GaussianNB", clf, _peer("GaussianNB", NOISE))


@NAMES
def test_on_a_cluster(name: str, client: Client) -> None:
    X = da.from_array(_rows(name), chunks=(190, -1))
    y = da.from_array(Y, chunks=190)
    weight = da.from_array(WEIGHT, chunks=190)
    ours = getattr(naive_bayes, name)().fit(X, y, weight)
    peer = _peer(name, _rows(name), WEIGHT)
    _assert_same(name, ours, peer)
    proba = ours.predict_proba(X)
    assert isinstance(proba, da.Array)
    assert proba.chunks[0] == X.chunks[0]
    assert_allclose(proba.compute(), peer.predict_proba(_rows(name)), 1e-9)
    assert ours.score(X, y) == pytest.approx(peer.score(_rows(name), Y))


def test_alpha_too_small() -> None:
    with pytest.warns(UserWarning, match="force_alpha=True"):
        MultinomialNB(alpha=0.0, force_alpha=False).fit(COUNTS, Y)


@pytest.mark.parametrize(
    ("estimator", "remedy"),
    [
        (GaussianNB(var_smoothing=-1.0), "number >= 0"),
        (GaussianNB(priors=[0.5, 0.5]), "Number of priors must match"),
        (GaussianNB(priors=[0.5, 0.4, 0.3]), "sum of the priors should be 1"),
        (GaussianNB(priors=[1.5, -0.5, 0.0]), "non-negative"),
        (MultinomialNB(alpha=-1.0), "number >= 0"),
        (MultinomialNB(alpha="one"), "number >= 0"),
        (MultinomialNB(alpha=[1.0, 1.0]), "n_features"),
        (MultinomialNB(class_prior=[1.0]), "Number of priors must match"),
        (BernoulliNB(binarize=-1.0), "or None"),
        (BernoulliNB(run=Run(n_lanes=0)), "integer >= 1"),
    ],
)
def test_bad_parameters(estimator: Any, remedy: str) -> None:
    with pytest.raises(InvalidParameterError, match=remedy):
        estimator.fit(COUNTS, Y)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_counts_are_not_negative(container: Any) -> None:
    with pytest.raises(InvalidDataError, match="GaussianNB"):
        MultinomialNB().fit(container(-COUNTS), Y)


def test_partial_fit_needs_the_classes() -> None:
    with pytest.raises(InvalidParameterError, match="first call"):
        GaussianNB().partial_fit(NOISE, Y)
    clf = GaussianNB().partial_fit(NOISE, Y, classes=[0, 1, 2])
    with pytest.raises(InvalidParameterError, match="not the same"):
        clf.partial_fit(NOISE, Y, classes=[0, 1])
    with pytest.raises(InvalidDataError, match=r"label\(s\) \[3\]"):
        clf.partial_fit(NOISE, Y + 1)


# --- categories ------------------------------------------------------------------------------


def test_categories_of_a_later_part() -> None:
    X = np.column_stack([Y, Y // 2])
    parts = CategoricalNB().partial_fit(X[Y < 2], Y[Y < 2], classes=[0, 1, 2])
    assert parts.n_categories_.tolist() == [2, 1]
    parts.partial_fit(X[Y == 2], Y[Y == 2])
    _assert_same("CategoricalNB", parts, _peer("CategoricalNB", X))


@pytest.mark.parametrize("least", [6, [9, 3, *[1] * 10]])
def test_min_categories_reserves_unseen_categories(least: Any) -> None:
    ours = CategoricalNB(min_categories=least).fit(sparse.csr_array(COUNTS), Y)
    peer = _peer("CategoricalNB", COUNTS, min_categories=least)
    _assert_same("CategoricalNB", ours, peer)
    assert_allclose(ours.predict_proba(COUNTS), peer.predict_proba(COUNTS), 1e-9)
    unseen = COUNTS.copy()
    unseen[5, 0] = 1_000
    with pytest.raises(InvalidDataError, match=r"Column 0 holds category 1000.*min_categories"):
        ours.predict(unseen)


def test_invalid_categories_are_refused() -> None:
    with pytest.raises(InvalidDataError, match=r"Negative values.*OrdinalEncoder"):
        CategoricalNB().fit(-COUNTS, Y)
    with pytest.raises(InvalidDataError, match=r"Column 1 of X holds 1000000000.*OrdinalEncoder"):
        CategoricalNB().fit(np.array([[0, 1], [1, 10**9]]), [0, 1])
    for least in (1.5, [1, 2]):
        with pytest.raises(InvalidParameterError, match="'min_categories' should"):
            CategoricalNB(min_categories=least).fit(COUNTS, Y)
    with pytest.raises(InvalidParameterError, match="alpha"):
        CategoricalNB(alpha=np.ones(12)).fit(COUNTS, Y)
