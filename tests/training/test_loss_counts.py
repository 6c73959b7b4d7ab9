"""When a fit that repeatedly loses workers fails."""

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


def test_a_fit_that_progresses_between_losses_continues() -> None:
    counts = LossCounts(0.0)
    for clock in range(1, 5 * MANY_LOSSES):
        _lose(counts, 1)
        counts.note_recovery(clock)
    _lose(counts, MANY_LOSSES)
    counts.note_recovery(clock)  # no further than before
    with pytest.raises(WorkerLostError):
        _lose(counts, 1)


def test_progress_of_a_restarted_fit_counts_from_its_restart() -> None:
    """It had made 1,000 steps, restarts at none, and progresses while further workers are lost."""
    counts = LossCounts(0.0)
    counts.note_recovery(1_000)
    counts.note_full_restart()
    for clock in range(1, 5 * MANY_LOSSES):
        _lose(counts, 1)
        counts.note_recovery(clock)


def test_repeatedly_losing_all_workers_ends_a_fit() -> None:
    counts = LossCounts(1e9)
    for _ in range(MANY_LOSSES + 1):
        _lose(counts, 1)
        counts.note_recovery(10)
        counts.note_full_restart()
    with pytest.raises(WorkerLostError, match=r"lost its whole state 7 times.*checkpoint"):
        _lose(counts, 1)


def test_repeated_invalid_messages_end_a_fit() -> None:
    counts = LossCounts(1e9)
    _lose(counts, MANY_GARBLED - 1, "a message of -1 bytes")
    with pytest.raises(MessageError, match="-1 bytes"):
        _lose(counts, 1, "a message of -1 bytes")
