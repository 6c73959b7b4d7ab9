"""Fused gradients and steps of a backend equal those by its products."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from daskml_dist import Run
from daskml_dist.backends import Backend, numpy_backend
from daskml_dist.backends.base import Step
from daskml_dist.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier
from daskml_dist.losses import Huber, LogLoss
from daskml_dist.optimizers import Adam
from tests.backends.batches import ROWS, P, draw_floats, make_rows


@pytest.mark.parametrize("rows", ["gathered", "slice"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [0, 1])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array], ids=lambda c: c.__name__)
def test_fused_gradients(
    backend: Backend, container: Any, intercept: int, weighted: bool, rows: str
) -> None:
    """A backend with a kernel gives the result of its products; others return None."""
    X, loss = make_rows(), Huber(0.5)
    batch = backend.rows(backend.to_device(container(X)), ROWS[rows])
    dense = X[ROWS[rows]]
    y, w = draw_floats(len(dense)), draw_floats(P + intercept, 1)
    weight = np.abs(draw_floats(len(dense))) if weighted else None
    start = draw_floats(P + intercept + 1, 1)[1:]
    out = backend.to_device(start.copy())
    moved = None if weight is None else backend.to_device(weight)
    found = backend.add_fused(
        loss.kernel,
        backend.to_device(w),
        batch,
        backend.to_device(y),
        moved,
        out,
        loss.parameters,
    )
    if found is None:
        assert backend.name == "numpy"
        np.testing.assert_array_equal(backend.to_numpy(out), start)
        return
    values, g = loss.value_and_gradient(y, dense @ w[:P, 0] + (w[P, 0] if intercept else 0))
    values, g = (values, g) if weight is None else (values * weight, g * weight)
    gradient = np.append(dense.T @ g, g.sum())[: P + intercept, None]
    assert float(found) == pytest.approx(values.sum(), rel=1e-12)
    np.testing.assert_allclose(backend.to_numpy(out), start + gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array], ids=lambda c: c.__name__)
def test_fused_softmax(backend: Backend, container: Any, weighted: bool) -> None:
    X, loss = make_rows(), LogLoss()
    batch = backend.rows(backend.to_device(container(X)), slice(3, 20))
    y = np.arange(17, dtype=np.int32) % 3
    w, start = draw_floats(P + 1, 3), draw_floats(P + 2, 3)[1:]
    weight = np.abs(draw_floats(17)) if weighted else None
    out = backend.to_device(start.copy())
    moved = [backend.to_device(w), *(_column(backend, a) for a in (y, weight))]
    found = backend.add_fused(loss.kernel, moved[0], batch, moved[1], moved[2], out)
    if found is None:
        assert backend.name == "numpy"
        return
    values, g = loss.value_and_gradient(y, X[3:20] @ w[:P] + w[P])
    values, g = (values, g) if weight is None else (values * weight, g * weight[:, None])
    gradient = np.vstack([X[3:20].T @ g, g.sum(axis=0)])
    assert float(found) == pytest.approx(values.sum(), rel=1e-12)
    np.testing.assert_allclose(backend.to_numpy(out), start + gradient, rtol=1e-11, atol=1e-13)


def _column(backend: Backend, values: Any) -> Any:
    """Return values as a non-contiguous column of a matrix."""
    return None if values is None else backend.to_device(np.c_[values, values + 1])[:, 0]


def test_fused_steps(backend: Backend) -> None:
    """Adam with both penalties on all rows but the last equals the array implementation."""
    optimizer, w = Adam(), draw_floats(P, 2)
    opt_state = optimizer.init(w)
    device_w = backend.to_device(w.copy())
    device_state = {name: backend.to_device(array.copy()) for name, array in opt_state.items()}
    strengths = np.r_[np.full(P - 1, 0.3), 0.0][:, None]
    for number in (1, 2, 3):
        grad = draw_floats(P, 2) / number
        moved = backend.to_device(4 * grad)
        step = Step(device_w, moved, device_state, 4.0, 0.1, number, 0.3, 0.2, P - 1)
        if not backend.update(optimizer, step):
            assert backend.name == "numpy"
            return
        grad[:-1] += 0.2 * w[:-1]
        optimizer.update(w, grad, opt_state, 0.1, number, strengths)
    np.testing.assert_allclose(backend.to_numpy(device_w), w, rtol=1e-12, atol=1e-14)


SETTINGS = [
    (LogisticRegression, {}),
    (LogisticRegressionCV, {"Cs": 2, "cv": 2}),
    (SGDClassifier, {"tol": None, "batch_size": 900}),
]


@pytest.mark.parametrize("n_lanes", [1, 3])
@pytest.mark.parametrize(("estimator", "settings"), SETTINGS, ids=[c.__name__ for c, _ in SETTINGS])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_entries_of_all_rows_decide_whether_a_kernel_is_compiled(
    estimator: type, settings: dict[str, Any], n_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the entries of one lane nor earlier compilations matter."""
    for module in (
        "dense_kernels",
        "batched_log_loss",
    ):  # so that importing it raises ImportError
        monkeypatch.setitem(sys.modules, f"daskml_dist.backends.{module}", None)
        monkeypatch.delattr(f"daskml_dist.backends.{module}", raising=False)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 30))
    y = (X[:, 0] + rng.normal(size=900) > 0).astype(int)
    model = estimator(max_iter=2, run=Run(n_lanes=n_lanes), **settings)
    model.fit(X, y)
    monkeypatch.setattr(numpy_backend, "_MAX_FEW_ENTRIES", X.size - 1)
    with pytest.raises(ImportError):
        model.fit(X, y)
