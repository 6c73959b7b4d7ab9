"""Parallel-update boosting: every round lowers the objective, down to the reference optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as Peer

from daskml_dist import Run
from daskml_dist.backends import get_backend
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.losses import Hinge, LogLoss
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.penalties import Penalty
from daskml_dist.solvers import Solution, Statistic
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.parallel_coordinate_boosting import Boosting, Correlations

RNG = np.random.default_rng(0)
DENSE = np.sign(RNG.normal(size=(400, 12))) * (RNG.random((400, 12)) < 0.3)
X = sparse.csr_array(DENSE)
Y = (RNG.random(400) < 1 / (1 + np.exp(-(DENSE @ RNG.normal(size=12) + 0.3)))).astype(int)
THREE = np.digitize(DENSE[:, :4].sum(axis=1) + RNG.normal(size=400), [-0.7, 0.7])
WEIGHT = RNG.random(400) * 2
PENALTIES = {
    "none": Penalty(0.0, 0.0),
    "l2": Penalty(0.0, 0.01),
    "l1": Penalty(0.01, 0.0),
    "elasticnet": Penalty(0.01, 0.01),
}


@dataclass
class _Sums:
    """Sums over all rows, in the calling thread."""

    model: LinearModel
    X: Any
    y: Any
    n_rows: int = len(Y)
    should_stop: bool = False

    def __call__(self, statistic: Statistic) -> Any:
        backend = get_backend("cpu")
        out = np.zeros(statistic.shape(self.model))
        for half in np.array_split(np.arange(len(self.y)), 2):
            at, part = slice(half[0], half[-1] + 1), np.zeros_like(out)
            rows = BatchRows(backend.rows(self.X, at), self.y[at])
            statistic.add(self.model, rows, part, backend)
            statistic.merge(out, part)
        return out

    kept = None

    def keep(self, w: Any, *_: Any, **__: Any) -> None:
        """Do nothing, since there are no interrupts."""


def _model(n_classes: int = 2) -> LinearModel:
    return LinearModel(LogLoss(), 12, n_classes, fit_intercept=True)


def _objective(sums: _Sums, penalty: Penalty, w: Any) -> float:
    return float(sums(LossGradient(w))[0]) / sums.n_rows + penalty.value(w[:12])


def _solve(sums: _Sums, penalty: Penalty, max_iter: int, start: Any = None) -> Solution:
    start = np.zeros(sums.model.shape) if start is None else start
    return Boosting(penalty, max_iter, 0.0).solve(sums.model, sums, start)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize(("n_classes", "y"), [(2, 2.0 * Y - 1), (3, THREE)], ids=["two", "three"])
@pytest.mark.parametrize("rows", [X, DENSE * RNG.lognormal(size=12)], ids=["sparse", "dense"])
def test_every_round_lowers_the_objective(name: str, n_classes: int, y: Any, rows: Any) -> None:
    sums, penalty = _Sums(_model(n_classes), rows, y), PENALTIES[name]
    # Also from far away, where steps are truncated.
    w = RNG.normal(size=sums.model.shape) * 3
    values = [_objective(sums, penalty, w)]
    for _ in range(12):
        w = _solve(sums, penalty, 1, w).w
        values.append(_objective(sums, penalty, w))
    assert (np.diff(values) < 0).all()


def test_a_step_equals_the_papers() -> None:
    sums = _Sums(_model(), X, 2.0 * Y - 1)
    longest = np.abs(DENSE).sum(axis=1).max() + 1
    signed = sums.y[:, None] * np.hstack([DENSE, np.ones((400, 1))])
    more, less = (np.maximum(s, 0).sum(axis=0) / 2 for s in (signed, -signed))
    step = np.log(more / less) / (2 * longest)
    assert_allclose(_solve(sums, PENALTIES["none"], 1).w[:, 0], step, rtol=1e-9)


def test_the_difference_of_correlations_equals_the_gradient() -> None:
    sums = _Sums(_model(3), X, THREE)
    w = RNG.normal(size=sums.model.shape)
    ours, gradient = sums(Correlations(w)), sums(LossGradient(w))
    assert_allclose(ours[: gradient.size], gradient, rtol=1e-10)
    assert (ours[gradient.size :] >= np.abs(gradient[1:])).all()


@pytest.mark.parametrize(
    ("params", "y"),
    [
        ({"penalty": None}, Y),
        ({"penalty": "l2"}, Y),
        ({"penalty": "l2", "fit_intercept": False}, Y),
        ({"penalty": "l2", "C": 0.1}, THREE),
    ],
    ids=["none", "l2", "no intercept", "three classes"],
)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_ends_at_the_optimum(params: dict[str, Any], y: Any, weight: Any) -> None:
    ours = LogisticRegression(
        solver="boosting", tol=1e-6, max_iter=3000, run=Run(n_lanes=2), **params
    ).fit(X, y, weight)
    peer_params = params | ({"C": np.inf} if params["penalty"] is None else {})
    peer_params.pop("penalty")
    peer = Peer(tol=1e-9, max_iter=1000, **peer_params).fit(X, y, weight)
    scale = np.abs(peer.coef_).max()
    assert_allclose(ours.coef_, peer.coef_, atol=1e-4 * scale)
    if params.get("fit_intercept", True) and len(ours.classes_) == 2:
        assert_allclose(ours.intercept_, peer.intercept_, atol=1e-4 * scale)


def test_l1_ends_at_the_optimum_with_its_zeros() -> None:
    penalty = Penalty(0.03, 0.0)
    sums = _Sums(_model(), X, 2.0 * Y - 1)
    start = RNG.normal(size=(13, 1))
    w = Boosting(penalty, 5000, 1e-9).solve(sums.model, sums, start).w
    gradient = (sums(LossGradient(w))[1:] / len(Y))[:, None]
    assert_allclose(gradient[12], 0, atol=1e-8)
    zero = w[:12] == 0
    assert 0 < zero.sum() < 12
    assert (np.abs(gradient[:12][zero]) <= penalty.l1 + 1e-8).all()
    assert_allclose(gradient[:12][~zero], -penalty.l1 * np.sign(w[:12][~zero]), atol=1e-8)


def test_wide_rows_of_rare_features() -> None:
    n_rows, n_features, per_row = 2_000, 2**14, 20
    columns = np.minimum(RNG.zipf(1.3, (n_rows, per_row)) - 1, n_features - 1).ravel()
    indptr = np.arange(0, columns.size + 1, per_row)
    wide = sparse.csr_array((np.ones(columns.size), columns, indptr), shape=(n_rows, n_features))
    wide.sum_duplicates()
    wide.data[:] = 1
    y = RNG.random(n_rows) < 1 / (1 + np.exp(-(wide @ RNG.normal(size=n_features))))
    # Many features occur with one class only.
    with pytest.warns(ConvergenceWarning, match="gradient"):
        clf = LogisticRegression(None, solver="boosting", max_iter=30).fit(wide.astype("f4"), y)
    losses = np.array([record["loss"] for record in clf.history_][1:])
    assert (np.diff(losses) < 0).all()
    assert losses[-1] < 0.8 * losses[0]
    assert clf.coef_.dtype == np.float32


def test_another_loss_is_refused() -> None:
    model = LinearModel(Hinge(), 12, 2, fit_intercept=True)
    with pytest.raises(InvalidParameterError, match="lbfgs"):
        _solve(_Sums(model, X, 2.0 * Y - 1), PENALTIES["l2"], 1)
