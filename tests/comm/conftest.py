"""Ranks of a communicator, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from daskml_dist.comm.base import WaitBound
from tests.comm.ranks import PATIENCE, Ranks, host_number


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    """Makes the communicator of some ranks: who may share memory, and on which host each is."""
    made: list[Ranks] = []
    monkeypatch.setattr("daskml_dist.comm.choosing_communicators.identify_machine", host_number)

    def make(
        *allowed: bool, wait: WaitBound | None = None, hosts: list[int] | None = None
    ) -> Ranks:
        made.append(Ranks(list(allowed), wait or WaitBound(PATIENCE), hosts))
        return made[-1]

    yield make
    for some in made:
        some.close()
