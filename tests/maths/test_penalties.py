"""Penalties: hand-computed values, the proximal operator of l1, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as peers
from scipy import sparse

from daskml_dist import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.penalties import PENALTIES, Penalty, get_penalty, soft_threshold
from tests.quick import quick

W = np.array([[1.0, -2.0], [0.0, 3.0]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("l2", Penalty(0.0, 0.1)),
        ("l1", Penalty(0.1, 0.0)),
        ("elasticnet", Penalty(0.1 * 0.25, 0.1 * 0.75)),
        (None, Penalty(0.0, 0.0)),
    ],
)
def test_strengths(name: str | None, expected: Penalty) -> None:
    assert get_penalty(name, 0.1, 0.25) == expected


@pytest.mark.parametrize("name", list(PENALTIES))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_value_is_the_term_of_the_objective(name: str | None, dtype: Any) -> None:
    alpha, ratio = 0.5, {"l2": 0.0, "l1": 1.0}.get(name or "", 0.25)
    expected = alpha * ((1 - ratio) / 2 * 14 + ratio * 6) if name else 0.0
    value = get_penalty(name, alpha, 0.25).value(W.astype(dtype))
    assert type(value) is float
    assert value == pytest.approx(expected)


@pytest.mark.parametrize("name", list(PENALTIES))
def test_strengths_are_floats(name: str | None) -> None:
    """Integers and NumPy scalars of a parameter search must not widen a float32 fit."""
    penalty = get_penalty(name, np.float64(1), 0)  # type: ignore[arg-type]
    assert type(penalty.l1) is type(penalty.l2) is float


def test_elasticnet_spans_l1_and_l2() -> None:
    assert get_penalty("elasticnet", 0.3, 1) == get_penalty("l1", 0.3, 0.15)
    assert get_penalty("elasticnet", 0.3, 0) == get_penalty("l2", 0.3, 0.15)


@pytest.mark.parametrize("wrong", ["L2", "", 2, ["l2"], "nothing"])
def test_unknown_name_lists_the_names(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"'l2', 'l1', 'elasticnet', None"):
        get_penalty(wrong, 0.1, 0.15)


@pytest.mark.parametrize("alpha", [-1e-9, float("nan"), float("inf")])
def test_wrong_alpha(alpha: float) -> None:
    with pytest.raises(InvalidParameterError, match=r"alpha=.*>= 0.*penalty=None"):
        get_penalty("l2", alpha, 0.15)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_wrong_ratio(ratio: float) -> None:
    with pytest.raises(InvalidParameterError, match=r"l1_ratio=.*0 .*1"):
        get_penalty("elasticnet", 0.1, ratio)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (50, 1), (50, 3)], ids=str)
def test_soft_threshold(shape: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(50, 3)).astype(dtype)
    t: Any = rng.random(shape).astype(dtype) if shape else 0.4
    expected = np.sign(w) * np.maximum(abs(w) - t, 0)
    before = w
    soft_threshold(w, t)
    assert w is before
    assert w.dtype == dtype
    np.testing.assert_allclose(w, expected, rtol=1e-5, atol=1e-7)
    # What lies inside is exactly zero.
    np.testing.assert_array_equal(w == 0, expected == 0)
    assert 0 < np.count_nonzero(w) < w.size


def test_soft_threshold_is_the_proximal_operator() -> None:
    """It minimises t |u| + (u - w)^2 / 2."""
    w = np.linspace(-2, 2, 41)
    u = np.linspace(-2, 2, 4001)
    best = w.copy()
    soft_threshold(best, 0.7)
    objective = 0.7 * abs(u) + (u - w[:, None]) ** 2 / 2
    np.testing.assert_allclose(best, u[objective.argmin(axis=1)], atol=1e-3)


def test_threshold_of_zero_changes_nothing() -> None:
    w = W.copy()
    soft_threshold(w, 0.0)
    np.testing.assert_array_equal(w, W)


# --- zeros -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd", "ftrl"])
@pytest.mark.parametrize("lay", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_l1_leaves_the_zeros_of_the_optimum(optimizer: str, lay: Any) -> None:
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(4000, 40)), np.where(np.arange(40) < 20, rng.normal(size=40), 0.0)
    target = X @ w + rng.normal(size=4000)
    best = peers.Lasso(alpha=0.05).fit(X, target)
    model = SGDRegressor(penalty="l1", alpha=0.05, optimizer=optimizer, random_state=0)
    model.fit(lay(X), target)
    assert (model.coef_ == 0).sum() >= 15
    assert ((model.coef_ == 0) != (best.coef_ == 0)).sum() <= 3
    np.testing.assert_allclose(model.coef_, best.coef_, atol=0.05)


@pytest.mark.parametrize("policy", quick(["sync", "allreduce", "async", "ssp"], "sync", "async"))
def test_l1_leaves_zeros_under_each_policy_of_one_model(policy: str) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 20))
    y = X[:, 0] - X[:, 1] + rng.normal(size=3000) > 0
    kind = {"penalty": "l1", "alpha": 0.03, "random_state": 0, "run": Run(n_lanes=3)}
    model = SGDClassifier(policy=policy, **kind).fit(X, y)
    again = SGDClassifier(policy=policy, warm_start=True, max_iter=10, **kind)
    for _ in range(2):
        again.fit(X, y)
    for clf in model, again:
        assert (clf.coef_[0, 2:] == 0).sum() >= 17
        assert np.all(clf.coef_[0, :2] != 0)
