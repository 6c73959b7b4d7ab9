"""Placement: lanes cover every row once and evenly, on workers that hold their rows."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from daskml_dist.data.batches import LaneSpec, Segment, make_even_lanes, split_rows
from daskml_dist.data.blocks import BlockInfo
from daskml_dist.training.client.lane_assignments import Placement, PlacementGain, place_lanes


def _random_sizes(seed: int) -> dict[int, int]:
    rng = random.Random(seed)
    return {b: rng.choice([0, 1, 3, 20, 100]) for b in range(rng.randrange(1, 15))}


def _assert_exactly_once(
    lanes: list[tuple[Segment, ...]], sizes: dict[int, int], blocks: list[int] | None = None
) -> None:
    found = Counter((s.block, r) for lane in lanes for s in lane for r in range(s.start, s.stop))
    assert found == Counter((b, r) for b in blocks or sizes for r in range(sizes[b]))
    assert all(len(s) > 0 for lane in lanes for s in lane)


def _n_rows(lanes: list[tuple[Segment, ...]]) -> list[int]:
    return [sum(map(len, lane)) for lane in lanes]


# --- splitting -------------------------------------------------------------------------------


@pytest.mark.parametrize("snap", [0.0, 0.25])
@pytest.mark.parametrize("n_lanes", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("seed", range(15))
def test_split_covers_every_row_once(seed: int, n_lanes: int, snap: float) -> None:
    sizes = _random_sizes(seed)
    lanes = split_rows(list(sizes), sizes, n_lanes, snap=snap)
    assert len(lanes) == n_lanes
    _assert_exactly_once(lanes, sizes)
    rows, share = _n_rows(lanes), sum(sizes.values()) / n_lanes
    # Without snapping, lane sizes differ by at most 1; each boundary may move by `snap` of a lane.
    assert max(rows) - min(rows) <= 1 + 4 * snap * share
    assert all(abs(n - share) < 1 + 2 * snap * share for n in rows)
    # Lanes are contiguous.
    order = [(s.block, s.start) for lane in lanes for s in lane]
    assert order == sorted(order)


def test_split_follows_the_order_of_the_blocks() -> None:
    lanes = split_rows([2, 0], {0: 4, 1: 100, 2: 2}, 2)
    assert lanes == [(Segment(2, 0, 2), Segment(0, 0, 1)), (Segment(0, 1, 4),)]


def test_boundaries_snap_to_blocks() -> None:
    sizes = {0: 95, 1: 105, 2: 100}
    assert split_rows([0, 1, 2], sizes, 3, snap=0.25) == [
        (Segment(b, 0, n),) for b, n in sizes.items()
    ]
    cut = split_rows([0, 1, 2], sizes, 3)
    assert [len(lane) for lane in cut] == [2, 1, 1]


def test_block_longer_than_a_lane_is_cut() -> None:
    lanes = split_rows([0], {0: 10}, 4, snap=0.25)
    assert _n_rows(lanes) == [2, 3, 2, 3]


def test_fewer_rows_than_lanes() -> None:
    lanes = split_rows([0, 1], {0: 1, 1: 1}, 5, snap=0.25)
    _assert_exactly_once(lanes, {0: 1, 1: 1})
    assert lanes.count(()) == 3


@pytest.mark.parametrize(
    ("sizes", "n_lanes", "rows"),
    [
        ([1, 1], 5, [1, 1]),
        ([4, 0], 4, [1, 1, 1, 1]),
        ([3, 0, 2], 10**9, [1, 1, 1, 1, 1]),
        ([10], 3, [3, 3, 4]),
        ([0, 0], 7, [0]),
    ],
)
def test_a_lane_has_a_row_at_least(sizes: list[int], n_lanes: int, rows: list[int]) -> None:
    blocks = dict(enumerate(sizes))
    lanes = make_even_lanes(blocks, n_lanes)
    assert [lane.lane for lane in lanes] == list(range(len(rows)))
    assert _n_rows([lane.segments for lane in lanes]) == rows
    holders = {block: ["w"] for block in blocks}
    assert len(place_lanes(blocks, holders, {"w": 1}, n_lanes).lanes) == len(rows)


# --- lanes on the workers that hold their rows -----------------------------------------------


def _random_cluster(
    seed: int, sizes: dict[int, int]
) -> tuple[dict[int, list[str]], dict[str, int]]:
    rng = random.Random(100 + seed)
    threads = {f"w{i}": rng.randrange(1, 4) for i in range(rng.randrange(1, 6))}
    holders = {b: rng.sample(sorted(threads), rng.randrange(1, len(threads) + 1)) for b in sizes}
    return holders, threads


@pytest.mark.parametrize("seed", range(20))
def test_no_block_moves(seed: int) -> None:
    sizes = _random_sizes(seed)
    holders, threads = _random_cluster(seed, sizes)
    placement = place_lanes(sizes, holders, threads, None)
    _assert_exactly_once([lane.segments for lane in placement.lanes], sizes)
    assert [lane.lane for lane in placement.lanes] == list(range(len(placement.lanes)))
    owner: dict[int, str] = {}
    for lane, worker in zip(placement.lanes, placement.workers, strict=True):
        assert lane.n_rows > 0
        for segment in lane.segments:
            assert worker in holders[segment.block]
            # The lanes of one worker share its blocks; no other worker needs them.
            assert owner.setdefault(segment.block, worker) == worker
    for worker, lanes in placement.by_worker().items():
        assert len(lanes) <= threads[worker]
        rows = [lane.n_rows for lane in lanes]
        assert max(rows) - min(rows) <= 1
        assert len(lanes) == min(threads[worker], sum(rows))
    assert place_lanes(sizes, holders, threads, None) == placement


def test_replicas_are_spread_evenly() -> None:
    sizes = dict.fromkeys(range(6), 10)
    holders = {key: ["a", "b", "c"] for key in sizes}
    placement = place_lanes(sizes, holders, {"a": 1, "b": 1, "c": 1}, None)
    assert [lane.n_rows for lane in placement.lanes] == [20, 20, 20]


def test_worker_without_rows_gets_no_lane() -> None:
    placement = place_lanes({0: 10, 1: 0}, {0: ["a"], 1: ["b"]}, {"a": 2, "b": 2, "c": 2}, None)
    assert placement.workers == ["a", "a"]


# --- a given number of lanes -----------------------------------------------------------------


@pytest.mark.parametrize("n_lanes", [1, 2, 4, 9])
@pytest.mark.parametrize("seed", range(12))
def test_given_lanes_do_not_depend_on_the_workers(seed: int, n_lanes: int) -> None:
    sizes = _random_sizes(seed)
    found = []
    for cluster in range(5):
        holders, threads = _random_cluster(cluster, sizes)
        placement = place_lanes(sizes, holders, threads, n_lanes)
        found.append(placement.lanes)
        # Work is spread evenly over the workers.
        counts = Counter(placement.workers)
        assert set(counts) <= set(threads)
        assert len(counts) == min(n_lanes, len(threads))
        assert max(counts.values()) - min(counts.values()) <= 1
    assert len(found[0]) == n_lanes
    assert all(lanes == found[0] for lanes in found)
    _assert_exactly_once([lane.segments for lane in found[0]], sizes)
    # The result does not depend on the order in which blocks were listed either.
    again = place_lanes(dict(reversed(sizes.items())), holders, threads, n_lanes)
    assert again.lanes == found[0]


def test_given_lanes_go_to_the_workers_that_hold_them() -> None:
    sizes = dict.fromkeys(range(4), 10)
    holders = {0: ["b"], 1: ["b"], 2: ["a"], 3: ["a"]}
    assert place_lanes(sizes, holders, {"a": 1, "b": 1}, 4).workers == ["b", "b", "a", "a"]
    # Fewer lanes than workers: workers that hold rows get them.
    threads = {"a": 1, "b": 1, "0": 8, "1": 8}
    assert place_lanes(sizes, holders, threads, 2).workers == ["b", "a"]


def test_lanes_of_each_worker() -> None:
    lanes = [LaneSpec(i, ()) for i in range(4)]
    placement = Placement(lanes, ["b", "a", "b", "c"])
    assert placement.by_worker() == {"b": [lanes[0], lanes[2]], "a": [lanes[1]], "c": [lanes[3]]}
    assert list(placement.by_worker()) == ["b", "a", "c"]


# --- uneven rows -----------------------------------------------------------------------------


def _info(index: int, n_rows: int) -> BlockInfo:
    return BlockInfo(index, n_rows, (1,), None, "float64", False, n_rows, nbytes=8 * n_rows)


def test_gain_and_cost_of_a_move() -> None:
    rows = {0: 100, 1: 100, 2: 100, 3: 100}
    holders = {i: ["a"] for i in rows}
    threads = {"a": 1, "b": 1}
    uneven, even = place_lanes(rows, holders, threads, None), place_lanes(rows, holders, threads, 2)
    move = PlacementGain.compare(uneven, even, holders, [_info(i, n) for i, n in rows.items()])
    assert move == PlacementGain(skew=2.0, rows=200, nbytes=2 * 800)
    assert move.is_worthwhile(passes=10, seconds_a_row=1e-6, bandwidth=1e6)
    assert not move.is_worthwhile(passes=1, seconds_a_row=1e-9, bandwidth=1e6)
