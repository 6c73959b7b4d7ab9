"""Pending ids without a row: memory for them and for marks is bounded by a window of steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ps.waiting_ids import SightingLog, WaitingIds


def _content(waiting: WaitingIds) -> dict[int, int]:
    ids, sightings = waiting.since(-1)
    return dict(zip(ids.tolist(), sightings.tolist(), strict=True))


def _count_noted(log: SightingLog) -> int:
    return sum(len(ids) for ids, _ in log)


def _ids_of(step: int) -> NDArray[np.int64]:
    """Return a hundred ids that occur once, and ten that occur in each step."""
    return np.concatenate([np.arange(10), np.arange(step * 100, (step + 1) * 100) + 1_000])


def test_ids_that_occur_once_need_no_mark_records() -> None:
    """A mark must restore the ids that were pending then, however long ago."""
    waiting, log = WaitingIds(10_000, None), SightingLog()
    for step in range(1, 6):
        waiting.count(_ids_of(step), step)
    marked = _content(waiting)
    waiting.log_to(log, 5)
    for step in range(6, 200):
        waiting.count(_ids_of(step), step)
        waiting.expire(step - 4)
        assert waiting.n == 10 + 100 * 5
    assert _count_noted(log) == len(marked)
    waiting.log_to(None, -1)
    waiting.go_back(log, 5, 0)
    assert _content(waiting) == marked
    assert waiting.floor == 0


def test_an_id_that_changes_between_marks_is_restored_at_each() -> None:
    waiting, some = WaitingIds(5, None), np.array([3, 8])
    logs: list[SightingLog] = [[], [], []]
    contents = []
    for number, log in enumerate(logs):
        step = 10 * number
        waiting.count(some[number % 2 :], step + 1)
        contents.append(_content(waiting))
        waiting.log_to(log, step + 1)
        waiting.count(some, step + 2)
        waiting.remove(some[:1])
        waiting.count(some[:1], step + 3)
        waiting.count(some[:1], step + 4)
    waiting.log_to(None, -1)
    for number in (2, 1, 0):
        waiting.go_back(logs[number], 10 * number + 1, 0)
        assert _content(waiting) == contents[number]


def test_the_most_recent_half_of_too_many_pending_ids_is_kept() -> None:
    waiting = WaitingIds(3, 1_000)
    for step in range(1, 30):
        assert not waiting.count(_ids_of(step), step).any() or step > 2
        assert waiting.n <= 1_000
        assert set(_ids_of(step).tolist()) <= _content(waiting).keys()
    # Frequent ids have been pending all the time.
    assert waiting.count(np.arange(10), 30).all()
    # All ids of one step stay, since none was seen before another.
    waiting.count(np.arange(5_000, 9_000), 31)
    assert waiting.n >= 4_000
