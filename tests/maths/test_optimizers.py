"""Optimizers: their minima, steps in place and by rows, and their table."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import Lasso, LogisticRegression

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers import (
    FTRL,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    Optimizer,
    get_optimizer,
)
from tests.maths.descent import descend

EVERY = pytest.mark.parametrize("name", list(OPTIMIZERS))
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def _without_decay(name: str) -> Optimizer:
    """Return the optimizer without weight decay, which would move the minimum."""
    optimizer: Any = get_optimizer(name)
    if any(field.name == "weight_decay" for field in dataclasses.fields(optimizer)):
        optimizer = dataclasses.replace(optimizer, weight_decay=0.0)
    return optimizer


def _minimise(
    optimizer: Optimizer,
    gradient: Callable[[NDArray[Any]], NDArray[Any]],
    w: NDArray[Any],
    n_steps: int,
    lr: float,
    l1: Any = 0.0,
) -> NDArray[Any]:
    """The point reached with a rate that falls along half a cosine."""
    opt_state = optimizer.init(w)
    for step in range(1, n_steps + 1):
        rate = lr * (1 + math.cos(math.pi * (step - 1) / n_steps)) / 2
        optimizer.update(w, gradient(w), opt_state, rate, step, l1)
    return w


@EVERY
def test_minimises_a_quadratic(name: str) -> None:
    rng = np.random.default_rng(0)
    curvature, best = rng.uniform(0.3, 2, size=(5, 2)), rng.normal(size=(5, 2))
    start = np.zeros((5, 2))
    w = _minimise(_without_decay(name), lambda w: curvature * (w - best), start, 1500, 0.3)
    np.testing.assert_allclose(w, best, atol=1e-4)


@EVERY
def test_minimises_a_logistic_loss(name: str) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 4))
    y = np.where(X @ rng.normal(size=4) + rng.normal(size=80) > 0, 1.0, -1.0)[:, None]
    l2 = 0.05

    def gradient(w: NDArray[Any]) -> NDArray[Any]:
        return -X.T @ (y * expit(-y * (X @ w))) / len(X) + l2 * w

    w = _minimise(_without_decay(name), gradient, np.zeros((4, 1)), 1500, 0.5)
    reference = LogisticRegression(C=1 / (l2 * len(X)), fit_intercept=False, tol=1e-10)
    np.testing.assert_allclose(w[:, 0], reference.fit(X, y[:, 0]).coef_[0], atol=1e-3)


@EVERY
def test_lasso(name: str) -> None:
    """Exact zeros, and the conditions of Karush, Kuhn and Tucker, from a start without zeros."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 8))
    y = X[:, :3] @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=60)
    l1 = 0.1

    def gradient(w: NDArray[Any]) -> NDArray[Any]:
        return X.T @ (X @ w - y[:, None]) / len(X)

    w = _minimise(_without_decay(name), gradient, np.full((8, 1), 0.3), 3000, 0.2, l1)
    expected = Lasso(alpha=l1, fit_intercept=False, tol=1e-12).fit(X, y).coef_
    tolerance = 1e-8 if name == "sgd" else 2e-3
    np.testing.assert_allclose(w[:, 0], expected, atol=tolerance)
    np.testing.assert_array_equal(w[:, 0] == 0, expected == 0)
    assert 0 < np.count_nonzero(w == 0) < 8
    slope = gradient(w)
    active = w != 0
    np.testing.assert_allclose(slope[active], -l1 * np.sign(w[active]), atol=tolerance)
    assert np.all(abs(slope[~active]) <= l1)


@EVERY
def test_strong_l1_empties_the_model(name: str) -> None:
    def gradient(w: NDArray[Any]) -> NDArray[Any]:
        return w - 1

    w = _minimise(_without_decay(name), gradient, np.full((3, 1), 0.3), 500, 0.2, 5.0)
    np.testing.assert_array_equal(w, 0)


@DTYPES
@pytest.mark.parametrize("l1", [0.0, 0.1, "rows"])
@EVERY
def test_update_is_in_place_and_keeps_the_dtype(name: str, l1: Any, dtype: Any) -> None:
    optimizer = get_optimizer(name)
    w = np.ones((6, 2), dtype)
    opt_state = optimizer.init(w)
    arrays_before = dict(opt_state)
    strength = np.full((6, 1), 0.1, dtype) if l1 == "rows" else l1
    # A NumPy scalar, as a schedule of NumPy scalars gives it, must not widen anything.
    for step, lr in enumerate((0.1, np.float64(0.1)), start=1):
        assert optimizer.update(w, np.full_like(w, 0.5), opt_state, lr, step, strength) is None
    assert set(opt_state) == set(optimizer.state_names)
    for state_name, array in opt_state.items():
        assert array is arrays_before[state_name]
        assert array.shape == w.shape
        assert array.dtype == dtype
    assert w.dtype == dtype
    assert np.all(w < 1)


class _Watched(np.ndarray):
    """An array that knows the farthest from 1 that it has ever been."""

    farthest = 0.0

    def _watch(self) -> None:
        self.farthest = max(self.farthest, float(abs(np.asarray(self) - 1).max()))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        def plain(arrays: Any) -> Any:
            return tuple(a.view(np.ndarray) if a is self else a for a in arrays)

        out = options.pop("out", ())
        if out:
            options["out"] = plain(out)
        result = getattr(ufunc, method)(*plain(inputs), **options)
        if not any(a is self for a in out):
            return result
        self._watch()
        return self

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(at, value)
        self._watch()


@pytest.mark.parametrize("l1", [0.0, 0.1])
@EVERY
def test_parameters_are_never_scratch(name: str, l1: float) -> None:
    """Under ``"hogwild"`` others read them in the middle of an update."""
    optimizer = get_optimizer(name)
    w = np.ones((6, 2)).view(_Watched)
    opt_state = optimizer.init(np.asarray(w))
    for step in range(1, 4):
        optimizer.update(w, np.full((6, 2), 0.5), opt_state, 0.01, step, l1)
    assert 0 < w.farthest < 0.1


@DTYPES
@pytest.mark.parametrize("l1", [0.0, 0.05, "rows"])
@EVERY
def test_rows_alone_equal_these_rows_of_the_whole(name: str, l1: Any, dtype: Any) -> None:
    optimizer = get_optimizer(name)
    rng = np.random.default_rng(5)
    whole = rng.normal(size=(9, 2)).astype(dtype)
    rows = np.array([0, 3, 4, 8])
    part = whole[rows]
    strengths = rng.random((9, 1)).astype(dtype) / 10
    opt_state, part_state = optimizer.init(whole), optimizer.init(part)
    for step in range(1, 8):
        gradient = rng.normal(size=whole.shape).astype(dtype)
        for w, state, g, strength in (
            (whole, opt_state, gradient.copy(), strengths),
            (part, part_state, gradient[rows], strengths[rows]),
        ):
            optimizer.update(w, g, state, 0.1, step, strength if l1 == "rows" else l1)
    np.testing.assert_array_equal(part, whole[rows])
    for state_name in optimizer.state_names:
        np.testing.assert_array_equal(part_state[state_name], opt_state[state_name][rows])


@EVERY
def test_rows_without_l1_among_rows_with(name: str) -> None:
    """An intercept's strength is 0 in an array of strengths."""
    optimizer = get_optimizer(name)
    gradients = np.random.default_rng(6).normal(size=(10, 3, 1))
    plain = descend(optimizer, np.ones((3, 1)), gradients, 0.05)
    mixed = descend(optimizer, np.ones((3, 1)), gradients, 0.05, np.array([[0.2], [0.2], [0.0]]))
    np.testing.assert_allclose(mixed[2], plain[2], rtol=1e-12)
    assert np.all(mixed[:2] != plain[:2])


@EVERY
def test_zero_gradient_and_zero_rate(name: str) -> None:
    optimizer = _without_decay(name)
    w = np.ones((3, 1), np.float32)
    opt_state = optimizer.init(w)
    with np.errstate(all="raise"):
        optimizer.update(w, np.zeros_like(w), opt_state, 0.1, 1)
        optimizer.update(w, np.ones_like(w), opt_state, 0.0, 2, 0.1)
    np.testing.assert_array_equal(w, 1)


@EVERY
def test_continues_from_its_state(name: str) -> None:
    """The state and the number of the step are all there is: it survives a round trip."""
    optimizer = get_optimizer(name)
    gradients = np.random.default_rng(7).normal(size=(10, 4, 1))
    w = np.ones((4, 1))
    expected = descend(optimizer, w, gradients, 0.1, 0.01)
    opt_state = optimizer.init(w)
    for step, gradient in enumerate(gradients, start=1):
        if step == 6:
            optimizer, w, opt_state = pickle.loads(pickle.dumps((optimizer, w, opt_state)))
        optimizer.update(w, gradient.copy(), opt_state, 0.1, step, 0.01)
    np.testing.assert_array_equal(w, expected)


def test_a_rule_may_be_defined_beside_global_arrays() -> None:
    """As in a notebook, where global names may be arrays."""
    names = {"X": np.ones((3, 2)), "math": math}
    rule = staticmethod(FunctionType(Adagrad.elementwise_update.__code__, names))
    optimizer_class: Any = type("Own", (Adagrad,), {"elementwise_update": rule})
    w, expected, grad = np.ones(5), np.ones(5), np.arange(5.0)
    for optimizer, parameters in ((optimizer_class(), w), (Adagrad(), expected)):
        optimizer.update(parameters, grad.copy(), optimizer.init(w), 0.1, 1)
    np.testing.assert_array_equal(w, expected)


@EVERY
def test_table_entry(name: str) -> None:
    optimizer = get_optimizer(name)
    assert optimizer.name == name
    assert optimizer == OPTIMIZERS[name]()
    assert get_optimizer(optimizer) is optimizer
    assert 0 < optimizer.default_learning_rate < 1
    # Each names its source.
    assert any(f"{century}" in (type(optimizer).__doc__ or "") for century in (19, 20))


@pytest.mark.parametrize("wrong", ["SGD", "", None, 1, SGD])
def test_unknown_optimizer_lists_the_names(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        get_optimizer(wrong)
    assert all(f"'{name}'" in str(caught.value) for name in OPTIMIZERS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Momentum(1.0),
        lambda: Nesterov(-0.1),
        lambda: Adagrad(epsilon=0),
        lambda: Adagrad(initial_accumulator=-1),
        lambda: Adam(beta1=1),
        lambda: Adam(beta2=float("nan")),
        lambda: Adam(epsilon=-1),
        lambda: AdamW(weight_decay=-1),
        lambda: AdamW(beta1=2),
        lambda: FTRL(beta=0),
    ],
)
def test_wrong_parameter(make: Callable[[], Optimizer]) -> None:
    with pytest.raises(InvalidParameterError, match=r"=.*use a"):
        make()
