"""Chains of torch layers over several trainers make the same steps as one trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.neural_network import TorchClassifier
from daskml_dist.policies import Pipeline
from tests.training.recovery.strikes import Strike, kill_worker

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

N_ROWS = 960


@cache
def make_chain() -> Any:
    """Return a function that makes a chain, as a local function that is pickled by value."""

    def chain(dropout: float = 0.3, norm: bool = True) -> Any:
        """In-place layers, layers without parameters, and a nested chain."""
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(16, 12, bias=False),
            nn.BatchNorm1d(12) if norm else nn.Identity(),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Dropout(dropout)),
            nn.Linear(12, 3),
        )

    return chain


@cache
def make_holder() -> Any:
    make = make_chain()

    class Holder(nn.Module):
        """Module that contains a chain and applies a given function to it."""

        def __init__(self, residual: bool = False) -> None:
            super().__init__()
            self.layers, self.residual = make(dropout=0.0, norm=False), residual

        def forward(self, x: Any) -> Any:
            return self.layers(x) + x.mean() if self.residual else self.layers(x)

    return Holder


@cache
def rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(N_ROWS, 4, 4))
    return X, np.digitize(X[:, 0, 0] + X[:, 1, 1], [-0.6, 0.6])


def lazy() -> tuple[Any, Any]:
    X, y = rows()
    return da.from_array(X, chunks=(120, 4, 4)), da.from_array(y, chunks=120)


def classifier(module: Any = None, **params: Any) -> Any:
    defaults = {
        "dtype": "float64", "learning_rate": 0.01, "max_iter": 3, "batch_size": 96,
        "random_state": 0, "pipeline": Pipeline(2, 3),
        "run": Run(n_lanes=4, deterministic=True),
    }  # fmt: skip
    return TorchClassifier(module or make_chain(), **defaults | params)


@pytest.fixture(scope="module")
def one() -> Iterator[Client]:
    """Provide a client of one worker, whose trainer holds all layers."""
    with threads(1) as client:
        yield client


@contextmanager
def threads(n_workers: int) -> Iterator[Client]:
    """Provide a client of workers in this process."""
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def assert_equal(found: Any, undisturbed: Any) -> None:
    state = undisturbed.state_dict()
    for name, value in found.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_two_processes_equal_one(client: Client, one: Client) -> None:
    """With a batch normalisation, and masks of each layer and micro-batch."""
    found = classifier().fit(*lazy(), client=client)
    assert_equal(found, classifier().fit(*lazy(), client=one))
    assert found.score(*rows()) > 0.6


def test_a_non_finite_loss_keeps_earlier_parameters(client: Client) -> None:
    """By one trainer and by several, in steps with and without a snapshot at the client."""

    class Breaks(nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x: Any) -> Any:
            return torch.where(x.abs().amax() > 1e5, torch.inf, 1.0) * x

    def make() -> Any:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3), Breaks())

    parameters = {}
    for name, where, lag, step in (
        ("here", None, 64, 8), ("first", client, 64, 8), ("later", client, 4, 8),
        ("at once", client, 4, 1),
    ):  # fmt: skip
        X, y = rows()[0].copy(), rows()[1]
        X[480 + 48 * step - 1, 0, 0] = 1e9  # rows of the second lane
        clf = classifier(make, shuffle=False, run=Run(n_lanes=2))
        arguments = (X, y) if where is None else (da.from_array(X, chunks=(120, 4, 4)), y)
        how = {} if where is None else {"client": where}
        with (
            dask.config.set({"daskml_dist.standby_lag": lag}),
            pytest.raises(DivergedError, match=f"in step {step} of lane 1") as raised,
        ):
            clf.fit(*arguments, **how)
        if step > 1:
            parameters[name] = np.concatenate(
                [v.numpy().ravel() for v in clf.state_dict().values()]
            )
            assert "keeps earlier parameters" in str(raised.value)
            assert np.isfinite(parameters[name]).all()
        else:
            assert "keeps" not in str(raised.value)
            assert not hasattr(clf, "classes_")
    np.testing.assert_array_equal(parameters["first"], parameters["here"])
    assert (parameters["later"] != parameters["here"]).any()


def test_a_pipeline_equals_plain_gradients(client: Client) -> None:
    """The module contains only a chain."""
    params: dict[str, Any] = {"module": make_holder(), "early_stopping": True}
    found = classifier(**params).fit(*lazy(), client=client)
    plain = classifier(**params, pipeline=None).fit(*lazy(), client=client)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-10, atol=1e-12)
    assert found.history_.records[-1]["val_score"] == plain.history_.records[-1]["val_score"]


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_parallel_pipelines(one: Client, stages: int) -> None:
    with threads(4) as four:
        params = {"pipeline": Pipeline(stages, 2)}
        assert_equal(
            classifier(**params).fit(*lazy(), client=four),
            classifier(**params).fit(*lazy(), client=one),
        )


@pytest.mark.slow
def test_a_killed_stage_changes_nothing(crew: LocalCluster, one: Client) -> None:
    class Slow:
        def on_step_end(self, step: Any) -> None:
            time.sleep(0.003)

    params = {"pipeline": Pipeline(3, 2), "run": Run(n_lanes=3, deterministic=True)}
    params |= {"max_iter": 25}
    with Client(crew) as client:
        client.wait_for_workers(3)
        kill = Strike(lambda run: kill_worker(client, run.trainer_addresses[-1]))
        struck = classifier(**params, callbacks=[kill, Slow()]).fit(*lazy(), client=client)
    assert kill.events
    assert_equal(struck, classifier(**params).fit(*lazy(), client=one))


def _tied() -> Any:
    first, last = nn.Linear(16, 16), nn.Linear(16, 16)
    last.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, last, nn.Linear(16, 3))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "not a chain": (
        lambda: classifier(make_holder(), module__residual=True),
        "torch.nn.Sequential",
    ),
    "few layers": (lambda: classifier(pipeline=Pipeline(5)), r"Use Pipeline\(stages=4\)"),
    "shared": (lambda: classifier(_tied), "2.weight in several layers"),
    "clip": (lambda: classifier(clip=1.0), "clip=None"),
    "a row": (lambda: classifier(batch_size=8), "needs at least two rows per batch"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_modules_are_refused(what: str) -> None:
    make, remedy = REFUSED[what]
    with pytest.raises(InvalidParameterError, match=remedy):
        make().fit(*rows())
