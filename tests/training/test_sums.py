"""Reduce requests of round solvers: when they are reported, and which results are remembered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.training.worker.loops import rounds
from daskml_dist.training.worker.loops.rounds import SumLog, SumReports

CANCER = (scale(load_breast_cancer().data), load_breast_cancer().target)


class _Ledger:
    """Connection that records reports and replies "stop" from a given sum on."""

    def __init__(self, last: int = 1000) -> None:
        self.calls: list[tuple[int, list[list[float]]]] = []
        self._last = last

    def call(self, op: str, *, first: int, sums: list[list[float]]) -> dict[str, Any]:
        assert op == "report_sums"
        self.calls.append((first, [list(each) for each in sums]))
        return {"stop": first + len(sums) > self._last}


def _reports(ledger: _Ledger, size: int) -> SumReports:
    context: Any = SimpleNamespace(communicator=SimpleNamespace(size=size))
    connection: Any = ledger
    return SumReports(context, connection)


def test_a_single_trainer_reports_each_sum_immediately() -> None:
    ledger = _Ledger(last=2)
    reports = _reports(ledger, 1)
    for n in range(1, 4):
        reports.add(np.full(4, float(n)))
        assert [first for first, _ in ledger.calls] == list(range(1, n + 1))
        assert reports.should_stop == (n >= 2)
    reports.send()
    assert len(ledger.calls) == 3


def test_sums_are_reported_in_batches_if_other_trainers_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "REPORT_INTERVAL_SECONDS", 1e6)
    ledger = _Ledger(last=2)
    reports = _reports(ledger, 2)
    for n in range(1, 51):
        reports.add(np.full(4, float(n)))
    assert len(ledger.calls) == 1  # the first pass is reported immediately, for progress bars
    assert not reports.should_stop
    reports.send()
    (_, (one,)), (first, rest) = ledger.calls
    assert (one[:4], first, len(rest)) == ([1.0] * 4, 2, 49)
    assert [sums[:4] for sums in rest] == [[float(n)] * 4 for n in range(2, 51)]
    ages = [sums[4] for sums in rest]
    assert ages == sorted(ages, reverse=True)
    assert reports.should_stop
    monkeypatch.setattr(rounds, "REPORT_INTERVAL_SECONDS", 0.0)
    eager = _reports(ledger, 2)
    for n in range(3):
        eager.add(np.full(4, float(n)))
    assert len(ledger.calls) == 5


def test_remembered_sums_are_not_changed_by_their_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_REMEMBERED_BYTES", 3 * 8 * 200_000)
    log = SumLog(10)
    arrays = []
    for number, n in enumerate((6, 200_000, 200_000, 7), 1):
        values = log.allocate(n)
        values[:] = number
        log.add(number, values)
        arrays.append(values)
    for number, values in enumerate(arrays, 1):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 7
        assert (values == number).all()  # no two share memory
        assert log.get(number) is values
    other = SumLog(10)
    other.replace_by(log.packed())
    assert (other.get(2) == 2).all()
    for number in (5, 6):
        log.add(number, log.allocate(200_000))
        assert not log.is_whole
        assert log.get(1) is None


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_callback_stops_a_round_solver_on_a_cluster(client: Client) -> None:
    X, y = (da.from_array(part, chunks=(100, -1)[: part.ndim]) for part in CANCER)

    class Stop:
        def on_pass_end(self, run: Any, record: Any) -> None:
            if record["pass"] == 3:
                run.stop()

    clf = LogisticRegression(tol=0, max_iter=10**6, C=1e6, callbacks=[Stop()]).fit(X, y)
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, len(records) + 1))
    assert {record["rows"] for record in records} == {len(CANCER[1])}
    assert all(record["bytes_pushed"] > 0 for record in records)
    assert 3 <= len(records) < 10_000
