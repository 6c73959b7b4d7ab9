"""Pipelines: layers split over several trainers make the same steps as one trainer."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import RegressorMixin

from daskml_dist import Run
from daskml_dist.base import BaseSteps, Supervised
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDRegressor
from daskml_dist.models import Parameters, Part, StagedModel
from daskml_dist.policies import LocalSGD, Pipeline
from daskml_dist.training.worker.loops.pipeline import Stages, cut_layers_evenly
from tests.quick import quick

N_ROWS, SIZES = 1_200, (6, 12, 10, 8, 1)


@cache
def make_estimator() -> Any:
    """Return an estimator of a chain of layers, as a local class that is pickled by value."""

    class Chain(StagedModel):
        """Layers of ``tanh(x @ W + b)``, the last one without tanh; dropout before the second."""

        def __init__(self, sizes: tuple[int, ...], dropout: float, slow: float) -> None:
            self.sizes, self.dropout, self.slow = sizes, dropout, slow
            shapes = list(itertools.pairwise(sizes))
            self.layers = tuple((f"{n}.weight", f"{n}.bias") for n in range(len(shapes)))
            self.parameters = Parameters(
                tuple(
                    part
                    for n, shape in enumerate(shapes)
                    for part in (
                        Part(f"{n}.weight", shape),
                        Part(f"{n}.bias", shape[1:], penalised=False),
                    )
                )
            )

        def init(self, seed: int, dtype: Any) -> Any:
            w = np.zeros(self.parameters.shape, dtype)
            for name, part in self.parameters.views(w).items():
                if name.endswith("weight"):
                    rng = np.random.default_rng([seed, len(part)])
                    part[...] = rng.normal(scale=len(part) ** -0.5, size=part.shape)
            return w

        def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
            return np.asarray(y, dtype)[:, None]

        def _arrays(self, w: Any, layer: int, start: int) -> tuple[Any, Any]:
            weight, bias = (self.parameters.rows[name] for name in self.layers[layer])
            shape = self.sizes[layer], self.sizes[layer + 1]
            at = slice(weight.start - start, weight.stop - start)
            return w[at].reshape(shape), w[bias.start - start : bias.stop - start, 0]

        def forward(self, w: Any, x: Any, layers: range, rows: Any, backend: Any) -> Any:
            start, memory = self.rows_of(layers).start, []
            for layer in layers:
                keep = None
                if layer == 1 and self.dropout:
                    keep = rows.draw().random(x.shape) >= self.dropout
                    x = x * keep / (1 - self.dropout)
                weight, bias = self._arrays(w, layer, start)
                out = x @ weight + bias
                if layer < len(self.layers) - 1:
                    out = np.tanh(out)
                memory.append((x, out, keep))
                x = out
                time.sleep(self.slow)
            return x, memory

        def backward(
            self, w: Any, memory: Any, gradient: Any, out: Any, layers: range, rows: Any,
            backend: Any, *, wants_input: bool,
        ) -> Any:  # fmt: skip
            start = self.rows_of(layers).start
            for layer, (x, output, keep) in zip(reversed(layers), reversed(memory), strict=True):
                if layer < len(self.layers) - 1:
                    gradient = gradient * (1 - output**2)
                to_weight, to_bias = self._arrays(out, layer, start)
                to_weight += x.T @ gradient
                to_bias += gradient.sum(axis=0)
                gradient = gradient @ self._arrays(w, layer, start)[0].T
                if keep is not None:
                    gradient = gradient * keep / (1 - self.dropout)
            return gradient if wants_input else None

        def loss_gradient(self, output: Any, rows: Any, backend: Any) -> Any:
            away = output - rows.y
            weight = 1.0 if rows.weight is None else rows.weight[:, None]
            return float((0.5 * weight * away**2).sum()), away * weight

        def validation_sums(self, w: Any, rows: Any, backend: Any) -> Any:
            raw = self.forward(w, rows.X, range(len(self.layers)), rows, backend)[0]
            return np.array([((raw - rows.y) ** 2).sum(), len(raw)], np.float64)

        def validation_score(self, sums: Any) -> float:
            return -float(sums[0] / sums[1])

        def identity(self) -> dict[str, Any]:
            return {"sizes": list(self.sizes)}

    class ChainRegressor(RegressorMixin, BaseSteps, Supervised):
        def __init__(
            self, sizes: Any = SIZES, dropout: float = 0.0, slow: float = 0.0,
            pipeline: Any = None, policy: Any = "allreduce", max_iter: int = 4,
            batch_size: Any = 50, alpha: float = 0.01, penalty: Any = "l2", average: Any = False,
            clip: Any = None, early_stopping: bool = False, callbacks: Any = None,
            random_state: Any = 0, run: Any = None, warm_start: bool = False,
        ) -> None:  # fmt: skip
            for name, value in locals().items():
                if name not in ("self", "__class__"):
                    setattr(self, name, value)

        def _model(self, rows: Any, last: Any) -> Any:
            return Chain(self.sizes, self.dropout, self.slow)

        def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
            self.n_features_in_, self.w_, self.model_ = model.sizes[0], w, model

        def _raw_prediction(self) -> Callable[[Any], Any]:
            w, model = self.w_, self.model_
            layers = range(len(model.layers))

            def raw(X: Any, out: Any = None) -> Any:
                return model.forward(w, X, layers, None, None)[0][:, 0]

            return raw

    return ChainRegressor


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, SIZES[0]))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2]


def lazy() -> tuple[Any, Any]:
    X, y = rows()
    return da.from_array(X, chunks=(150, -1)), da.from_array(y, chunks=150)


def regressor(**params: Any) -> Any:
    params = {"pipeline": Pipeline(2, 3), "run": Run(n_lanes=4, deterministic=True)} | params
    return make_estimator()(**params)


@contextlib.contextmanager
def threads(n_workers: int) -> Iterator[Client]:
    """Provide a client of workers in this process."""
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def four_workers_client() -> Iterator[Client]:
    """Provide a client of four_workers_client workers."""
    with threads(4) as client:
        yield client


@pytest.fixture(scope="module")
def one() -> Iterator[Client]:
    """Provide a client of one worker, whose trainer holds all layers."""
    with threads(1) as client:
        yield client


@pytest.fixture(scope="module")
def alone(one: Client) -> Any:
    """Return a fit of the same micro-batches by one trainer."""
    return regressor().fit(*lazy(), client=one)


@pytest.mark.parametrize("stages", quick([2, 3, 4], 3))
def test_pipeline_stages_equal_one_trainer(
    four_workers_client: Client, alone: Any, stages: int
) -> None:
    """Two parallel pipelines, one that is fed by another trainer, and one over all trainers."""
    found = regressor(pipeline=Pipeline(stages, 3)).fit(*lazy(), client=four_workers_client)
    np.testing.assert_array_equal(found.w_, alone.w_)
    assert found.history_.records[-1]["loss"] == pytest.approx(alone.history_.records[-1]["loss"])
    assert {record["rows"] for record in found.history_.records} == {N_ROWS}
    summed = regressor(pipeline=Pipeline(stages, 3), run=Run(n_lanes=4)).fit(
        *lazy(), client=four_workers_client
    )
    np.testing.assert_allclose(summed.w_, alone.w_, rtol=1e-10, atol=1e-12)


def test_two_processes_equal_plain_gradients(client: Client, one: Client, alone: Any) -> None:
    plain = regressor(pipeline=None).fit(*lazy(), client=one)
    for policy in ("allreduce", "sync"):
        found = regressor(policy=policy).fit(*lazy(), client=client)
        np.testing.assert_array_equal(found.w_, alone.w_)
        np.testing.assert_allclose(found.w_, plain.w_, rtol=1e-10, atol=1e-12)


def test_large_activations_do_not_deadlock(four_workers_client: Client, one: Client) -> None:
    """Messages exceed the socket buffers: blocking sends in both directions would deadlock."""
    sizes, big = (6, 4_000, 8, 1), {"batch_size": 300, "max_iter": 1}
    params = {"sizes": sizes, **big, "pipeline": Pipeline(3, 2)}
    found, expected = (
        regressor(**params).fit(*lazy(), client=four_workers_client),
        regressor(**params).fit(*lazy(), client=one),
    )
    np.testing.assert_array_equal(found.w_, expected.w_)


def test_dropout_averages_and_held_out_rows(client: Client, one: Client) -> None:
    params = {"dropout": 0.2, "average": True, "early_stopping": True}
    found, expected = (
        regressor(**params).fit(*lazy(), client=client),
        regressor(**params).fit(*lazy(), client=one),
    )
    np.testing.assert_array_equal(found.w_, expected.w_)
    assert found.history_.records[-1]["val_score"] == expected.history_.records[-1]["val_score"]


def test_a_killed_stage_changes_nothing(crew: LocalCluster, one: Client) -> None:
    """After the loss of a stage, all layers are spread over the remaining trainers."""

    class Kill:
        struck = False

        def __init__(self) -> None:
            self.events: list[Any] = []

        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            if not self.struck and record["pass"] >= 3:
                self.struck = True
                address = run.trainer_addresses[-1]
                (pid,) = client.run(os.getpid, workers=[address]).values()
                os.kill(pid, signal.SIGKILL)

        def on_generation(self, run: Any, event: Any) -> None:
            self.events.append(event)

    params = {"max_iter": 9, "dropout": 0.2, "pipeline": Pipeline(3, 2)}
    params["run"] = Run(n_lanes=3, deterministic=True)
    kill = Kill()
    with Client(crew) as client:
        client.wait_for_workers(3)
        struck = regressor(**params, slow=5e-4, callbacks=[kill]).fit(*lazy(), client=client)
    undisturbed = regressor(**params).fit(*lazy(), client=one)
    assert kill.events
    np.testing.assert_array_equal(struck.w_, undisturbed.w_)
    assert {record["rows"] for record in struck.history_.records} == {N_ROWS}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: regressor(policy=LocalSGD()), "'allreduce' or 'sync'"),
        (lambda: regressor(run=Run(n_servers=2), policy="sync"), "without servers"),
        (lambda: regressor(clip=1.0), "clip=None"),
        (lambda: regressor(pipeline=2), r"Pipeline\(stages=2\)"),
    ],
)
def test_unsupported_settings_are_refused(model: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        model().fit(*rows())


@pytest.mark.parametrize("value", [0, 2.5, True])
def test_invalid_pipeline_parameters_are_refused(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="stages"):
        Pipeline(stages=value)
    assert "pipeline" not in SGDRegressor().get_params()


@pytest.mark.parametrize(
    ("seconds", "n_stages", "cuts"),
    [
        ([1, 1, 1, 1], 2, (0, 2, 4)),
        ([5, 1, 1, 1], 2, (0, 1, 4)),
        ([1, 1, 1, 5], 3, (0, 1, 3, 4)),
        ([3, 1], 1, (0, 2)),
        ([1, 2, 3], 3, (0, 1, 2, 3)),
    ],
)
def test_layers_are_split_into_stages_of_equal_time(
    seconds: list[float], n_stages: int, cuts: tuple[int, ...]
) -> None:
    found = cut_layers_evenly(seconds, n_stages)
    longest = [sum(seconds[a:b]) for a, b in itertools.pairwise(found)]
    best = [sum(seconds[a:b]) for a, b in itertools.pairwise(cuts)]
    assert max(longest) == max(best)
    assert (found[0], found[-1], len(found)) == (0, len(seconds), n_stages + 1)


@pytest.mark.parametrize("size", range(1, 8))
def test_each_lane_feeds_exactly_one_complete_pipeline(size: int) -> None:
    cuts = tuple(range(min(3, size) + 1))
    every = [Stages(rank, size, cuts) for rank in range(size)]
    pipelines = {place.pipeline: place.members for place in every}
    assert sorted(rank for members in pipelines.values() for rank in members) == list(range(size))
    for place in every:
        assert [every[rank].stage for rank in place.holders] == list(range(len(cuts) - 1))
        assert {every[rank].pipeline for rank in place.holders} == {place.pipeline}
