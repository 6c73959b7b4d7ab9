"""Differentially private fits: steps equal the plain formula; unsafe settings are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV as SklearnGridSearchCV

from daskml_dist import DP, Run
from daskml_dist.callbacks import EarlyStopping, EvalMonitor
from daskml_dist.data.batches import LaneSpec, PoissonRows, Segment
from daskml_dist.errors import InvalidParameterError
from daskml_dist.inference import load, save
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.neural_network import MLPClassifier, MLPRegressor
from daskml_dist.policies import LocalSGD, Pipeline, Synchronous
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.spec import StepWork
from tests.training.recovery.strikes import lazy_rows

BUDGET = DP(epsilon=3.0, delta=1e-5, seed=5)


def _rows(n_rows: int = 3000, n_features: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features))
    return X, X @ rng.normal(size=n_features) > 0


def _classifier(**params: Any) -> SGDClassifier:
    defaults: dict[str, Any] = {
        "optimizer": "sgd", "learning_rate": 0.5, "penalty": None, "batch_size": 100,
        "max_iter": 4, "random_state": 0, "privacy": BUDGET,
    }  # fmt: skip
    return SGDClassifier().set_params(**(defaults | params))


def _plain_fit(X: NDArray[Any], y: NDArray[Any], n_steps: int, passes: int) -> NDArray[Any]:
    """Return coefficients and intercept of DP-SGD of one lane by the plain formula."""
    steps = BUDGET.plan(n_steps, passes)
    rows = PoissonRows(LaneSpec(0, (Segment(0, 0, len(X)),)), n_steps, steps.batch_seed)
    noise, w, t = steps.noise.open(np.zeros((X.shape[1] + 1, 1))), np.zeros(X.shape[1] + 1), 0
    X1, signs = np.column_stack([X, np.ones(len(X))]), np.where(y, 1.0, -1.0)
    for number in range(1, passes + 1):
        for ((_, at),) in rows.batches(number):
            t += 1
            batch, sign = X1[at], signs[at]  # type: ignore[index]
            slopes = -sign / (1 + np.exp(sign * (batch @ w)))
            bounds = BUDGET.clip / np.linalg.norm(batch, axis=1)
            total = batch.T @ np.clip(slopes, -bounds, bounds) + noise.draw(t)[:, 0]
            w -= 0.5 * total / (len(X) / n_steps)
    return w


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_steps_equal_the_plain_formula(policy: str, kind: str) -> None:
    """Both copied and compiled batches."""
    X, y = _rows()
    rows = X if kind == "dense" else sparse.csr_matrix(X)
    clf = _classifier(policy=policy).fit(rows, y)
    found = np.append(clf.coef_[0], clf.intercept_)
    np.testing.assert_allclose(found, _plain_fit(X, y, 30, 4), rtol=1e-9, atol=1e-9)
    assert clf.score(X, y) > 0.9


def test_spent_budget_is_reported() -> None:
    X, y = _rows()
    clf = _classifier().fit(X, y)
    spent = clf.privacy_spent_
    assert (spent.steps, spent.sampling_rate, spent.delta, spent.clip) == (120, 1 / 30, 1e-5, 1.0)
    assert 2.99 < spent.epsilon <= 3.0
    passes = [record["epsilon"] for record in clf.history_]
    assert passes == sorted(set(passes))
    assert passes[-1] == spent.epsilon
    # Sums over rows without noise are not reported: neither losses nor batch sizes.
    assert np.isnan([record["loss"] for record in clf.history_]).all()
    assert [record["rows"] for record in clf.history_] == [3000] * 4
    assert clf.t_ == 12_000
    # A later fit without a budget has no privacy loss to report.
    assert not hasattr(clf.set_params(privacy=None, max_iter=1).fit(X, y), "privacy_spent_")


def test_an_interrupted_fit_reports_the_budget_of_its_steps() -> None:
    class Stops:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            if record["pass"] == 2:
                run.stop()

    X, y = _rows()
    clf = _classifier(callbacks=[Stops()]).fit(X, y)
    assert clf.n_iter_ < 4
    assert clf.privacy_spent_.steps == clf.n_iter_ * 30
    assert clf.privacy_spent_.epsilon < 3.0


def test_noise_and_batches_differ_from_fit_to_fit_whatever_the_random_state() -> None:
    X, y = _rows(300)
    fits = [_classifier(privacy=DP(3.0, 1e-5), max_iter=1).fit(X, y) for _ in range(2)]
    assert (fits[0].coef_ != fits[1].coef_).all()
    same = [_classifier(max_iter=1).fit(X, y) for _ in range(2)]
    np.testing.assert_array_equal(same[0].coef_, same[1].coef_)


@pytest.mark.parametrize(
    "estimator",
    [
        SGDClassifier(),
        SGDClassifier(optimizer="adam"),
        SGDRegressor(),
        SGDRegressor(loss="huber"),
        SGDRegressor(loss="poisson"),
        MLPClassifier((3,), random_state=0),
        MLPRegressor(hidden_layer_sizes=(3,), random_state=0),
    ],
    ids=repr,
)
def test_the_plan_does_not_depend_on_the_rows(
    estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the scale of the features nor the targets' mean and spread, which would leak rows."""
    planned: list[StepWork] = []
    train = InProcessEngine.train

    def train_planned(self: InProcessEngine, fit: Any, callbacks: Any) -> Any:
        planned.append(fit.work)
        return train(self, fit, callbacks)

    monkeypatch.setattr(InProcessEngine, "train", train_planned)
    X, y = _rows(300)
    for scale, shift in ((1.0, 0.0), (50.0, 3.0)):
        target = y if "Classifier" in type(estimator).__name__ else abs(scale * X[:, 0]) + shift
        clone(estimator).set_params(privacy=BUDGET, max_iter=2).fit(scale * X + shift, target)
    first, other = planned
    assert (first.model, first.rule, first.n_steps) == (other.model, other.rule, other.n_steps)
    assert first.initial is other.initial is None
    np.testing.assert_array_equal(first.model.init(0, float), other.model.init(0, float))


def test_several_outputs_and_targets() -> None:
    X, _ = _rows()
    three = np.argmax(X[:, :3], axis=1)
    assert _classifier(max_iter=10).fit(X, three).score(X, three) > 0.85
    targets = X[:, :2] @ np.array([[1.0, 2.0], [0.5, -1.0]])
    reg = SGDRegressor(privacy=BUDGET, learning_rate=0.3, batch_size=100).fit(X, targets)
    assert reg.coef_.shape == (2, 6)
    assert reg.score(X, targets) > 0.8


def test_networks() -> None:
    X, _ = _rows()
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    params: dict[str, Any] = {
        "hidden_layer_sizes": (32,), "learning_rate_init": 0.02, "random_state": 0, "max_iter": 60,
        "privacy": DP(8.0, 1e-5, seed=1),
    }  # fmt: skip
    clf = MLPClassifier(**params).fit(X, y)
    assert clf.score(X, y) > 0.8
    assert clf.privacy_spent_.epsilon <= 8.0
    assert np.isnan(clf.loss_curve_).all()
    reg = MLPRegressor(**params).fit(X, X[:, 0] * X[:, 1])
    assert reg.score(X, X[:, 0] * X[:, 1]) > 0.2


def test_scores_on_separate_validation_rows() -> None:
    X, y = _rows()
    clf = _classifier().fit(X, y, eval_set=(X[:100], y[:100]))
    assert [record["eval_score"] > 0.5 for record in clf.history_] == [True] * 4
    # The fit is split where the parameters are scored; batches and noise stay the same.
    np.testing.assert_array_equal(clf.coef_, _classifier().fit(X, y).coef_)


def _on_cluster(policy: Any, run: Run) -> SGDClassifier:
    return _classifier(policy=policy, run=run, max_iter=14).fit(*lazy_rows())


def test_lanes_on_a_cluster_make_the_same_steps(client: Client) -> None:
    run = Run(n_lanes=3, deterministic=True)
    by_allreduce = _on_cluster("allreduce", run)
    np.testing.assert_array_equal(_on_cluster("sync", run).coef_, by_allreduce.coef_)
    # Noise is added once, not once a lane: the scores equal those of one lane.
    X, y = (array.compute() for array in lazy_rows())
    inline = _classifier(max_iter=14, run=Run(n_lanes=3, deterministic=True), policy="allreduce")
    inline.fit(X, y, client="inline")
    assert by_allreduce.score(X, y) == pytest.approx(inline.score(X, y), abs=0.02)
    # Each server adds the noise of the parameters that it holds.
    several = _on_cluster("sync", Run(n_lanes=3, n_servers=2))
    assert several.privacy_spent_ == by_allreduce.privacy_spent_
    assert several.score(X, y) == pytest.approx(by_allreduce.score(X, y), abs=0.02)


def test_a_search_fits_private_candidates_separately() -> None:
    X, y = _rows(600)
    search = GridSearchCV(_classifier(max_iter=2), {"learning_rate": [0.1, 0.5]}, cv=2).fit(X, y)
    assert search.best_estimator_.privacy_spent_.epsilon <= 3.0
    plain = SklearnGridSearchCV(_classifier(max_iter=2), {"learning_rate": [0.1, 0.5]}, cv=2).fit(
        X, y
    )
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"]
    )


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"privacy": 3.0}, "privacy=3.0: use daskml_dist.DP"),
        ({"policy": "async"}, "policy='async'"),
        ({"policy": "ssp"}, "policy='ssp'"),
        ({"policy": "hogwild"}, "policy='hogwild'"),
        ({"policy": "average"}, "policy='average'"),
        ({"policy": LocalSGD()}, "policy='local'"),
        ({"policy": Synchronous(backup_workers=1)}, "backup_workers=1"),
        ({"early_stopping": True}, "early_stopping=True"),
        ({"callbacks": [EarlyStopping("loss")]}, 'monitor="loss"'),
        ({"class_weight": "balanced"}, "class_weight='balanced'"),
        ({"class_weight": {True: 2.0}}, "class_weight="),
        ({"checkpoint": "there"}, "heckpoint"),
        ({"learning_rate": "adaptive"}, 'learning_rate="adaptive"'),
        ({"optimizer": "nag"}, "optimizer='nag'"),
        ({"run": Run(compression="8bit")}, "compression='8bit'"),
        ({"run": Run(shard="features")}, 'shard="features"'),
        ({"run": Run(on_lost_data="skip")}, "on_lost_data='skip'"),
        ({"run": Run(compute_dtype="float16")}, "compute_dtype='float16'"),
        ({"device": "gpu"}, 'device="gpu"'),
    ],
)
def test_settings_that_leak_rows_are_refused(params: dict[str, Any], names: str) -> None:
    X, y = _rows(100)
    with pytest.raises(InvalidParameterError, match=names):
        _classifier(**params).fit(X, y)


def test_continuing_another_fit_is_refused() -> None:
    X, y = _rows(100)
    clf = _classifier(warm_start=True, max_iter=1).fit(X, y)
    with pytest.raises(InvalidParameterError, match="warm_start=True with privacy="):
        clf.fit(X, y)
    # A public start has no privacy cost.
    start = clf.set_params(warm_start=False).fit(X, y, coef_init=np.ones((1, 6)))
    assert (start.coef_ > 0).all()


def test_weights_and_partial_fit_are_refused() -> None:
    X, y = _rows(100)
    with pytest.raises(InvalidParameterError, match="sample_weight with privacy="):
        _classifier().fit(X, y, sample_weight=np.ones(100))
    with pytest.raises(InvalidParameterError, match="partial_fit and stream with privacy="):
        _classifier().partial_fit(X, y, classes=[False, True])
    with (
        pytest.raises(InvalidParameterError, match="partial_fit and stream with privacy="),
        _classifier().stream(classes=[False, True]) as stream,
    ):
        stream.learn(X, y)


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"solver": "lbfgs"}, "lbfgs"),
        ({"solver": "sgd", "learning_rate": "adaptive"}, 'learning_rate="adaptive"'),
        ({"pipeline": Pipeline(stages=2)}, "pipeline="),
        ({"early_stopping": True}, "early_stopping=True"),
    ],
)
def test_networks_refuse_settings_that_leak_rows(params: dict[str, Any], names: str) -> None:
    X, y = _rows(100)
    with pytest.raises(InvalidParameterError, match=names):
        MLPClassifier(privacy=BUDGET, **params).fit(X, y)


def test_rows_that_do_not_fit_in_memory_are_refused(client: Client) -> None:
    X = da.random.default_rng(0).normal(size=(4000, 50), chunks=(500, 50))
    clf = _classifier(run=Run(memory_budget="500 kB"))
    with pytest.raises(InvalidParameterError, match="do not fit in memory"):
        clf.fit(X, (X[:, 0] > 0).astype(int))


def test_eval_monitors_receive_private_parameters_only() -> None:
    X, y = _rows()
    monitor = EvalMonitor((X[:200], y[:200]))
    clf = _classifier(callbacks=[monitor]).fit(X, y)
    assert len(clf.history_) == 4


@pytest.mark.parametrize("suffix", ["skops", "safetensors"])
def test_saved_models_contain_the_spent_budget(tmp_path: Path, suffix: str) -> None:
    """But they do not contain the seeds of the noise."""
    X, y = _rows(300)
    clf = _classifier(max_iter=1, privacy=DP(3.0, 1e-5)).fit(X, y)
    save(clf, path := tmp_path / f"model.{suffix}")
    loaded = load(path)
    assert loaded.privacy == DP(3.0, 1e-5)
    assert loaded.privacy_spent_ == clf.privacy_spent_
    assert "seed" not in repr(vars(clf)).replace("seed=None", "")
