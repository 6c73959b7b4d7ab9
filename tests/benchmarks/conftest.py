"""The tests' cluster for benchmarks."""

from __future__ import annotations

import pytest
from distributed import LocalCluster

from benchmarks import _common


@pytest.fixture
def shared(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks take the tests' cluster for theirs, whatever size they ask for."""
    sizes = [(1, 1), (2, 1), (2, 4), (1, 2)]
    monkeypatch.setattr(_common, "_kept", dict.fromkeys(sizes, cluster))
