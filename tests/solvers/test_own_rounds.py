"""Custom round algorithm in one file: k-means by Lloyd's steps, on rows without targets.

Its model, its statistic, the memory of its rows, its solver and its estimator follow; then the
tests.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from sklearn.cluster import KMeans as Peer
from sklearn.datasets import make_blobs

from daskml_dist import Run
from daskml_dist.backends import Backend, get_backend
from daskml_dist.backends.namespace import cast, namespace, scalar, total
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.models.base import BatchRows, Model
from daskml_dist.parameters.checks import check_count
from daskml_dist.solvers import RowState, Solution, Solver, Statistic, Sums
from daskml_dist.training.dataset_info import DatasetInfo

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Points(Model):
    """Rows without targets.

    Parameters
    ----------
    n_features : int
    gate : str
        A file that later rounds wait for, so that a test can strike meanwhile; empty: none.
    """

    n_features: int
    gate: str = ""

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        raise NotImplementedError


def nearest(centres: Array, X: Any, backend: Backend) -> tuple[Any, Any]:
    """Return the nearest centroid of each row, and its squared distance without the row's norm."""
    xp = namespace(X)
    device_centres = cast(backend.to_device(centres), X.dtype)
    apart = total(device_centres * device_centres, axis=1) - 2 * backend.dot(X, device_centres.T)
    return xp.argmin(apart, axis=1), xp.min(apart, axis=1)


@dataclass(frozen=True)
class Labels(RowState):
    """Row memory with the centroid of each row; -1 initially."""

    name = "labels"
    centres: Array | None

    def make(self, model: Points, rows: BatchRows, backend: Backend) -> Any:
        if self.centres is None:
            return backend.to_device(np.full(rows.X.shape[0], -1))
        return nearest(self.centres, rows.X, backend)[0]


@dataclass(frozen=True)
class Assignment(Statistic):
    """Weight and weighted sum of the rows of each centroid; last, the number of changed rows.

    Parameters
    ----------
    centres : ndarray of shape (k, n_features)
    before : ndarray or None
        Those of the round before.
    round : int
    """

    centres: Array
    before: Array | None
    round: int

    @property
    def state(self) -> Labels:
        return Labels(self.before)

    def shape(self, model: Points) -> tuple[int, ...]:
        return len(self.centres) + 1, 1 + model.n_features

    def add(self, model: Points, rows: BatchRows, out: Any, backend: Backend) -> Any:
        while self.round == 3 and model.gate and not os.path.exists(model.gate):
            time.sleep(0.005)
        X, xp = rows.X, namespace(rows.X)
        labels, apart = nearest(self.centres, X, backend)
        each = xp.ones((X.shape[0], 1), dtype=X.dtype)
        backend.add_rows(each, labels, rows.weight, out[:-1, :1])
        backend.add_rows(X, labels, rows.weight, out[:-1, 1:])
        out[-1, 0] += total(cast(labels != rows.state, xp.float64))
        rows.state[...] = labels
        distance = apart + total(X * X, axis=1)
        return scalar(total(distance if rows.weight is None else distance * rows.weight))


@dataclass(frozen=True)
class Lloyd(Solver):
    """Lloyd's steps until no row changes its centroid or the centroids hardly move.

    Parameters
    ----------
    max_iter : int
    tol : float
        Squared way of all centres together at which it stops.
    """

    name = "lloyd"
    max_iter: int
    tol: float

    @property
    def max_passes(self) -> int:
        return self.max_iter

    def solve(self, model: Points, sums: Sums, start: Array | None) -> Solution:
        centres, before, first = start, None, 1
        if (saved := sums.kept) is not None:
            centres, before, first = saved["centres"], saved["before"], int(saved["n_iter"]) + 1
        assert centres is not None
        for n_iter in range(first, self.max_iter + 1):
            found = sums(Assignment(centres, before, n_iter))
            before, centres = centres, found[:-1, 1:] / found[:-1, :1]
            if not found[-1, 0] or ((centres - before) ** 2).sum() <= self.tol:
                return Solution(centres, n_iter)
            if sums.should_stop:
                break
            state = {"centres": centres, "before": before, "n_iter": np.array(n_iter)}
            sums.keep(centres, lambda state=state: state)
        return Solution(centres, n_iter, False, "rows still change their centres")


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest centroid of each row."""

    centres: Array

    def __call__(self, X: Any, out: Any = None) -> NDArray[Any]:
        labels: NDArray[Any] = nearest(self.centres, X, get_backend("cpu"))[0]
        return labels


class KMeans(BaseRounds):
    """k-means from given centres.

    Parameters
    ----------
    init : ndarray of shape (k, n_features)
    max_iter : int
    gate : str
        As of `Points`.
    callbacks : list
    run : Run
    """

    def __init__(
        self, init: Any = None, *, max_iter: int = 300, gate: str = "", callbacks: Any = None,
        run: Run | None = None,
    ) -> None:  # fmt: skip
        self.init = init
        self.max_iter = max_iter
        self.gate = gate
        self.callbacks = callbacks
        self.run = run

    def fit(self, X: Any, y: None = None, *, client: Client | None = None) -> KMeans:
        self._fit(X, None, None, client)
        return self

    def predict(self, X: Any) -> Any:
        return self._map_raw_predictions(None, X, np.intp, None)

    def _check_params(self) -> None:
        check_count("max_iter", self.max_iter)

    def _problem(self, rows: DatasetInfo) -> tuple[Points, Lloyd]:
        return Points(rows.summary.n_features, self.gate), Lloyd(self.max_iter, 1e-20)

    def _starting_parameters(self, model: Points, rows: DatasetInfo) -> Array:
        return np.asarray(self.init)

    def _set_fitted(self, solution: Solution, model: Points, rows: DatasetInfo) -> None:
        self.cluster_centers_, self.n_iter_ = solution.w, solution.n_iter
        self.n_features_in_ = model.n_features

    def _raw_prediction(self) -> Nearest:
        return Nearest(self.cluster_centers_)


# --- the tests -----------------------------------------------------------------------------------

N_ROWS, K = 1200, 5
X = make_blobs(N_ROWS, 6, centers=K, cluster_std=6.0, random_state=0)[0]
INIT = X[np.random.default_rng(1).choice(N_ROWS, K, replace=False)]
EXACT = Run(n_lanes=3, deterministic=True)
LAZY = da.from_array(X, chunks=(400, -1))


@pytest.fixture
def frail() -> Iterator[Client]:
    """Provide two workers, of which a test kills one."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def alone() -> KMeans:
    """Return the fit in one process."""
    return KMeans(INIT, run=EXACT).fit(LAZY.compute())


def _same(ours: KMeans, theirs: KMeans) -> None:
    np.testing.assert_array_equal(ours.cluster_centers_, theirs.cluster_centers_)
    assert ours.n_iter_ == theirs.n_iter_
    assert [r["loss"] for r in ours.history_] == [r["loss"] for r in theirs.history_]
    assert {r["rows"] for r in ours.history_} == {N_ROWS}


def test_fit_equals_lloyds_algorithm(alone: KMeans) -> None:
    peer = Peer(K, init=INIT, n_init=1, algorithm="lloyd", tol=1e-20).fit(X)
    np.testing.assert_allclose(alone.cluster_centers_, peer.cluster_centers_, rtol=1e-10)
    np.testing.assert_array_equal(alone.predict(X), peer.labels_)
    assert alone.n_iter_ == peer.n_iter_ > 6


def test_two_workers_equal_one_process(client: Client, alone: KMeans) -> None:
    _same(KMeans(INIT, run=EXACT).fit(LAZY, client=client), alone)
    quick = KMeans(INIT).fit(LAZY, client=client)
    np.testing.assert_allclose(quick.cluster_centers_, alone.cluster_centers_, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("row_states", [2**26, 0], ids=["held", "made again"])
def test_row_memory_of_streamed_rows(client: Client, row_states: int) -> None:
    """Blocks are read in each pass; their labels are kept or recomputed."""
    rows = da.from_array(np.repeat(X, 3, axis=0), chunks=(100, -1))
    run = Run(n_lanes=2, deterministic=True)
    in_memory = KMeans(INIT, run=run).fit(rows, client=client)
    with dask.config.set({"daskml_dist.row_states": row_states}):
        streamed = KMeans(INIT, run=replace(run, memory_budget=60_000)).fit(rows, client=client)
    assert streamed.history_.extra["streamed"]
    assert not in_memory.history_.extra["streamed"]
    np.testing.assert_array_equal(streamed.cluster_centers_, in_memory.cluster_centers_)
    assert streamed.n_iter_ == in_memory.n_iter_


class Killer:
    """Callback that kills the worker of a trainer after the first pass and opens the gate."""

    def __init__(self, client: Client, rank: int, gate: Path) -> None:
        self.client, self.rank, self.gate = client, rank, gate

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if not self.gate.exists():
            address = run.trainer_addresses[self.rank]
            (pid,) = self.client.run(os.getpid, workers=[address]).values()
            os.kill(pid, signal.SIGKILL)
            self.gate.touch()


@pytest.mark.parametrize(
    "rank",
    [
        pytest.param(0, id="who leads"),
        pytest.param(1, id="who follows", marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_changes_nothing(
    frail: Client, alone: KMeans, rank: int, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    killer = Killer(frail, rank, gate)
    clusters = KMeans(INIT, gate=str(gate), callbacks=[killer], run=EXACT)
    clusters.fit(LAZY, client=frail)
    _same(clusters, alone)
    assert clusters.history_.extra["generations"]


# --- a sum of which each trainer finishes a range -------------------------------------------------
