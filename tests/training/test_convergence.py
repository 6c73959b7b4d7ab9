"""Convergence warnings, penalties of LogisticRegression, and probabilities of losses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as peers
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import (
    ElasticNet,
    HuberRegressor,
    Lasso,
    LogisticRegression,
    PoissonRegressor,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from daskml_dist.losses import LOSSES
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.svm import LinearSVC, LinearSVR
from daskml_dist.training.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
Y = X @ np.arange(1.0, 5) + RNG.normal(size=200)
LABELS = (Y > 0).astype(int)
TARGETS = np.abs(Y)

ITERATIVE = [
    SGDClassifier(random_state=0), SGDRegressor(random_state=0), LogisticRegression(),
    LogisticRegression(l1_ratio=1), LogisticRegression(solver="newton-cholesky"),
    LogisticRegression(solver="boosting"), LinearSVC(), LinearSVR(),
    LinearSVR(loss="squared_epsilon_insensitive"), HuberRegressor(), PoissonRegressor(alpha=0),
    TweedieRegressor(alpha=0), Lasso(alpha=1e-6, tol=1e-12), ElasticNet(alpha=1e-6, tol=1e-12),
]  # fmt: skip


@pytest.mark.parametrize("estimator", ITERATIVE, ids=str)
def test_stopping_at_max_iter_warns(estimator: Any) -> None:
    y = LABELS if hasattr(estimator, "decision_function") else TARGETS
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        estimator.set_params(max_iter=1).fit(X, y)


@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_step_fits_warn_of_max_iter_only_if_not_stopped_on_request(
    kind: Any, tmp_path: Any
) -> None:
    class Stop:
        def on_pass_end(self, run: Any, record: Any) -> None:
            run.stop()

    enough = kind(random_state=0, max_iter=500, tol=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enough.fit(X, LABELS)
        kind(max_iter=1, tol=None).fit(X, LABELS)
        kind(max_iter=1, callbacks=Stop()).set_params(max_iter=5).fit(X, LABELS)
        kind(max_iter=1).partial_fit(
            X, LABELS, **({"classes": [0, 1]} if kind is SGDClassifier else {})
        )
    with pytest.warns(ConvergenceWarning, match="tol=None"):
        kind(max_iter=2, checkpoint=Checkpoint(tmp_path / "fit.npz")).fit(X, LABELS)
    assert enough.n_iter_ < 500


# --- the penalty of LogisticRegression ---------------------------------------------------------


@pytest.mark.parametrize("params", [
    {}, {"l1_ratio": 1}, {"l1_ratio": 1.0}, {"l1_ratio": 0.5}, {"C": np.inf},
 {"l1_ratio": 0, "C": 0.1},
], ids=str)  # fmt: skip
def test_the_penalty_follows_l1_ratio(params: dict[str, Any]) -> None:
    """As in scikit-learn, whose saga solver supports every penalty."""
    ours = LogisticRegression(**{"C": 0.05, "tol": 1e-8, "max_iter": 1000, **params}).fit(X, LABELS)
    theirs = peers.LogisticRegression(
        **{"C": 0.05, "solver": "saga", "tol": 1e-8, "max_iter": 20000, **params}
    ).fit(X, LABELS)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "same"), [("l2", 0.0), ("l1", 1.0), ("elasticnet", 0.3)])
def test_older_names_of_penalties(name: str, same: float) -> None:
    ratio = {"l1_ratio": same} if name == "elasticnet" else {}
    named = LogisticRegression(penalty=name, C=0.05, **ratio).fit(X, LABELS)
    np.testing.assert_array_equal(
        named.coef_, LogisticRegression(l1_ratio=same, C=0.05).fit(X, LABELS).coef_
    )


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"penalty": "elasticnet"}, "Set l1_ratio"),
        ({"penalty": "l2", "l1_ratio": 1}, "l1_ratio is not used"),
        ({"penalty": "l1", "l1_ratio": 0.5}, "l1_ratio is not used"),
        ({"penalty": None, "C": 0.1}, "C=0.1 is not used"),
    ],
)
def test_penalties_that_contradict_each_other(params: dict[str, Any], words: str) -> None:
    with pytest.warns(UserWarning, match=words):
        LogisticRegression(**params).fit(X, LABELS)


def test_a_solver_without_l1() -> None:
    with pytest.raises(InvalidParameterError, match="l1_ratio=1"):
        LogisticRegression(l1_ratio=1, solver="newton-cholesky").fit(X, LABELS)


# --- probabilities ------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [name for name in LOSSES if LOSSES[name].kind == "classification"])
@pytest.mark.parametrize("method", ["predict_proba", "predict_log_proba"])
def test_predict_proba_exists_only_for_probabilistic_losses(loss: str, method: str) -> None:
    clf = SGDClassifier(loss=loss)
    assert hasattr(clf, method) == LOSSES[loss].proba
    if not LOSSES[loss].proba:
        with pytest.raises(AttributeError, match=method) as caught:
            getattr(clf, method)
        assert "CalibratedClassifierCV" in str(caught.value.__cause__)
    assert not hasattr(LinearSVC(), method)


# --- partial_fit --------------------------------------------------------------------------------


def test_partial_fit_refuses_balanced_class_weights() -> None:
    with pytest.raises(InvalidParameterError, match="compute_class_weight"):
        SGDClassifier(class_weight="balanced").partial_fit(X, LABELS, classes=[0, 1])


@pytest.mark.parametrize("estimator", [SGDClassifier(), GaussianNB()], ids=str)
@pytest.mark.parametrize("later", [False, True])
def test_repeated_classes_are_refused(estimator: Any, later: bool) -> None:
    if later:
        estimator.partial_fit(X, LABELS, classes=[0, 1])
    with pytest.raises(InvalidParameterError, match="twice"):
        estimator.partial_fit(X, LABELS, classes=[0, 1, 1])
