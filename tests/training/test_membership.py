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
    for clock in ("monotonic", "time"):
        monkeypatch.setattr(module.time, clock, lambda: now)
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


def test_clocks_that_were_set_back_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's by its heartbeats, the client's beside one that nobody sets; no other."""
    now, wall, renewed = 100.0, 5_000.0, []
    workers = {"ours": {"last_seen": 1.0, "nthreads": 1, "status": "running"}}
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(module.time, "time", lambda: wall)
    monkeypatch.setattr(module, "list_workers", lambda client: workers)
    for name in ("renew_client_timers", "renew_scheduler_timers"):
        monkeypatch.setattr(module, name, lambda client, name=name: renewed.append(name))
    client: Any = None
    members = Membership(client)
    for beat, ahead in [(1.0, 0.0), (1.5, 0.5), (1.4, 0.4), (3_601.4, 3_600.4)]:
        now, wall, workers["ours"]["last_seen"] = now + 0.5, 5_000.0 + ahead, beat
        members.call()
    assert renewed == []  # a clock that is put forward, or corrected a little
    wall -= 3_600
    members.call()
    assert renewed == ["renew_client_timers"]
    workers["ours"]["last_seen"] = 5.0
    members.call()
    assert renewed == ["renew_client_timers", "renew_scheduler_timers"]
    members.call()
    assert len(renewed) == 2
