"""Sparse gradients summed in a shared buffer: steps equal those of all gradients, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.csr_rows import CSRRows, TouchedColumns, add_csr_gradient
from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.comm import choosing_communicators as meeting
from daskml_dist.comm.base import Communicator
from daskml_dist.comm.server_connections import SoloCommunicator
from daskml_dist.losses import LogLoss
from daskml_dist.optimizers import Adagrad
from daskml_dist.penalties import Penalty
from daskml_dist.ps.messages import sum_in_lane_order
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import InverseScaling
from tests.comm.ranks import Ranks
from tests.rules import one_group

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has it")
D, N_STEPS = 400, 7
LOSS = LogLoss()
#: Lanes of each rank, one of which has no rows.
LANES = [[0, 3], [1], [2, 4]]
EMPTY = 2


class _Lane:
    """Lane with rows, some with a duplicate column, and batches."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        counts = rng.integers(0, 12, 90)
        columns = (D * rng.random(counts.sum()) ** 3).astype(np.int32)
        starts = np.append(0, counts.cumsum()).astype(np.int32)
        parts = rng.normal(size=len(columns)).astype("f4"), columns, starts
        X = sparse.csr_array(parts, shape=(len(counts), D))
        y = rng.choice([-1.0, 1.0], size=len(counts)).astype("f4")
        weight = rng.random(len(counts), dtype="f4") if number % 2 else None
        self.block = X, y, weight
        self.sizes = [0 if number == EMPTY else (3 * b + number) % 8 for b in range(N_STEPS)]
        self.rows = [rng.integers(0, len(counts), size) for size in self.sizes]
        self.draws: list[Any] = [[(number, rows, None)] if len(rows) else [] for rows in self.rows]
        self.gather: Any = None
        if number != EMPTY:
            self.gather = NumpyBackend().gather(
                LOSS, (D + 1, 1), {number: self.block}, 8, coordinates=True
            )

    def gradient(self, b: int, w: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any], float]:
        X, y, weight = self.block
        rows, touched = CSRRows(X, self.rows[b]), TouchedColumns()
        index = np.append(touched.find([rows]), D)
        out, rest = np.zeros((len(index), 1), "f4"), (y[rows.rows], weight)
        if weight is not None:
            rest = rest[0], weight[rows.rows]
        loss = add_csr_gradient("log_loss", rows, touched, *rest, w[index], out, ())
        assert loss is not None
        return index, out, loss


def _replica(penalty: Penalty) -> Shard:
    rule = one_group(Adagrad(), InverseScaling(0.5), penalty, D, 4.0, coordinates=True)
    return Shard(rule, ShardState(np.linspace(-1, 1, D + 1, dtype="f4")[:, None], {}))


def _step_plainly(lanes: list[list[int]], penalty: Penalty) -> tuple[Shard, dict[int, list[float]]]:
    replica, every = _replica(penalty), {n: _Lane(n) for some in lanes for n in some}
    losses: dict[int, list[float]] = {n: [] for n in every}
    for b in range(N_STEPS):
        parts = []
        for n, lane in every.items():
            if lane.sizes[b]:
                index, gradient, loss = lane.gradient(b, replica.w)
                parts.append((n, index, gradient))
            losses[n].append(loss if lane.sizes[b] else 0.0)
        rows = sum(lane.sizes[b] for lane in every.values())
        index, total = sum_in_lane_order(parts)
        replica.apply(total, rows, index)
    return replica, losses


def _together(
    group: Communicator, lanes: list[list[int]], penalty: Penalty, cut: int
) -> tuple[Shard, dict[int, list[float]]]:
    """Return the steps of two calls with a collective between them."""
    replica, lanes_of_rank = _replica(penalty), [_Lane(n) for n in lanes[group.rank]]
    every = [_Lane(n) for some in lanes for n in some]
    board = group.board(None, replica.w.dtype, lanes, True)
    assert board is not None
    optimizer = replica.rule.only_group.optimizer
    gathers = [lane.gather for lane in lanes_of_rank]
    steps = NumpyBackend().team_recorder(gathers, optimizer, replica.empty_step(), board)
    assert steps is not None
    losses: dict[int, list[float]] = {lane: [] for lane in lanes[group.rank]}
    for some in (range(cut), range(cut, N_STEPS)):
        counts = np.array([[lane.sizes[b] for lane in lanes_of_rank] for b in some], np.int64)
        rows = [sum(lane.sizes[b] for lane in every) for b in some]
        run = steps(
            [[lane.draws[b] for b in some] for lane in lanes_of_rank],
            counts,
            replica.next_steps(rows),
        )
        run.run()
        assert run.n_steps_made == len(some)
        for at, lane in enumerate(lanes[group.rank]):
            losses[lane] += run.losses[:, at].tolist()
        np.testing.assert_array_equal(group.allreduce(np.ones(3)), np.full(3, group.size))
    return replica, losses


def _check(
    found: list[tuple[Shard, dict[int, list[float]]]], lanes: list[list[int]], penalty: Penalty
) -> None:
    expected, losses = _step_plainly(lanes, penalty)
    assert expected.w.any()
    for replica, losses_of_rank in found:
        np.testing.assert_array_equal(replica.w, expected.w)
        np.testing.assert_array_equal(
            replica.opt_state["accumulator"], expected.opt_state["accumulator"]
        )
        assert (replica.step, replica.rows, replica.rate_sum) == (
            expected.step, expected.rows, expected.rate_sum,
        )  # fmt: skip
        assert losses_of_rank == {lane: losses[lane] for lane in losses_of_rank}


NONE, BOTH = Penalty(0.0, 0.0), Penalty(0.001, 0.01)


@pytest.mark.parametrize("penalty", [NONE, BOTH], ids=["free", "penalised"])
@pytest.mark.parametrize("patience", [1_000_000, 0], ids=["looking", "asleep"])
@pytest.mark.parametrize("size", [2, 3])
def test_fused_steps_equal_steps_along_all_gradients(
    ranks: Callable[..., Ranks],
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    patience: int,
    penalty: Penalty,
) -> None:
    monkeypatch.setattr(meeting, "_SPIN_NANOSECONDS", patience)
    lanes, some = LANES[:size], ranks(*[True] * size)
    for cut in (1, 4):
        found = some.each(lambda group, cut=cut: _together(group, lanes, penalty, cut))
        _check(found, lanes, penalty)


@pytest.mark.parametrize("area", [256, 1024])
def test_gradients_longer_than_a_slot_are_summed_in_parts(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, area: int
) -> None:
    monkeypatch.setattr(meeting, "_AREA_BYTES", area)
    monkeypatch.setattr(meeting, "_MAX_ONE_TURN_BYTES", 1 << 7)
    some = ranks(True, True, True)
    _check(some.each(lambda group: _together(group, LANES, BOTH, 3)), LANES, BOTH)


def test_a_single_rank_equals_the_plain_steps() -> None:
    lanes = [[0, 1, 2, 3]]
    _check([_together(SoloCommunicator(), lanes, BOTH, 2)], lanes, BOTH)


@pytest.mark.parametrize(
    "block",
    [
        (sparse.random_array((5, D), density=0.1, format="csr", rng=0), np.ones(5, "f4"), None),
        (sparse.random_array((5, D), density=0.1, format="csc", rng=0), np.ones(5), None),
        (np.ones((5, D)), np.ones(5), None),
    ],
    ids=["two dtypes", "csc", "dense"],
)
def test_unsupported_rows_are_not_gathered(block: Any) -> None:
    assert NumpyBackend().gather(LOSS, (D + 1, 1), {0: block}, 5, coordinates=True) is None


def test_32_and_64_bit_columns_give_the_same_steps() -> None:
    """Blocks of 32-bit and 64-bit columns give the same steps."""
    found = []
    for wide in (np.int32, np.int64):
        lane, replica = _Lane(0), _replica(BOTH)
        X, y, weight = lane.block
        X = sparse.csr_array((X.data, X.indices.astype(wide), X.indptr.astype(wide)), shape=X.shape)
        X.indices, X.indptr = X.indices.astype(wide), X.indptr.astype(wide)
        gather = NumpyBackend().gather(LOSS, (D + 1, 1), {0: (X, y, weight)}, 8, coordinates=True)
        assert gather is not None
        assert gather.index_like.dtype == wide
        alone = NumpyBackend().recorder(
            gather, replica.rule.only_group.optimizer, replica.empty_step()
        )
        assert alone is not None
        alone(lane.draws, replica.next_steps(lane.sizes))
        found.append(replica.w)
    np.testing.assert_array_equal(*found)
