"""Boosted trees with vector leaves equal plain NumPy, with the same bits for any placement."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.callbacks import Checkpoint, EarlyStopping
from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from daskml_dist.errors import DaskMLDistError, ExportError, InvalidDataError, InvalidParameterError
from daskml_dist.inspection import shap_values
from daskml_dist.losses import AFT, Huber
from tests.ensemble.vector_reference import VectorReference
from tests.quick import in_turn

rng = np.random.default_rng(0)
X = rng.normal(size=(1_200, 5))
X[:, 4] = rng.integers(0, 9, len(X))
SIGNAL = X[:, 0] + np.sin(2 * X[:, 1]), X[:, 2] * X[:, 3] + (X[:, 4] == 3), X[:, 0] * X[:, 4] / 9
Y = np.column_stack(SIGNAL) + 0.3 * rng.normal(size=(len(X), 3))
CLASS = Y.argmax(axis=1)
X[rng.random(X.shape) < 0.04] = np.nan
WEIGHT = 3 * rng.random(len(X))
ALONE = Run(n_lanes=1)
GIVEN: dict[str, Any] = {
    "random_state": 0, "early_stopping": False, "max_iter": 6,
    "multi_strategy": "multi_output_tree",
}  # fmt: skip


def arrays(model: Any) -> dict[str, bytes]:
    """Return all fitted arrays, for bitwise comparison."""
    scores = {"train": model.train_score_, "held": model.validation_score_}
    found = {**model._trees.packed(), **scores, "baseline": model._baseline}
    return {name: array.tobytes() for name, array in found.items()}


def lazy(n: int, *args: Any) -> list[Any]:
    return [da.from_array(a, chunks=(n, *a.shape[1:])) for a in args]


def kind_of(classes: bool) -> tuple[Any, Any]:
    """Return the estimator and its targets."""
    if classes:
        return HistGradientBoostingClassifier, CLASS
    return HistGradientBoostingRegressor, Y


# --- trees --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "categories"), in_turn(itertools.product([False, True], repeat=2), [None, [4]])
)
def test_trees_equal_plain_numpy(targets: tuple[bool, bool], categories: Any) -> None:
    classes, weighted = targets
    kind, y = kind_of(classes)
    weight = WEIGHT if weighted else np.ones(len(X))
    model = kind(
        **GIVEN, max_bins=12, min_samples_leaf=5, max_leaf_nodes=7, l2_regularization=0.5,
        categorical_features=categories, run=ALONE,
    ).fit(X, y, WEIGHT if weighted else None)  # fmt: skip
    trees = model._trees
    assert model.n_trees_per_iteration_ == 1
    assert trees.nodes.value.shape == (len(trees.nodes.feature), 3)
    edges, missing = trees.bins.edges, trees.bins.max_bins
    bins = np.column_stack([np.searchsorted(e, X[:, j]) for j, e in enumerate(edges)])
    bins = np.where(np.isnan(X), missing, bins)
    target = np.eye(3)[CLASS] if classes else Y
    plain = VectorReference(l2=0.5, classes=classes)
    plain.fit(bins, missing, trees.bins.categorical, target, weight)
    for number, counts in enumerate(plain.counts):
        assert sorted(trees.tree(number).count) == sorted(counts)
    raw = model._raw_prediction()(X)
    np.testing.assert_allclose(raw, plain.raw, rtol=1e-5, atol=1e-6)
    if categories is not None:
        assert len(trees.nodes.bitsets)


def test_one_tree_per_target_equals_separate_fits() -> None:
    params = {**GIVEN, "multi_strategy": "one_output_per_tree", "run": ALONE}
    for loss in ("squared_error", "poisson"):
        y = Y if loss == "squared_error" else np.exp(Y)
        model = HistGradientBoostingRegressor(loss, **params, monotonic_cst=[1, 0, 0, 0, 0])
        model.fit(X, y, WEIGHT)
        assert model.n_trees_per_iteration_ == 3
        for k in range(3):
            apart = HistGradientBoostingRegressor(loss, **params, monotonic_cst=[1, 0, 0, 0, 0])
            apart.fit(X, y[:, k], WEIGHT)
            np.testing.assert_array_equal(model.predict(X)[:, k], apart.predict(X))


def test_a_single_output_uses_scalar_leaves() -> None:
    for kind, y in (
        (HistGradientBoostingRegressor, Y[:, 0]),
        (HistGradientBoostingClassifier, CLASS > 0),
    ):
        plain = kind(**{**GIVEN, "multi_strategy": "one_output_per_tree"}).fit(X, y)
        assert arrays(kind(**GIVEN).fit(X, y)) == arrays(plain)


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_losses_with_a_logarithmic_link_learn(loss: str) -> None:
    y = np.exp(Y)
    model = HistGradientBoostingRegressor(loss, **{**GIVEN, "max_iter": 60}).fit(X, y)
    assert (model.predict(X) > 0).all()
    assert model.score(X, y) > 0.7


def test_certain_classes_do_not_diverge() -> None:
    # A feature determines the class: probabilities reach 0 and 1, and curvatures 0.
    x = np.repeat(np.arange(3.0), 100)[:, None]
    model = HistGradientBoostingClassifier(**{**GIVEN, "max_iter": 200, "learning_rate": 1.0})
    proba = model.fit(x, x[:, 0]).predict_proba(x)
    assert np.isfinite(proba).all()
    assert proba[np.arange(300), x[:, 0].astype(int)].min() > 0.999


# --- the same to the bit --------------------------------------------------------------------------

#: Sampling, and growth of trees.
DRAWS: dict[str, dict[str, Any]] = {
    "all": {"categorical_features": [4]},
    "subsample": {"subsample": 0.5, "colsample_bytree": 0.8, "max_features": 0.7},
    "goss": {"sampling_method": "goss", "grow_policy": "depthwise", "max_leaf_nodes": 6},
    "deep": {"max_leaf_nodes": None, "max_depth": 4, "interaction_cst": "no_interactions"},
}


@pytest.mark.parametrize(("draws", "classes"), in_turn(DRAWS, [False, True]))
def test_the_same_trees_for_any_chunks_and_lanes(client: Client, draws: str, classes: bool) -> None:
    kind, y = kind_of(classes)
    params = {**GIVEN, **DRAWS[draws], "early_stopping": True, "n_iter_no_change": 9}
    alone = kind(**params, run=ALONE).fit(X, y, WEIGHT)
    assert len(alone.validation_score_) == 7
    for n, run in ((400, Run()), (333, Run(n_lanes=5)), (250, Run(memory_budget="40 kB"))):
        model = kind(**params, run=run).fit(*lazy(n, X, y, WEIGHT))
        assert arrays(model) == arrays(alone)
    found = model.predict(lazy(333, X)[0])
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(found.compute(), alone.predict(X))


@pytest.mark.parametrize("classes", [False, True])
def test_stopped_fits_resume_bit_for_bit(classes: bool, tmp_path: Any) -> None:
    kind, y = kind_of(classes)
    options = {**GIVEN, "subsample": 0.6, "early_stopping": True, "run": Run(n_lanes=2)}
    validation = {"X_val": X[:200], "y_val": y[:200]}
    whole = kind(**{**options, "max_iter": 7}).fit(X[200:], y[200:], **validation)
    warm = kind(**{**options, "max_iter": 3}, warm_start=True).fit(X[200:], y[200:], **validation)
    warm = pickle.loads(pickle.dumps(warm)).set_params(max_iter=7)
    assert arrays(warm.fit(X[200:], y[200:], **validation)) == arrays(whole)
    for first in (True, False):
        checkpoint = Checkpoint(str(tmp_path / "fit.npz"), every=2, resume=True)
        stop = [EarlyStopping("eval_score", min_delta=99.0, patience=2)] if first else []
        model = kind(**{**options, "max_iter": 7}, callbacks=[checkpoint, *stop])
        model.fit(X[200:], y[200:], **validation, eval_set=(X[:90], y[:90]))
        assert (model.n_iter_ < 7) == first
    assert arrays(model) == arrays(whole)


# --- predictions, scores and contributions --------------------------------------------------------


def test_predictions_of_all_forms() -> None:
    model = HistGradientBoostingClassifier(**GIVEN, categorical_features=[4]).fit(X, CLASS)
    raw = model.decision_function(X)
    assert raw.shape == (len(X), 3)
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(model.predict(X), proba.argmax(axis=1))
    for stages, last in (
        (model.staged_predict_proba(X), proba), (model.staged_decision_function(X), raw),
        (model.staged_predict(X), model.predict(X)),
    ):  # fmt: skip
        every = list(stages)
        assert len(every) == 6
        np.testing.assert_array_equal(every[-1], last)
    # One leaf of each tree, whose values sum to the raw predictions.
    leaves = model.apply(X)
    assert leaves.shape == (len(X), 6)
    unpickled = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(unpickled.predict_proba(X.astype(np.float32)[:9]).shape, (9, 3))
    np.testing.assert_array_equal(unpickled.decision_function(X), raw)
    regressor = HistGradientBoostingRegressor(**GIVEN).fit(X, Y)
    assert list(regressor.staged_predict(X))[-1].shape == (len(X), 3)
    assert regressor.score(X, Y) > 0.3


def test_scores_of_held_out_rows_are_means_over_the_targets() -> None:
    model = HistGradientBoostingRegressor(**{**GIVEN, "early_stopping": True})
    model.fit(X, Y, X_val=X[:300], y_val=Y[:300])
    expected = -0.5 * ((model.predict(X[:300]) - Y[:300]) ** 2).mean()
    np.testing.assert_allclose(model.validation_score_[-1], expected)
    by_r2 = HistGradientBoostingRegressor(**{**GIVEN, "early_stopping": True, "scoring": None})
    by_r2.fit(X, Y, X_val=X[:300], y_val=Y[:300])
    np.testing.assert_allclose(by_r2.validation_score_[-1], by_r2.score(X[:300], Y[:300]))


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("background", [False, True])
def test_contributions_add_up_to_raw_predictions(classes: bool, background: bool) -> None:
    kind, y = kind_of(classes)
    model = kind(**GIVEN, categorical_features=[4]).fit(X, y)
    found = shap_values(model, X[:40], background=X[50:80] if background else None)
    assert found.values.shape == (40, 5, 3)
    total = found.values.sum(axis=1) + found.base_values
    np.testing.assert_allclose(total, model._raw_prediction()(X[:40]), atol=1e-9)


def test_frames_of_targets_and_categories() -> None:
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    frame["e"] = pd.Categorical(pd.Series(X[:, 4]).fillna(-1).astype(int).astype(str))
    targets = pd.DataFrame(Y, columns=["y0", "y1", "y2"])
    in_memory = HistGradientBoostingRegressor(**GIVEN).fit(frame, targets)
    parts = dd.from_pandas(frame, npartitions=3), dd.from_pandas(targets, npartitions=3)
    lazily = HistGradientBoostingRegressor(**GIVEN).fit(*parts)
    assert arrays(in_memory) == arrays(lazily)
    np.testing.assert_array_equal(np.asarray(lazily.predict(parts[0])), in_memory.predict(frame))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"multi_strategy": "multi_output"}, "Did you mean 'multi_output_tree'"),
        ({"drop_rate": 0.1}, r"Set drop_rate=0.0, or multi_strategy=\"one_output_per_tree\""),
        ({"monotonic_cst": [1, 0, 0, 0, 0]}, "or for several targets in one tree"),
        ({"loss": "absolute_error"}, "y has 3 columns, and loss='absolute_error'"),
        ({"loss": "quantile", "quantile": 0.3}, "MultiOutputRegressor"),
        ({"loss": Huber(1.0)}, "boosting takes one"),
        ({"device": "gpu"}, 'boosting with device="gpu" takes one'),
    ],
    ids=str,
)
def test_bad_parameters_are_named(params: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidParameterError, match=match):
        HistGradientBoostingRegressor(**{**GIVEN, **params}).fit(X, Y)


def test_other_refusals_are_named() -> None:
    with pytest.raises(InvalidParameterError, match="CPUs alone grow trees of several outputs"):
        HistGradientBoostingClassifier(**GIVEN, device="gpu").fit(X, CLASS)
    model = HistGradientBoostingRegressor(**GIVEN, warm_start=True).fit(X, Y)
    with pytest.raises(InvalidDataError, match="goes on with the targets of the fit before"):
        model.set_params(max_iter=8).fit(X, Y[:, :2])
    with pytest.raises(InvalidParameterError, match="the fit before had the other one"):
        model.set_params(multi_strategy="one_output_per_tree").fit(X, Y)
    with pytest.raises(DaskMLDistError):
        HistGradientBoostingRegressor(AFT("normal", 1.0), **GIVEN).fit(X, Y)
    apart = HistGradientBoostingRegressor(max_iter=2).fit(X, Y)
    for one in (model, apart):
        with pytest.raises(ExportError, match="no trees of several targets"):
            one.to_sklearn()
    of_classes = HistGradientBoostingClassifier(**GIVEN).fit(X, CLASS)
    with pytest.raises(ExportError, match="no trees of leaves of several classes"):
        of_classes.to_sklearn()
    with pytest.raises(InvalidDataError, match="All targets of a column of y are 0"):
        HistGradientBoostingRegressor("poisson", **GIVEN).fit(X, np.abs(Y) * [1, 0, 1])


def test_onnx_is_refused() -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    with pytest.raises(ExportError, match="no trees of leaves of several classes"):
        HistGradientBoostingClassifier(**GIVEN).fit(X, CLASS).to_onnx()
