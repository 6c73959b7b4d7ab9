"""Outer steps of local SGD: an optimizer updates the average of the lanes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

from daskml_dist import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDRegressor
from daskml_dist.models import Parameters, Part
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.optimizers import (
    NAG,
    SGD,
    Adam,
    DelayedNesterov,
    Muon,
    Nesterov,
    Optimizer,
    get_optimizer,
)
from daskml_dist.policies import LocalSGD, ModelAveraging, Policy
from daskml_dist.ps.rule import OuterStep
from daskml_dist.training.checkpoint import Checkpoint
from tests.quick import quick
from tests.training.lane_fits import RATE, fit_lanes, make_lane_rows

EVERY, STEPS = 3, 12
OUTER = LocalSGD(EVERY, outer_rate=0.7, outer_momentum=0.6)
X, Y = make_lane_rows(2)


def _blocks() -> tuple[Any, Any]:
    return da.from_array(X, chunks=(40, -1)), da.from_array(Y, chunks=40)


def _fit(policy: Policy, rows: Any = None, **params: Any) -> SGDRegressor:
    return fit_lanes(policy, rows or _blocks(), **{"max_iter": STEPS} | params)


def _descended(rate: float, momentum: float) -> NDArray[Any]:
    """Return gradient descent of each half, with Nesterov SGD over their means."""
    velocity = np.zeros(4)

    def step(w: NDArray[Any], gradient: NDArray[Any], number: int) -> NDArray[Any]:
        nonlocal velocity
        velocity = momentum * velocity + gradient
        return w - rate * (gradient + momentum * velocity)

    return _descend_by(step)


def _descend_by(step: Callable[[Any, Any, int], NDArray[Any]]) -> NDArray[Any]:
    """Return gradient descent of each half, with an outer step at each averaging."""
    w = np.zeros(4)
    for number in range(1, STEPS // EVERY + 1):
        ends = []
        for half in (slice(0, 40), slice(40, 80)):
            v = w.copy()
            for _ in range(EVERY):
                v -= RATE * X[half].T @ (X[half] @ v - Y[half]) / 40
            ends.append(v)
        w = step(w, w - np.mean(ends, axis=0), number)
    return w


def _descended_by_adam(rate: float, beta: float) -> NDArray[Any]:
    """Return Adam over the means of the halves, with FedAdam's decay and epsilon."""
    m, v = np.zeros(4), np.zeros(4)

    def step(w: NDArray[Any], gradient: NDArray[Any], number: int) -> NDArray[Any]:
        nonlocal m, v
        m, v = beta * m + (1 - beta) * gradient, 0.99 * v + 0.01 * gradient**2
        m_hat, v_hat = m / (1 - beta**number), v / (1 - 0.99**number)
        return w - rate * m_hat / (np.sqrt(v_hat) + 1e-3)

    return _descend_by(step)


@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.0), (0.7, 0.6), (1.3, 0.0)])
def test_nesterov_equals_the_plain_recursion(rate: float, momentum: float) -> None:
    reg = _fit(LocalSGD(EVERY, outer_rate=rate, outer_momentum=momentum))
    np.testing.assert_allclose(reg.coef_, _descended(rate, momentum), rtol=1e-10)


@pytest.mark.parametrize(("params", "rate", "beta"), [
    ({}, 0.01, 0.9), ({"outer_rate": 0.1, "outer_momentum": 0.5}, 0.1, 0.5),
])  # fmt: skip
def test_adam_equals_the_plain_recursion(params: dict[str, Any], rate: float, beta: float) -> None:
    reg = _fit(LocalSGD(EVERY, outer="adam", **params))
    np.testing.assert_allclose(reg.coef_, _descended_by_adam(rate, beta), rtol=1e-10)


def _descended_by_delayed_nesterov(
    rate: float, beta: float, every: int, activation: float
) -> NDArray[Any]:
    """Return algorithm 3 of Liu et al. (2024) over the means of the halves."""
    momentum, gathered = np.zeros(4), np.zeros(4)

    def step(w: NDArray[Any], gradient: NDArray[Any], number: int) -> NDArray[Any]:
        nonlocal momentum, gathered
        gathered = gathered + gradient
        if number % every:
            return w - rate * (activation * beta * momentum + gradient / every)
        momentum = beta * momentum + gathered / every
        gathered = np.zeros(4)
        share = 1 - activation * every + activation
        return w - rate * (share * beta * momentum + gradient / every)

    return _descend_by(step)


@pytest.mark.parametrize("quorum", [None, 2])
@pytest.mark.parametrize(("every", "activation"), [(2, 0.0), (3, 0.2)])
def test_delayed_nesterov_equals_the_plain_recursion(
    every: int, activation: float, quorum: int | None
) -> None:
    outer = DelayedNesterov(0.6, every, activation)
    reg = _fit(LocalSGD(EVERY, outer=outer, outer_rate=0.8, quorum=quorum), rows=(X, Y))
    expected = _descended_by_delayed_nesterov(0.8, 0.6, every, activation)
    np.testing.assert_allclose(reg.coef_, expected, rtol=1e-10)


def test_nesterov_without_delay_is_nesterov() -> None:
    reg = _fit(LocalSGD(EVERY, outer=DelayedNesterov(0.6, every=1)), rows=(X, Y))
    np.testing.assert_allclose(reg.coef_, _descended(0.7, 0.6), rtol=1e-10)


def test_delayed_nesterov_catches_up_with_nesterov() -> None:
    """Along a constant gradient every second state equals that of Nesterov steps."""
    found, expected = np.ones(3), np.ones(3)
    delayed, plain = DelayedNesterov(0.9, every=2), Nesterov(0.9)
    delayed_state, plain_state = delayed.init(found), plain.init(expected)
    for step in range(1, 7):
        delayed.update(found, np.arange(3.0), delayed_state, 0.1, step)
        if step % 2 == 0:
            plain.update(expected, np.arange(3.0), plain_state, 0.1, step // 2)
            np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("bad", "words"), [
    ({"every": 0}, "integer >= 1"), ({"every": 1.5}, "integer >= 1"), ({"momentum": 1}, "< 1"),
    ({"every": 4, "activation": 0.3}, "1 / every"), ({"activation": -0.1}, "1 / every"),
])  # fmt: skip
def test_invalid_delays_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        DelayedNesterov(**bad)


@pytest.mark.parametrize(("by_name", "same"), [
    ({"outer": "nesterov"}, {"outer_rate": 0.7, "outer_momentum": 0.9}),
    ({"outer": "sgd"}, {"outer_rate": 1.0, "outer_momentum": 0.0}),
    ({"outer": SGD(), "outer_rate": 0.5}, {"outer_rate": 0.5, "outer_momentum": 0.0}),
    ({"outer": "adam"}, {"outer": Adam(0.9, 0.99, 1e-3), "outer_rate": 0.01}),
    ({"outer": "muon"}, {"outer": Muon(0.9), "outer_rate": 0.01}),
    ({"outer": "delayed_nesterov", "outer_momentum": 0.5}, {"outer": DelayedNesterov(0.5)}),
])  # fmt: skip
def test_names_of_optimizers_equal_their_objects(
    by_name: dict[str, Any], same: dict[str, Any]
) -> None:
    ours, theirs = (_fit(LocalSGD(EVERY, **one), rows=(X, Y)).coef_ for one in (by_name, same))
    np.testing.assert_allclose(ours, theirs, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nesterov_step_equals_its_formula_bit_for_bit(dtype: str) -> None:
    draw = np.random.default_rng(1)
    outer = OuterStep.from_policy(OUTER, Parameters((Part("w", (50,)),)))
    assert outer is not None
    w: NDArray[Any] = draw.normal(size=(50, 1)).astype(dtype)
    opt_state = outer.init(w)
    origin, velocity = w.copy(), np.zeros_like(w)
    for number in range(1, 6):
        mean = (w + draw.normal(size=w.shape)).astype(dtype)
        outer.take(w, mean, opt_state, number)
        velocity *= 0.6
        velocity += mean - origin
        origin += 0.7 * (mean - origin + 0.6 * velocity)
        np.testing.assert_array_equal(w, origin)


def test_muon_orthogonalises_matrices_but_not_running_means() -> None:
    draw = np.random.default_rng(1)
    parts = Part("a", (8, 5)), Part("b", (5,)), Part("kernels", (4, 3, 2, 2)), Part("c", ())
    more = Part("mean", (5,), buffer=True), Part("counts", (2,), additive=True)
    parameters = Parameters((*parts, *more))
    outer = OuterStep.from_policy(LocalSGD(outer=Muon(0.0), outer_rate=0.1), parameters)
    assert outer is not None
    w = draw.normal(size=parameters.shape)
    mean, before = draw.normal(size=w.shape), w.copy()
    outer.take(w, mean, outer.init(w), 1)
    steps = parameters.views((before - w) / 0.1)
    ways = parameters.views(before - mean)
    for name, shape in [("a", (8, 5)), ("kernels", (4, 12))]:
        step, way = steps[name].reshape(shape), ways[name].reshape(shape)
        values = np.linalg.svd(step, compute_uv=False) / max(shape) ** 0.5
        assert (values > 0.6).all()
        assert (values < 1.3).all()
        left, _, right = np.linalg.svd(way, full_matrices=False)
        cosine = np.sum(step * (left @ right)) / np.linalg.norm(step) / np.linalg.norm(left @ right)
        assert cosine > 0.96
    for name in ("b", "c"):  # a single row is normalised
        way = np.asarray(ways[name])
        np.testing.assert_allclose(steps[name], way / np.sqrt(np.mean(way**2)), rtol=1e-12)
    for name in ("mean", "counts"):
        np.testing.assert_array_equal(parameters.views(w)[name], parameters.views(mean)[name])


def test_muon_makes_no_step_along_a_zero_gradient() -> None:
    w, velocity = np.ones((3, 2)), {"velocity": np.zeros((3, 2))}
    Muon().update(w, np.zeros((3, 2)), velocity, 0.1, 1)
    np.testing.assert_array_equal(w, np.ones((3, 2)))


@pytest.mark.parametrize("outer", quick(["adam", "muon", "adagrad"], "adam", "muon"))
def test_networks_of_two_workers_equal_those_in_process(client: Client, outer: str) -> None:
    settings: dict[str, Any] = {
        "policy": LocalSGD(EVERY, outer=outer), "max_iter": 3, "batch_size": 8, "tol": None,
        "run": Run(n_lanes=2, deterministic=True), "random_state": 0,
    }  # fmt: skip
    labels = (Y > 0).astype(int)
    on_cluster = MLPClassifier((6,), **settings).fit(_blocks()[0], da.from_array(labels, chunks=40))
    in_process = MLPClassifier((6,), **settings).fit(X, labels)
    for a, b in zip(on_cluster.coefs_, in_process.coefs_, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


def test_two_workers_equal_one(client: Client) -> None:
    np.testing.assert_allclose(_fit(OUTER).coef_, _descended(0.7, 0.6), rtol=1e-10)
    batches: dict[str, Any] = {"batch_size": 8, "run": Run(n_lanes=2, deterministic=True)}
    two = _fit(OUTER, **batches)
    one = _fit(OUTER, rows=(X, Y), **batches)  # threads of this process
    np.testing.assert_array_equal(two.coef_, one.coef_)


_KEEPING = [OUTER, LocalSGD(EVERY, outer="adam"), LocalSGD(EVERY, outer="muon")]


@pytest.mark.parametrize("policy", quick(_KEEPING, OUTER), ids=repr)
def test_a_checkpoint_and_a_warm_start_keep_the_momentum(policy: Policy, tmp_path: Path) -> None:
    whole = _fit(policy).coef_
    checkpoint = Checkpoint(tmp_path / "fit", every=EVERY)
    _fit(policy, max_iter=6, checkpoint=checkpoint)
    resumed = _fit(policy, checkpoint=checkpoint)
    np.testing.assert_array_equal(resumed.coef_, whole)
    warm = _fit(policy, max_iter=6, warm_start=True)
    warm.fit(*_blocks())
    np.testing.assert_allclose(warm.coef_, whole, rtol=1e-12)


_OTHERS: list[Any] = ["sync", LocalSGD(EVERY, outer="adagrad"), LocalSGD(EVERY)]


@pytest.mark.parametrize("between", quick(_OTHERS, *_OTHERS[1:2]))
def test_outer_momentum_is_reset_after_another_policy(between: Any) -> None:
    """They start from the last parameters, not from the last average before the other policy."""
    warm = _fit(LocalSGD(EVERY, outer="adam"), warm_start=True)
    warm.set_params(policy=between).fit(*_blocks())
    begun = warm.coef_.copy()
    warm.set_params(policy=LocalSGD(EVERY, outer="adam", outer_rate=1e-9)).fit(*_blocks())
    np.testing.assert_allclose(warm.coef_, begun, atol=1e-7)


@pytest.mark.parametrize("bad", [{"outer_rate": 0}, {"outer_rate": True}, {"outer_rate": np.inf},
                                 {"outer_momentum": 1}, {"outer_momentum": -0.1}])  # fmt: skip
def test_invalid_parameters_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match=rf"LocalSGD\({next(iter(bad))}=.*: give a"):
        LocalSGD(**bad)


@pytest.mark.parametrize("outer", ["adamm", "ftrl", 3, NAG(), Adam])
def test_other_optimizers_are_refused(outer: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"LocalSGD\(outer=.*'nesterov'"):
        LocalSGD(outer=outer)


@pytest.mark.parametrize("outer", ["sgd", "adagrad", SGD(), Adam()])
def test_momentum_is_refused_by_optimizers_without_momentum(outer: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"outer_momentum is for .* Leave it"):
        LocalSGD(outer=outer, outer_momentum=0.5)


@pytest.mark.parametrize("optimizer", ["muon", Muon()])
def test_muon_is_refused_outside_outer_steps(optimizer: str | Optimizer) -> None:
    assert get_optimizer(optimizer) == Muon()
    with pytest.raises(InvalidParameterError, match=r'whole matrices.*LocalSGD\(outer="muon"\)'):
        _fit(LocalSGD(EVERY), optimizer=optimizer)


def test_policies_without_averaging_refuse_outer_steps() -> None:
    class Mine(ModelAveraging):
        outer_momentum = 0.5

    with pytest.raises(InvalidParameterError, match=r"Mine has outer_rate.*such as LocalSGD"):
        Mine()
