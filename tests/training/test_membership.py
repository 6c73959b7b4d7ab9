"""Which workers count as silent, by heartbeats and by what others tell."""

from __future__ import annotations

from typing import Any

import pytest

from daskml_dist.training.client import membership as module
from daskml_dist.training.client.membership import Membership


def test_a_suspicion_shortens_no_lease_of_a_worker_that_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its event loop does nothing else meanwhile, and it has no part that others wait for."""
    now = 100.0
    workers = {a: {"last_seen": 1.0, "nthreads": 1, "status": "running"} for a in ("ours", "new")}
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(module, "list_workers", lambda client: workers)
    client: Any = None
    members = Membership(client, lease=3.0)
    members.note_work_begun("ours")
    members.call()
    now += 1.5
    members.call()
    assert members.find_silent(workers) == []
    members.suspect_silence()
    assert members.find_silent(workers) == ["ours"]
