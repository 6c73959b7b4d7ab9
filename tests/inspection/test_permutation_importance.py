"""Permutation importances over all rows equal scikit-learn's for any blocks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.inspection
from distributed import Client
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.linear_model import LinearRegression as TheirLinearRegression
from sklearn.metrics import get_scorer

from daskml_dist.cluster import KMeans
from daskml_dist.data.permutations import Permutation, PermutedRows
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError
from daskml_dist.inspection import permutation_importance
from daskml_dist.inspection.permutation_importance import SCORES
from daskml_dist.linear_model import LinearRegression, LogisticRegression
from daskml_dist.parameters.checks import seed_of
from tests.quick import in_turn

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 3))
Y = X @ [2.0, -1.0, 0.0] + 0.1 * RNG.normal(size=N)
LABELS = np.array(["a", "b", "c"])[np.digitize(Y, [-1, 1])]
WEIGHT = RNG.uniform(0.5, 2, N)
CHUNKS = ((100, 0, 90, 50), 3)


def _models() -> dict[str, Any]:
    return {
        name: (LogisticRegression().fit(X, LABELS), LABELS)
        if name in ("accuracy", "neg_log_loss") else (LinearRegression().fit(X, Y), Y)
        for name in SCORES
    }  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 65, 1000])
def test_permutations_are_permutations(n: int) -> None:
    permutation = Permutation(n, (0, 1))
    found = permutation(np.arange(n))
    assert_array_equal(np.sort(found), np.arange(n))
    assert_array_equal(permutation.inverse(found), np.arange(n))


def test_permutations_are_uniform() -> None:
    """Each of the 24 permutations of four is as frequent as chance has it (chi-squared)."""
    found = np.array([Permutation(4, (seed,))(np.arange(4)) for seed in range(2400)])
    counts = np.unique(found @ [1, 4, 16, 64], return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 100) ** 2 / 100).sum() < 49.7  # the 0.1 % point of 23 degrees of freedom


@pytest.mark.parametrize("m", [N, 50])
def test_draws_permute_the_rows_that_they_draw(m: int) -> None:
    at, source = PermutedRows(N, m, 0, 0).find_drawn_rows(np.arange(N))
    assert len(at) == m
    assert_array_equal(np.sort(source), at)
    other = PermutedRows(N, m, 0, 1).find_drawn_rows(np.arange(N))
    assert not np.array_equal(other[1], source)


def _directly(model: Any, y: Any, name: str, repeats: int, m: int, weight: Any) -> Any:
    """The same by scikit-learn's scorers, of the same permutations."""
    scorer, draws = get_scorer(name), [PermutedRows(N, m, seed_of(3), r) for r in range(repeats)]
    found = np.empty((3, repeats))
    for r, draw in enumerate(draws):
        at, source = draw.find_drawn_rows(np.arange(N))
        for j in range(3):
            rows = X[at].copy()
            rows[:, j] = X[source, j]
            found[j, r] = scorer(model, rows, y[at], sample_weight=weight[at])
    return scorer(model, X, y, sample_weight=weight) - found


@pytest.mark.parametrize(("name", "max_samples"), in_turn(SCORES, [1.0, 80]))
def test_importances_are_those_of_the_same_permutations(name: str, max_samples: Any) -> None:
    model, y = _models()[name]
    wanted = _directly(model, y, name, 2, N if max_samples == 1.0 else 80, WEIGHT)
    options: dict[str, Any] = {
        "scoring": name, "n_repeats": 2, "random_state": 3, "max_samples": max_samples,
    }  # fmt: skip
    in_memory = permutation_importance(model, X, y, sample_weight=WEIGHT, **options)
    assert_allclose(in_memory.importances, wanted, rtol=1e-9, atol=1e-12)
    assert_allclose(in_memory.importances_mean, wanted.mean(axis=1), rtol=1e-9, atol=1e-12)
    assert_allclose(in_memory.importances_std, wanted.std(axis=1), rtol=1e-9, atol=1e-12)
    lazy = [da.from_array(v, chunks=CHUNKS[: v.ndim]) for v in (X, y, WEIGHT)]
    for budget in ("512 MiB", 1, 2 * 8 * N):  # together, one by one, two and one
        lazily = permutation_importance(
            model, lazy[0], lazy[1], sample_weight=lazy[2], column_memory=budget, **options
        )
        assert_allclose(lazily.importances, in_memory.importances, rtol=1e-9, atol=1e-12)


def test_a_drawn_row_has_no_variance_to_explain() -> None:
    """Its sum of squares about its own mean is only a rounding error."""
    model = LinearRegression().fit(X, Y)
    found = permutation_importance(model, X, Y, sample_weight=WEIGHT, max_samples=1, random_state=0)
    assert_allclose(found.importances, model.score(X, Y, WEIGHT), rtol=1e-9)


def test_several_scores_are_those_of_one_each() -> None:
    model = LogisticRegression().fit(X, LABELS)
    lazy = [da.from_array(v, chunks=CHUNKS[: v.ndim]) for v in (X, LABELS)]
    options: dict[str, Any] = {"n_repeats": 2, "random_state": 3}
    names = ["neg_log_loss", "accuracy"]
    for scorers in (names, tuple(names), dict(zip("ab", names, strict=True))):
        found = permutation_importance(model, *lazy, scoring=scorers, **options)
        assert list(found) == list(scorers)
        for name, scoring in zip(found, names, strict=True):
            one = permutation_importance(model, *lazy, scoring=scoring, **options)
            assert_array_equal(found[name].importances, one.importances)
    both = {"own": lambda m, X, y: 1.0, "accuracy": "accuracy"}
    by_scikit_learn = permutation_importance(model, X, LABELS, scoring=both, **options)
    assert_array_equal(by_scikit_learn["own"].importances, np.zeros((3, 2)))
    with pytest.raises(InvalidParameterError, match="no score"):
        permutation_importance(model, X, LABELS, scoring=[], **options)


def test_importances_are_as_scikit_learn_s_but_for_chance() -> None:
    model = LinearRegression().fit(X, Y)
    ours = permutation_importance(model, X, Y, n_repeats=60, n_jobs=2, random_state=0)
    theirs = sklearn.inspection.permutation_importance(model, X, Y, n_repeats=60, random_state=0)
    error = np.hypot(ours.importances_std, theirs.importances_std) / np.sqrt(60)
    assert (np.abs(ours.importances_mean - theirs.importances_mean) < 4 * error + 1e-12).all()
    assert_allclose(ours.importances_std, theirs.importances_std, rtol=0.5)


def test_blocks_that_differ_are_permuted_together() -> None:
    """Within sorted blocks a permutation would hardly change anything."""
    order = np.argsort(X[:, 0])
    rows, y = da.from_array(X[order], chunks=(12, 3)), da.from_array(Y[order], chunks=12)
    model = LinearRegression().fit(X, Y)
    found = permutation_importance(model, rows, y, n_repeats=20, random_state=0)
    whole = sklearn.inspection.permutation_importance(model, X, Y, n_repeats=20, random_state=0)
    assert_allclose(found.importances_mean, whole.importances_mean, rtol=0.15, atol=1e-3)


def test_frames_with_categories_and_unknown_rows() -> None:
    words = pd.Series(np.array(["x", "y", "z"])[np.digitize(X[:, 1], [-1, 1])], dtype="category")
    frame = pd.DataFrame({"a": X[:, 0], "word": words, "c": X[:, 2], "y": LABELS})
    model = HistGradientBoostingClassifier(max_iter=3).fit(frame.drop(columns="y"), LABELS)
    in_memory = permutation_importance(model, frame, "y", random_state=0, n_repeats=2)
    lazy = dd.from_pandas(frame, npartitions=3)
    lazily = permutation_importance(model, lazy, "y", random_state=0, n_repeats=2)
    assert_allclose(lazily.importances, in_memory.importances, rtol=1e-12)
    assert in_memory.importances_mean[0] > in_memory.importances_mean[1] > 0
    assert abs(in_memory.importances_mean[2]) < 0.05


def test_on_a_cluster_nothing_is_left(client: Client) -> None:
    model = TheirLinearRegression().fit(X, Y)
    rows = da.from_array(np.tile(X, (250, 1)), chunks=(20_000, 3))
    y = da.from_array(np.tile(Y, 250), chunks=20_000)
    found = permutation_importance(model, rows, y, n_repeats=1, random_state=0)
    with dask.config.set(scheduler="synchronous"):
        in_memory = permutation_importance(
            model, rows.compute(), y.compute(), n_repeats=1, random_state=0
        )
    assert_allclose(found.importances, in_memory.importances, rtol=1e-9)


def test_a_function_scores_rows_in_memory_alone() -> None:
    model = LinearRegression().fit(X, Y)
    found = permutation_importance(model, X, Y, scoring=lambda m, X, y: 1.0, n_repeats=2)
    assert_array_equal(found.importances, np.zeros((3, 2)))
    with pytest.raises(InvalidParameterError, match="Use the name of a score"):
        permutation_importance(
            model, da.from_array(X), da.from_array(Y), scoring=lambda m, X, y: 1.0
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scoring": "roc_auc"}, InvalidParameterError, "Use one of"),
        ({"scoring": "neg_log_loss"}, InvalidParameterError, "needs predict_proba"),
        ({"max_samples": N + 1}, InvalidParameterError, "max_samples must be <= n_samples"),
        ({"max_samples": 0.0}, InvalidParameterError, "max_samples"),
        ({"n_repeats": 0}, InvalidParameterError, "n_repeats"),
        ({"n_jobs": 0.5}, InvalidParameterError, "n_jobs"),
        ({"sample_weight": np.zeros(N)}, InvalidDataError, "sum to zero"),
        ({"y": None}, InvalidDataError, "Pass y"),
        ({"X": sparse.csr_array(X)}, InvalidDataError, "toarray"),
        ({"estimator": LinearRegression()}, NotFittedError, "fit"),
        ({"estimator": KMeans(2, random_state=0).fit(X)}, InvalidParameterError, "by default"),
    ],
    ids=str,
)
def test_invalid_scores_raise(options: Any, error: type, message: str) -> None:
    arguments = {"estimator": LinearRegression().fit(X, Y), "X": X, "y": Y, **options}
    with pytest.raises(error, match=message):
        permutation_importance(**arguments)
