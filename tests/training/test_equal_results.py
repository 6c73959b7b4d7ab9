"""Results equal gradient descent, whatever the policy, run, and number of servers or workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, softmax

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from tests.quick import in_turn

CHUNKS = (70, 10, 120, 31, 69)
REPRODUCIBLE = ["sync", "allreduce", "local", "average"]
RATE, ALPHA, PASSES = 0.3, 0.01, 25


@pytest.fixture(scope="module")
def rows() -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(sum(CHUNKS), 6))
    return X, X @ rng.normal(size=6) + rng.normal(size=len(X))


def _descend(X: Any, slope: Any, width: int, weight: Any, start: float = 0.0) -> tuple[Any, Any]:
    """Full-batch gradient descent in float64; `slope` is d loss / d raw, `start` an intercept."""
    w, b = np.zeros((X.shape[1], width)), np.full(width, start)
    for _ in range(PASSES):
        g = slope(X @ w + b) * weight[:, None] / weight.sum()
        w, b = w - RATE * (X.T @ g + ALPHA * w), b - RATE * g.sum(axis=0)
    return w, b


def _lazy(values: NDArray[Any]) -> da.Array:
    return da.from_array(values, chunks=(CHUNKS, -1)[: values.ndim])


FULL_BATCH: dict[str, Any] = {
    "batch_size": None,
    "optimizer": "sgd",
    "learning_rate": RATE,
    "alpha": ALPHA,
    "max_iter": PASSES,
    "tol": None,
}


@pytest.mark.parametrize(
    ("problem", "how"),
    in_turn(
        ["binary", "softmax", "regression"],
        [(True, "sync"), (False, "allreduce"), (True, "allreduce"), (False, "sync")],
    ),
)
def test_full_batches_equal_gradient_descent(
    client: Client, rows: Any, how: tuple[bool, str], problem: str
) -> None:
    (X, t), (weighted, policy) = rows, how
    weight = np.random.default_rng(1).random(len(X)) if weighted else np.ones(len(X))
    est: Any
    if problem == "binary":
        y: Any = t > 0
        w, b = _descend(X, lambda raw: expit(raw) - y[:, None], 1, weight)
        est = SGDClassifier(policy=policy, run=Run(n_servers=2), **FULL_BATCH)
    elif problem == "softmax":
        y = np.digitize(t, [-1.0, 1.0])
        one_hot = np.eye(3)[y]
        w, b = _descend(X, lambda raw: softmax(raw, axis=1) - one_hot, 3, weight)
        est = SGDClassifier(policy=policy, run=Run(n_servers=2), **FULL_BATCH)
    else:
        y = t
        w, b = _descend(X, lambda raw: raw - y[:, None], 1, weight, weight @ y / weight.sum())
        est = SGDRegressor(policy=policy, run=Run(n_servers=2), **FULL_BATCH)
    est.fit(_lazy(X), _lazy(y), _lazy(weight) if weighted else None)
    np.testing.assert_allclose(np.atleast_2d(est.coef_).T, w, rtol=1e-10)
    np.testing.assert_allclose(est.intercept_, b, rtol=1e-10)


def _coefficients(rows: Any, lay: Any = None, **params: Any) -> NDArray[Any]:
    X, t = rows
    lay = lay or _lazy
    clf = SGDClassifier(max_iter=4, tol=None, batch_size=16, random_state=3, **params)
    return np.hstack([clf.fit(lay(X), lay(t > 0)).coef_[0], clf.intercept_])


def test_allreduce_equals_sync(client: Client, rows: Any) -> None:
    np.testing.assert_allclose(
        _coefficients(rows, policy="allreduce"), _coefficients(rows, policy="sync"), rtol=1e-9
    )


@pytest.mark.parametrize("policy", REPRODUCIBLE)
def test_two_runs_are_equal(client: Client, rows: Any, policy: str) -> None:
    first, second = (_coefficients(rows, policy=policy) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_number_of_servers_does_not_matter(client: Client, rows: Any) -> None:
    one, *others = (_coefficients(rows, policy="sync", run=Run(n_servers=n)) for n in (1, 3))
    for other in others:
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize(
    ("sparse_rows", "optimizer"),
    [
        pytest.param(sparse_rows, optimizer, id=f"{kind}-{optimizer}", marks=marks)
        for kind, sparse_rows in (("dense", False), ("sparse", True))
        for optimizer, marks in (
            ("sgd", pytest.mark.slow if sparse_rows else ()),
            ("adam", pytest.mark.slow if sparse_rows else ()),
            ("adagrad", ()),
        )
    ],
)
def test_one_lane_needs_no_server(rows: Any, optimizer: str, sparse_rows: bool) -> None:
    """Unless several servers are requested; the coefficients are the same."""
    X, t = rows
    if sparse_rows:
        X = sparse.random(len(X), 4096, density=0.001, format="csr", rng=0)
    params: dict[str, Any] = {"optimizer": optimizer, "batch_size": 16, "random_state": 3}
    found = [
        SGDClassifier(max_iter=4, tol=None, run=Run(n_servers=n), **params).fit(X, t > 0)
        for n in (1, 2)
    ]
    assert [clf.history_.extra["n_servers"] for clf in found] == [0, 2]
    assert {clf.history_.extra["policy"] for clf in found} == {"sync"}
    np.testing.assert_array_equal(found[1].coef_, found[0].coef_)
    losses = [[record["loss"] for record in clf.history_.records] for clf in found]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-12)


@pytest.fixture(scope="module")
def clusters(crew: LocalCluster) -> Iterator[list[LocalCluster]]:
    """Clusters of 1 and 3 worker processes."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1"
    ) as single:
        yield [single, crew]


@pytest.mark.parametrize(
    "deterministic", [pytest.param(False, marks=pytest.mark.slow), True], ids=["usual", "exact"]
)
@pytest.mark.parametrize("lay", [_lazy, np.asarray], ids=["lazy", "in memory"])
def test_results_with_fixed_lanes_do_not_depend_on_the_workers(
    clusters: list[LocalCluster], rows: Any, lay: Any, deterministic: bool
) -> None:
    found: dict[str, list[NDArray[Any]]] = {policy: [] for policy in REPRODUCIBLE}
    for cluster in clusters:
        with Client(cluster):
            for policy, coefficients in found.items():
                params = {"policy": policy, "run": Run(n_lanes=4, deterministic=deterministic)}
                coefficients.append(_coefficients(rows, lay, **params))
    for one, *others in found.values():
        for other in others:
            if deterministic:
                np.testing.assert_array_equal(other, one)
            else:
                np.testing.assert_allclose(other, one, rtol=1e-9)


def test_sparse_results_with_fixed_lanes_do_not_depend_on_the_workers(
    clusters: list[LocalCluster],
) -> None:
    """Batches of touched coefficients, and single rows where lanes step alone."""
    X = sparse.random(2_000, 4096, density=0.003, format="csr", rng=0)
    y = X @ np.random.default_rng(0).normal(size=4096) > 0
    parts = [dask.delayed(X[at : at + 250]) for at in range(0, 2_000, 250)]
    lazy = da.concatenate([da.from_delayed(p, (250, 4096), X.dtype, X[:0]) for p in parts])
    params: dict[str, Any] = {"max_iter": 6, "tol": None, "random_state": 3}
    run = Run(n_lanes=4, deterministic=True)
    found: dict[str, list[SGDClassifier]] = {policy: [] for policy in REPRODUCIBLE}
    for cluster in clusters:
        with Client(cluster):
            for policy, fits in found.items():
                clf = SGDClassifier(policy=policy, run=run, **params)
                fits.append(clf.fit(lazy, da.from_array(y, chunks=250)))
    for one, other in found.values():
        np.testing.assert_array_equal(other.coef_, one.coef_)
        assert one.score(X, y) > 0.8
