"""Forests: the same trees on any number of trainers, and scikit-learn's scores."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.ensemble as peers
from dask.base import is_dask_collection
from distributed import Client, LocalCluster
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.solvers import forest_joint_growth
from daskml_dist.solvers.forest import ForestSolver

rng = np.random.default_rng(0)
X = rng.normal(size=(2400, 6)).astype(np.float32)
X[:, 4] = np.round(X[:, 4])
X[::9, 5] = np.nan
SIGNAL = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + X[:, 3]
Y = SIGNAL + rng.normal(size=len(X)) * 0.3
CLASS = (SIGNAL > 0).astype(int) + (SIGNAL > 1)
WEIGHT = (rng.random(len(X)) * 3).astype(np.float32)
LAZY = da.from_array(X, chunks=(500, -1))

KINDS: dict[str, tuple[Any, Any]] = {
    "classes": (RandomForestClassifier(random_state=0, class_weight="balanced_subsample"), CLASS),
    "regression": (RandomForestRegressor(random_state=1, max_features=2), Y),
    "extra classes": (ExtraTreesClassifier(random_state=2, max_leaf_nodes=40), CLASS),
    "extra regression": (
        ExtraTreesRegressor(random_state=3, monotonic_cst=[0, 0, 0, 1, 0, 0]), Y,
    ),
}  # fmt: skip


def bits(model: Any) -> list[bytes]:
    """Return all arrays of a forest, for bitwise comparison."""
    nodes = model._trees.nodes
    return [getattr(nodes, f.name).tobytes() for f in fields(nodes)] + [model._impurity.tobytes()]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only small nodes be finished by one trainer, and sum histograms in parts."""
    monkeypatch.setattr(forest_joint_growth, "SMALL_NODE_ROWS", 200)
    monkeypatch.setattr(forest_joint_growth, "_HISTOGRAM_BYTES", 2**15)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
def test_trees_do_not_depend_on_the_trainers(kind: str) -> None:
    model, y = KINDS[kind]
    model.set_params(n_estimators=3, decomposition="functional", run=Run(n_lanes=1))
    expected = bits(model.fit(X, y, WEIGHT))
    for lanes in (1, 3):
        model.set_params(decomposition="data", run=Run(n_lanes=lanes))
        assert bits(model.fit(LAZY, da.from_array(y, chunks=500), WEIGHT)) == expected


def test_two_workers_grow_the_same_trees_as_one(client: Client) -> None:
    model = RandomForestClassifier(40, random_state=0, decomposition="functional", max_depth=5)
    expected = bits(model.fit(X, CLASS))
    rows, y = client.persist([LAZY, da.from_array(CLASS, chunks=500)])
    for decomposition in ("functional", "data"):
        model.set_params(decomposition=decomposition, oob_score=True)
        assert bits(model.fit(rows, y)) == expected
        np.testing.assert_equal(model.oob_decision_function_.shape, (len(X), 3))
    found = model.predict_proba(rows)
    assert is_dask_collection(found)
    np.testing.assert_array_equal(found.compute(), model.predict_proba(X))


@pytest.mark.slow
@pytest.mark.parametrize("decomposition", ["functional", "data"])
def test_streamed_rows_grow_the_same_trees(client: Client, decomposition: str) -> None:
    model = RandomForestRegressor(4, random_state=0)
    expected = bits(model.fit(X, Y))
    little = Run(n_lanes=3, memory_budget=X.nbytes)
    model.set_params(run=little, decomposition=decomposition)
    assert bits(model.fit(LAZY, da.from_array(Y, chunks=500))) == expected
    assert model.history_.extra["streamed"]


def killing(solver: ForestSolver, folder: Path, at: int) -> ForestSolver:
    """Return a solver, one of whose processes kills itself once after a number of trees."""

    class Killed:
        def __init__(self, rows: Any) -> None:
            self._rows, self._n_iter = rows, rows.n_done

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rows, name)

        def keep(self, n_iter: int, *more: Any) -> None:
            self._n_iter = n_iter
            self._rows.keep(n_iter, *more)

        def gather_arrays(self, arrays: Any) -> Any:
            import os
            import signal

            mark = folder / "killed"
            if self._n_iter >= at and 1 in self._rows.lanes and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return self._rows.gather_arrays(arrays)

    class Killing(ForestSolver):
        def solve(self, model: Any, rows: Any) -> Any:
            return super().solve(model, Killed(rows))

    return Killing(**{f.name: getattr(solver, f.name) for f in fields(solver)})


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 12, 24])
@pytest.mark.parametrize("decomposition", ["functional", "data"])
def test_a_kill_changes_no_tree(
    crew: LocalCluster, tmp_path: Path, decomposition: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"random_state": 0, "oob_score": True, "run": Run(n_lanes=3)}
    model = RandomForestClassifier(40, decomposition=decomposition, **params)
    undisturbed = RandomForestClassifier(40, **params).fit(X, CLASS)
    problem = RandomForestClassifier._problem

    def struck(self: Any, rows: Any) -> Any:
        found, solver = problem(self, rows)
        return found, killing(solver, tmp_path, at)

    monkeypatch.setattr(RandomForestClassifier, "_problem", struck)
    with Client(crew) as client:
        client.wait_for_workers(3)
        model.fit(LAZY, da.from_array(CLASS, chunks=500))
    assert (tmp_path / "killed").exists()
    assert model.history_.extra["generations"]
    assert bits(model) == bits(undisturbed)
    np.testing.assert_array_equal(model.oob_decision_function_, undisturbed.oob_decision_function_)


def test_out_of_bag_score_is_near_scikit_learn() -> None:
    rows = np.nan_to_num(X)
    ours = RandomForestClassifier(60, random_state=0, oob_score=True).fit(rows, CLASS)
    peer = peers.RandomForestClassifier(60, random_state=0, oob_score=True).fit(rows, CLASS)
    error = np.sqrt(peer.oob_score_ * (1 - peer.oob_score_) / len(rows))
    # Both are random: tolerance of two standard errors.
    assert abs(ours.oob_score_ - peer.oob_score_) < 2 * error
    assert abs(ours.feature_importances_ - peer.feature_importances_).max() < 0.03
    shares = ours.oob_decision_function_
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert np.mean(ours.classes_[shares.argmax(axis=1)] == CLASS) == ours.oob_score_


@pytest.mark.parametrize("kind", KINDS)
def test_out_of_bag_predictions_use_trees_that_did_not_draw_the_row(kind: str) -> None:
    model, y = KINDS[kind]
    few = clone(model).set_params(n_estimators=4, bootstrap=True, oob_score=True, max_samples=1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some rows are drawn by all
        few.fit(X, y)
    sums, times = 0.0, np.zeros(len(X))
    for tree, rows in zip(few.estimators_, few.estimators_samples_, strict=True):
        assert abs(len(rows) / len(X) - 1.5) < 0.1
        out = np.ones(len(X), bool)
        out[rows] = False
        answer = tree.predict_proba(X) if hasattr(tree, "classes_") else tree.predict(X)[:, None]
        sums, times = sums + answer * out[:, None], times + out
    found = getattr(few, "oob_decision_function_", None)
    found = few.oob_prediction_[:, None] if found is None else found
    np.testing.assert_allclose(found, sums / np.maximum(times, 1)[:, None], atol=1e-12)


def test_values_of_a_long_tail_are_separated() -> None:
    draws = np.random.default_rng(1)
    tail = np.round(np.exp(draws.normal(size=(9000, 1)) * 1.5) * 20)
    noise = np.round(draws.normal(size=(9000, 1)), 1)
    rows, y = np.hstack([tail, noise]), tail[:, 0] + noise[:, 0]
    few = {"n_estimators": 5, "random_state": 0, "min_samples_leaf": 2}
    ours = RandomForestRegressor(**few).fit(rows[:6000], y[:6000])
    peer = peers.RandomForestRegressor(**few).fit(rows[:6000], y[:6000])
    assert ours.score(rows[6000:], y[6000:]) > peer.score(rows[6000:], y[6000:]) - 0.02


def test_warm_start_adds_the_trees_of_one_fit() -> None:
    whole = RandomForestRegressor(6, random_state=0).fit(X, Y)
    grown = RandomForestRegressor(2, random_state=0, warm_start=True).fit(X, Y)
    grown.set_params(n_estimators=6).fit(X, Y)
    assert bits(grown) == bits(whole)
    with pytest.raises(InvalidParameterError, match="n_estimators"):
        grown.set_params(n_estimators=3).fit(X, Y)


def test_warm_start_refuses_other_columns_and_labels() -> None:
    grown = RandomForestClassifier(2, random_state=0, warm_start=True).fit(X, CLASS)
    grown.set_params(n_estimators=4)
    for rows, labels, match in (
        (X[:, :5], CLASS, "5 features"), (X, CLASS + 1, "y has others"), (X, Y > 0, "y has others"),
    ):  # fmt: skip
        with pytest.raises(InvalidDataError, match=match):
            grown.fit(rows, labels)
    assert grown.fit(X, CLASS).score(X, CLASS) > 0.9


def test_trees_predict_like_the_forest() -> None:
    model = RandomForestClassifier(5, random_state=0, max_depth=6).fit(X, CLASS)
    trees = model.estimators_
    mean = np.mean([tree.predict_proba(X) for tree in trees], axis=0)
    np.testing.assert_allclose(model.predict_proba(X), mean, atol=1e-14)
    np.testing.assert_array_equal(
        model.apply(X), np.column_stack([tree.apply(X) for tree in trees])
    )
    np.testing.assert_allclose(
        pickle.loads(pickle.dumps(model)).predict_log_proba(X), model.predict_log_proba(X)
    )
    assert len(model) == len(trees) == 5
    wide = X.astype(np.float64)
    np.testing.assert_array_equal(model.predict_proba(wide), model.predict_proba(X))


@pytest.mark.parametrize("ccp_alpha", [0.0, 0.1])
def test_trees_without_rows_are_ignored(ccp_alpha: float) -> None:
    """With few rows some trees have none."""
    few, of = np.arange(2.0)[:, np.newaxis], [0, 1]
    forest = RandomForestClassifier(20, random_state=0, ccp_alpha=ccp_alpha).fit(few, of)
    assert min(tree.tree_.weighted_n_node_samples[0] for tree in forest.estimators_) == 0
    np.testing.assert_allclose(forest.predict_proba(few).sum(axis=1), 1)
    assert np.isfinite(forest.feature_importances_).all()


def test_distribution_of_row_draws() -> None:
    few = RandomForestRegressor(30, random_state=0, max_samples=0.25).fit(X, Y)
    drawn = [tree.tree_.weighted_n_node_samples[0] / len(X) for tree in few.estimators_]
    assert np.mean(drawn) == pytest.approx(0.25, abs=0.01)
    with pytest.raises(InvalidParameterError, match="bootstrap"):
        RandomForestRegressor(2, bootstrap=False, oob_score=True).fit(X, Y)


@pytest.mark.parametrize("criterion", ["squared_error", "absolute_error", "poisson"])
def test_numbers_near_the_smallest_float(criterion: str) -> None:
    model = RandomForestRegressor(3, criterion=criterion, random_state=0)
    rows, y, size = X.astype(np.float64), np.abs(Y), 2.0**-400
    wanted = model.fit(rows, y).predict(rows)
    np.testing.assert_allclose(model.fit(rows, y * size).predict(rows) / size, wanted)
    weight = np.full(len(X), 2.0**-900)
    found = model.fit(rows, y, sample_weight=weight).predict(rows)
    np.testing.assert_allclose(found, wanted)
    with pytest.raises(InvalidDataError, match=r"targets are too small.* Scale y"):
        model.fit(rows, y * 1e-300)
    with pytest.raises(InvalidDataError, match=r"weights are too small.* Multiply all"):
        model.fit(rows, y, sample_weight=weight * 2.0**-100)
