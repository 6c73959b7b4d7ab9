"""Fits of embedding models: a dense reference, lanes and servers, admission, kills, refusals."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist import Run
from daskml_dist.backends.id_hashing import field_ids
from daskml_dist.errors import DaskMLDistError, InvalidDataError, InvalidParameterError
from daskml_dist.policies import LocalSGD
from daskml_dist.recommender import (
    DeepFMClassifier,
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    FieldAwareFMClassifier,
    WideAndDeepClassifier,
)

N_ROWS, N_IDS = 1_200, 400
DEEP = [WideAndDeepClassifier, DeepFMClassifier]
CLASSIFIERS = [FactorizationMachineClassifier, FieldAwareFMClassifier, *DEEP]


def _rows() -> tuple[Any, Any]:
    """Return rows of a user and an item each, labelled by both ids."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(N_IDS // 2, size=(2, N_ROWS))
    at = np.stack([users, N_IDS // 2 + items], axis=1).ravel()
    X = sparse.csr_array(
        (np.ones(2 * N_ROWS), at, np.arange(0, 2 * N_ROWS + 1, 2)), (N_ROWS, N_IDS)
    )
    return X, users % 2 == items % 2


def _numbers() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    return X, X[:, 0] * X[:, 1] > 0


def _lazy(X: Any, y: Any, n_chunks: int = 6) -> tuple[Any, Any]:
    rows = N_ROWS // n_chunks
    if sparse.issparse(X):
        parts = [da.from_array(X[at : at + rows], asarray=False) for at in range(0, N_ROWS, rows)]
        return da.concatenate(parts), da.from_array(y, chunks=rows)
    return da.from_array(X, chunks=(rows, -1)), da.from_array(y, chunks=rows)


def test_full_batches_equal_gradient_descent_on_dense_parameters() -> None:
    """Compared with dense float64 arrays, by the formulas of Rendle (2010)."""
    X, y = _rows()
    y = y.astype(float) + np.arange(N_ROWS) / N_ROWS
    rank, rate, alpha = 3, 0.5, 0.02
    params: dict[str, Any] = {
        "rank": rank, "alpha": alpha, "init_scale": 0.3, "optimizer": "sgd",
        "learning_rate": rate, "batch_size": None, "dtype": "float64", "random_state": 5,
    }  # fmt: skip
    model = FactorizationMachineRegressor(max_iter=1, **params).fit(X, y)
    # Initial values are those of ids without a step.
    start = FactorizationMachineRegressor(max_iter=1, **{**params, "learning_rate": 1e-300})
    start.fit(X, y)
    order = np.searchsorted(start.ids_, field_ids(np.arange(N_IDS), 0))
    used = np.flatnonzero(X.sum(axis=0) > 0)
    w, v, b = np.zeros(N_IDS), np.zeros((N_IDS, rank)), y.mean()
    w[used], v[used] = start.weights_[order[used]], start.vectors_[order[used]]
    dense = X.toarray()
    for _ in range(20):
        sums = dense @ v
        raw = b + dense @ w + 0.5 * (sums**2 - dense**2 @ v**2).sum(axis=1)
        slope = raw - y
        n_touched = (dense != 0).sum(axis=0)[:, None]
        by_v = dense.T @ (slope[:, None] * sums) - (dense**2).T @ slope[:, None] * v
        w -= rate / N_ROWS * (dense.T @ slope + alpha * n_touched[:, 0] * w)
        v -= rate / N_ROWS * (by_v + alpha * n_touched * v)
        b -= rate / N_ROWS * slope.sum()
    model = FactorizationMachineRegressor(max_iter=20, **params).fit(X, y)
    np.testing.assert_allclose(model.weights_[order[used]], w[used], atol=1e-12)
    np.testing.assert_allclose(model.vectors_[order[used]], v[used], atol=1e-12)
    assert model.intercept_ == pytest.approx(b)
    sums = dense @ v
    raw = b + dense @ w + 0.5 * (sums**2 - dense**2 @ v**2).sum(axis=1)
    np.testing.assert_allclose(model.predict(X), raw, rtol=1e-9)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_products_of_ids_are_learned(kind: Any) -> None:
    X, y = _rows() if kind is FactorizationMachineClassifier else _numbers()
    clf = kind(init_scale=0.3, max_iter=60, random_state=0).fit(X, y)
    assert clf.score(X, y) > 0.95
    proba = clf.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(proba[:, 1] > 0.5, clf.decision_function(X) > 0)
    lazy = clf.predict(_lazy(X, y)[0])
    np.testing.assert_array_equal(lazy.compute(), clf.predict(X))


@pytest.mark.parametrize(
    "kind", [FactorizationMachineClassifier, FieldAwareFMClassifier, DeepFMClassifier]
)
def test_lock_step_fits_do_not_depend_on_the_servers(client: Client, kind: Any) -> None:
    X, y = _lazy(*(_rows() if kind is FactorizationMachineClassifier else _numbers()))
    fits = [
        kind(
            random_state=0, max_iter=3, batch_size=50,
            run=Run(n_lanes=3, n_servers=n_servers, deterministic=True),
        ).fit(X, y, client=where)
        for n_servers, where in ((1, client), (2, client), (1, None))
    ]  # fmt: skip
    for other in fits[1:]:
        np.testing.assert_array_equal(other.ids_, fits[0].ids_)
        np.testing.assert_array_equal(other.weights_, fits[0].weights_)
        np.testing.assert_array_equal(other.vectors_, fits[0].vectors_)


@pytest.mark.parametrize("policy", ["ssp", "async"])
def test_free_running_lanes_learn(client: Client, policy: str) -> None:
    X, y = _rows()
    clf = FactorizationMachineClassifier(
        init_scale=0.3, max_iter=60, random_state=0, policy=policy, run=Run(n_lanes=3, n_servers=2)
    ).fit(*_lazy(X, y), client=client)
    assert clf.score(X, y) > 0.95
    # Only rows of touched ids were pulled and pushed, not the table.
    record = clf.history_.records[-1]
    assert record["bytes_pushed"] < N_ROWS * 3 * (8 + 9 * 4) * 1.3


def test_ids_are_admitted_and_evicted() -> None:
    X, y = _rows()
    often = FactorizationMachineClassifier(
        random_state=0, batch_size=50, max_iter=1, admit_after=3, shuffle=False
    ).fit(X, y)
    every = FactorizationMachineClassifier(random_state=0, batch_size=50, max_iter=1, shuffle=False)
    every.fit(X, y)
    n_batches = np.zeros(N_IDS, int)
    for at in range(0, N_ROWS, 50):
        n_batches[np.unique(X[at : at + 50].indices)] += 1
    ids = field_ids(np.arange(N_IDS), 0)
    assert set(often.ids_) == set(ids[n_batches >= 3])
    assert set(every.ids_) == set(ids[n_batches >= 1])
    # An id without a row predicts as in its first step, and a row without ids the intercept.
    nothing = sparse.csr_array((1, N_IDS))
    assert often.decision_function(nothing)[0] == pytest.approx(often.intercept_, rel=1e-6)


@pytest.mark.parametrize("where", ["inline", "lazy"])
def test_the_automatic_rate_leaves_out_the_zeros_of_dense_rows(where: str) -> None:
    X, y = _numbers()
    X = X * (np.random.default_rng(1).random(X.shape) < 0.4)
    fits = []
    for rows in (X, sparse.csr_array(X)):
        rows, labels = (rows, y) if where == "inline" else _lazy(rows, y)
        model = FactorizationMachineClassifier(random_state=0, run=Run(n_lanes=1))
        fits.append(model.fit(rows, labels))
    np.testing.assert_array_equal(fits[0].weights_, fits[1].weights_)
    np.testing.assert_array_equal(fits[0].vectors_, fits[1].vectors_)


def test_a_fit_continues() -> None:
    X, y = _rows()
    params: dict[str, Any] = {"random_state": 0, "batch_size": None, "dtype": "float64"}
    whole = FactorizationMachineClassifier(max_iter=6, **params).fit(X, y)
    parts = FactorizationMachineClassifier(max_iter=3, warm_start=True, **params)
    parts.fit(X, y).fit(X, y)
    np.testing.assert_allclose(parts.weights_, whole.weights_, rtol=1e-12)
    np.testing.assert_allclose(parts.vectors_, whole.vectors_, rtol=1e-12)


@pytest.mark.parametrize("where", ["inline", "cluster"])
def test_a_stream_learns_new_ids(where: str, client: Client) -> None:
    """Equals steps of `partial_fit`; later rows have other ids."""
    X, y = _rows()
    params: dict[str, Any] = {
        "random_state": 0, "batch_size": 50, "shuffle": False, "dtype": "float64",
        "learning_rate": 0.1, "run": Run(n_lanes=1, n_servers=1),
    }  # fmt: skip
    ours, theirs = (FactorizationMachineClassifier(max_iter=1, **params) for _ in range(2))
    with ours.stream(
        classes=[False, True], client=client if where == "cluster" else None
    ) as stream:
        for at in range(0, N_ROWS, 50):
            stream.learn(X[at : at + 50], y[at : at + 50])
            theirs.partial_fit(X[at : at + 50], y[at : at + 50], classes=[False, True])
    np.testing.assert_array_equal(ours.ids_, theirs.ids_)
    np.testing.assert_array_equal(ours.vectors_, theirs.vectors_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"rank": 0}, "rank"), ({"alpha": -1}, "alpha"), ({"admit_after": 0}, "admit_after"),
        ({"expire_after": 0}, "expire_after"), ({"max_rows": 0}, "max_rows"),
        ({"admit_after": 2**16}, "65,535"), ({"expire_after": 2**47}, "expire_after"),
        ({"policy": "allreduce"}, "policy"), ({"policy": LocalSGD()}, "policy"),
        ({"policy": "hogwild"}, "policy"), ({"optimizer": "muon"}, "optimizer"),
    ],
)  # fmt: skip
def test_unsupported_settings_of_a_table_are_refused(params: dict[str, Any], names: str) -> None:
    X, y = _rows()
    with pytest.raises(InvalidParameterError, match=names):
        FactorizationMachineClassifier(**params).fit(X, y)


def test_other_targets_and_fields_are_refused() -> None:
    X, y = _rows()
    with pytest.raises(InvalidDataError, match="two classes"):
        FactorizationMachineClassifier().fit(X, np.arange(N_ROWS) % 3)
    with pytest.raises(InvalidParameterError, match="fields"):
        DeepFMClassifier().fit(X, y)
    with pytest.raises(InvalidParameterError, match="no layers"):
        DeepFMClassifier(hidden_layer_sizes=()).fit(X, y)
    with pytest.raises(DaskMLDistError, match="activation"):
        DeepFMClassifier(activation="none").fit(X, y)
