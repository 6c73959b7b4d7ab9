"""Threads that race on one array (``"hogwild"``) lose few updates and never diverge."""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask import delayed
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import OPTIMIZERS, SGD, Adagrad
from daskml_dist.penalties import Penalty
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.worker.loops.shared import SharedOrAlone, SharedReplica
from tests.rules import one_group

EVERY = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def _rare_features(n_rows: int, n_features: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return rows of three classes with sparse features, some of which are nearly always zero.

    A second moment lost at such a feature's first gradient leaves a division by nearly zero.
    """
    rng = np.random.default_rng(0)
    often = 10.0 ** rng.uniform(-3, -0.3, n_features)
    y = rng.integers(0, 3, n_rows)
    often = often * (0.4 + 1.2 * (rng.random((3, n_features)) < 0.5)[y])
    # No value is tiny: "nag" divides by the scale, so the first gradient would be huge.
    values = (1 + rng.random((n_rows, n_features), np.float32)) / 2
    return np.where(rng.random((n_rows, n_features)) < often, values, np.float32(0)), y


def _dense() -> tuple[Any, Any]:
    return _rare_features(1_000, 400)


def _sparse() -> tuple[Any, Any]:
    X, y = _rare_features(400, 4_096)
    # Rows that touch few coordinates, so that steps update only these.
    X[np.random.default_rng(1).random(X.shape) < 0.95] = 0
    return sparse.csr_array(X), y


def _rows() -> tuple[Any, Any]:
    X, y = _sparse()
    return X, y > 0


#: Rows, and the size of their batches: of dense and sparse rows, and each row by itself.
KINDS: dict[str, tuple[Callable[[], tuple[Any, Any]], Any]] = {
    "dense": (_dense, 16),
    "sparse": (_sparse, 8),
    "rows": (_rows, "auto"),
}


def _largest(X: Any, y: Any, **params: Any) -> float:
    clf = SGDClassifier(max_iter=3, tol=None, random_state=0, **params).fit(X, y)
    return float(max(abs(clf.coef_).max(), abs(clf.intercept_).max()))


def _largest_in_sequence(X: Any, y: Any, optimizer: str, batch_size: Any) -> float:
    """Return the largest parameter after the same number of sequential steps."""
    batch_size = 1 if batch_size == "auto" else batch_size
    return _largest(
        X, y, policy="sync", run=Run(n_lanes=1), optimizer=optimizer, batch_size=batch_size
    )


# Numba compiles a loop over single rows, and one at coordinates, for each optimizer: in the default
# run those without state, with one number a parameter, and with two.
QUICK = {"dense": set(OPTIMIZERS), "sparse": {"sgd", "adagrad", "adam"}, "rows": {"adagrad"}}


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(kind, optimizer, marks=() if optimizer in QUICK[kind] else pytest.mark.slow)
        for kind in KINDS
        for optimizer in OPTIMIZERS
    ],
)
def test_parameters_stay_as_large_as_those_of_steps_in_turn(kind: str, optimizer: str) -> None:
    make, batch_size = KINDS[kind]
    X, y = make()
    most = 2 * _largest_in_sequence(X, y, optimizer, batch_size)
    params = {"optimizer": optimizer, "batch_size": batch_size, "run": Run(n_lanes=2)}
    assert _largest(X, y, policy="hogwild", **params) < most


@pytest.fixture(scope="module", params=[(1, 6), (2, 3)], ids=["1x6", "2x3"])
def racing(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Worker processes, and threads of each: usually more than there are cores."""
    n_workers, threads = request.param
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=threads, host="127.0.0.1",
            dashboard_address=":0", silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


def _assert_bounded_in_twenty_fits(X: Any, y: Any, **params: Any) -> None:
    most = 2 * _largest_in_sequence(X, y, params["optimizer"], params["batch_size"])
    size = -(-len(y) // 6)
    blocks = [
        da.from_delayed(delayed(X[at : at + size]), (len(y[at : at + size]), X.shape[1]), X.dtype)
        for at in range(0, len(y), size)
    ]
    rows, labels = dask.persist(da.concatenate(blocks), da.from_array(y, chunks=size))
    largest = [
        _largest(rows, labels, policy="hogwild", run=Run(n_lanes=6), **params) for _ in range(20)
    ]
    assert max(largest) < most


@pytest.mark.slow
@pytest.mark.timeout(600)
@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_stay_as_large_in_twenty_fits(racing: Client, kind: str, optimizer: str) -> None:
    make, batch_size = KINDS[kind]
    _assert_bounded_in_twenty_fits(*make(), optimizer=optimizer, batch_size=batch_size)


@pytest.fixture(scope="module")
def mnist(data_dir: Path) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    def read(name: str, offset: int) -> NDArray[np.uint8]:
        packed = (data_dir / "mnist" / f"train-{name}-ubyte.gz").read_bytes()
        return np.frombuffer(gzip.decompress(packed), np.uint8, offset=offset)

    images = read("images-idx3", 16).reshape(-1, 784)
    return images[:20_000] / np.float32(255), read("labels-idx1", 8)[:20_000]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(600)
@EVERY
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_mnist_in_twenty_fits(racing: Client, mnist: Any, optimizer: str) -> None:
    _assert_bounded_in_twenty_fits(*mnist, optimizer=optimizer, batch_size=64)


class _Watched(SGD):
    """SGD that yields to other threads during an update and counts interleaved updates."""

    to_coordinates = threading.Lock()

    def __init__(self) -> None:
        self.__dict__.update(alone=[], steps=[])

    def update(self, w: Any, grad: Any, opt_state: Any, lr: Any, step: int, l1: Any = 0.0) -> None:
        alone = self.to_coordinates.acquire(blocking=False)
        time.sleep(0.005)
        super().update(w, grad, opt_state, lr, step, l1)
        self.__dict__["alone"].append(alone)
        self.__dict__["steps"].append(step)
        if alone:
            self.to_coordinates.release()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_updates_of_threads_are_not_interleaved(kind: str) -> None:
    make, _ = KINDS[kind]
    X, y = make()
    watched = _Watched()
    params: dict[str, Any] = {"max_iter": 2, "tol": None, "batch_size": 20, "random_state": 0}
    params["learning_rate"] = 0.05  # so that the pilot makes no steps
    SGDClassifier(policy="hogwild", run=Run(n_lanes=2), optimizer=watched, **params).fit(X, y)
    assert watched.alone == [True] * len(watched.alone)
    assert watched.steps == list(range(1, len(watched.steps) + 1))


def test_exclusive_additions_are_not_overwritten() -> None:
    """A row update in progress writes values that it read before exclusive changes are added."""
    turns, counts, ended = SharedOrAlone(), np.zeros(2), threading.Event()

    def rows() -> None:
        while not ended.is_set():
            with turns.together():
                read, added = counts.copy(), np.array([1, 0])
                time.sleep(0.001)
                counts[:] = read + added

    thread = threading.Thread(target=rows)
    thread.start()
    try:
        for _ in range(20):
            with turns.alone():
                counts[1] += 1
    finally:
        ended.set()
        thread.join()
    assert counts[1] == 20


def test_a_waiting_exclusive_section_precedes_new_shared_ones() -> None:
    turns, order = SharedOrAlone(), []

    def alone() -> None:
        with turns.alone():
            order.append("alone")

    def together() -> None:
        with turns.together():
            order.append("together")

    threads = [threading.Thread(target=alone), threading.Thread(target=together)]
    with turns.together(), turns.together():
        threads[0].start()
        while not turns._waiting:
            time.sleep(0.001)
        threads[1].start()
        threads[1].join(0.02)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["alone", "together"]


class _Servers:
    """Parameters to which trainers add their changes, without processes."""

    def __init__(self, w: NDArray[Any]) -> None:
        self.w = w

    def send(self, *args: Any, **options: Any) -> None:
        self.w = self.w + args[3]

    def receive(self, name: int) -> Any:
        return SimpleNamespace(w=self.w, stop=False)


def _trainer(number: int, n_trainers: int, penalty: Penalty, servers: _Servers) -> SharedReplica:
    rule = one_group(Adagrad(), Constant(0.1), penalty, 2, 1.0, coordinates=True)
    steps = SimpleNamespace(rule=rule, policy=SimpleNamespace(exchange_every=0), single_rows=True)
    start = ShardState(servers.w.copy(), {"accumulator": np.full((3, 1), 4.0)})
    fit = SimpleNamespace(
        rows=SimpleNamespace(lane_rows=(10,) * n_trainers),
        steps=steps,
        work=SimpleNamespace(first_clock=0),
        make_start_state=lambda: start,
    )
    lanes = [SimpleNamespace(number=number)]
    context: Any = SimpleNamespace(fit=fit, lanes=lanes, clocks={number: 0}, memory={}, n_threads=1)
    connection: Any = servers
    return SharedReplica(context, connection)


def test_pending_penalties_are_applied_before_each_exchange() -> None:
    """A column that only one trainer's rows have is penalised for the steps of all."""
    servers = _Servers(np.array([[1.0], [1.0], [1.0]]))
    trainers = [_trainer(i, 4, Penalty(0.0, 0.01), servers) for i in range(4)]
    for _ in range(10):
        for trainer in trainers:
            trainer.replica.count_row_steps([10], 0.1)
            trainer.exchange_changes()
    # By Adagrad's steps, with the accumulator above.
    expected = (1 + 10 * 0.1 * 0.01 / 2) ** -40
    np.testing.assert_allclose(servers.w[:, 0], [expected, expected, 1.0], rtol=0.01)
