"""Messages while a fit starts or resumes are neither alarming nor wrong."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from daskml_dist.data import computing
from daskml_dist.data.computing import FIRST_TASK_NOTICE_SECONDS, Deadline
from daskml_dist.training.client.cluster_run import GenerationEvent


@pytest.mark.parametrize(
    ("options", "logged_at"),
    [({}, 2.0), ({"tell_after": FIRST_TASK_NOTICE_SECONDS}, 21.0), ({"tell_after": 60.0}, 51.0)],
)
def test_a_compiling_start_logs_no_warning(
    options: dict[str, Any],
    logged_at: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A wait is logged after its own delay, at the latest at half of its timeout."""
    clock = [0.0]
    monkeypatch.setattr(computing.time, "monotonic", lambda: clock[0])
    patience = Deadline("workers to begin their parts", 100.0, **options)
    caplog.set_level(logging.WARNING, "daskml_dist")
    for second in range(int(logged_at)):
        clock[0] = float(second)
        assert patience.has_time_left("1 of 3")
    assert caplog.messages == []
    clock[0] = logged_at
    assert patience.has_time_left("1 of 3")
    assert caplog.messages == ["waiting for workers to begin their parts (1 of 3; 100 s)."]


@pytest.mark.parametrize(
    ("restarted", "from_pass", "words"),
    [
        (False, 3, "continues, repeating 7 updates"),
        (True, 0, "starts again"),
        (True, 3, "continues from the state saved after pass 3"),
    ],
)
def test_a_fit_with_a_checkpoint_is_not_said_to_restart(
    restarted: bool, from_pass: int, words: str
) -> None:
    event = GenerationEvent(1, "worker u was lost", 7, restarted, 0.1, from_pass)
    assert str(event) == f"generation 1 (worker u was lost): the fit {words}"
