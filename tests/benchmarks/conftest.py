"""The tests' cluster, used for benchmarks."""

from __future__ import annotations

import pytest
from distributed import LocalCluster

from benchmarks import _common


@pytest.fixture
def shared(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks use the tests' cluster, whatever size they request."""
    sizes = [(1, 1), (2, 1), (2, 4), (1, 2)]
    monkeypatch.setattr(_common, "_kept", dict.fromkeys(sizes, cluster))
