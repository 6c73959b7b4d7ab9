"""Deferred replies to a lock-step trainer: their order, and the pass in which the fit stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.training.client.cluster_run import PassRecords
from daskml_dist.training.worker.loops.replicas import DelayedAnswers


class Ledger:
    """Connection to a ledger that stops the fit in pass `stops`; records all calls."""

    def __init__(self, stops: int | None = None, slow: str = "") -> None:
        self.events: list[str] = []
        self._open: dict[str, dict[str, bool]] = {}
        self._stops = stops
        #: Calls that are answered last, however early they were sent.
        self._slow = slow

    def send_call(self, op: str, **payload: Any) -> None:
        assert op not in self._open, "an answer was not taken"
        number = payload.get("pass", 0)
        self.events.append(f"{op} {number or payload['clock']}")
        stop = {"stop": bool(self._stops and number >= self._stops)}
        self._open[op] = stop if op == "report" else {}

    def answer(self) -> dict[str, bool]:
        assert self._open, "nothing was asked"
        op = min(self._open, key=lambda each: each == self._slow)
        self.events.append(f"{op} answered")
        return self._open.pop(op)


def _answers(ledger: Any, tol: float | None = None, alone: bool = False) -> DelayedAnswers:
    def send(connection: Ledger, number: int, lanes: Any, weights: Any) -> None:
        connection.send_call("report", **{"pass": number})

    work = SimpleNamespace(lockstep=True, stopping=PassStoppingRule(5, tol))
    context: Any = SimpleNamespace(
        fit=SimpleNamespace(work=work), lanes=[], is_alone=alone, send_pass_report=send,
        end_pass=lambda: ledger.events.append("turn"),
    )  # fmt: skip
    return DelayedAnswers(context, ledger)


def _passes(answers: DelayedAnswers) -> int:
    """Return the number of passes up to the end of the fit."""
    return next(n for n in range(1, 7) if answers.report(n, [], lambda: None))


def test_reports_and_snapshots_wait_only_for_their_own_replies() -> None:
    ledger = Ledger(slow="store")
    answers = _answers(ledger)
    assert not answers.report(1, [], lambda: None)
    answers.store(10, {})
    assert not answers.report(2, [], lambda: None)
    answers.store(20, {})
    assert ledger.events == [
        *("report 1", "store 10", "report answered", "report 2"),
        *("report answered", "store answered", "store 20"),
    ]


@pytest.mark.parametrize("slow", ["report", "store"])
def test_all_replies_are_received_by_the_end(slow: str) -> None:
    ledger = Ledger(stops=1, slow=slow)
    answers = _answers(ledger, tol=1e-3)
    answers.store(10, {})
    assert answers.report(1, [], lambda: None)
    assert sorted(ledger.events[2:4]) == ["report answered", "store answered"]


@pytest.mark.parametrize("stops", [None, 1, 3, 4])
def test_a_stopped_fit_completes_the_pass_in_progress(stops: int | None) -> None:
    ledger = Ledger(stops)
    assert _passes(_answers(ledger)) == (5 if stops is None else stops + 1)
    assert ledger.events[-2:] == ["report answered", "turn"]


@pytest.mark.parametrize("options", [{"tol": 1e-3}, {"alone": True}], ids=str)
def test_a_reply_that_may_stop_the_fit_is_waited_for(options: dict[str, Any]) -> None:
    ledger = Ledger(stops=3)
    assert _passes(_answers(ledger, **options)) == 3
    events = [(f"report {n}", "report answered", "turn") for n in (1, 2, 3)]
    assert ledger.events == [word for words in events for word in words]


def test_a_reported_record_is_completed_at_the_end_of_the_fit() -> None:
    """Bytes of the lanes' last mean; a repeated pass has another time and is reported again."""
    records: list[Any] = []
    view: Any = SimpleNamespace(n_passes=0)
    callbacks: Any = SimpleNamespace(on_pass_end=lambda view, record: records.append(record))
    passes = PassRecords(view)
    for number in (1, 2):
        passes.report({"pass": number, "seconds": 0.5, "bytes_pushed": 3}, callbacks)
    final = [{"pass": n, "seconds": 0.5, "bytes_pushed": 3 * n} for n in (1, 2)]
    passes.forget_repeated_passes(final)
    assert records == final
    passes.forget_repeated_passes([final[0], {"pass": 2, "seconds": 0.7, "bytes_pushed": 1}])
    assert (passes.n_passes, view.n_passes, records) == (1, 1, final)
