"""Faults that a stream on a cluster survives: losses during requests, and an interrupt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from daskml_dist.streaming.cluster.steps import StreamActors
from daskml_dist.training.client.run_actors import WorkerUnreachableError

__all__ = ["cut_off_next", "lose_some"]


def lose_some(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Simulate losses at the second and the fourth fetch of the state; record a word per fetch."""
    states, fetches = StreamActors.states, list[str]()

    def lost(crew: StreamActors) -> Any:
        fetches.append("asked")
        if len(fetches) in {2, 4}:
            raise WorkerUnreachableError("", "a test")
        return states(crew)

    monkeypatch.setattr(StreamActors, "states", lost)
    return fetches


def cut_off_next(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Simulate Ctrl-C at the next call of a method of the actors."""
    real: Callable[..., Any] = getattr(StreamActors, method)

    def cut_off(crew: StreamActors) -> Any:
        monkeypatch.setattr(StreamActors, method, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(StreamActors, method, cut_off)
