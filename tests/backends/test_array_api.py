"""The maths runs on any library of the array API standard, with the results of NumPy."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import daskml_dist
from daskml_dist.backends import Backend, get_backend, namespace
from daskml_dist.backends.devices import stored_dtype
from daskml_dist.losses import LOSSES, Loss, Tweedie
from daskml_dist.models.base import BatchRows, Parameters, Part
from daskml_dist.models.linear import LinearModel, add_curvature
from daskml_dist.optimizers import OPTIMIZERS
from daskml_dist.penalties import PENALTIES, Penalty, get_penalty, soft_threshold
from daskml_dist.policies import LocalSGD
from daskml_dist.ps.rule import OuterStep, UpdateRule, make_parameter_groups
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant, InverseScaling
from tests.rules import one_group
from tests.strict_backend import StrictBackend
from tests.strict_backend import xp as strict

N, FEATURES = 40, 5
SUBPACKAGES = ["losses", "penalties.py", "optimizers", "schedules.py", "models", "solvers"]
CPU = get_backend("cpu")

EVERY_LOSS = pytest.mark.parametrize("name", list(LOSSES))
EVERY_OPTIMIZER = pytest.mark.parametrize("name", list(OPTIMIZERS))
EVERY_PENALTY = pytest.mark.parametrize("penalty", list(PENALTIES), ids=str)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])


@pytest.fixture(params=["strict", pytest.param("cupy", marks=pytest.mark.gpu)])
def other(request: pytest.FixtureRequest) -> Backend:
    """Provide a backend of a fake device, and of a GPU if there is one."""
    return get_backend("gpu") if request.param == "cupy" else StrictBackend()


def _same(found: Any, expected: NDArray[Any], other: Backend, rounding: float = 4) -> None:
    """Assert equality up to a few roundings, the same dtype, and the device of the arguments."""
    host = other.to_numpy(found)
    assert host.dtype == expected.dtype
    assert host.shape == expected.shape
    # Exponentials and logarithms on a GPU differ by a rounding or two.
    tolerance = rounding * (8 if other.name == "cupy" else 1) * float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(host, expected, rtol=tolerance, atol=tolerance)


def _copy(arrays: dict[str, Any], other: Backend) -> dict[str, Any]:
    return {name: other.to_device(array) for name, array in arrays.items()}


# --- functions -------------------------------------------------------------------------------


def _names() -> set[str]:
    """Return the names of library functions that the maths calls."""
    root = Path(daskml_dist.__file__).parent
    places = [root / name for name in SUBPACKAGES]
    files = [
        file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])
    ]
    files += [root / "ps" / "shard.py", root / "backends" / "namespace.py"]
    return {
        name
        for file in files
        for name in re.findall(r"\b(?:xp|namespace\([^()]*\))\.(\w+)", file.read_text())
    }


def test_functions_exist_in_every_library() -> None:
    names = _names()
    assert {"exp", "astype", "sum", "zeros_like"} <= names
    for name in names:
        assert hasattr(np, name), name
        assert hasattr(strict, name), name


def test_functions_exist_in_cupy() -> None:
    """Also without a driver: modules can be imported and have the names."""
    cupy = pytest.importorskip("cupy")
    assert {name for name in _names() if not hasattr(cupy, name)} == set()


# --- namespace -------------------------------------------------------------------------------


def test_namespace_of_arrays_without_the_standard_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like CuPy's arrays, whose functions also take no device."""
    keywords_used: dict[str, Any] = {}

    class Silent:
        __module__ = "cupy.core"

    library = SimpleNamespace(
        __name__="cupy",
        float32=np.float32,
        zeros=lambda shape, **keywords: keywords_used.update(keywords),
    )
    monkeypatch.setitem(sys.modules, "cupy", library)
    assert namespace.namespace(Silent()) is library
    namespace.zeros((2,), "float32", Silent())
    assert keywords_used == {"dtype": np.float32}


@DTYPES
def test_new_arrays(dtype: Any, other: Backend) -> None:
    codes = np.array([2, 0, 1, 2], np.int32)
    like = other.to_device(np.ones(4, dtype))
    _same(namespace.zeros((2, 3), dtype, like), np.zeros((2, 3), dtype), other)
    _same(namespace.zeros((2, 3), like.dtype, like), np.zeros((2, 3), dtype), other)
    chosen = namespace.one_hot(codes, 3, dtype)
    assert np.array_equal(chosen, np.eye(3)[codes])
    _same(namespace.one_hot(other.to_device(codes), 3, like.dtype), chosen, other)
    assert namespace.item_bytes(like) == namespace.item_bytes(np.ones(4, dtype))
    assert namespace.arithmetic_dtype(like) == like.dtype


def test_arithmetic_is_float32_at_least(stored: str) -> None:
    assert namespace.arithmetic_dtype(np.ones(2, stored_dtype(stored))) == np.float32


# --- losses ----------------------------------------------------------------------------------


def _draw(loss: Loss, width: int | None, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return targets in the loss's domain, and raw predictions on all its branches."""
    rng = np.random.default_rng(3)
    shape = (N,) if width is None else (N, width)
    raw = (rng.normal(size=shape) * 3).astype(dtype)
    if loss.kind == "regression":
        return abs(rng.normal(scale=2, size=shape)).astype(dtype), raw
    if loss.multiclass == "softmax" and width is not None:
        return rng.integers(width, size=N).astype(np.int32), raw
    return rng.choice([-1.0, 1.0], size=shape).astype(dtype), raw


def _equal_on(loss: Loss, width: int | None, dtype: Any, other: Backend) -> None:
    y, raw = _draw(loss, width, dtype)
    device_arrays = other.to_device(y), other.to_device(raw)
    results = [loss.value_and_gradient(y, raw)], [loss.value_and_gradient(*device_arrays)]
    if loss.has_hessian:
        results[0].append(loss.value_gradient_hessian(y, raw))
        results[1].append(loss.value_gradient_hessian(*device_arrays))
    for expected, found in zip(*results, strict=True):
        for a, b in zip(expected, found, strict=True):
            _same(b, a, other, 32)
    _same(loss.inverse_link(device_arrays[1]), loss.inverse_link(raw), other)
    if loss.proba:
        proba = loss.predict_proba(raw)
        _same(loss.predict_proba(device_arrays[1]), proba, other)
        out = other.to_device(np.zeros_like(proba))
        loss.write_proba(device_arrays[1], out)
        _same(out, proba, other)
    # The arguments are unchanged.
    assert np.array_equal(other.to_numpy(device_arrays[0]), y)
    assert np.array_equal(other.to_numpy(device_arrays[1]), raw)


@DTYPES
@pytest.mark.parametrize("width", [None, 4], ids=["1d", "2d"])
@EVERY_LOSS
def test_losses(name: str, width: int | None, dtype: Any, other: Backend) -> None:
    _equal_on(LOSSES[name](), width, dtype, other)


@DTYPES
@pytest.mark.parametrize("identity", [False, True], ids=["log", "identity"])
@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 1.5, 2.0, 3.0])
def test_tweedie(power: float, identity: bool, dtype: Any, other: Backend) -> None:
    _equal_on(Tweedie(power, identity), None, dtype, other)


def test_targets_of_another_dtype(other: Backend) -> None:
    """They do not widen a float32 fit."""
    loss = LOSSES["log_loss"]()
    y, raw = _draw(loss, None, np.float32)
    found = loss.value_and_gradient(other.to_device(y.astype(np.float64)), other.to_device(raw))
    for a, b in zip(loss.value_and_gradient(y, raw), found, strict=True):
        _same(b, a, other, 32)


# --- linear models ---------------------------------------------------------------------------


def _rows(model: LinearModel, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Return parameters, rows, encoded targets and weights."""
    rng = np.random.default_rng(4)
    w = rng.normal(scale=0.3, size=model.shape).astype(dtype)
    X = rng.normal(size=(N, FEATURES)).astype(dtype)
    if model.n_classes:
        classes = np.arange(model.n_classes)
        y = model.encode(rng.integers(model.n_classes, size=N), classes, np.dtype(dtype))
    else:
        y = rng.gamma(2, size=N if model.n_targets is None else (N, model.n_targets)).astype(dtype)
    return w, X, y, rng.uniform(size=N).astype(dtype)


def _models(name: str, intercept: bool) -> list[LinearModel]:
    loss = LOSSES[name]()
    if loss.kind == "regression":
        return [LinearModel(loss, FEATURES, 0, intercept, targets) for targets in (None, 3)]
    return [LinearModel(loss, FEATURES, classes, intercept) for classes in (2, 4)]


@DTYPES
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("intercept", [False, True], ids=["", "intercept"])
@EVERY_LOSS
def test_linear_model(
    name: str, intercept: bool, weighted: bool, dtype: Any, other: Backend
) -> None:
    for model in _models(name, intercept):
        w, X, y, weight = _rows(model, dtype)
        host_arrays = w, X, y, weight if weighted else None
        device_arrays = (
            *map(other.to_device, (w, X, y)),
            other.to_device(weight) if weighted else None,
        )
        _same(
            model.raw_prediction(*device_arrays[:2], other),
            model.raw_prediction(w, X, CPU),
            other,
            32,
        )
        for sums in {np.dtype(dtype), np.dtype(np.float64)}:
            out, far_out = np.zeros(w.shape, sums), other.to_device(np.zeros(w.shape, sums))
            loss = model.add_gradient(w, BatchRows(*host_arrays[1:]), out, CPU)
            far_loss = model.add_gradient(
                device_arrays[0], BatchRows(*device_arrays[1:]), far_out, other
            )
            assert isinstance(loss, float)
            assert far_loss.shape == ()  # not moved: reading it would wait for a device
            assert str(far_loss.dtype).endswith("float64")
            close = {"rtol": 1e3 * np.finfo(dtype).eps, "atol": 1e3 * np.finfo(dtype).eps}
            np.testing.assert_allclose(float(far_loss), loss, **close)
            assert other.to_numpy(far_out).dtype == sums
            np.testing.assert_allclose(other.to_numpy(far_out), out, **close)
        if model.n_targets is None:
            stats = model.validation_sums(device_arrays[0], BatchRows(*device_arrays[1:]), other)
            assert stats.dtype == np.float64
            assert stats.shape == ((2,) if model.n_classes else (4,))
            np.testing.assert_allclose(
                stats, model.validation_sums(w, BatchRows(*host_arrays[1:]), CPU), **close
            )


@DTYPES
@pytest.mark.parametrize("name", ["log_loss", "hinge", "squared_error"])
def test_rows_in_several_blocks(
    name: str, dtype: Any, other: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in _models(name, True):
        w, X, y, weight = map(other.to_device, _rows(model, dtype))
        whole, blocks = (other.to_device(np.zeros(model.shape, dtype)) for _ in range(2))
        expected = model.add_gradient(w, BatchRows(X, y, weight), whole, other)
        with monkeypatch.context() as patch:
            patch.setattr(other, "row_blocks", lambda X: [slice(0, 30), slice(30, N)])
            loss = model.add_gradient(w, BatchRows(X, y, weight), blocks, other)
        assert loss.shape == ()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)
        _same(blocks, other.to_numpy(whole), other, 256)


@DTYPES
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("intercept", [False, True], ids=["", "intercept"])
@pytest.mark.parametrize("name", [name for name in LOSSES if LOSSES[name].has_hessian])
def test_curvature(name: str, intercept: bool, weighted: bool, dtype: Any, other: Backend) -> None:
    for model in _models(name, intercept):
        w, X, y, weight = _rows(model, dtype)
        found = []
        for backend in (CPU, other):
            at: Any = [backend.to_device(array) for array in (w, X, y)]
            at.append(backend.to_device(weight) if weighted else None)
            gradient = backend.to_device(np.zeros(w.shape))
            hessian = backend.to_device(np.zeros(w.shape * 2))
            totals = add_curvature(model, at[0], BatchRows(*at[1:]), gradient, hessian, backend)
            parts = backend.to_numpy(gradient), backend.to_numpy(hessian)
            found.append([float(total) for total in totals] + list(parts))
        for a, b in zip(*found, strict=True):
            assert np.asarray(b).dtype == np.float64
            np.testing.assert_allclose(b, a, rtol=1e3 * np.finfo(dtype).eps, atol=1e-4)


# --- penalties, optimizers, shards -----------------------------------------------------------


@DTYPES
@EVERY_PENALTY
def test_penalties(penalty: str | None, dtype: Any, other: Backend) -> None:
    w = np.random.default_rng(5).normal(size=(7, 2)).astype(dtype)
    term = get_penalty(penalty, 0.3, 0.4)
    device_w = other.to_device(w)
    assert term.value(device_w) == pytest.approx(term.value(w), rel=1e-6)
    strengths = np.full((7, 1), 0.5, dtype)
    for t in (0.25, strengths):
        soft_threshold(w, t)
        soft_threshold(device_w, t if isinstance(t, float) else other.to_device(t))
        _same(device_w, w, other)
    assert (w == 0).any()


@DTYPES
@pytest.mark.parametrize("l1", [0.0, 0.05], ids=["", "l1"])
@EVERY_OPTIMIZER
def test_optimizers(name: str, l1: float, dtype: Any, other: Backend) -> None:
    rng = np.random.default_rng(6)
    w = rng.normal(size=(6, 2)).astype(dtype)
    optimizer = OPTIMIZERS[name]()
    device_w, opt_state, strengths = (
        other.to_device(w),
        optimizer.init(w),
        np.full((6, 1), l1, dtype),
    )
    before = {key: array.copy() for key, array in opt_state.items()}
    far_state = optimizer.init(device_w)
    for step in range(1, 11):
        grad = rng.normal(size=w.shape).astype(dtype)
        far_grad = other.to_device(grad)
        optimizer.update(w, grad, opt_state, 0.1, step, strengths if l1 else 0.0)
        far_l1 = other.to_device(strengths) if l1 else 0.0
        optimizer.update(device_w, far_grad, far_state, 0.1, step, far_l1)
    _same(device_w, w, other, 64)
    assert opt_state.keys() == far_state.keys()
    for key, array in opt_state.items():
        _same(far_state[key], array, other, 64)
    contraction = optimizer.contraction(before, opt_state, 0.1)
    far_contraction = optimizer.contraction(_copy(before, other), far_state, 0.1)
    if isinstance(contraction, float):
        assert far_contraction == contraction
    else:
        _same(far_contraction, contraction, other, 64)


@DTYPES
@EVERY_PENALTY
@EVERY_OPTIMIZER
def test_shards(name: str, penalty: str | None, dtype: Any, other: Backend) -> None:
    rng = np.random.default_rng(7)
    term = get_penalty(penalty, 0.02, 0.5)
    # Searches over parameters pass NumPy scalars.
    rate = InverseScaling(np.float64(0.1))
    rule = one_group(OPTIMIZERS[name](), rate, term, 5, 4.0, average_after=20)
    w = rng.normal(size=(6, 2)).astype(dtype)
    on_host = Shard(rule, ShardState(w.copy(), {}))
    on_device = Shard(rule, ShardState(other.to_device(w), {}))
    delta = rng.normal(size=w.shape).astype(dtype)
    for _ in range(2):
        for _ in range(6):
            grad = rng.normal(size=w.shape).astype(dtype)
            on_device.apply(other.to_device(grad), 8.0, scale=0.5)
            on_host.apply(grad, 8.0, scale=0.5)
        on_host.add(delta, 3.0)
        on_device.add(other.to_device(delta), 3.0)
        a, b = on_host.state(), on_device.state()
        b = ShardState.join([b.slice_rows(slice(0, 4)), b.slice_rows(slice(4, 6))])
        assert (a.step, a.rows, a.n_averaged) == (b.step, b.rows, b.n_averaged)
        assert a.average is not None
        _same(b.average, a.average, other, 64)
        _same(b.w, a.w, other, 64)
        for key, array in a.opt_state.items():
            _same(b.opt_state[key], array, other, 64)
        # Further steps do not change a state, from which another shard can resume.
        on_host, on_device = Shard(rule, a), Shard(rule, b)
    on_host.replace(delta)
    on_device.replace(other.to_device(delta))
    _same(on_device.w, on_host.w, other, 0)


@DTYPES
@pytest.mark.parametrize("outer", ["nesterov", "adam", "adagrad", "muon"])
def test_outer_steps_and_pulls_back(outer: str, dtype: Any, other: Backend) -> None:
    """Averaged lanes, with running means and with FedProx's pull to the average."""
    rng = np.random.default_rng(7)
    parts = Part("a", (4, 3)), Part("b", (3,), penalised=False), Part("m", (2,), buffer=True)
    parameters = Parameters(parts)
    groups = make_parameter_groups(parameters, OPTIMIZERS["adam"](), Penalty(0.0, 0.1))
    step = OuterStep.from_policy(LocalSGD(outer=outer), parameters)
    rule = UpdateRule(groups, Constant(0.1), 4.0, outer=step, proximal=0.3)
    w = rng.normal(size=parameters.shape).astype(dtype)
    on_host = Shard(rule, ShardState(w.copy(), {}))
    on_device = Shard(rule, ShardState(other.to_device(w), {}))
    for _ in range(3):
        on_host.anchor, on_device.anchor = (
            on_host.w.copy(),
            other.to_device(other.to_numpy(on_device.w).copy()),
        )
        for _ in range(2):
            grad = rng.normal(size=w.shape).astype(dtype)
            on_device.apply(other.to_device(grad), 8.0)
            on_host.apply(grad, 8.0)
        mean = (on_host.w + rng.normal(size=w.shape) / 10).astype(dtype)
        on_host.take_outer_step(mean)
        on_device.take_outer_step(other.to_device(mean))
        on_host.restart_optimizer()
        on_device.restart_optimizer()
        _same(on_device.w, on_host.w, other, 256)
    for key, array in on_host.state().opt_state.items():
        _same(on_device.opt_state[key], array, other, 256)


@pytest.mark.parametrize("start", [0, 3, 9])
def test_strengths_of_a_slice(start: int, other: Backend) -> None:
    """The l2 strength of a slice that is partly penalised."""
    rule = one_group(OPTIMIZERS["sgd"](), InverseScaling(0.1), Penalty(0.1, 0.1), 5, 4.0)
    w = np.ones((4, 1))
    on_host = Shard(rule, ShardState(w.copy(), {}), start)
    on_device = Shard(rule, ShardState(other.to_device(w), {}), start)
    on_host.apply(np.ones((4, 1)), 1.0)
    on_device.apply(other.to_device(np.ones((4, 1))), 1.0)
    _same(on_device.w, on_host.w, other)
