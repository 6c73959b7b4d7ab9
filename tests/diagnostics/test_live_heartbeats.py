"""Per-second reports of trainers, from their counters to the tables of the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from daskml_dist.comm.server_connections import SoloCommunicator
from daskml_dist.diagnostics.live import heartbeats
from daskml_dist.diagnostics.live.fits import RecentFits
from daskml_dist.diagnostics.live.heartbeats import (
    MAX_RATE_SAMPLES,
    HeartbeatHistory,
    make_load_table,
    make_speed_table,
)
from daskml_dist.diagnostics.live.plugin import TrainingPage
from daskml_dist.training.worker import notifications
from daskml_dist.training.worker.notifications import publish_facts
from daskml_dist.training.worker.trainer import TrainerFacts

COLOURS = {"u": "red", "v": "blue"}


def _make_report(
    worker: str, steps: dict[int, int], sockets: int = 0, clock: float = 0.0, **more: Any
) -> dict[str, Any]:
    whole = {"run": "a", "worker": worker, "steps": list(steps.items()), "rows_here": 10}
    whole |= {"traffic": {"sockets": sockets}, "rows_streamed": 5, "memory": 2e9, "spilled": 0}
    return whole | {"clock": clock, "every": 1.0} | more


def test_counts_become_rates() -> None:
    found = HeartbeatHistory()
    for at, u, v in ((1.0, 10, 10), (2.0, 30, 20), (4.0, 130, 20)):
        found.record(at, _make_report("u", {0: u}, 1_000_000 * u, clock=at))
        found.record(at, _make_report("v", {1: v, heartbeats.MAX_SPEED_LANES: v}, clock=100.0 + at))
    # Worker v is lost: u continues with both lanes, counting from 0 in the new generation.
    found.forget_others(["u"])
    found.record(5.0, _make_report("u", {0: 5, 1: 5}, 3_000_000, clock=5.0))
    found.record(6.0, _make_report("u", {0: 12, 1: 9}, 4_000_000, clock=6.0))
    assert found.record(7.0, _make_report("u", {0: 12, 1: 9}, 4_000_000, clock=7.0))
    lines = make_speed_table(found, COLOURS)
    assert list(zip(*lines.values(), strict=True)) == [
        ([2.0, 4.0, 6.0], [20.0, 50.0, 7.0], 0, "u", "red"),
        ([2.0, 4.0], [10.0, 0.0], 1, "v", "blue"),
        ([6.0], [4.0], 1, "u", "red"),
    ]
    load = make_load_table(found)
    assert load["seconds"] == [1.0, 2.0, 4.0, 5.0, 6.0]
    assert load["sockets"] == [0.0, 20.0, 50.0, 3.0, 1.0]
    assert (load["rows_in_memory"], load["gb_in_memory"]) == ([20, 20, 20, 10, 10], [4, 4, 4, 2, 2])


def test_reports_that_arrive_together_cause_no_spike() -> None:
    """Rates use the workers' clocks, however late their reports are."""
    found = HeartbeatHistory()
    arrival_times = {1: 1.0, 2: 2.001, 3: 5.0, 4: 5.0001, 5: 5.0002, 6: 6.0}
    for clock, at in arrival_times.items():
        found.record(at, _make_report("u", {0: 100 * clock}, 1_000_000 * clock, clock=50.0 + clock))
    (line,) = make_speed_table(found, COLOURS)["speed"]
    assert line == [100.0] * 4
    load = make_load_table(found)
    assert load["sockets"] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert load["seconds"] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_sums_do_not_drop_if_a_report_is_late() -> None:
    found = HeartbeatHistory()
    # v's third report arrives only after u's fourth, together with its next one.
    for worker, clock, at in (
        *(("u", 1.0, 1.0), ("v", 1.2, 1.2), ("u", 2.0, 2.0), ("v", 2.2, 2.2), ("u", 3.0, 3.0)),
        *(("u", 4.0, 4.0), ("v", 3.2, 4.1), ("v", 4.2, 4.1), ("u", 5.0, 5.0), ("v", 5.2, 5.2)),
    ):
        steps = {"u": {0: int(10 * clock)}, "v": {1: int(10 * clock)}}[worker]
        found.record(at, _make_report(worker, steps, int(1e6 * clock), clock=clock))
    load = make_load_table(found)
    assert load["seconds"] == sorted(set(load["seconds"]))
    assert set(load["rows_in_memory"]) == {20}
    assert set(load["gb_in_memory"]) == {4.0}
    assert load["sockets"][1:] == pytest.approx([2.0] * (len(load["sockets"]) - 1))
    for line in make_speed_table(found, COLOURS)["speed"]:
        assert line == pytest.approx([10.0] * len(line))


def test_a_long_silent_worker_is_not_counted() -> None:
    found = HeartbeatHistory()
    for worker, at in (("v", 1.0), *(("u", float(at)) for at in range(1, 7))):
        found.record(at, _make_report(worker, {0: 0}, clock=at))
    assert make_load_table(found)["rows_in_memory"] == [20, 20, 20, 10, 10]


def test_the_number_of_kept_reports_is_bounded() -> None:
    found = HeartbeatHistory()
    for at in range(2 * MAX_RATE_SAMPLES + 1):
        found.record(float(at), _make_report("u", {}, clock=float(at)))
    times = make_load_table(found)["seconds"]
    assert len(times) <= MAX_RATE_SAMPLES
    assert times[0] == 0.0
    assert times[-1] == 2 * MAX_RATE_SAMPLES - 1
    assert not any(make_load_table(None).values())
    assert not any(make_speed_table(None, {}).values())


def test_the_scheduler_assigns_reports_to_fits(caplog: pytest.LogCaptureFixture) -> None:
    assert heartbeats.HEARTBEAT_TOPIC == notifications.HEARTBEAT_TOPIC
    page = TrainingPage()
    page.fits = fits = RecentFits()
    names = ("estimator", "policy", "client")
    begin = dict.fromkeys(names, "") | dict.fromkeys(("max_iter", "n_lanes", "n_servers"), 1)
    fits.take([begin | {"fit": "a", "kind": "begin", "at": 0.0, "began": 0.0}])
    fits.take([{"fit": "a", "kind": "part", "at": 1.0, "run": "b"}])
    for run in ("a", "b", "unknown"):
        page.log_event(notifications.HEARTBEAT_TOPIC, _make_report("u", {0: 1}, run=run))
    page.log_event("another", None)
    (fit,) = fits.all()
    assert len(fit.heartbeats.samples) == 1
    caplog.set_level("DEBUG")
    page.log_event(notifications.HEARTBEAT_TOPIC, {"run": "a"})
    assert "cannot be read" in caplog.text
    fits.take([{"fit": "a", "kind": "end", "at": 2.0, "how": "ended"}])
    page.log_event(notifications.HEARTBEAT_TOPIC, _make_report("u", {0: 1}))
    assert len(fit.heartbeats.samples) == 1


def test_a_worker_reports_while_it_has_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "measure_memory", lambda worker: (7, 3))
    later: list[Callable[[], None]] = []
    messages: list[Any] = []

    def log_event(topic: str, message: Any) -> None:
        messages.append(json.loads(json.dumps(message)))  # required by Dask

    loop = SimpleNamespace(
        call_later=lambda seconds, call: later.append(call),
        add_callback=lambda function, *args: function(*args),
    )
    worker = SimpleNamespace(address="u", loop=loop, log_event=log_event)
    facts = TrainerFacts({0: 4}, {"sockets": 2}, 10, 0)
    with publish_facts(worker, "a", 2, lambda: facts):
        with publish_facts(worker, "a", 2, lambda: TrainerFacts({1: 5}, {"sockets": 3}, 0, 20)):
            later.pop()()
        later.pop()()
    later.pop()()
    assert not later
    assert [message["steps"] for message in messages] == [[[0, 4], [1, 5]], [[0, 4]]]
    first = {key: messages[0][key] for key in ("traffic", "rows_here", "rows_streamed", "memory")}
    assert first == {"traffic": {"sockets": 5}, "rows_here": 10, "rows_streamed": 20, "memory": 7}
    assert SoloCommunicator().traffic == {"one process": 0}
