"""Ctrl-C in a fit of this process: the estimator keeps the parameters of whole steps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from daskml_dist.cluster import BisectingKMeans, KMeans
from daskml_dist.decomposition import LatentDirichletAllocation
from daskml_dist.linear_model import LogisticRegression, PoissonRegressor, SGDClassifier
from daskml_dist.mixture import GaussianMixture
from daskml_dist.optimizers import SGD
from daskml_dist.policies import POLICIES
from daskml_dist.svm import LinearSVC
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.in_process import InProcessEngine
from tests.training.interrupts.endless import (
    At,
    check_goes_on,
    check_kept,
    endless,
    make_rows,
    press,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fit_in_memory_keeps_whole_steps(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, count = [], itertools.count()
    update = SGD.update

    def interrupted(self: SGD, w: Any, *args: Any) -> None:
        if next(count) == 100:  # racing threads of "hogwild" give different results
            press()
        update(self, w, *args)
        steps.append(w.copy())

    monkeypatch.setattr(SGD, "update", interrupted)
    clf = endless(policy)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*make_rows())
    assert len(steps) > 100
    check_kept(clf, 0 if policy == "hogwild" else 2)
    if policy in ("sync", "allreduce"):
        np.testing.assert_array_equal(np.append(clf.coef_, clf.intercept_), steps[-1].ravel())
    monkeypatch.undo()
    check_goes_on(clf, *make_rows())


@pytest.mark.parametrize(
    ("solver", "penalty"), [("lbfgs", "l1"), ("lbfgs", "l2"), ("newton-cholesky", "l2")]
)
def test_a_round_solver_keeps_its_last_iterate(solver: str, penalty: str) -> None:
    X, y = make_rows()
    params = {"solver": solver, "penalty": penalty, "C": 1e3, "tol": 1e-9, "max_iter": 1000}
    truth = LogisticRegression(**params).fit(X, y)
    clf = LogisticRegression(callbacks=At(5), warm_start=True, **params)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    assert clf.history_.interrupted
    assert 1 <= clf.n_iter_[0] < truth.n_iter_[0]
    assert clf.score(X, y) > 0.9
    clf.set_params(callbacks=None).fit(X, y)
    np.testing.assert_allclose(clf.coef_, truth.coef_, rtol=1e-3)


@pytest.mark.parametrize(
    ("model", "after"),
    [
        (KMeans(20, tol=0.0, random_state=0), 8),
        (BisectingKMeans(20, random_state=0), 30),
        (GaussianMixture(2, tol=0.0, init_params="random_from_data", random_state=0), 5),
        (LatentDirichletAllocation(3, max_iter=20, random_state=0), 5),
    ],
    ids=["KMeans", "BisectingKMeans", "GaussianMixture", "LatentDirichletAllocation"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_interrupted_fit_without_targets_can_be_used(model: Any, after: int) -> None:
    X = np.abs(make_rows()[0])
    whole, cut = clone(model).fit(X), clone(model).set_params(callbacks=At(after))
    with pytest.raises(KeyboardInterrupt):
        cut.fit(X)
    assert cut.history_.interrupted
    names = {
        name: {n for n in vars(fitted) if n.endswith("_")} - {"labels_", "bound_"}
        for name, fitted in (("whole", whole), ("cut", cut))
    }
    assert names["cut"] == names["whole"]
    assert np.isfinite(cut.score(X))


@pytest.mark.parametrize("estimator", [LogisticRegression, PoissonRegressor, LinearSVC])
def test_an_interrupted_round_fit_has_all_attributes(estimator: Any) -> None:
    """It has every attribute, in the usual shape."""
    X, y = make_rows()
    tight = {"tol": 1e-9, "max_iter": 1000}
    whole, cut = estimator(**tight).fit(X, y), estimator(callbacks=At(6), **tight)
    with pytest.raises(KeyboardInterrupt):
        cut.fit(X, y)
    assert cut.history_.interrupted
    shapes = [
        {name: np.shape(value) for name, value in vars(fitted).items() if name.endswith("_")}
        for fitted in (whole, cut)
    ]
    assert shapes[1] == shapes[0] | {"history_": np.shape(cut.history_)}


def test_an_interrupt_before_the_first_step_leaves_the_estimator_unfitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clf = endless("sync")
    monkeypatch.setattr(InProcessEngine, "inspect_blocks", lambda *_: press())
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*make_rows())
    assert not hasattr(clf, "coef_")


def test_an_interrupt_at_the_end_leaves_a_complete_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(InProcessEngine, "close", lambda *_: press())
    clf = SGDClassifier(max_iter=3, tol=None)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*make_rows())
    assert clf.n_iter_ == 3
    assert not clf.history_.interrupted


@pytest.mark.parametrize("when", ["in a part", "as it is saved"])
def test_an_interrupted_checkpointed_fit_keeps_its_last_pass(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback, saved = At(5), Checkpoint(tmp_path / "fit.npz", every=2)
    if when == "as it is saved":
        callback.number, saves = 0, Checkpoint.save

        def save(self: Checkpoint, state: Any, facts: Any) -> None:
            saves(self, state, facts)
            if facts["passes"] == 4:
                press()

        monkeypatch.setattr(Checkpoint, "save", save)
    clf = endless("sync", callbacks=callback, checkpoint=saved)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*make_rows())
    check_kept(clf, 4)
    assert callback.events[-1] == "end"
    assert saved.load()[1]["passes"] == 4
