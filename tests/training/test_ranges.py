"""Solvers with vectors split into ranges over processes reach the optimum of whole vectors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from daskml_dist import Run
from daskml_dist.backends import get_backend
from daskml_dist.linear_model import LogisticRegression, PoissonRegressor
from daskml_dist.losses import LogLoss
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.penalties import Penalty
from daskml_dist.solvers import LBFGS, Solution, Statistic

CANCER = (scale(load_breast_cancer().data), load_breast_cancer().target)
IRIS = (scale(load_iris().data), load_iris().target)


class _Process:
    """One of several threads that solve together, each with a part of the rows and a range."""

    n_done = 0
    should_stop = False

    def __init__(self, group: _Group, rank: int) -> None:
        self._group, self._rank = group, rank
        self.n_rows = len(group.y)
        self.own_range = slice(*group.bounds[rank : rank + 2])
        self.iterations: list[int] = []

    def _all(self, value: Any) -> list[Any]:
        return self._group.all(self._rank, value)

    def dot(self, a: Any, b: Any) -> float:
        return float(sum(self._all(a @ b)))

    def largest(self, a: Any) -> float:
        return max(self._all(float(np.abs(a).max(initial=0.0))))

    def gather(self, own: Any) -> Any:
        return np.concatenate(self._all(own))

    def __call__(self, statistic: Statistic) -> Any:
        group = self._group
        model, rows = group.model, np.arange(self._rank, self.n_rows, group.n)
        out = np.zeros(statistic.shape(model))
        some = BatchRows(group.X[rows], group.y[rows])
        statistic.add(model, some, out, get_backend("cpu"))
        total = np.sum(self._all(out), axis=0)
        n = statistic.n_numbers
        return np.append(total[:n], total[n:][self.own_range])

    def keep(self, n_iter: int) -> None:
        self.iterations.append(n_iter)


class _Group:
    def __init__(self, n: int, X: Any, labels: Any) -> None:
        classes = np.unique(labels)
        self.n, self.X = n, X
        self.model = LinearModel(LogLoss(), X.shape[1], len(classes), fit_intercept=True)
        self.y = self.model.encode(labels, classes, "float64")
        size = int(np.prod(self.model.shape))
        self.bounds = [size * rank // n for rank in range(n + 1)]
        self._slots: list[Any] = [None] * n
        self._meet = threading.Barrier(n, timeout=200)

    def all(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = value
        self._meet.wait()
        found = list(self._slots)
        self._meet.wait()
        return found

    def solve(self, solver: LBFGS) -> tuple[NDArray[Any], list[Solution], list[_Process]]:
        def one(process: _Process) -> Solution:
            start = np.zeros(self.bounds[-1])[process.own_range]
            return solver.solve_in_ranges(self.model, process, start)

        processes = [_Process(self, rank) for rank in range(self.n)]
        with ThreadPoolExecutor(self.n) as pool:
            found = list(pool.map(one, processes))
        return np.concatenate([part.w for part in found]), found, processes


@pytest.mark.parametrize("rows", [CANCER, IRIS], ids=["two", "three"])
@pytest.mark.parametrize("penalty", [Penalty(0.0, 0.01), Penalty(0.005, 0.0)], ids=["l2", "l1"])
@pytest.mark.parametrize("n", [1, 3])
def test_ranges_find_the_optimum_of_whole_vectors(n: int, penalty: Penalty, rows: Any) -> None:
    X, y = rows
    w, found, processes = _Group(n, X, y).solve(LBFGS(penalty, 500, 1e-9))
    strength = 1 / (len(y) * (penalty.l1 + penalty.l2))
    name = "l1" if penalty.l1 else "l2"
    whole = LogisticRegression(name, C=strength, tol=1e-9, max_iter=500).fit(X, y)
    best = np.vstack([whole.coef_.T, whole.intercept_])
    np.testing.assert_allclose(w.reshape(best.shape), best, atol=1e-5)
    assert {(f.n_iter, f.converged) for f in found} == {(found[0].n_iter, True)}
    # Not many more iterations than SciPy.
    assert found[0].n_iter <= 1.5 * whole.n_iter_[0] + 5
    assert all(p.iterations == list(range(1, found[0].n_iter + 1)) for p in processes)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=2, dashboard_address=":0", host="127.0.0.1"
    ) as started:
        yield started


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as connected:
        yield connected


@pytest.fixture(autouse=True)
def _from_one() -> Iterator[None]:
    with dask.config.set({"daskml_dist.ranges_from": 1}):
        yield


def _whole(estimator: Any, *data: Any) -> Any:
    with dask.config.set({"daskml_dist.ranges_from": 10**9}):
        return estimator.fit(*data)


@pytest.mark.parametrize(
    ("container", "rows", "penalty"),
    [(np.asarray, CANCER, "l2"), (sparse.csr_array, IRIS, "l2"), (sparse.csr_array, CANCER, "l1")],
    ids=["dense", "sparse", "l1"],
)
def test_workers_hold_only_their_ranges(
    client: Client, container: Any, rows: Any, penalty: str
) -> None:
    X, y = (da.from_array(part, chunks=(50, -1)[: part.ndim]) for part in rows)
    X = X.map_blocks(container)
    params: dict[str, Any] = {"penalty": penalty, "C": 0.3, "tol": 1e-8, "max_iter": 500}
    clf = LogisticRegression(**params).fit(X, y)
    whole = _whole(LogisticRegression(**params), *rows)
    np.testing.assert_allclose(clf.coef_, whole.coef_, atol=1e-5)
    np.testing.assert_allclose(clf.intercept_, whole.intercept_, atol=1e-5)
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, len(records) + 1))
    assert {record["rows"] for record in records} == {len(y)}
    assert clf.n_iter_[0] <= len(records)
    assert records[-1]["bytes_pushed"] > 0
    assert records[-1]["loss"] < records[0]["loss"]


def test_other_losses_weights_and_warm_starts(client: Client) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    y = rng.poisson(np.exp(X @ [0.3, -0.2, 0, 0.1, 0.5]))
    weight = rng.random(600) + 0.5
    data = [da.from_array(part, chunks=(100, -1)[: part.ndim]) for part in (X, y, weight)]
    reg = PoissonRegressor(alpha=0.1, tol=1e-9, warm_start=True).fit(*data)
    whole = _whole(PoissonRegressor(alpha=0.1, tol=1e-9), X, y, weight)
    np.testing.assert_allclose(reg.coef_, whole.coef_, rtol=1e-6)
    assert reg.fit(*data).n_iter_ <= 1


def test_a_callback_stops_the_solver(client: Client) -> None:
    X, y = (da.from_array(part, chunks=(50, -1)[: part.ndim]) for part in CANCER)

    class Stop:
        def on_pass_end(self, run: Any, record: Any) -> None:
            if record["pass"] == 3:
                run.stop()

    clf = LogisticRegression(tol=0, max_iter=10**6, C=1e6, callbacks=[Stop()]).fit(X, y)
    # Without the stop it makes more than 6,000; the delay of the stop depends on the machine.
    assert 3 <= len(clf.history_.records) < 3_000
    with pytest.warns(ConvergenceWarning, match="limit of 2 iterations"):
        clf = LogisticRegression(max_iter=2).fit(X, y)
    assert clf.n_iter_[0] == 2


def test_deterministic_sums_use_whole_vectors(client: Client) -> None:
    X, y = (da.from_array(part, chunks=(50, -1)[: part.ndim]) for part in CANCER)
    clf = LogisticRegression(run=Run(deterministic=True, n_lanes=4)).fit(X, y)
    whole = _whole(LogisticRegression(run=Run(deterministic=True, n_lanes=4)), X, y)
    np.testing.assert_array_equal(clf.coef_, whole.coef_)
