"""Batches contain every row once a pass for any lanes, blocks and steps, in reproducible order."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from daskml_dist.data import batches
from daskml_dist.data.batches import (
    SHUFFLED_BLOCKS,
    LaneRows,
    LaneSpec,
    RowRuns,
    Segment,
    count_held_out_rows,
    count_pass_steps,
    split_rows,
)

BLOCKS = {
    "one": [23],
    "few": [5, 1, 0, 12, 7],
    "many": [3] * (2 * SHUFFLED_BLOCKS + 3),
    "uneven": [1, 40, 2, 0, 9, 30, 1, 1, 5, 17, 2],
    "empty": [0, 0],
}
Step = list[tuple[int, int]]


def _lanes(name: str, n_lanes: int) -> list[LaneSpec]:
    sizes = dict(enumerate(BLOCKS[name]))
    lanes = split_rows(list(sizes), sizes, n_lanes)
    return [LaneSpec(i, segments) for i, segments in enumerate(lanes)]


def _rows(block: int, rows: Any) -> Step:
    if isinstance(rows, slice):
        return [(block, row) for row in range(rows.start, rows.stop)]
    at = rows.row_numbers if isinstance(rows, RowRuns) else rows
    assert len(at) == len(rows)
    return [(block, row) for row in at.tolist()]


def _steps(rows: LaneRows, pass_: int = 1, start: int = 0) -> list[Step]:
    """Return the (block, row) pairs of each step, in order."""
    return [
        [pair for block, at in step for pair in _rows(block, at)]
        for step in rows.batches(pass_, start)
    ]


def _held_out(rows: LaneRows) -> Step:
    return [pair for block, at in rows.held_out for pair in _rows(block, at)]


def _flat(steps: list[Step]) -> Step:
    return list(itertools.chain.from_iterable(steps))


@pytest.mark.parametrize("fraction", [0.0, 0.3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n_steps", [1, 2, 7, 60])
@pytest.mark.parametrize("n_lanes", [1, 3, 8])
@pytest.mark.parametrize("blocks", list(BLOCKS))
def test_every_row_exactly_once_a_pass(
    blocks: str, n_lanes: int, n_steps: int, shuffle: bool, fraction: float
) -> None:
    trained: list[Counter[tuple[int, int]]] = [Counter(), Counter()]
    held_out: Counter[tuple[int, int]] = Counter()
    for spec in _lanes(blocks, n_lanes):
        rows = LaneRows(spec, n_steps, 0, shuffle, fraction)
        held_out.update(_held_out(rows))
        for pass_, rows_of_pass in enumerate(trained, start=1):
            steps = _steps(rows, pass_)
            assert len(steps) == n_steps
            sizes = [len(step) for step in steps]
            assert max(sizes) - min(sizes) <= 1
            assert sum(sizes) == rows.n_rows
            rows_of_pass.update(_flat(steps))
    everything = Counter((b, r) for b, size in enumerate(BLOCKS[blocks]) for r in range(size))
    for rows_of_pass in trained:
        assert rows_of_pass + held_out == everything
    assert bool(held_out) == (fraction > 0 and blocks != "empty")


@pytest.mark.parametrize("fraction", [0.0, 0.3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n_steps", [2, 7])
@pytest.mark.parametrize("blocks", list(BLOCKS))
def test_runs_are_the_same_rows_in_the_same_order(
    blocks: str, n_steps: int, shuffle: bool, fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec,) = _lanes(blocks, 1)
    monkeypatch.setattr(batches, "RUNS_PER_BATCH", 2)
    found = []
    for long in (1, 1000):
        monkeypatch.setattr(batches, "_LONG_RUN_ROWS", long)
        rows = LaneRows(spec, n_steps, 0, shuffle, fraction)
        kinds = {type(at) for step in rows.batches(1) for _, at in step}
        assert not kinds or (RowRuns in kinds) is (long == 1 and not all(rows._n_held_out))
        found.append(_steps(rows))
    assert found[0] == found[1]


@pytest.mark.parametrize("fraction", [0.0, 0.3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n_steps", [1, 2, 7, 60])
@pytest.mark.parametrize("blocks", list(BLOCKS))
def test_start_resumes_the_same_sequence(
    blocks: str, n_steps: int, shuffle: bool, fraction: float
) -> None:
    (spec,) = _lanes(blocks, 1)
    whole = _steps(LaneRows(spec, n_steps, 3, shuffle, fraction), 2)
    for start in range(n_steps + 1):
        fresh = LaneRows(spec, n_steps, 3, shuffle, fraction)
        assert _steps(fresh, 2, start) == whole[start:]


@pytest.mark.parametrize("blocks", ["one", "few", "many"])
def test_order_depends_only_on_seed_pass_and_blocks(blocks: str) -> None:
    (spec,) = _lanes(blocks, 1)

    def order(lane: int = 0, n_steps: int = 4, seed: int = 0, pass_: int = 1) -> Step:
        return _flat(_steps(LaneRows(LaneSpec(lane, spec.segments), n_steps, seed, True), pass_))

    reference = order()
    assert order() == reference
    assert order(lane=5) == reference  # nor on the lane's index
    assert order(pass_=2) != reference
    assert order(seed=1) != reference


@pytest.mark.parametrize("n_steps", [2, 4, 9])
@pytest.mark.parametrize("blocks", ["one", "few", "many"])
def test_steps_partition_one_order(blocks: str, n_steps: int) -> None:
    (spec,) = _lanes(blocks, 1)
    n = spec.n_rows
    order = _flat(_steps(LaneRows(spec, n, 0, True)))
    for s, step in enumerate(_steps(LaneRows(spec, n_steps, 0, True))):
        assert sorted(step) == sorted(order[s * n // n_steps : (s + 1) * n // n_steps])


def test_passes_do_not_depend_on_those_before() -> None:
    (spec,) = _lanes("many", 1)
    used = LaneRows(spec, 5, 0, True)
    for pass_ in (1, 2):
        list(used.batches(pass_))
    assert _steps(used, 3) == _steps(LaneRows(spec, 5, 0, True), 3)


def test_without_shuffling_rows_stay_in_their_order() -> None:
    (spec,) = _lanes("many", 1)
    flat = _flat(_steps(LaneRows(spec, 5, 0, False), 2))
    assert flat == sorted(flat)


def test_full_batch_takes_views() -> None:
    (spec,) = _lanes("few", 1)
    (step,) = LaneRows(spec, 1, 0, True).batches(1)
    assert all(isinstance(rows, slice) for _, rows in step)


def test_one_piece_a_block() -> None:
    """A batch gathers at most one piece from each block of a group."""
    (spec,) = _lanes("many", 1)
    for step in LaneRows(spec, 2, 0, True).batches(1):
        blocks = [block for block, _ in step]
        assert len(blocks) == len(set(blocks))


def test_sorted_blocks_give_mixed_batches() -> None:
    """With one label per block, every batch still contains about equally many rows of each."""
    segments = tuple(Segment(block, 0, 100) for block in range(SHUFFLED_BLOCKS))
    for step in _steps(LaneRows(LaneSpec(0, segments), 10, 0, True)):
        counts = Counter(block for block, _ in step)
        assert len(counts) == SHUFFLED_BLOCKS
        assert max(counts.values()) <= 25


def test_only_one_group_of_blocks_is_visited_at_a_time() -> None:
    segments = tuple(Segment(block, 0, 10) for block in range(3 * SHUFFLED_BLOCKS))
    rows = LaneRows(LaneSpec(0, segments), 12, 0, True)
    visits = []
    for pass_ in (1, 2):
        flat = _flat(_steps(rows, pass_))
        cut = 10 * SHUFFLED_BLOCKS
        groups = [{b for b, _ in flat[i : i + cut]} for i in range(0, len(flat), cut)]
        assert [len(group) for group in groups] == [SHUFFLED_BLOCKS] * 3
        visits.append(groups)
    assert visits[0] != visits[1]  # a different grouping in each pass


# --- held-out rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_steps", [1, 6])
@pytest.mark.parametrize("shuffle", [False, True])
def test_held_out_rows_are_never_trained_on(n_steps: int, shuffle: bool) -> None:
    (spec,) = _lanes("uneven", 1)
    rows = LaneRows(spec, n_steps, 0, shuffle, 0.25)
    held_out = set(_held_out(rows))
    assert len(held_out) == sum(count_held_out_rows(s, 0.25) for s in spec.segments) > 20
    for pass_ in range(1, 6):
        assert not held_out & set(_flat(_steps(rows, pass_)))


def test_held_out_rows_depend_on_the_seed_and_the_segment() -> None:
    (spec,) = _lanes("uneven", 1)
    held_out = _held_out(LaneRows(spec, 3, 0, True, 0.25))
    assert _held_out(LaneRows(spec, 8, 0, False, 0.25)) == held_out
    assert _held_out(LaneRows(spec, 3, 1, True, 0.25)) != held_out
    one = LaneSpec(4, spec.segments[1:2])
    block = spec.segments[1].block
    assert _held_out(LaneRows(one, 3, 0, True, 0.25)) == [
        pair for pair in held_out if pair[0] == block
    ]


@pytest.mark.parametrize(
    ("size", "fraction", "expected"),
    [(100, 0.1, 10), (10, 0.25, 2), (1, 0.9, 0), (2, 0.9, 1), (0, 0.5, 0), (5, 0.0, 0), (3, 1, 2)],
)
def test_number_of_held_out_rows(size: int, fraction: float, expected: int) -> None:
    """At least one row is left to train on."""
    assert count_held_out_rows(Segment(0, 7, 7 + size), fraction) == expected


# --- steps of a pass -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "fraction", "expected"),
    [(None, 0.0, 1), (10, 0.0, 5), (50, 0.0, 1), (7, 0.0, 8), (1000, 0.0, 1), (10, 0.2, 4)],
)
def test_steps_of_a_pass(batch_size: int | None, fraction: float, expected: int) -> None:
    """The number depends on the largest lane, of 50 rows."""
    lanes = [
        LaneSpec(0, (Segment(0, 0, 10),)),
        LaneSpec(1, (Segment(0, 10, 40), Segment(1, 0, 20))),
    ]
    assert count_pass_steps(lanes, batch_size, fraction) == expected


def test_steps_of_lanes_without_rows() -> None:
    assert count_pass_steps([LaneSpec(0, ())], 10) == 1


def test_batches_are_no_larger_than_asked_for() -> None:
    for batch_size in (1, 4, 9, 1000):
        lanes = _lanes("uneven", 3)
        n_steps = count_pass_steps(lanes, batch_size, 0.1)
        for spec in lanes:
            steps = _steps(LaneRows(spec, n_steps, 0, True, 0.1))
            assert max(map(len, steps)) <= batch_size
