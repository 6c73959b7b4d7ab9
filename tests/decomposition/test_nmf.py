"""Non-negative factorisations beside scikit-learn's."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse
from scipy.optimize import nnls
from sklearn.decomposition import NMF as Peer

from daskml_dist import Run
from daskml_dist.backends import get_backend
from daskml_dist.decomposition import NMF
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.solvers import nmf
from daskml_dist.solvers.nmf import MultiplicativeStep, StepWeights
from tests.strict_backend import StrictBackend

RNG = np.random.default_rng(0)
N, D, K = 60, 12, 3
X = RNG.random((N, 4)) @ RNG.random((4, D)) * (RNG.random((N, D)) < 0.7)
W, H = RNG.random((N, K)), RNG.random((K, D))
PENALTIES = {"alpha_W": 0.01, "alpha_H": 0.02, "l1_ratio": 0.3}
LOSSES = ("frobenius", "kullback-leibler", "itakura-saito", 0.5, 1.5, 3.0)
FORMS = {"dense": np.asarray, "sparse": sparse.csr_array}


@pytest.fixture(autouse=True)
def _few_steps() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*failed to converge")
        warnings.filterwarnings("ignore", message="The multiplicative update")
        warnings.filterwarnings("ignore", message="Maximum number of iterations")
        yield


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalties", [{}, PENALTIES], ids=["plain", "penalised"])
def test_multiplicative_updates_are_scikit_learns(form: str, loss: Any, penalties: Any) -> None:
    rows = FORMS[form](X if loss not in ("itakura-saito", 0.5) else X + 0.1)
    how: dict[str, Any] = {"init": "custom", "solver": "mu", "beta_loss": loss, "max_iter": 35}
    peer = Peer(K, **how, **penalties)
    peer.fit_transform(rows, W=W.copy(), H=H.copy())
    ours = NMF(K, **how, **penalties).fit(rows, W=W, H=H)
    np.testing.assert_allclose(ours.components_, peer.components_, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(ours.reconstruction_err_, peer.reconstruction_err_, rtol=1e-9)
    assert ours.n_iter_ == peer.n_iter_


@pytest.mark.parametrize("init", ["nndsvd", "nndsvda"])
def test_begins_are_scikit_learns(init: str) -> None:
    peer = Peer(K, init=init, solver="mu", max_iter=12, random_state=0).fit(X)
    ours = NMF(K, init=init, solver="mu", max_iter=12, random_state=0).fit(X)
    np.testing.assert_allclose(ours.components_, peer.components_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("init", ["nndsvd", "nndsvda", "nndsvdar", "random"])
@pytest.mark.parametrize("penalties", [{}, PENALTIES], ids=["plain", "penalised"])
def test_squared_errors_are_as_small(form: str, init: str, penalties: Any) -> None:
    how: dict[str, Any] = {"init": init, "random_state": 0, "max_iter": 400, **penalties}
    peer, ours = Peer(K, **how), NMF(K, **how)
    theirs, found = peer.fit_transform(X), ours.fit_transform(FORMS[form](X))
    assert ours.n_iter_ < peer.n_iter_
    assert _objective(found, ours, penalties) < 1.0001 * _objective(theirs, peer, penalties)
    left = np.linalg.norm(X - found @ ours.components_)
    np.testing.assert_allclose(ours.reconstruction_err_, left, rtol=1e-6)
    assert (found >= 0).all()
    assert (ours.components_ >= 0).all()


def _objective(weights: Any, model: Any, penalties: Any) -> float:
    C, left = model.components_, X - weights @ model.components_
    total = np.square(left).sum() / 2
    if penalties:
        ratio = penalties["l1_ratio"]
        for part, alpha in ((weights, D * penalties["alpha_W"]), (C, N * penalties["alpha_H"])):
            total += alpha * (ratio * part.sum() + (1 - ratio) / 2 * np.square(part).sum())
    return float(total)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
def test_weights_are_the_best_ones(dtype: Any, form: str) -> None:
    rows = FORMS[form](X.astype(dtype))
    ours = NMF(K, random_state=0, max_iter=10).fit(rows)
    found = ours.transform(rows)
    assert found.dtype == dtype
    truth = np.array([nnls(ours.components_.T, row)[0] for row in X])
    np.testing.assert_allclose(found, truth, atol=1e-4)
    np.testing.assert_allclose(ours.inverse_transform(found), truth @ ours.components_, atol=1e-3)
    other = NMF(K, solver="mu", beta_loss=1.0, random_state=0, tol=1e-9, max_iter=2_000).fit(rows)
    peer = Peer(K, solver="mu", beta_loss=1, tol=0, max_iter=2_000)
    peer.components_, peer.n_components_ = other.components_, K
    peer._n_components, peer._beta_loss, peer.n_features_in_ = K, 1, D
    np.testing.assert_allclose(other.transform(rows), peer.transform(X), atol=2e-3)


@pytest.mark.parametrize("solver", ["cd", "mu"])
def test_any_lanes_and_streams_give_the_same(client: Client, solver: str) -> None:
    rows = np.tile(X, (20, 1))
    lazy = da.from_array(rows, chunks=(200, D))
    sizes = lazy.map_blocks(lambda block: block, chunks=((np.nan,) * 6, (D,)), dtype=rows.dtype)
    how: dict[str, Any] = {"solver": solver, "init": "random", "random_state": 0, "max_iter": 6}
    run = Run(n_lanes=2, deterministic=True)
    ours = NMF(K, run=run, **how).fit(lazy)
    with dask.config.set({"daskml_dist.row_states": 0}):  # and nothing is remembered of rows
        streamed = NMF(K, run=Run(n_lanes=2, deterministic=True, memory_budget=20_000), **how).fit(
            sizes
        )
    assert streamed.history_.extra["streamed"]
    np.testing.assert_array_equal(streamed.components_, ours.components_)
    found = ours.transform(lazy)
    assert found.chunks == ((200,) * 6, (K,))
    np.testing.assert_allclose(found, ours.transform(rows), rtol=1e-12)


@pytest.mark.parametrize("solver", ["cd", "mu"])
def test_weights_of_rows_repeat_them(solver: str) -> None:
    times = RNG.integers(0, 3, N)
    how: dict[str, Any] = {"solver": solver, "init": "nndsvda", "max_iter": 10, **PENALTIES}
    weighted = NMF(K, **how).fit(X, sample_weight=times)
    repeated = NMF(K, **how).fit(np.repeat(X, times, axis=0))
    np.testing.assert_allclose(weighted.components_, repeated.components_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(weighted.reconstruction_err_, repeated.reconstruction_err_)


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_weights_are_made_again(loss: Any) -> None:
    """By their steps, on any backend; and once there were many, of the last components alone."""
    model, beta = Unlabelled(D), _beta(loss)
    steps = [np.abs(RNG.normal(size=(D, K))) + 0.1 for _ in range(3)]
    for backend in (get_backend("cpu"), StrictBackend()):
        rows = BatchRows(backend.to_device(X + 0.1), block=0)
        first = StepWeights(K, fill=0.5, beta=beta)
        rows.state = first.make(model, rows, backend)
        for across in steps:
            step = MultiplicativeStep(across, StepWeights(K, beta=beta, history=None))
            out = backend.to_device(np.zeros(step.shape(model)))
            step.add(model, rows, out, backend)
        remade = StepWeights(K, fill=0.5, beta=beta, history=tuple(steps))
        np.testing.assert_array_equal(
            backend.to_numpy(remade.make(model, rows, backend)), backend.to_numpy(rows.state)
        )
        if backend.device == "cpu":
            truth = backend.to_numpy(rows.state)
        np.testing.assert_allclose(backend.to_numpy(rows.state), truth, rtol=1e-10)


def _beta(loss: Any) -> float:
    return {"frobenius": 2.0, "kullback-leibler": 1.0, "itakura-saito": 0.0}.get(loss, loss)


def test_row_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"solver": "mu", "init": "nndsvda", "max_iter": 60, "random_state": 0}
    whole = NMF(K, **how).fit(X)
    monkeypatch.setattr(nmf, "_MAX_HISTORY_NUMBERS", 5 * K * D)
    ours = NMF(K, **how).fit(X)
    assert ours.reconstruction_err_ < 1.02 * whole.reconstruction_err_
    assert not np.array_equal(ours.components_, whole.components_)


BAD: dict[str, tuple[dict[str, Any], Any, dict[str, Any], type[Exception], str]] = {
    "negative": ({}, -X, {}, InvalidDataError, "Negative values in data"),
    "NaN": ({}, np.where(X > 0.5, np.nan, X), {}, InvalidDataError, "NaN"),
    "zeros": ({}, 0 * X, {}, InvalidDataError, "only zeros"),
    "zeros of a log": (
        {"solver": "mu", "beta_loss": "itakura-saito"}, X, {}, InvalidDataError, "contains zeros",
    ),
    "loss": ({"beta_loss": 1.0}, X, {}, InvalidParameterError, "solver='mu'"),
    "too many": ({"n_components": 13, "init": "nndsvd"}, X, {}, InvalidParameterError, "random"),
    "no H": ({"init": "custom"}, X, {}, InvalidParameterError, "Pass H"),
    "no W": ({"init": "custom", "solver": "mu"}, X, {"H": H}, InvalidParameterError, "Pass W"),
    "H for nothing": ({}, X, {"H": H}, InvalidParameterError, "init='custom'"),
    "H of another shape": (
        {"init": "custom"}, X, {"H": H[:, 1:]}, InvalidParameterError, r"Expected \(3, 12\)",
    ),
    "negative H": ({"init": "custom"}, X, {"H": -H}, InvalidParameterError, "input H"),
    "W of another shape": (
        {"init": "custom"}, X, {"H": H, "W": W[:, 1:]}, InvalidParameterError, "Expected 3",
    ),
    "negative W": ({"init": "custom"}, X, {"H": H, "W": -W}, InvalidParameterError, "input W"),
    "init": ({"init": "svd"}, X, {}, InvalidParameterError, "nndsvda"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, fit_params, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        NMF(**{"n_components": K} | params).fit(rows, **fit_params)


def test_negative_rows_have_no_weights() -> None:
    ours = NMF(K, random_state=0, max_iter=5).fit(X)
    with pytest.raises(InvalidDataError, match="Negative values in data"):
        ours.transform(-X)


def test_rows_and_columns_of_zeros() -> None:
    rows = X.copy()
    rows[:5], rows[:, 3] = 0, 0
    ours = NMF(K, random_state=0).fit(rows)
    assert not ours.components_[:, 3].any()
    found = ours.transform(rows)
    assert not found[:5].any()
    assert np.isfinite(found).all()
    one = NMF(random_state=0).fit(rows[10:11])
    np.testing.assert_allclose(
        one.inverse_transform(one.transform(rows[10:11])), rows[10:11], atol=1e-3
    )
