"""A user's own model: a network of two layers in one file, under every policy."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.backends import get_backend
from daskml_dist.base import BaseClassifier, BaseSteps
from daskml_dist.errors import CheckpointError, InvalidParameterError, TrainingError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.models import BatchRows, Parameters, Part, StepModel
from daskml_dist.optimizers import GroupOptions, get_optimizer
from daskml_dist.parameters.checks import seed_of
from daskml_dist.policies import POLICIES, Asynchronous, Policy
from daskml_dist.training.checkpoint import Checkpoint
from tests.quick import quick

N_ROWS, N_FEATURES, N_HIDDEN = 3_000, 6, 16
EXACT = ["sync", "allreduce", "local", "average"]


@cache
def make_classes() -> tuple[type[StepModel], type[BaseSteps]]:
    """Return the model and its estimator, as local classes that are pickled by value."""

    class TwoLayers(StepModel):
        """``softmax(max(X @ W1 + b1, 0) @ W2 + b2)``, with dropout in the hidden layer."""

        def __init__(self, n_in: int, n_hidden: int, n_out: int, dropout: float = 0.0) -> None:
            self.sizes, self.dropout = (n_in, n_hidden, n_out), dropout
            self.parameters = Parameters(
                (
                    Part("hidden.weight", (n_in, n_hidden)),
                    Part("hidden.bias", (n_hidden,), penalised=False),
                    Part("out.weight", (n_hidden, n_out)),
                    Part("out.bias", (n_out,), penalised=False),
                )
            )

        def init(self, seed: int, dtype: Any) -> Any:
            rng, w = np.random.default_rng(seed), np.zeros(self.parameters.shape, dtype)
            for name, part in self.parameters.views(w).items():
                if name.endswith("weight"):
                    part[...] = rng.normal(scale=(2 / len(part)) ** 0.5, size=part.shape)
            return w

        def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
            return np.searchsorted(classes, y)

        def forward(self, w: Any, X: Any) -> Any:
            p = self.parameters.views(w)
            hidden = np.maximum(X @ p["hidden.weight"] + p["hidden.bias"], 0)
            return hidden, hidden @ p["out.weight"] + p["out.bias"]

        def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Any) -> float:
            hidden, raw = self.forward(w, rows.X)
            if self.dropout:
                keep = rows.draw().random(hidden.shape, dtype=np.float32) >= self.dropout
                hidden = hidden * keep / (1 - self.dropout)
                p = self.parameters.views(w)
                raw = hidden @ p["out.weight"] + p["out.bias"]
            g = np.exp(raw - raw.max(axis=1, keepdims=True))
            g /= g.sum(axis=1, keepdims=True)
            at = np.arange(len(g)), rows.y
            losses = -np.log(np.maximum(g[at], np.finfo(g.dtype).tiny))
            g[at] -= 1
            if rows.weight is not None:
                losses *= rows.weight
                g *= rows.weight[:, None]
            p, to = self.parameters.views(w), self.parameters.views(out)
            to["out.weight"] += hidden.T @ g
            to["out.bias"] += g.sum(axis=0)
            back = (g @ p["out.weight"].T) * (hidden > 0)
            if self.dropout:
                back /= 1 - self.dropout
            to["hidden.weight"] += rows.X.T @ back
            to["hidden.bias"] += back.sum(axis=0)
            return float(losses.sum(dtype=np.float64))

        def validation_sums(self, w: Any, rows: BatchRows, backend: Any) -> Any:
            right = self.forward(w, rows.X)[1].argmax(axis=1) == rows.y
            weight = np.ones(len(right)) if rows.weight is None else rows.weight
            return np.array([weight @ right, weight.sum()], np.float64)

        def validation_score(self, sums: Any) -> float:
            return float(sums[0] / sums[1])

        def identity(self) -> dict[str, Any]:
            return {"layers": list(self.sizes)}

    class TwoLayerClassifier(BaseClassifier, BaseSteps):
        def __init__(
            self,
            n_hidden: int = N_HIDDEN,
            dropout: float = 0.0,
            optimizer: Any = "adam",
            learning_rate: Any = 0.01,
            policy: Any = "allreduce",
            max_iter: int = 8,
            batch_size: Any = 32,
            micro_batch_size: Any = None,
            clip: Any = None,
            groups: Any = None,
            early_stopping: bool = False,
            warm_start: bool = False,
            checkpoint: Any = None,
            callbacks: Any = None,
            random_state: Any = 0,
            run: Any = None,
        ) -> None:
            self.n_hidden = n_hidden
            self.dropout = dropout
            self.optimizer = optimizer
            self.learning_rate = learning_rate
            self.policy = policy
            self.max_iter = max_iter
            self.batch_size = batch_size
            self.micro_batch_size = micro_batch_size
            self.clip = clip
            self.groups = groups
            self.early_stopping = early_stopping
            self.warm_start = warm_start
            self.checkpoint = checkpoint
            self.callbacks = callbacks
            self.random_state = random_state
            self.run = run

        def _model(self, rows: Any, last: Any) -> StepModel:
            n_features = rows.summary.n_features
            return TwoLayers(n_features, self.n_hidden, len(rows.classes), self.dropout)

        def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
            self.n_features_in_, self.classes_ = model.sizes[0], rows.classes
            self.w_, self.model_ = w, model

        def _raw_prediction(self) -> Callable[[Any], Any]:
            w, model = self.w_, self.model_
            return lambda X, out=None: model.forward(w, X)[1]

    return TwoLayers, TwoLayerClassifier


def _rows() -> tuple[Any, Any]:
    """Return classes that are not linearly separable."""
    X = np.random.default_rng(0).normal(size=(N_ROWS, N_FEATURES))
    return X, np.digitize((X[:, :2] ** 2).sum(axis=1), [0.8, 2.2])


def _lazy() -> tuple[Any, Any]:
    X, y = _rows()
    return da.from_array(X, chunks=(500, -1)), da.from_array(y, chunks=500)


def _classifier(**params: Any) -> Any:
    return make_classes()[1](**{"run": Run(n_lanes=2, deterministic=True)} | params)


def test_gradient_is_that_of_finite_differences() -> None:
    model, backend = make_classes()[0](4, 5, 3), get_backend("cpu")
    rng = np.random.default_rng(0)
    w = model.init(0, np.float64)
    rows = BatchRows(rng.normal(size=(9, 4)), rng.integers(3, size=9), rng.random(9))
    gradient = np.zeros_like(w)
    model.add_gradient(w, rows, gradient, backend)

    def loss(at: int, by: float) -> float:
        moved = w.copy()
        moved[at] += by
        return model.add_gradient(moved, rows, np.zeros_like(w), backend)

    slopes = [(loss(i, 1e-6) - loss(i, -1e-6)) / 2e-6 for i in range(len(w))]
    np.testing.assert_allclose(gradient[:, 0], slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "allreduce", "async", "local"))
def test_trains_on_workers_under_every_policy(client: Client, policy: str) -> None:
    found = _classifier(policy=policy, max_iter=15).fit(*_lazy())
    assert found.score(*_rows()) > 0.85
    assert found.history_.extra["n_lanes"] == 2


@pytest.fixture(scope="module")
def one_worker() -> Iterator[Client]:
    """Provide a client of one worker in this process."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("policy", quick(EXACT, "sync", "local"))
def test_two_workers_equal_one_bit_for_bit(client: Client, one_worker: Client, policy: str) -> None:
    """Random masks depend on lanes, not workers; a fit without masks differs."""
    params = {"policy": policy, "max_iter": 3, "dropout": 0.3, "micro_batch_size": 12}
    one, two = (_classifier(**params).fit(*_lazy(), client=c) for c in (one_worker, client))
    np.testing.assert_array_equal(one.w_, two.w_)
    plain = _classifier(**params | {"dropout": 0.0}).fit(*_lazy(), client=client)
    assert not np.array_equal(two.w_, plain.w_)


class _Slow:
    """Callback that slows the steps of a fit."""

    def on_step_end(self, step: Any) -> None:
        time.sleep(0.003)


class _Kill:
    """Callback that ends a worker by SIGKILL once, after some time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.events: list[Any] = []
        self.struck = False
        self.began = 0.0

    def on_fit_begin(self, run: Any) -> None:
        self.began = time.monotonic()

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        # By then servers have standbys.
        if not self.struck and record["pass"] > 2 and time.monotonic() - self.began > 0.7:
            self.struck = True
            (pid,) = self.client.run(os.getpid, workers=[run.trainer_addresses[-1]]).values()
            os.kill(pid, signal.SIGKILL)

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)


@pytest.mark.slow
@pytest.mark.parametrize("policy", EXACT)
def test_a_killed_worker_changes_nothing(crew: LocalCluster, policy: str) -> None:
    params = {"policy": policy, "dropout": 0.3, "max_iter": 15}
    params["run"] = Run(n_lanes=3, deterministic=True)
    with Client(crew) as client:
        client.wait_for_workers(3)
        undisturbed = _classifier(**params).fit(*_lazy())
        kill = _Kill(client)
        struck = _classifier(**params, callbacks=[kill, _Slow()]).fit(*_lazy())
    assert kill.events
    np.testing.assert_array_equal(struck.w_, undisturbed.w_)
    assert {record["rows"] for record in struck.history_.records} == {N_ROWS}


@pytest.mark.parametrize("policy", quick(["sync", "allreduce"], "sync"))
def test_a_checkpoint_resumes_to_the_bit(tmp_path: Path, policy: str) -> None:
    params = {"policy": policy, "dropout": 0.3}
    whole = _classifier(**params, max_iter=5).fit(*_rows())
    saved = Checkpoint(tmp_path / "network", every=1, resume=True)
    _classifier(**params, max_iter=2, checkpoint=saved).fit(*_rows())
    resumed = _classifier(**params, max_iter=5, checkpoint=saved).fit(*_rows())
    assert len(resumed.history_.records) == 5
    np.testing.assert_array_equal(resumed.w_, whole.w_)
    with pytest.raises(CheckpointError, match="its layers is"):
        _classifier(**params, n_hidden=7, checkpoint=saved).fit(*_rows())


def test_micro_batches_sum_to_their_batch() -> None:
    whole, cut = (_classifier(max_iter=2, micro_batch_size=n).fit(*_rows()) for n in (None, 7))
    np.testing.assert_allclose(cut.w_, whole.w_, rtol=1e-9)


def test_partial_fit_continues_the_last_fit() -> None:
    first = _classifier(max_iter=2, warm_start=True).fit(*_rows())
    before = first.history_.records[-1]["loss"]
    assert first.fit(*_rows()).history_.records[-1]["loss"] < before


def test_attributes_that_the_constructor_lacks_count_as_parameters() -> None:
    class Few(make_classes()[1]):  # type: ignore[misc]
        tol, policy, random_state = None, "sync", 0

        def __init__(self, n_hidden: int = 4) -> None:
            self.n_hidden, self.dropout, self.max_iter = n_hidden, 0.0, 3

        def shuffle(self) -> None:
            """Method with the name of a parameter."""

    found = clone(Few()).fit(*_rows())
    assert found.n_iter_ == 3
    assert found.history_.extra["policy"] == "sync"
    found.max_iter = 0
    with pytest.raises(InvalidParameterError, match="max_iter=0"):
        found.fit(*_rows())


def test_held_out_rows_stop_the_fit() -> None:
    found = _classifier(early_stopping=True, max_iter=3).fit(*_rows())
    assert 0.5 < found.history_.records[-1]["val_score"] < 1


def _begun(found: Any) -> Any:
    """Return the initial parameters of a fit."""
    return found.model_.init(seed_of(found.random_state), np.float64)


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
def test_clipped_steps_do_not_exceed_the_given_norm(policy: str) -> None:
    once = {"max_iter": 1, "batch_size": None, "optimizer": "sgd", "policy": policy, "clip": 0.02}
    found = _classifier(**once, learning_rate=1.0).fit(*_rows())
    begun = _begun(found)
    assert np.linalg.norm(found.w_ - begun) == pytest.approx(0.02)
    with pytest.raises(InvalidParameterError, match="Use n_servers=1"):
        _classifier(**once, run=Run(n_servers=2)).fit(*_rows())
    with pytest.raises(InvalidParameterError, match="clip"):
        _classifier(clip=0).fit(*_rows())


def test_parameter_groups_have_separate_rates_and_optimizers() -> None:
    frozen = {"hidden.*": GroupOptions(rate=0.0), "out.bias": GroupOptions(get_optimizer("sgd"))}
    found = _classifier(groups=frozen, max_iter=1).fit(*_rows())
    views, begun = (found.model_.parameters.views(w) for w in (found.w_, _begun(found)))
    moved = {name for name in views if not np.array_equal(views[name], begun[name])}
    assert moved == {"out.weight", "out.bias"}
    with pytest.raises(InvalidParameterError, match=r"No part .*hidden\.weight"):
        _classifier(groups={"layer9": GroupOptions()}).fit(*_rows())


@cache
def _make_running_mean() -> Any:
    """Return an estimator of a running mean of features, as a local class, pickled by value."""

    class Seen(StepModel):
        """Model whose buffer keeps some of its value and adds the rest of the batch's mean."""

        def __init__(self, kept: float, retention: float) -> None:
            self.kept, self.retention = kept, retention
            mean = Part("mean", (N_FEATURES,), buffer=True, retention=retention)
            self.parameters = Parameters((mean,))

        def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
            return np.searchsorted(classes, y)

        def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Any) -> float:
            old, n = self.parameters.views(w)["mean"], len(rows.X)
            new = self.kept * old + (1 - self.kept) * rows.X.mean(axis=0)
            self.parameters.views(out)["mean"][...] += n * (self.retention * old - new)
            return 0.0

        def identity(self) -> dict[str, Any]:
            return {}

    class Mean(make_classes()[1]):  # type: ignore[misc]
        kept, retention = 0.0, 1.0

        def _model(self, rows: Any, last: Any) -> StepModel:
            return Seen(self.kept, self.retention)

        def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
            self.n_features_in_, self.w_ = N_FEATURES, w

    return Mean


@pytest.mark.parametrize(
    ("policy", "steps_per_round"),
    [("sync", 1), ("async", 3), (Asynchronous(delay_compensation=2.0), 3), ("hogwild", 3)],
)
def test_a_running_mean_is_that_of_all_steps_in_sequence(
    client: Client, policy: str | Policy, steps_per_round: int
) -> None:
    """Lanes that began at the same value do not move it twice."""
    X = da.full((240, N_FEATURES), 3.0, chunks=(40, N_FEATURES))
    y = da.from_array(np.arange(240) % 2, chunks=40)
    mean = _make_running_mean()(max_iter=2, batch_size=20, policy=policy, run=Run(n_lanes=3))
    mean.kept = mean.retention = 0.8
    found = mean.fit(X, y)
    # Two passes of 240 / 3 rows per lane, in batches of 20.
    n = 2 * 4 * steps_per_round
    np.testing.assert_allclose(found.w_[:, 0], 3 * (1 - 0.8**n), rtol=1e-12)


@pytest.mark.parametrize("policy", quick(EXACT, "sync", "allreduce"))
def test_a_buffer_is_averaged_over_all_lanes(policy: str) -> None:
    Mean = _make_running_mean()
    found = Mean(max_iter=1, batch_size=None, policy=policy, run=Run(n_lanes=3)).fit(*_rows())
    np.testing.assert_allclose(found.w_[:, 0], _rows()[0].mean(axis=0), rtol=1e-12)
    with pytest.raises(InvalidParameterError, match=r"has no score .* early_stopping=False"):
        found.set_params(early_stopping=True, batch_size=64).fit(*_rows())


class _Steps:
    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at
        self.steps: list[Any] = []

    def on_step_end(self, step: Any) -> None:
        self.steps.append(step)
        if step.clock == self.fails_at:
            raise ValueError("this is enough")


def test_on_step_end_is_called_for_every_step() -> None:
    steps = _Steps()
    _classifier(max_iter=2, callbacks=[steps], policy="sync").fit(*_rows())
    assert sum(step.n_rows for step in steps.steps) == 2 * N_ROWS
    by_lane = {n: [s.clock for s in steps.steps if s.lane == n] for n in (0, 1)}
    assert by_lane[0] == by_lane[1] == list(range(1, len(by_lane[0]) + 1))
    linear = _Steps()
    clf = SGDClassifier(max_iter=3, tol=None, callbacks=[linear], run=Run(n_lanes=1))
    clf.fit(*_rows())
    assert sum(step.n_rows for step in linear.steps) == 3 * N_ROWS
    losses = sum(step.loss for step in linear.steps[-len(linear.steps) // 3 :])
    assert losses / N_ROWS == pytest.approx(clf.history_.records[-1]["loss"])


def test_an_error_in_on_step_end_ends_a_cluster_fit(client: Client) -> None:
    with pytest.raises(TrainingError, match="this is enough") as caught:
        _classifier(callbacks=[_Steps(5)]).fit(*_lazy())
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_in_on_step_end_is_raised_unchanged_in_process() -> None:
    with pytest.raises(ValueError, match="this is enough"):
        _classifier(callbacks=[_Steps(5)]).fit(*_rows())
