"""Collectives against NumPy, over every transport and several numbers of ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from daskml_dist.comm.base import Communicator, WaitBound
from daskml_dist.comm.choosing_communicators import SharedGroup, TwoLevelGroup
from daskml_dist.comm.server_connections import SoloCommunicator
from daskml_dist.comm.socket_group import PeerGroup
from daskml_dist.errors import CommunicationError, GenerationError, RunAbortedError
from tests.comm.ranks import PATIENCE, Ranks
from tests.quick import in_turn

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has it")
#: Lengths around those at which algorithms change: 0, fewer than ranks, one piece, several.
SIZES = (0, 2, 28, 9_001, 140_001)
DTYPES = (np.float32, np.float64, np.int64)


class Alone:
    """Single rank of a fit in one process."""

    def each(self, act: Callable[[Communicator], Any]) -> list[Any]:
        return [act(SoloCommunicator())]


LAYOUTS: dict[str, tuple[type[Communicator], list[int] | None, int]] = {
    "alone": (SoloCommunicator, None, 1),
    **{f"memory {n}": (SharedGroup, [1] * n, n) for n in (2, 3, 4)},
    **{f"sockets {n}": (PeerGroup, None, n) for n in (2, 3, 4)},
    "hosts 3": (TwoLevelGroup, [1, 2, 1], 3),
    "hosts 4": (TwoLevelGroup, [1, 2, 2, 1], 4),
}


@pytest.fixture(params=LAYOUTS)
def some(request: pytest.FixtureRequest, ranks: Callable[..., Ranks]) -> Any:
    """Return ranks that are connected by one of the transports."""
    kind, hosts, n = LAYOUTS[request.param]
    if n == 1:
        return Alone()
    started = ranks(*[hosts is not None] * n, hosts=hosts)
    assert all(type(group) is kind for group in started.groups)
    return started


def _draw(rank: int, n: int, dtype: Any) -> Any:
    return (100 * np.random.default_rng(rank).normal(size=n)).astype(dtype)


def _assert_close(got: Any, truth: Any) -> None:
    assert got.dtype == truth.dtype
    if truth.dtype == np.int64:
        np.testing.assert_array_equal(got, truth)
    else:
        np.testing.assert_allclose(got, truth, rtol=1e-4, atol=1e-2)


def _bounds(n: int, size: int) -> list[list[int] | None]:
    """Return even ranges, and ranges with an empty first and a large last one."""
    uneven = [0, *(n * r * r // (2 * size * size) for r in range(1, size)), n]
    return [None, [0, *uneven[:-2], n] if size > 1 else uneven]


def test_allreduce_and_reduce_scatter_equal_numpy(some: Any) -> None:
    def check(group: Communicator, n: int, dtype: Any, bounds: list[int] | None) -> None:
        parts = [_draw(r, n, dtype) for r in range(group.size)]
        truth = np.sum(parts, axis=0, dtype=dtype)
        part, out = parts[group.rank].copy(), np.empty(n, dtype)
        assert group.allreduce(part, out) is out
        _assert_close(out, truth)
        mine = group.reduce_scatter(part, bounds)
        np.testing.assert_array_equal(part, parts[group.rank])
        edges = group.bounds(n) if bounds is None else bounds
        _assert_close(mine, truth[edges[group.rank] : edges[group.rank + 1]])
        assert not np.shares_memory(mine, part)
        np.testing.assert_array_equal(group.allreduce(part), out)

    def act(group: Communicator) -> None:
        for k, n in enumerate(SIZES):
            for bounds in _bounds(n, group.size):
                check(group, n, DTYPES[k % 3], bounds)
                check(group, n, DTYPES[(k + 1) % 3], bounds)

    some.each(act)


def _payload(sender: int, receiver: int) -> Any:
    shape = [(0,), (3, receiver), (), (40_000 * sender + receiver,)][(sender + receiver) % 4]
    dtype = DTYPES[(2 * sender + receiver) % 3]
    return np.full(shape, 10 * sender + receiver, dtype)


def test_alltoall_delivers_each_pair(some: Any) -> None:
    def act(group: Communicator) -> None:
        for _ in range(2):  # twice: successive rounds must not interfere
            had = group.alltoall([_payload(group.rank, r) for r in range(group.size)])
            for sender, got in enumerate(had):
                truth = _payload(sender, group.rank)
                assert (got.dtype, got.shape) == (truth.dtype, truth.shape)
                np.testing.assert_array_equal(got, truth)
            empty = group.alltoall([np.empty(0)] * group.size)
            assert [len(got) for got in empty] == [0] * group.size

    some.each(act)


def test_non_sum_reductions_merge_in_the_order_of_ranks(some: Any) -> None:
    """Lists of different lengths are joined in a fixed tree of merges."""

    def join(lower: list[Any], higher: list[Any]) -> list[Any]:
        depth = np.maximum(lower[1], higher[1]) + 1
        return [np.concatenate([lower[0], higher[0]]), depth]

    def act(group: Communicator) -> tuple[Any, int]:
        arrays = [np.full(30_000 * group.rank, group.rank), np.array(0)]
        joined, depth = group.reduce(arrays, join)
        return joined, int(depth)

    found = some.each(act)
    size = len(found)
    inner = getattr(some, "groups", [None])[0]
    order = inner._order if isinstance(inner, TwoLevelGroup) else list(range(size))
    for joined, depth in found:
        np.testing.assert_array_equal(joined, np.repeat(order, [30_000 * r for r in order]))
        assert depth == (size - 1).bit_length()


def test_broadcast_from_rank_0(some: Any) -> None:
    text = np.random.default_rng(0).integers(0, 256, 700_001, np.uint8)

    def act(group: Communicator) -> None:
        for n in (0, 5, 700_001):
            received = group.broadcast_bytes([b"so many: ", text[:n].data])
            truth = b"" if group.rank == 0 else b"so many: " + text[:n].tobytes()
            assert received.tobytes() == truth
        assert not group.broadcast_bytes().size

    some.each(act)


CALLS: dict[str, Callable[[Communicator], Any]] = {
    "allreduce": lambda group: group.allreduce(np.ones(5)),
    "reduce_scatter": lambda group: group.reduce_scatter(np.ones(5)),
    "alltoall": lambda group: group.alltoall([np.ones(5)] * group.size),
    "reduce": lambda group: group.reduce([np.ones(5)], lambda a, b: a),
}


def _repeat_until_error(call: Callable[[Communicator], Any], group: Communicator) -> None:
    for _ in range(3):
        call(group)


@pytest.mark.parametrize("layout", ["memory 3", "sockets 3", "hosts 3"])
def test_a_rank_that_ends_raises_in_the_others(ranks: Callable[..., Ranks], layout: str) -> None:
    for call in CALLS.values():
        _, hosts, n = LAYOUTS[layout]
        some = ranks(*[hosts is not None] * n, hosts=hosts)

        def act(group: Communicator, call: Callable[[Communicator], Any] = call) -> None:
            if group.rank == 0:
                group.close()
                return
            with pytest.raises(CommunicationError, match="Lost the connection"):
                _repeat_until_error(call, group)
            group.close()

        some.each(act)


@pytest.mark.parametrize(("call", "shared"), in_turn(CALLS, [True, False]))
def test_waits_time_out(ranks: Callable[..., Ranks], call: str, shared: bool) -> None:
    over = threading.Event()
    named = (RunAbortedError, "is_aborted") if shared else (GenerationError, "is_renewed")
    some = ranks(shared, shared, wait=WaitBound(PATIENCE, **{named[1]: over.is_set}))
    over.set()
    with pytest.raises(named[0]):
        CALLS[call](some.groups[1])
