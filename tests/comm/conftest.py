"""Ranks of a communicator, each in a separate thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from daskml_dist.comm.base import WaitBound
from tests.comm.ranks import PATIENCE, Ranks, host_number


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    """Return a function that makes a communicator, given hosts and which ranks share memory."""
    started: list[Ranks] = []
    monkeypatch.setattr("daskml_dist.comm.choosing_communicators.identify_machine", host_number)

    def make(
        *allowed: bool, wait: WaitBound | None = None, hosts: list[int] | None = None
    ) -> Ranks:
        started.append(Ranks(list(allowed), wait or WaitBound(PATIENCE), hosts))
        return started[-1]

    yield make
    for some in started:
        some.close()
