"""Torch modules equal a plain training loop, on one and two workers, with and without faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.models.torch_modules.flat import lay_out_parameters
from daskml_dist.neural_network import TorchClassifier
from daskml_dist.parameters.checks import seed_of
from daskml_dist.policies import POLICIES, FederatedAveraging, LocalSGD, Policy
from tests.quick import quick
from tests.training.recovery.strikes import Strike, kill_worker

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

N_ROWS = 1_200
ALONE = Run(deterministic=True)
EXACT = ["sync", "allreduce", "local", "average"]


@cache
def make_net() -> Any:
    """Return a small convolutional network, as a local class that is pickled by value."""
    from torch import nn

    class Net(nn.Module):
        # The gradient of a bias before a batch normalisation is only rounding.
        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, bias=False)
            self.norm = nn.BatchNorm2d(4)
            self.drop = nn.Dropout(dropout)
            self.out = nn.Linear(4 * 6 * 6, 3)

        def forward(self, x: Any) -> Any:
            x = self.norm(self.conv(x.reshape(-1, 1, 8, 8))).relu()
            return self.out(self.drop(x.flatten(1)))

    return Net


@cache
def rows() -> tuple[Any, Any]:
    """Return byte images in which one of three corners is bright."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 120, size=(N_ROWS, 8, 8), dtype=np.uint8), rng.integers(3, size=N_ROWS)
    for label, at in enumerate([(0, 0), (0, 4), (4, 0)]):
        X[y == label, at[0] : at[0] + 4, at[1] : at[1] + 4] += 60
    return X, y


def lazy() -> tuple[Any, Any]:
    X, y = rows()
    return da.from_array(X, chunks=(200, 8, 8)), da.from_array(y, chunks=200)


def classifier(module: Any = None, **params: Any) -> Any:
    defaults = {
        "images": "channels_first", "learning_rate": 0.005, "max_iter": 4, "batch_size": 64,
        "random_state": 0, "run": Run(n_lanes=2, deterministic=True),
    }  # fmt: skip
    return TorchClassifier(module or make_net(), **defaults | params)


@pytest.mark.parametrize(
    ("dtype", "tolerances"),
    [
        ("float64", {"rtol": 0, "atol": 1e-12}),
        # Convolutions of channels-last images sum in another order, and Adam makes
        # steps of equal length of gradients of any size.
        ("float32", {"rtol": 1e-4, "atol": 2e-6}),
    ],
)
def test_one_lane_equals_a_torch_loop(dtype: str, tolerances: dict[str, float]) -> None:
    """60 steps of Adam, including running means and the count of batches."""
    X, y = (values[:300] for values in rows())
    found = classifier(max_iter=60, batch_size=None, run=ALONE, dtype=dtype).fit(X, y)
    torch.manual_seed(seed_of(0))
    kind = getattr(torch, dtype)
    net, loss = make_net()().to(kind), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    for _ in range(60):
        optimizer.zero_grad()
        loss(net(torch.from_numpy(X)[:, None].to(kind) / 255), torch.from_numpy(y)).backward()
        optimizer.step()
    state, theirs = found.state_dict(), net.state_dict()
    assert list(state) == list(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(state[name], value, **tolerances, msg=name)
    assert state["norm.num_batches_tracked"] == 60
    assert found._net.pixelwise == (dtype == "float32")


def test_memory_layout_suits_the_module() -> None:
    """A ``view`` of a convolution's output fails in channels-last layout."""

    class Views(make_net()):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            x = self.norm(self.conv(x.reshape(-1, 1, 8, 8))).relu()
            return self.out(x.view(len(x), -1))

    X, y = rows()
    plain = classifier(Views, max_iter=2, run=ALONE).fit(X, y)
    found = classifier(max_iter=2, run=ALONE).fit(X, y)
    assert (plain._net.pixelwise, found._net.pixelwise) == (False, True)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-3, atol=1e-4)


@cache
def make_late() -> Any:
    class Late(make_net()):  # type: ignore[misc]
        """Dropout that is inactive in its first steps."""

        def __init__(self) -> None:
            super().__init__(dropout=0.5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            if self.training:
                self.calls += 1
            self.drop.train(self.training and bool(self.calls > 20))
            return super().forward(x)

    return Late


def test_late_dropout_masks_depend_on_lanes(client: Client, one_worker: Client) -> None:
    one, two = (
        classifier(make_late(), max_iter=2).fit(*lazy(), client=c) for c in (one_worker, client)
    )
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    assert one.module_.calls > 20


def test_layout_has_the_retention_of_running_statistics() -> None:
    class Frozen(make_net()):  # type: ignore[misc]
        """Net that keeps its statistics as they are."""

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.norm.eval()
            return self

    def retention(module: Any) -> list[float]:
        return [part.retention for part in lay_out_parameters(module).parts if part.buffer]

    assert retention(make_net()()) == [0.9, 0.9, 1.0]
    assert retention(Frozen()) == [1.0, 1.0, 1.0]


def test_racing_threads_count_every_batch() -> None:
    """A batch's change is measured from the parameters that it read, not those of another step."""
    found = classifier(policy="hogwild", max_iter=6).fit(*rows())
    # Two lanes of 600 rows, in batches of 64.
    assert int(found.module_.norm.num_batches_tracked) == 2 * 10 * 6


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "async", "hogwild", "local"))
def test_trains_on_workers_under_every_policy(client: Client, policy: str) -> None:
    found = classifier(policy=policy, max_iter=6).fit(*lazy())
    assert found.score(*rows()) > 0.9
    assert int(found.module_.norm.num_batches_tracked) > 30


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


@pytest.mark.parametrize("policy", quick(EXACT, "allreduce", "local"))
def test_two_workers_equal_one_bit_for_bit(client: Client, one_worker: Client, policy: str) -> None:
    """With batch normalisation and dropout, whose masks depend on lanes only."""
    params = {"policy": policy, "module__dropout": 0.3, "max_iter": 2}
    one, two = (classifier(**params).fit(*lazy(), client=c) for c in (one_worker, client))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    plain = classifier(**params | {"module__dropout": 0.0}).fit(*lazy(), client=client)
    assert not torch.equal(plain.module_.out.weight, two.module_.out.weight)


@pytest.mark.parametrize(
    "policy",
    [
        LocalSGD(5, outer="adam"),
        LocalSGD(5, outer="muon"),
        FederatedAveraging(0.5, local_epochs=2, proximal=0.1, outer="adagrad"),
    ],
    ids=repr,
)
def test_outer_steps_and_clients_give_the_same_bits(
    client: Client, one_worker: Client, policy: Policy
) -> None:
    """Variances of a batch normalisation are averaged, whatever the outer step."""
    params = {"policy": policy, "module__dropout": 0.3, "max_iter": 4}
    one, two = (classifier(**params).fit(*lazy(), client=c) for c in (one_worker, client))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    assert (one.module_.norm.running_var > 0).all()
    assert one.score(*rows()) > 0.4


def test_sync_equals_allreduce_bit_for_bit(client: Client) -> None:
    both = (classifier(policy=p, max_iter=2).fit(*lazy()) for p in ("sync", "allreduce"))
    one, two = (found.state_dict() for found in both)
    assert all(torch.equal(value, two[name]) for name, value in one.items())


class _Slow:
    """Callback that slows the steps of a fit."""

    def on_step_end(self, step: Any) -> None:
        time.sleep(0.003)


@pytest.mark.slow
@pytest.mark.parametrize("policy", EXACT)
def test_a_killed_worker_changes_nothing(crew: LocalCluster, policy: str) -> None:
    params = {"policy": policy, "module__dropout": 0.3, "max_iter": 25}
    params["run"] = Run(n_lanes=3, deterministic=True)
    with Client(crew) as client:
        client.wait_for_workers(3)
        undisturbed = classifier(**params).fit(*lazy()).state_dict()
        # Kill the last trainer's worker, once servers have standbys.
        kill = Strike(lambda run: kill_worker(client, run.trainer_addresses[-1]))
        struck = classifier(**params, callbacks=[kill, _Slow()]).fit(*lazy()).state_dict()
    assert kill.events
    assert all(torch.equal(value, struck[name]) for name, value in undisturbed.items())
