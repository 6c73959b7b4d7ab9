"""When a fit that loses workers is given up."""

from __future__ import annotations

import pytest

from daskml_dist.errors import MessageError, WorkerLostError
from daskml_dist.training.client.loss_counts import MANY_GARBLED, MANY_LOSSES, LossCounts


def _lose(counts: LossCounts, times: int, garbled: str | None = None) -> None:
    for _ in range(times):
        counts.count("worker a was lost", garbled, " It ran out of memory.")


def test_losses_without_progress_end_a_fit() -> None:
    counts = LossCounts(0.0)
    _lose(counts, MANY_LOSSES)
    with pytest.raises(
        WorkerLostError, match=r"6 times in 0 s .*worker a was lost.* out of memory"
    ):
        _lose(counts, 1)


def test_progress_between_losses_lets_it_go_on() -> None:
    counts = LossCounts(0.0)
    for clock in range(1, 5 * MANY_LOSSES):
        _lose(counts, 1)
        counts.note_recovery(clock)
    _lose(counts, MANY_LOSSES)
    counts.note_recovery(clock)  # no further than before
    with pytest.raises(WorkerLostError):
        _lose(counts, 1)


def test_a_fit_that_began_anew_is_judged_from_there() -> None:
    """It had come to 1,000 steps, and comes on from none while further workers are lost."""
    counts = LossCounts(0.0)
    counts.note_recovery(1_000)
    counts.note_full_restart()
    for clock in range(1, 5 * MANY_LOSSES):
        _lose(counts, 1)
        counts.note_recovery(clock)


def test_to_lose_all_for_ever_ends_a_fit() -> None:
    counts = LossCounts(1e9)
    for _ in range(MANY_LOSSES + 1):
        _lose(counts, 1)
        counts.note_recovery(10)
        counts.note_full_restart()
    with pytest.raises(WorkerLostError, match=r"lost its whole state 7 times.*checkpoint"):
        _lose(counts, 1)


def test_messages_without_a_meaning_end_it_soon() -> None:
    counts = LossCounts(1e9)
    _lose(counts, MANY_GARBLED - 1, "a message of -1 bytes")
    with pytest.raises(MessageError, match="-1 bytes"):
        _lose(counts, 1, "a message of -1 bytes")
