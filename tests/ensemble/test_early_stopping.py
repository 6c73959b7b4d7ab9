"""Early stopping of boosting: scikit-learn's scores, all forms of held-out rows, warm starts."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import ensemble as truth
from sklearn.metrics import accuracy_score, log_loss

from daskml_dist import Run
from daskml_dist.callbacks import EarlyStopping
from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.losses import Tweedie
from daskml_dist.training.checkpoint import Checkpoint

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 3))
Y = 2 * X[:, 0] + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=len(X))
LABELS = np.array(["a", "b", "c"])[np.digitize(Y, [-1, 2.5])]
WEIGHT = rng.integers(1, 4, len(X)).astype(float)
FRAME = pd.DataFrame(X, columns=list("abc")).assign(
    k=pd.Categorical([f"k{i % 5}" for i in range(600)])
)
HELD = FRAME[:90].assign(k=pd.Categorical([f"k{i % 7}" for i in range(90)]))
GIVEN: dict[str, Any] = {"max_iter": 3, "early_stopping": True, "random_state": 0}


def trees(model: Any) -> dict[str, bytes]:
    found = {**model._trees.packed(), "scores": model.validation_score_}
    return {name: array.tobytes() for name, array in found.items()}


@pytest.mark.parametrize("scoring", [None, "neg_mean_absolute_error"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_scores_of_regressors_equal_scikit_learn(scoring: Any, weight: Any) -> None:
    params = {**GIVEN, "scoring": scoring, "validation_fraction": None}
    peer = truth.HistGradientBoostingRegressor(**params).fit(X, Y, weight)
    model = HistGradientBoostingRegressor(**params).fit(X, Y, weight)
    np.testing.assert_allclose(model.train_score_, peer.train_score_, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scoring", ["loss", "neg_log_loss"])
def test_class_weights_do_not_count_held_out_rows(scoring: str) -> None:
    # No single row weighs as much as a bin, so bins equal scikit-learn's.
    params = {**GIVEN, "scoring": scoring, "class_weight": "balanced", "max_bins": 64}
    more = {"X_val": X[:90], "y_val": LABELS[:90], "sample_weight_val": WEIGHT[:90]}
    peer = truth.HistGradientBoostingClassifier(**params).fit(X, LABELS, **more)
    model = HistGradientBoostingClassifier(**params, run=Run(n_lanes=2)).fit(X, LABELS, **more)
    np.testing.assert_allclose(model.train_score_, peer.train_score_, rtol=1e-6)
    np.testing.assert_allclose(model.validation_score_, peer.validation_score_, rtol=1e-6)


def test_a_scoring_function_may_use_a_part_of_the_rows() -> None:
    def error(estimator: Any, places: Any, y: Any) -> float:
        return -float(np.abs(estimator.predict(places[::2]) - y[::2]).mean())

    found = [
        HistGradientBoostingRegressor(**GIVEN, scoring=error, run=Run(n_lanes=n)).fit(X, Y)
        for n in (1, 3)
    ]
    assert trees(found[0]) == trees(found[1])
    assert len(found[0].validation_score_) == 4
    assert found[0].validation_score_[-1] > found[0].validation_score_[0]


def test_the_same_rows_of_each_class_are_held_out_on_any_lanes() -> None:
    one, three = (
        HistGradientBoostingClassifier(**GIVEN, run=Run(n_lanes=n)).fit(X, LABELS) for n in (1, 3)
    )
    chunks = da.from_array(X, chunks=(250, 3)), da.from_array(LABELS, chunks=250)
    assert trees(one) == trees(three)
    assert trees(HistGradientBoostingClassifier(**GIVEN).fit(*chunks)) == trees(one)


def test_scores_cover_the_rows_of_all_workers(client: Client) -> None:
    params = {**GIVEN, "scoring": "accuracy", "class_weight": "balanced"}
    alone = HistGradientBoostingClassifier(**params, run=Run(n_lanes=1)).fit(X, LABELS, WEIGHT)
    lazy = [da.from_array(a, chunks=(130, *a.shape[1:])) for a in (X, LABELS, WEIGHT)]
    for n_lanes in (None, 3):
        model = HistGradientBoostingClassifier(**params, run=Run(n_lanes=n_lanes)).fit(*lazy)
        assert trees(model) == trees(alone)


@pytest.mark.parametrize("given", ["X_val", "eval_set"])
def test_held_out_rows_without_weight_are_refused(given: str) -> None:
    held = {"X_val": X[:9], "y_val": Y[:9], "sample_weight_val": np.zeros(9)}
    held = held if given == "X_val" else {given: tuple(held.values())}
    with pytest.raises(InvalidDataError, match="positive weight"):
        HistGradientBoostingRegressor(**GIVEN).fit(X, Y, **held)


def test_categories_only_in_held_out_rows_count_as_missing() -> None:
    more = {"X_val": HELD, "y_val": Y[:90]}
    peer = truth.HistGradientBoostingRegressor(**GIVEN).fit(FRAME, Y, **more)
    model = HistGradientBoostingRegressor(**GIVEN).fit(FRAME, Y, **more)
    np.testing.assert_allclose(model.validation_score_, peer.validation_score_, rtol=1e-8)
    assert model._categories["k"].tolist() == [f"k{i}" for i in range(5)]
    lazy = dd.from_pandas(FRAME.assign(y=Y), npartitions=2)
    refitted = HistGradientBoostingRegressor(**GIVEN).fit(
        lazy, "y", X_val=HELD.assign(y=Y[:90]), y_val="y"
    )
    assert trees(refitted) == trees(model)


def test_weights_of_held_out_rows_change_no_tree() -> None:
    more = {"X_val": X[:90], "y_val": Y[:90]}
    plain = HistGradientBoostingRegressor(**GIVEN).fit(X, Y, **more)
    weighted = HistGradientBoostingRegressor(**GIVEN).fit(
        X, Y, **more, sample_weight_val=WEIGHT[:90]
    )
    assert plain._trees.packed()["value"].tobytes() == weighted._trees.packed()["value"].tobytes()
    assert (plain.validation_score_ != weighted.validation_score_).all()


@pytest.mark.parametrize(
    ("rows", "validation_set", "match"),
    [
        ((X, Y), (X[:9, :2], Y[:9]), "X_val has 2 features, but 3"),
        ((X, Y), (X[:9], Y[:8]), "X_val has 9, y_val has 8 rows"),
        ((X, Y[1:]), (X[:9], Y[:10]), "X has 600, y has 599 rows"),
        ((X, Y, 2.0), (X[:9], Y[:9]), "a single number for all rows"),
        ((FRAME, Y), (X[:9], Y[:9]), "Give both in the same form"),
        ((FRAME, Y), (HELD[["k", "a", "b", "c"]], Y[:90]), "feature names should match"),
    ],
)
def test_rows_that_cannot_be_held_out_are_named(rows: Any, validation_set: Any, match: str) -> None:
    X_val, y_val = validation_set
    with pytest.raises(InvalidDataError, match=match):
        HistGradientBoostingRegressor(**GIVEN).fit(*rows, X_val=X_val, y_val=y_val)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_class_only_in_held_out_rows_is_refused(lazy: bool) -> None:
    y = np.arange(600) % 2
    rows = (da.from_array(X, chunks=(300, 3)), da.from_array(y, chunks=300)) if lazy else (X, y)
    with pytest.raises(InvalidDataError, match=r"unseen labels: \[2\]"):
        HistGradientBoostingClassifier(**GIVEN).fit(*rows, X_val=X[:9], y_val=y[:9] + 1)


@pytest.mark.parametrize(
    ("params", "error", "match"),
    [
        ({"scoring": "acuracy"}, InvalidParameterError, "get_scorer_names"),
        ({"scoring": "roc_auc"}, InvalidDataError, "'roc_auc' cannot score"),
        ({"scoring": lambda e, X, y: "good"}, InvalidDataError, "must return one number"),
        ({"validation_fraction": 600}, InvalidDataError, "leaves 0 rows to train on"),
    ],
)
def test_bad_scores_are_named(params: dict[str, Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        HistGradientBoostingRegressor(**GIVEN, **params).fit(X, Y)


def test_a_warm_start_makes_an_iteration_with_changed_parameters() -> None:
    stopped = HistGradientBoostingRegressor(
        max_iter=50, early_stopping=True, tol=10.0, n_iter_no_change=2, warm_start=True
    ).fit(X, Y)
    assert stopped.n_iter_ == 2
    assert stopped.fit(X, Y).n_iter_ == 3
    stopped.set_params(max_depth=1, loss="absolute_error", scoring="r2", max_bins=9).fit(X, Y)
    assert stopped.n_iter_ == 5
    assert stopped._trees.tree(4).depth.max() == 1
    # With another scoring, scores start again.
    assert len(stopped.train_score_) == 3
    assert stopped.train_score_[-1] == pytest.approx(stopped.score(X, Y), abs=0.05)


@pytest.mark.parametrize(
    ("first", "then", "match"),
    [
        ((X, LABELS), (X[:, :2], LABELS), "features"),
        ((FRAME, LABELS), (FRAME[["b", "a", "c", "k"]], LABELS), "feature names"),
        ((X, Y > 0), (X, LABELS), "y has others"),
        ((X, Y > 0), (X, np.where(Y > 0, "yes", "no")), "y has others"),
    ],
)
def test_a_warm_start_refuses_other_rows(first: Any, then: Any, match: str) -> None:
    model = HistGradientBoostingClassifier(max_iter=1, warm_start=True).fit(*first)
    with pytest.raises(InvalidDataError, match=match):
        model.set_params(max_iter=2).fit(*then)


@pytest.mark.parametrize(
    ("first", "then", "match"),
    [
        ({}, {"loss": "poisson"}, "another link"),
        ({"loss": Tweedie(1.5)}, {"loss": Tweedie(0, identity=True)}, "another link"),
        ({"categorical_features": ["k"]}, {"categorical_features": None}, r"features \[\]"),
        ({"categorical_features": None}, {"categorical_features": "from_dtype"}, r"features \[3\]"),
    ],
)
def test_a_warm_start_refuses_trees_of_another_meaning(
    first: dict[str, Any], then: dict[str, Any], match: str
) -> None:
    rows = FRAME.assign(k=np.arange(len(FRAME)) % 3)
    model = HistGradientBoostingRegressor(max_iter=1, warm_start=True, **first).fit(rows, Y**2)
    rows = rows.astype({"k": "category"}) if "categorical_features" in then else rows
    with pytest.raises(InvalidParameterError, match=match):
        model.set_params(max_iter=2, **then).fit(rows, Y**2)


def test_a_warm_start_keeps_scores_of_the_same_loss_only() -> None:
    model = HistGradientBoostingRegressor(**GIVEN, warm_start=True).fit(X, Y)
    assert len(model.set_params(max_iter=5).fit(X, Y).train_score_) == 6
    assert len(model.set_params(max_iter=7, loss="absolute_error").fit(X, Y).train_score_) == 3


def test_several_sets_and_scores_are_watched() -> None:
    sets = {"train": (X, LABELS), "held": (X[:90], LABELS[:90], WEIGHT[:90])}
    scoring = ["loss", "accuracy"]
    params = {"max_iter": 3, "random_state": 0}
    plain = HistGradientBoostingClassifier(**params).fit(X, LABELS)
    models = [
        HistGradientBoostingClassifier(**params, run=Run(n_lanes=n)).fit(
            X, LABELS, eval_set=sets, scoring=scoring
        )
        for n in (1, 3)
    ]
    for model in models:
        # Validation rows do not change trees.
        assert trees(model) == trees(plain)
        for number, proba in enumerate(model.staged_predict_proba(X)):
            record = model.history_[number]
            best = model.classes_[proba.argmax(axis=1)]
            for name, (rows, labels, *weight) in sets.items():
                n, weights = len(rows), {"sample_weight": weight[0]} if weight else {}
                assert record[f"eval_score_{name}_accuracy"] == pytest.approx(
                    accuracy_score(labels, best[:n], **weights), abs=1e-12
                )
                assert record[f"eval_score_{name}_loss"] == pytest.approx(
                    -log_loss(labels, proba[:n], **weights), rel=1e-6
                )
            assert record["eval_score"] == record["eval_score_train_loss"]
    assert models[0].history_[0].keys() - plain.history_[0].keys() == {
        "eval_score", *(f"eval_score_{of}_{one}" for of in sets for one in scoring)
    }  # fmt: skip


def test_the_last_set_and_score_stop_unless_rows_are_held_out() -> None:
    more = {"X_val": X[:90], "y_val": Y[:90]}
    sets = [(X[90:], Y[90:]), (X[:90], Y[:90])]
    params = {**GIVEN, "max_iter": 60, "learning_rate": 0.9, "n_iter_no_change": 2}
    with_validation_set = HistGradientBoostingRegressor(**params, scoring="r2").fit(
        X[90:], Y[90:], **more
    )
    last = HistGradientBoostingRegressor(**params).fit(
        X[90:], Y[90:], eval_set=sets, scoring=["neg_mean_absolute_error", "r2"]
    )
    assert trees(last) == trees(with_validation_set)
    assert 2 < last.n_iter_ < 60
    np.testing.assert_array_equal(
        last.validation_score_[1:], [record["eval_score_1_r2"] for record in last.history_]
    )
    both = HistGradientBoostingRegressor(**params, scoring="r2").fit(
        X[90:], Y[90:], **more, eval_set=sets[0]
    )
    assert trees(both) == trees(with_validation_set)
    # By default the loss of the first set decides.
    stopping = EarlyStopping("eval_score", min_delta=10.0, patience=2)
    stopped = HistGradientBoostingRegressor(max_iter=60, callbacks=stopping)
    assert stopped.fit(X[90:], Y[90:], eval_set=sets).n_iter_ < 6


def test_held_out_rows_are_not_trained_on_without_early_stopping() -> None:
    plain = HistGradientBoostingRegressor(max_iter=2).fit(X, Y)
    model = HistGradientBoostingRegressor(max_iter=2).fit(X, Y, X_val=X[:90] + 5, y_val=Y[:90])
    assert not model.do_early_stopping_
    assert trees(model) == trees(plain)


@pytest.mark.parametrize("kind", ["array", "frame", "unknown lengths"])
def test_sets_on_dask_are_watched(client: Client, kind: str) -> None:
    params = {"max_iter": 2, "random_state": 0}
    scoring = ["loss", "neg_mean_absolute_error"]
    sets = [(X[:50], Y[:50]), (X[50:130], Y[50:130])]
    known = HistGradientBoostingRegressor(**params).fit(X, Y, eval_set=sets, scoring=scoring)
    if kind == "frame":
        frame = FRAME[["a", "b", "c"]].assign(y=Y)
        rows: Any = dd.from_pandas(frame, npartitions=3), "y"
        lazy: Any = [
            (dd.from_pandas(frame[:50], npartitions=2), "y"), (frame[50:130], "y")
        ]  # fmt: skip
    else:
        arrays = [da.from_array(a, chunks=(70, *a.shape[1:])) for a in (X, Y)]
        rows = [a[X[:, 0] < 9] for a in arrays] if kind == "unknown lengths" else arrays
        lazy = [(arrays[0][:50], arrays[1][:50]), sets[1]]
    model = HistGradientBoostingRegressor(**params).fit(*rows, eval_set=lazy, scoring=scoring)
    assert trees(model) == trees(known)
    for found, expected in zip(model.history_, known.history_, strict=True):
        for key in (name for name in expected if name.startswith("eval_score")):
            assert found[key] == expected[key]


@pytest.mark.parametrize(
    ("eval_set", "match"),
    [
        ({"held": (X[:9, :2], Y[:9])}, r"X of eval_set\['held'\] has 2 features, but 3"),
        ((X[:9], Y[:8]), "X of eval_set has 9, y of eval_set has 8 rows"),
        ([(X[:9], Y[:9]), (X[:0], Y[:0])], r"X of eval_set\['1'\] has no rows"),
    ],
)
def test_sets_that_cannot_be_watched_are_named(eval_set: Any, match: str) -> None:
    with pytest.raises(InvalidDataError, match=match):
        HistGradientBoostingRegressor(max_iter=2).fit(X, Y, eval_set=eval_set)


def test_validation_scores_resume_with_a_checkpoint(tmp_path: Any) -> None:
    whole = HistGradientBoostingRegressor(max_iter=5, random_state=0)
    whole.fit(X, Y, eval_set=(X[:90], Y[:90]))
    for first in (True, False):
        checkpoint = Checkpoint(str(tmp_path / "fit.npz"), every=2, resume=True)
        stopping = [EarlyStopping("eval_score", min_delta=99.0, patience=2)] if first else []
        model = HistGradientBoostingRegressor(
            max_iter=5, random_state=0, callbacks=[checkpoint, *stopping]
        ).fit(X, Y, eval_set=(X[:90], Y[:90]))
        assert (model.n_iter_ < 5) == first
    scores = [record["eval_score"] for record in model.history_]
    assert scores == [record["eval_score"] for record in whole.history_]
