"""Callbacks of the package: their output, when they stop a fit, and the resulting parameters."""

from __future__ import annotations

import copy
import csv
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score

from daskml_dist.callbacks import (
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    EvalMonitor,
    MLflow,
    Progress,
    TensorBoard,
    TimeLimit,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.neural_network import MLPClassifier

X, Y = make_classification(600, 8, random_state=0, flip_y=0.3)
X, HELD, Y, HELD_Y = X[:400], X[400:], Y[:400], Y[400:]


def _sgd(**params: Any) -> SGDClassifier:
    start: dict[str, Any] = {"learning_rate": 0.05, "tol": None, "max_iter": 6, "random_state": 0}
    return SGDClassifier(**start | params)


class Scores:
    """Scores that a fit has after each pass, as the user's own function finds them."""

    needs_parameters = True

    def __init__(self) -> None:
        self.weights: list[NDArray[Any]] = []
        self.scores: list[float] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.weights.append(run.parameters())
        self.scores.append(run.estimator().score(HELD, HELD_Y))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("policy", ["sync", "allreduce"])
def test_the_score_of_a_pass_is_that_of_a_fit_of_so_many(policy: str, average: bool) -> None:
    params = {"policy": policy, "average": average}
    scores = Scores()
    model = _sgd(callbacks=[scores], **params).fit(X, Y, eval_set=(HELD, HELD_Y))
    whole = _sgd(**params).fit(X, Y)
    # Averages are summed in parts.
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-13 if average else 0)
    fits = [_sgd(max_iter=n, **params).fit(X, Y) for n in range(1, 7)]
    expected = [fit.score(HELD, HELD_Y) for fit in fits]
    assert [record["eval_score"] for record in model.history_] == expected == scores.scores
    for fit, w in zip(fits, scores.weights, strict=True):
        np.testing.assert_allclose(w[:-1, 0], fit.coef_[0], rtol=1e-13 if average else 0)


def test_scoring_by_name_with_weights() -> None:
    weights = np.linspace(0.1, 2.0, len(HELD))
    model = _sgd(max_iter=2).fit(X, Y, eval_set=(HELD, HELD_Y, weights), scoring="roc_auc")
    expected = roc_auc_score(HELD_Y, model.decision_function(HELD), sample_weight=weights)
    assert model.history_[-1]["eval_score"] == pytest.approx(expected, abs=1e-12)
    assert set(model.history_.to_frame()) > {"eval_score", "eval_seconds"}


def test_several_sets_and_scores() -> None:
    sets = {"train": (X, Y), "held": (HELD, HELD_Y)}
    model = _sgd(max_iter=2).fit(X, Y, eval_set=sets, scoring=["roc_auc", "accuracy"])
    found = model.history_[-1]
    for name, (rows, labels) in sets.items():
        area = roc_auc_score(labels, model.decision_function(rows))
        assert found[f"eval_score_{name}_roc_auc"] == pytest.approx(area, abs=1e-12)
        assert found[f"eval_score_{name}_accuracy"] == model.score(rows, labels)
    assert found["eval_score"] == found["eval_score_train_roc_auc"]
    assert {f"eval_score_{name}_accuracy" for name in sets} < set(model.history_.to_frame())
    listed = _sgd(max_iter=2).fit(X, Y, eval_set=list(sets.values())).history_[-1]
    assert listed["eval_score_1"] == found["eval_score_held_accuracy"]
    assert listed["eval_score"] == listed["eval_score_0"]
    scorers = {"half": lambda m, rows, labels: m.score(rows, labels) / 2}
    stopping = EarlyStopping("eval_score_held_half", patience=2)
    stopped = _sgd(learning_rate=3.0, max_iter=40, callbacks=[stopping])
    stopped.fit(X, Y, eval_set=sets, scoring=scorers)
    halves = [record["eval_score_held_half"] for record in stopped.history_]
    assert len(halves) == int(np.argmax(halves)) + 3 < 40
    assert halves[-1] == stopped.score(HELD, HELD_Y) / 2


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "Dask"])
def test_labels_that_the_fit_never_saw(lazy: bool) -> None:
    rows = da.from_array(HELD, chunks=(50, 8)) if lazy else HELD
    labels = HELD_Y.astype(int)
    for strange in (labels + 5, labels.astype(str)):
        eval_labels = da.from_array(strange, chunks=50) if lazy else strange
        with pytest.raises(InvalidDataError, match=r"eval_set has labels.*the same encoder"):
            _sgd(max_iter=2).fit(X, Y, eval_set=(rows, eval_labels))
    labels[:3] = 9
    eval_labels = da.from_array(labels, chunks=50) if lazy else labels
    with pytest.warns(UserWarning, match=r"eval_set\['held'\] has labels .*\[9\].*leave") as caught:
        _sgd(max_iter=2).fit(X, Y, eval_set={"held": (rows, eval_labels)})
    assert [one.filename for one in caught if "eval_set" in str(one.message)] == [__file__]


@pytest.mark.parametrize("restore", [False, True])
def test_a_fit_ends_once_it_gets_no_better(restore: bool) -> None:
    scores = Scores()
    # Rates that are too high: the score goes up and down.
    stopping = EarlyStopping(patience=2, restore_best=restore)
    model = _sgd(learning_rate=3.0, max_iter=40, callbacks=[scores, stopping])
    model.fit(X, Y, eval_set=(HELD, HELD_Y))
    found = [record["eval_score"] for record in model.history_]
    best = int(np.argmax(found))
    assert len(found) == best + 3 < 40
    assert max(found) > found[-1]
    w = scores.weights[best if restore else -1]
    np.testing.assert_array_equal(model.coef_[0], w[:-1, 0])


def test_a_checkpoint_has_the_parameters_that_the_fit_ends_with(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "fit.npz", every=2, resume=True)
    params: dict[str, Any] = {"learning_rate": 3.0, "checkpoint": saved}
    stopping = EarlyStopping(patience=2, restore_best=True)
    model = _sgd(max_iter=40, callbacks=[stopping], **params).fit(X, Y, eval_set=(HELD, HELD_Y))
    assert not np.array_equal(
        model.coef_, _sgd(learning_rate=3.0, max_iter=model.n_iter_).fit(X, Y).coef_
    )
    refitted = _sgd(max_iter=model.n_iter_, **params).fit(X, Y)  # from the file
    np.testing.assert_array_equal(refitted.coef_, model.coef_)


def test_early_stopping_by_the_loss_needs_no_parameters() -> None:
    model = _sgd(max_iter=50, callbacks=[EarlyStopping("loss", patience=2, min_delta=1e-3)])
    model.fit(X, Y)
    losses = [record["loss"] for record in model.history_]
    assert len(losses) < 50
    assert losses[-3] - min(losses[-2:]) <= 1e-3


def test_networks_and_checkpoints(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "fit.npz", every=2)
    params: dict[str, Any] = {
        "hidden_layer_sizes": (4,), "max_iter": 4, "tol": 0.0, "random_state": 0,
        "n_iter_no_change": 100,
    }  # fmt: skip
    model = MLPClassifier(checkpoint=saved, **params)
    with pytest.warns(match="converge"):
        model.fit(X, Y, eval_set=(HELD, HELD_Y))
    assert model.history_[-1]["eval_score"] == model.score(HELD, HELD_Y)
    state, facts = saved.load()
    assert len(facts["records"]) == 4
    np.testing.assert_array_equal(state.w, model._state.w)


def test_on_a_cluster(client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(100, 8)), da.from_array(Y, chunks=100)
    scores = Scores()
    model = _sgd(
        callbacks=[scores, EarlyStopping(patience=1, restore_best=True)], learning_rate=3.0
    )
    model.fit(rows, labels, eval_set=(da.from_array(HELD, chunks=(50, 8)), HELD_Y), client=client)
    found = [record["eval_score"] for record in model.history_]
    assert found == pytest.approx(scores.scores)
    best = int(np.argmax(found))
    np.testing.assert_array_equal(model.coef_[0], scores.weights[best][:-1, 0])


def test_a_csv_file_has_a_line_a_pass(tmp_path: Path) -> None:
    path = tmp_path / "passes.csv"
    model = _sgd(callbacks=[CSVLogger(path)], max_iter=3).fit(X, Y)
    clone(model).set_params(callbacks=[CSVLogger(path, append=True)]).fit(X, Y)
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["pass"]) for line in lines] == [1, 2, 3] * 2
    assert [float(line["loss"]) for line in lines[:3]] == [r["loss"] for r in model.history_]
    logger = CSVLogger(path, append=True)
    logger.on_fit_begin(None)
    for number, loss in ((1, 0.5), (2, 0.4), (3, 0.3)):
        logger.on_pass_end(None, {"pass": number, "loss": loss})
    for number, loss in ((2, 0.25), (3, 0.125)):
        logger.on_pass_redone(None, {"pass": number, "loss": loss})
    logger.on_fit_end(None)
    assert path.read_text().splitlines()[7:] == ["1,0.5", "2,0.25", "3,0.125"]
    with pytest.raises(InvalidParameterError, match="folder that exists"):
        _sgd(callbacks=[CSVLogger(tmp_path / "none" / "a.csv")]).fit(X, Y)


def test_a_csv_logger_does_not_take_the_number_of_an_open_file(tmp_path: Path) -> None:
    """It would write to that file, and close it: 1 is the standard output."""
    with (tmp_path / "own.txt").open("w") as file:
        with pytest.raises(InvalidParameterError, match="Name a file"):
            _sgd(callbacks=[CSVLogger(file.fileno())]).fit(X, Y)  # type: ignore[arg-type]
        file.write("still open")


@pytest.mark.parametrize("limit", [1e-9, "1 ns", timedelta(microseconds=1)])
def test_a_fit_ends_before_its_limit(limit: Any) -> None:
    model = _sgd(callbacks=[TimeLimit(limit)]).fit(X, Y)
    assert len(model.history_) < 6
    assert len(_sgd(callbacks=[TimeLimit("1 h")]).fit(X, Y).history_) == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeLimit(0), lambda: TimeLimit("soon"), lambda: TimeLimit(True),
        lambda: Progress(10),  # type: ignore[arg-type]
        lambda: EarlyStopping(patience=0), lambda: EarlyStopping(min_delta=-1.0),
        lambda: EvalMonitor(HELD), lambda: EvalMonitor((HELD, HELD_Y), scoring=[]),
        lambda: EvalMonitor({"a": HELD}), lambda: EvalMonitor((HELD, HELD_Y), scoring=["rocauc"]),
        lambda: EvalMonitor((HELD, HELD_Y), scoring={"a": None}), lambda: EvalMonitor({}),
        lambda: EvalMonitor((HELD, HELD_Y), scoring="rocauc"),
        lambda: _sgd().fit(X, Y, scoring="roc_auc"),
        lambda: _sgd(callbacks=[EarlyStopping("val_score")]).fit(X, Y),
        lambda: _sgd(learning_rate="adaptive").fit(X, Y, eval_set=(HELD, HELD_Y)),
        lambda: _sgd(learning_rate="adaptive").fit([["no rows"]], [0], eval_set=(HELD, HELD_Y)),
        lambda: LogisticRegression(callbacks=[Scores()]).fit(X, Y),
        lambda: MLPClassifier(solver="lbfgs").fit(X, Y, eval_set=(HELD, HELD_Y)),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(make: Any) -> None:
    with pytest.raises(InvalidParameterError):
        make()


@pytest.mark.parametrize(
    "callback",
    [
        CSVLogger("a.csv", append=True), TimeLimit("3 minutes"),
        EarlyStopping("loss", 3, 0.1, True), EvalMonitor((1, 2), "roc_auc"), TensorBoard("runs/1"),
        MLflow("a", "b", "file:c"),
    ],
    ids=lambda callback: type(callback).__name__,
)  # fmt: skip
def test_copies_have_the_parameters_alone(callback: Any) -> None:
    for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert vars(other).keys() == vars(callback).keys()
        assert repr(other) == repr(callback)
