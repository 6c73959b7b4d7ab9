"""Trials that real pruners of Optuna end, in process and on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification

from daskml_dist.callbacks import OptunaPruning
from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

X, Y = make_classification(600, 8, random_state=0, flip_y=0.1)
X, HELD, Y, HELD_Y = X[:400], X[400:], Y[:400], Y[400:]
RATES = [0.1, 1e-5, 0.3, 1e-4, 0.03, 1e-3]
PASSES = 6


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


class Passes:
    """Passes that each trial has made."""

    def __init__(self, n_passes: dict[int, int], number: int) -> None:
        self.n_passes, self.number = n_passes, number

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.n_passes[self.number] = record["pass"]


def _searched(pruner: Any, rows: Any, labels: Any, **params: Any) -> tuple[Any, dict[int, int]]:
    """A study of some rates, and the passes of each trial's fit."""
    study = optuna.create_study(
        direction="maximize", pruner=pruner, sampler=optuna.samplers.GridSampler({"rate": RATES}, 0)
    )
    n_passes: dict[int, int] = {}

    def objective(trial: Any) -> float:
        rate = trial.suggest_float("rate", 1e-5, 1.0)
        callbacks = [Passes(n_passes, trial.number), OptunaPruning(trial)]
        model = SGDClassifier(
            learning_rate=rate, tol=None, max_iter=PASSES, random_state=0, callbacks=callbacks,
            **params,
        )  # fmt: skip
        model.fit(rows, labels, eval_set=(HELD, HELD_Y))
        return float(model.history_[-1]["eval_score"])

    study.optimize(objective)
    return study, n_passes


def _assert_pruned(study: Any, n_passes: dict[int, int]) -> None:
    states = {state: study.get_trials(states=(state,)) for state in optuna.trial.TrialState}
    pruned = states[optuna.trial.TrialState.PRUNED]
    complete = states[optuna.trial.TrialState.COMPLETE]
    assert pruned
    assert complete
    assert len(pruned) + len(complete) == len(RATES)
    for trial in pruned + complete:
        reports = trial.intermediate_values
        assert sorted(reports) == list(range(1, n_passes[trial.number] + 1))
    assert all(n_passes[trial.number] < PASSES for trial in pruned)
    assert all(n_passes[trial.number] == PASSES for trial in complete)


def test_a_median_pruner_stops_inferior_trials() -> None:
    median = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=1)
    study, n_passes = _searched(median, X, Y)
    _assert_pruned(study, n_passes)
    whole, passes = _searched(optuna.pruners.NopPruner(), X, Y)
    assert set(passes.values()) == {PASSES}
    assert study.best_params == whole.best_params
    assert study.best_value == whole.best_value
    # A pruned trial has reported the same values as its complete fit would.
    by_rate = {trial.params["rate"]: trial.intermediate_values for trial in whole.trials}
    for trial in study.trials:
        scores = by_rate[trial.params["rate"]]
        assert trial.intermediate_values.items() <= scores.items()


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
def test_on_a_cluster_a_pruned_fit_leaves_nothing(policy: str, client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(200, 8)), da.from_array(Y, chunks=200)
    halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    _assert_pruned(*_searched(halving, rows, labels, policy=policy))


def test_round_solvers_report_their_loss() -> None:
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=1e-9))

    def objective(trial: Any) -> float:
        callback = OptunaPruning(trial, monitor="loss")
        LogisticRegression(callbacks=[callback]).fit(X, Y)
        return 0.0

    study.optimize(objective, n_trials=1)
    assert study.trials[0].state is optuna.trial.TrialState.PRUNED
    assert study.trials[0].intermediate_values


def test_invalid_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [
        optuna.create_study(directions=directions).ask()
        for directions in (["maximize"], ["minimize"], ["maximize", "maximize"])
    ]
    more, less, both = trials
    for trial, monitor, text in (
        ("trial", "loss", "it is a str"),
        (more, "loss", "direction='minimize'"),
        (less, "eval_score", "direction='maximize'"),
        (both, "eval_score", "one objective"),
    ):
        with pytest.raises(InvalidParameterError, match=text):
            OptunaPruning(trial, monitor)
    model = clone(SGDClassifier(callbacks=[OptunaPruning(more)]))
    assert model.callbacks[0].trial is more  # of the study, not a copy
    with pytest.raises(InvalidParameterError, match=r"no such measure(?s:.*)eval_set"):
        model.fit(X, Y)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(DaskMLDistError, match="pip install"):
        model.fit(X, Y, eval_set=(HELD, HELD_Y))


def test_a_trial_of_no_study_is_never_pruned() -> None:
    callback = OptunaPruning(optuna.trial.FixedTrial({}))
    model = SGDClassifier(max_iter=2, tol=None, callbacks=[callback])
    assert len(model.fit(X, Y, eval_set=(HELD, HELD_Y)).history_) == 2
    assert np.isfinite(model.coef_).all()
