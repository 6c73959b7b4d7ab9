"""Clients of a cluster that gets its workers back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from distributed import Client, LocalCluster

from tests.lost_workers import wait_for_three


@pytest.fixture
def crew_client(crew: LocalCluster, assert_clean: Callable[..., None]) -> Iterator[Client]:
    """A client that finds three workers, and leaves nothing behind."""
    with Client(crew) as client:
        wait_for_three(client)
        yield client
        assert_clean(client)
