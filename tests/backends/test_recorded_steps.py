"""Rows gathered on a device, and recorded steps replayed by it, equal plain steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend, get_backend
from daskml_dist.losses import LOSSES, Huber, LogLoss, Loss
from daskml_dist.optimizers import OPTIMIZERS, get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import InverseScaling
from tests.rules import one_group

D = 6
#: Rows of each block.
SIZES = {3: 40, 0: 7, 8: 23}
Draw = list[tuple[int, NDArray[Any], NDArray[Any]]]


def _blocks(weighted: bool, dtype: Any = np.float64) -> dict[int, tuple[Any, Any, Any | None]]:
    rng = np.random.default_rng(0)
    return {
        number: (
            np.where(rng.random((n, D)) < 0.3, 0, rng.normal(size=(n, D))).astype(dtype),
            np.where(rng.random(n) < 0.5, -1, 1).astype(dtype),
            rng.random(n).astype(dtype) if weighted else None,
        )
        for number, n in SIZES.items()
    }


def _draws(count: int, most: int, seed: int = 1) -> list[Draw]:
    """Return batches as runs of rows: single rows or consecutive ones; one batch is empty."""
    rng = np.random.default_rng(seed)
    draws: list[Draw] = []
    for k in range(count):
        left, draw = (0 if k == 1 else int(rng.integers(1, most + 1))), []
        for block in rng.permutation(list(SIZES)).tolist():
            some = min(left, SIZES[block] - 2)
            if some > 2 and k % 2:  # two runs
                starts, counts = (
                    np.array([some // 2 + 1, 0]),
                    np.array([some - some // 2, some // 2]),
                )
            else:
                starts = rng.permutation(SIZES[block])[:some]
                counts = np.ones_like(starts)
            draw.append((block, starts, counts))
            left -= some
        draws.append([part for part in draw if len(part[1])])
    return draws


def _rows(blocks: Any, draw: Draw) -> list[Any]:
    """Return the gathered features, targets and weights of a batch."""
    found = []
    for k in range(3):
        parts = [
            blocks[block][k][start : start + count]
            for block, starts, counts in draw
            for start, count in zip(starts, counts, strict=True)
            if blocks[block][k] is not None
        ]
        found.append(np.concatenate(parts) if parts else None)
    return found


#: Containers of blocks on a device.
CONTAINERS = pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])


def _gather(backend: Backend, loss: Loss, blocks: Any, most: int, container: Any) -> Any:
    moved = {
        number: tuple(
            None if a is None else backend.to_device(a) for a in (container(X), y, weight)
        )
        for number, (X, y, weight) in blocks.items()
    }
    return backend.gather(loss, (D + 1, 1), moved, most)


def _gradient(loss: Loss, w: Any, X: Any, y: Any, weight: Any | None) -> tuple[float, Any]:
    losses, g = loss.value_and_gradient(y, X @ w[:D, 0] + w[D, 0])
    if weight is not None:
        losses, g = losses * weight, g * weight
    return losses.sum(), np.append(X.T @ g, g.sum())[:, None]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@CONTAINERS
def test_gathered_rows(backend: Backend, container: Any, weighted: bool, dtype: Any) -> None:
    blocks: Any = _blocks(weighted, dtype)
    loss: Loss = Huber() if dtype is np.float64 else LogLoss()  # with a parameter, and without
    gather = _gather(backend, loss, blocks, 40, container)
    if gather is None:
        assert backend.name == "numpy"
        assert container is not np.asarray
        return
    w = np.linspace(-1, 1, D + 1)[:, None].astype(dtype)
    for seed in (1, 2):
        draws = _draws(4, 40, seed)
        for draw, add_gradient in zip(draws, gather(draws), strict=True):
            if not sum(int(counts.sum()) for _, _, counts in draw):
                continue
            expected = _rows(blocks, draw)
            out = backend.to_device(np.ones_like(w))
            found = add_gradient(backend.to_device(w), out)
            value, gradient = _gradient(loss, w.astype(float), *expected)
            rtol = 1e-5 if dtype is np.float32 else 1e-12
            assert float(found) == pytest.approx(value, rel=rtol)
            np.testing.assert_allclose(backend.to_numpy(out) - 1, gradient, rtol=rtol, atol=rtol)


def test_rows_without_a_kernel_are_not_gathered(backend: Backend) -> None:
    loss, blocks = LogLoss(), _blocks(weighted=False)
    moved = {
        n: (backend.to_device(X), backend.to_device(y), None) for n, (X, y, _) in blocks.items()
    }
    assert backend.gather(loss, (D, 3), moved, 9) is None
    assert backend.gather(LOSSES["tweedie"](), (D, 1), moved, 9) is None
    wide = {0: (backend.to_device(np.zeros((2, 5000))), backend.to_device(np.ones(2)), None)}
    assert (backend.gather(loss, (5000, 1), wide, 2) is None) == (backend.device == "gpu")
    mixed = {**moved, 9: (backend.to_device(sparse.csr_array((2, D))), wide[0][1], None)}
    assert backend.gather(loss, (D, 1), mixed, 9) is None


def _rule(optimizer: str, average_after: int | None = None) -> UpdateRule:
    parts = get_optimizer(optimizer), InverseScaling(0.1), Penalty(0.01, 0.02)
    return one_group(*parts, D, 7.0, average_after)


def _shard(rule: UpdateRule, backend: Backend) -> Shard:
    w = np.linspace(-0.5, 0.5, D + 1)[:, None]
    opt_state = rule.only_group.optimizer.init(w)
    if "scale" in opt_state:
        opt_state["scale"] += 1.5
    moved = {name: backend.to_device(array) for name, array in opt_state.items()}
    return Shard(rule, ShardState(backend.to_device(w), moved), backend=backend)


@pytest.mark.parametrize(
    ("optimizer", "container"),
    [
        *(
            pytest.param(name, np.asarray, marks=() if name == "adagrad" else pytest.mark.slow)
            for name in OPTIMIZERS
        ),
        ("adam", sparse.csr_array),
    ],
)
def test_recorded_steps_equal_plain_steps(backend: Backend, optimizer: str, container: Any) -> None:
    """The same number of steps is launched, recorded and replayed; then fewer steps are made."""
    blocks, loss, rule = _blocks(weighted=True), LogLoss(), _rule(optimizer)
    ours, by_hand = _shard(rule, backend), _shard(rule, get_backend("cpu"))
    gather = _gather(backend, loss, blocks, 30, container)
    recorded = gather and backend.recorder(gather, rule.only_group.optimizer, ours.empty_step())
    if recorded is None:
        assert backend.name == "numpy"
        assert container is not np.asarray or rule.only_group.optimizer.elementwise_update is None
        return
    for seed, count in enumerate((5, 5, 5, 5, 3, 1)):
        draws = _draws(count, 30, seed)
        gathered = [_rows(blocks, draw) for draw in draws]
        rows = [0 if X is None else len(X) for X, _, _ in gathered]
        losses = backend.to_numpy(recorded(draws, ours.next_steps(rows)))
        for (X, y, weight), n, value in zip(gathered, rows, losses, strict=True):
            expected, grad = 0.0, np.zeros_like(by_hand.w)
            if n:
                expected, grad = _gradient(loss, by_hand.w, X, y, weight)
            by_hand.apply(grad, n)
            assert value == pytest.approx(expected, rel=1e-9)
        np.testing.assert_allclose(backend.to_numpy(ours.w), by_hand.w, rtol=1e-9, atol=1e-12)
    for name, array in by_hand.opt_state.items():
        np.testing.assert_allclose(
            backend.to_numpy(ours.opt_state[name]), array, rtol=1e-9, atol=1e-12
        )
    assert (ours.step, ours.rows, ours.rate_sum) == (by_hand.step, by_hand.rows, by_hand.rate_sum)
    # Five steps were recorded once; others were launched individually.
    if backend.device == "gpu":
        assert [n for n, graph in recorded._graphs.items() if graph is not None] == [5]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_recorded_steps_on_touched_columns(backend: Backend, dtype: Any) -> None:
    """Compared with steps on the rows of the parameters that each batch touches."""
    blocks, loss = _blocks(True, dtype), LogLoss()
    gather = _gather(backend, loss, blocks, 3, sparse.csr_array)
    if gather is None:
        assert backend.name == "numpy"
        return
    parts = get_optimizer("adagrad"), InverseScaling(0.1), Penalty(0.0, 0.0)
    rule = one_group(*parts, D, 7.0, coordinates=True)
    w = np.linspace(-0.5, 0.5, D + 1)[:, None].astype(dtype)
    ours = Shard(rule, ShardState(backend.to_device(w), {}), backend=backend)
    by_hand = Shard(rule, ShardState(w.copy(), {}))
    assert ours.steps_alone
    recorded = backend.recorder(gather, rule.only_group.optimizer, ours.empty_step())
    for seed in range(3):
        draws = _draws(4, 3, seed)
        gathered = [_rows(blocks, draw) for draw in draws]
        rows = [0 if X is None else len(X) for X, _, _ in gathered]
        losses = backend.to_numpy(recorded(draws, ours.next_steps(rows)))
        for (X, y, weight), n, value in zip(gathered, rows, losses, strict=True):
            index, expected, grad = np.array([D]), 0.0, np.zeros_like(by_hand.w)
            if n:
                expected, grad = _gradient(loss, by_hand.w, X, y, weight)
                index = np.append(np.flatnonzero((X != 0).any(axis=0)), D)
            by_hand.apply(grad[index], n, index)
            assert value == pytest.approx(expected, rel=1e-5)
    close = {"rtol": 1e-4, "atol": 1e-6} if dtype is np.float32 else {"rtol": 1e-12}
    sums = by_hand.opt_state["accumulator"], ours.opt_state["accumulator"]
    for expected, found in ((by_hand.w, ours.w), sums):
        np.testing.assert_allclose(backend.to_numpy(found), expected, **close)


def test_steps_of_a_restored_replica_are_recorded_again(backend: Backend) -> None:
    shard = _shard(_rule("adam"), backend)
    assert shard.steps_alone
    gather = _gather(backend, LogLoss(), _blocks(weighted=False), 30, np.asarray)
    recorded = backend.recorder(gather, shard.rule.only_group.optimizer, shard.empty_step())
    assert recorded.serves(shard.empty_step())
    shard.restore(shard.snapshot())
    assert not recorded.serves(shard.empty_step())


@pytest.mark.parametrize(
    ("of_group", "of_rule"),
    [
        ({"optimizer": get_optimizer("sgd")}, {}),
        ({"penalty": Penalty(0.0, 0.1)}, {}),
        ({"penalty": Penalty(0.1, 0.0)}, {}),
        ({"rate": 0.5}, {}),
        ({}, {"average_after": 0}),
        ({}, {"clip": 1.0}),
    ],
)
def test_unsupported_steps_on_touched_columns_need_the_host(
    of_group: dict[str, Any], of_rule: dict[str, Any]
) -> None:
    parts = get_optimizer("adagrad"), InverseScaling(0.1), Penalty(0.0, 0.0)
    rule = one_group(*parts, D, 7.0, coordinates=True)
    assert rule.can_run_in_kernels
    group = dataclasses.replace(rule.only_group, **of_group)
    assert not dataclasses.replace(rule, groups=(group,), **of_rule).can_run_in_kernels


def test_averaged_parameters_need_the_host_for_each_step(backend: Backend) -> None:
    assert not _shard(_rule("sgd", average_after=0), backend).steps_alone
