"""Updates in one compiled loop over parameters equal NumPy's, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist import Run
from daskml_dist.backends import host_update, numpy_backend
from daskml_dist.backends.base import Step
from daskml_dist.backends.entries import where
from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import OPTIMIZERS, SGD, Adam, Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.ps.rule import ParameterGroup, UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import InverseScaling

N, K = 203, 200
#: Every optimizer, and its substitute under l1 if there is one.
EVERY = {f"{type(o).__name__}": o for c in OPTIMIZERS.values() for o in (c(), c().under_l1())}
#: Optimizers compiled in the default run; the others run the same functions uncompiled.
FEW = {"Adam", "FTRL", "_SparseAdagrad", "_SparseSGD"}
STEPS = [
    pytest.param(
        name,
        dtype,
        l1,
        marks=() if name in FEW and dtype is np.float32 and l1 else pytest.mark.slow,
    )
    for name in EVERY
    for dtype in (np.float32, np.float64)
    for l1 in (0.0, 0.05)
]


def _start(optimizer: Optimizer, dtype: Any) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    w = np.random.default_rng(0).normal(0, 0.03, (N, 2)).astype(dtype)
    opt_state = optimizer.init(w)
    if "scale" in opt_state:
        opt_state["scale"] += dtype(1.5)
    return w, opt_state


def _equal(ours: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(ours[0], theirs[0])
    for name, array in theirs[1].items():
        np.testing.assert_array_equal(ours[1][name], array)


@pytest.mark.parametrize(("name", "dtype", "l1"), STEPS)
def test_one_loop_equals_update_bit_for_bit(name: str, dtype: Any, l1: float) -> None:
    optimizer, rng, backend = EVERY[name], np.random.default_rng(1), NumpyBackend()
    ours, theirs = _start(optimizer, dtype), _start(optimizer, dtype)
    strengths = np.where(np.arange(N) < K, l1, 0)[:, None].astype(dtype)
    for number, rate in enumerate([*0.05 / np.arange(1, 30) ** 0.5, 0.0], start=1):
        grad, l2 = 6 * rng.normal(size=(N, 2)).astype(dtype), 0.02 * (number % 2)
        step = Step(ours[0], grad, ours[1], 60.0, float(rate), number, l1, l2, K)
        assert backend.update(optimizer, step)
        grad /= 60.0
        grad[:K] += l2 * theirs[0][:K] if l2 else 0
        optimizer.update(theirs[0], grad, theirs[1], float(rate), number, strengths if l1 else l1)
    _equal(ours, theirs)
    assert ours[0].dtype == dtype
    assert not l1 or (ours[0][:K] == 0).any()


def _moved(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the number of moved entries from which on updates use one loop."""
    monkeypatch.setattr(numpy_backend, "_MIN_MOVED_ENTRIES", entries)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_parameter_groups_of_a_shard_equal_array_updates(
    clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group has its own optimizer and uses the loop from the third step on."""
    l1, both = Penalty(0.05, 0.0), Penalty(0.05, 0.02)
    groups = (
        ParameterGroup(0, 9, Adam(), both, 7),
        ParameterGroup(9, 12, SGD(), l1, 3, rate=0.5),
        ParameterGroup(12, 15, SGD(), l1, 0, buffer=True),
        ParameterGroup(15, 20, Adam(), both, 0),
    )
    rule = UpdateRule(groups, InverseScaling(0.1), 5.0, clip=clip)
    shards, calls, update = [], [], host_update.Updates.__call__
    monkeypatch.setattr(
        host_update.Updates, "__call__", lambda *a: calls.append(a[-1]) or update(*a)
    )
    for entries in (10**9, 40):
        _moved(entries, monkeypatch)
        rng = np.random.default_rng(0)
        shards.append(Shard(rule, ShardState(rng.normal(size=(20, 1)), {})))
        for _ in range(5):
            shards[-1].apply(rng.normal(size=(20, 1)), 7.0)
    _equal(*[(shard.w, shard.opt_state) for shard in shards])
    assert calls == [3] * 3 + [4] * 3 + [5] * 3


X = np.random.default_rng(0).normal(size=(120, 5))
Y = X[:, 0] + np.random.default_rng(1).normal(size=120) > 0


@pytest.mark.parametrize("policy", ["sync", "allreduce", "local", "async"])
def test_fits_do_not_depend_on_when_the_loop_starts(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for entries, steps in ((10**9, 10**9), (60, 10**9), (0, 10**9), (10**9, 3)):
        _moved(entries, monkeypatch)
        monkeypatch.setattr(numpy_backend, "_MIN_LOADED_UPDATES", steps)
        clf = SGDClassifier(
            optimizer="adam", penalty="elasticnet", policy=policy, batch_size=20, max_iter=4,
            tol=None, random_state=0, run=Run(n_lanes=1 if policy == "async" else 2),
        )  # fmt: skip
        found.append(clf.fit(X, np.digitize(X[:, 0], [-0.5, 0.5])).coef_)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_small_fits_are_not_compiled() -> None:
    """A contract test checks that such a fit does not load numba."""
    assert not NumpyBackend().updates_at(10**6, 65, any_way=False)
    assert NumpyBackend().updates_at(1000, 203_530, any_way=False)


# --- custom optimizers -----------------------------------------------------------------------


def _halved(x: Any, half: Any) -> Any:
    return math.sqrt(abs(x)) * half


class Signs(Optimizer):
    """Steps of fixed size along the gradient's sign; uses a helper function and a branch."""

    name, default_learning_rate = "signs", 0.1

    def coefficients(self, step: int) -> tuple[float, ...]:
        return 0.5, 0.0

    @staticmethod
    def elementwise_update(state: Any, k: Any, grad: Any, lr: Any, coefficients: Any) -> Any:
        size = min(max(_halved(grad, coefficients[0]), lr), coefficients[0])
        state[0][k] -= lr * where(grad > coefficients[1], size, -size)
        return lr


class Interpreted(SGD):
    """Optimizer that numba cannot compile."""

    log: tuple[Any, ...] = ({"no": object()},)

    @staticmethod
    def elementwise_update(state: Any, k: Any, grad: Any, lr: Any, coefficients: Any) -> Any:
        state[0][k] -= lr * grad * len(Interpreted.log)
        return lr


class Unknown(SGD):
    @staticmethod
    def elementwise_update(state: Any, k: Any, grad: Any, lr: Any, coefficients: Any) -> Any:
        state[0][k] -= lr * math.erf(grad)
        return lr


@pytest.mark.parametrize(("optimizer", "passes"), [(Signs(), True), (Interpreted(), False)])
def test_custom_optimizers_agree_in_all_forms(
    optimizer: Any, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single entries, arrays, one loop and recorded steps agree; or only arrays are supported."""
    monkeypatch.setattr(numpy_backend, "_MAX_COPIED_STEPS", 0)
    w = np.linspace(-1, 1, 6)[:, None]
    one, arrays, grad = w.copy(), w.copy(), np.linspace(-3, 2, 6)[:, None]
    for k in range(6):
        optimizer.elementwise_update((one[:, 0],), k, grad[k, 0], 0.1, optimizer.coefficients(1))
    optimizer.update(arrays, grad.copy(), {}, 0.1, 1)
    np.testing.assert_array_equal(one, arrays)
    done = NumpyBackend().update(optimizer, Step(w, grad, {}, 1.0, 0.1, 1, 0.0, 0.0, 0))
    assert done == passes
    np.testing.assert_array_equal(w, arrays if done else np.linspace(-1, 1, 6)[:, None])
    found = []
    for _ in "recorded", "one by one":
        clf = SGDClassifier(optimizer=optimizer, max_iter=2, tol=None, batch_size=20)
        found.append(clf.set_params(run=Run(n_lanes=1), random_state=0).fit(X, Y).coef_)
        monkeypatch.setattr(NumpyBackend, "recorder", lambda *a: None)
    np.testing.assert_array_equal(*found)


def test_unsupported_expressions_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"math\.erf.*_descend"):
        Unknown().update(np.ones((2, 1)), np.ones((2, 1)), {}, 0.1, 1)
