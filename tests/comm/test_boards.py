"""Gradients summed in a shared buffer: steps equal those of all gradients, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.comm import choosing_communicators as meeting
from daskml_dist.comm.base import Communicator, WaitBound
from daskml_dist.errors import CommunicationError, GenerationError
from daskml_dist.losses import LogLoss
from daskml_dist.optimizers import Momentum
from daskml_dist.penalties import Penalty
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import InverseScaling
from tests.comm.ranks import PATIENCE, Ranks
from tests.rules import one_group

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has it")
D, N_STEPS = 5, 9
LOSS = LogLoss()
#: Lanes of each rank, one of which has no rows.
LANES = [[0, 3], [1], [2, 4]]
EMPTY = 2


class _Lane:
    """Lane with rows, batches, and a plain gradient function."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        n = 80
        y = rng.choice([-1.0, 1.0], size=n).astype(np.float32)
        self.block = rng.normal(size=(n, D)).astype(np.float32), y, None
        self.sizes = [0 if number == EMPTY else (b + number) % 4 for b in range(N_STEPS)]
        self.draws: list[Any] = [
            [(number, rng.integers(0, n, size), None)] if size else [] for size in self.sizes
        ]
        self.gather: Any = None
        if number != EMPTY:
            self.gather = NumpyBackend().gather(LOSS, (D + 1, 1), {number: self.block}, 4)

    def gradient(self, b: int, w: NDArray[Any]) -> NDArray[Any]:
        out = np.zeros_like(w)
        if self.sizes[b]:
            self.gather.add_gradient(self.draws[b], w, out)
        return out


def _replica() -> Shard:
    rule = one_group(Momentum(), InverseScaling(0.5), Penalty(0.001, 0.01), D, 4.0)
    return Shard(rule, ShardState(np.linspace(-1, 1, D + 1, dtype="f4")[:, None], {}))


def _step_plainly(lanes: list[list[int]], in_order: bool) -> Shard:
    replica, every = _replica(), {n: _Lane(n) for some in lanes for n in some}
    groups = [sorted(every)] if in_order else lanes
    for b in range(N_STEPS):
        parts = [sum(every[n].gradient(b, replica.w) for n in some) for some in groups]
        total: Any = parts[0]
        for part in parts[1:]:
            total = total + part
        replica.apply(total, sum(lane.sizes[b] for lane in every.values()))
    return replica


def _together(group: Communicator, lanes: list[list[int]], in_order: bool, cut: int) -> Shard:
    """Return the steps of two calls with a collective between them."""
    replica, lanes_of_rank = _replica(), [_Lane(n) for n in lanes[group.rank]]
    every = [_Lane(n) for some in lanes for n in some]
    board = group.board(D + 1, replica.w.dtype, lanes, in_order)
    assert board is not None
    optimizer = replica.rule.only_group.optimizer
    gathers = [lane.gather for lane in lanes_of_rank]
    steps = NumpyBackend().team_recorder(gathers, optimizer, replica.empty_step(), board)
    assert steps is not None
    for some in (range(cut), range(cut, N_STEPS)):
        counts = np.array([[lane.sizes[b] for lane in lanes_of_rank] for b in some], np.int64)
        rows = [sum(lane.sizes[b] for lane in every) for b in some]
        draws = [[lane.draws[b] for b in some] for lane in lanes_of_rank]
        run = steps(draws, counts, replica.next_steps(rows))
        run.run()
        assert run.n_steps_made == len(some)
        assert (run.losses[counts == 0] == 0).all()
        np.testing.assert_array_equal(group.allreduce(np.ones(3)), np.full(3, group.size))
    return replica


@pytest.mark.parametrize("patience", [1_000_000, 0], ids=["looking", "asleep"])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_fused_steps_equal_steps_along_all_gradients(
    ranks: Callable[..., Ranks],
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    in_order: bool,
    patience: int,
) -> None:
    monkeypatch.setattr(meeting, "_SPIN_NANOSECONDS", patience)
    lanes, some = LANES[:size], ranks(*[True] * size)
    expected = _step_plainly(lanes, in_order)
    for cut in (1, 4):
        for replica in some.each(lambda group, cut=cut: _together(group, lanes, in_order, cut)):
            np.testing.assert_array_equal(replica.w, expected.w)
            np.testing.assert_array_equal(
                replica.opt_state["velocity"], expected.opt_state["velocity"]
            )
            assert (replica.step, replica.rows) == (expected.step, expected.rows)


def _alone(group: Communicator, more: Callable[[], None] = lambda: None) -> Any:
    """Return the number of steps of a rank whose peer makes only two, and its outcome."""
    replica, lane = _replica(), _Lane(group.rank)
    board = group.board(D + 1, replica.w.dtype, [[0], [1]], False)
    assert board is not None
    n = N_STEPS if group.rank == 0 else 2
    optimizer = replica.rule.only_group.optimizer
    steps = NumpyBackend().team_recorder([lane.gather], optimizer, replica.empty_step(), board)
    counts = np.array(lane.sizes[:n], np.int64)[:, None]
    run = steps([lane.draws[:n]], counts, replica.next_steps([5] * n))  # type: ignore[misc]
    try:
        run.run()
    except Exception as error:
        return run.n_steps_made, type(error)
    more()
    if group.rank:
        group.close()
    return run.n_steps_made, None


def test_a_lost_rank_ends_the_loop_of_the_others(ranks: Callable[..., Ranks]) -> None:
    some = ranks(True, True)
    assert some.each(_alone) == [(2, CommunicationError), (2, None)]


def test_a_new_generation_ends_the_loop(ranks: Callable[..., Ranks]) -> None:
    renewed: list[bool] = []
    some = ranks(True, True, wait=WaitBound(PATIENCE, is_renewed=lambda: bool(renewed)))
    ends = some.each(lambda group: _alone(group, lambda: renewed.append(True)))
    assert ends[0] in ((2, GenerationError), (2, CommunicationError))


def test_no_shared_buffer_if_gradients_take_several_rounds(ranks: Callable[..., Ranks]) -> None:
    def boards(group: Communicator, lanes: list[list[int]]) -> list[bool]:
        sizes = (8_192, 8_193, 65_536, 65_537)
        f4 = np.dtype(np.float32)
        return [group.board(n, f4, lanes, False) is not None for n in sizes]

    two = ranks(True, True).each(lambda group: boards(group, [[0], [1]]))
    three = ranks(True, True, True).each(lambda group: boards(group, [[0], [1], [2]]))
    assert two == [[True, True, True, False]] * 2
    assert three == [[True, False, False, False]] * 3
    sockets = ranks(False, False).each(lambda group: boards(group, [[0], [1]]))
    assert sockets == [[False] * 4] * 2
