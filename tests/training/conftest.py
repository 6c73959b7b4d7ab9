"""Clients of a cluster whose lost workers are replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from distributed import Client, LocalCluster

from tests.lost_workers import wait_for_three


@pytest.fixture
def crew_client(crew: LocalCluster, assert_clean: Callable[..., None]) -> Iterator[Client]:
    """Return a client that finds three workers; fail the test if it leaves anything behind."""
    with Client(crew) as client:
        wait_for_three(client)
        yield client
        assert_clean(client)
