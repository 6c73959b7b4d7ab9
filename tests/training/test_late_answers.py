"""Answers that a trainer in lock-step takes late: in which order, and where a fit then ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.training.worker.loops.replicas import DelayedAnswers


class Ledger:
    """Connection to a ledger that is told to stop in pass `stops`; it notes what it hears."""

    def __init__(self, stops: int | None = None) -> None:
        self.heard: list[str] = []
        self._open: dict[str, bool] | None = None
        self._stops = stops

    def ask(self, op: str, **payload: Any) -> None:
        assert self._open is None, "an answer was not taken"
        number = payload.get("pass", 0)
        self.heard.append(f"{op} {number or payload['clock']}")
        self._open = {"stop": bool(number and self._stops and number >= self._stops)}

    def answer(self) -> dict[str, bool]:
        assert self._open is not None, "nothing was asked"
        answer, self._open = self._open, None
        self.heard.append("answer")
        return answer


def _answers(ledger: Any, tol: float | None = None, alone: bool = False) -> DelayedAnswers:
    def send(connection: Ledger, number: int, lanes: Any, weights: Any) -> None:
        connection.ask("report", **{"pass": number})

    work = SimpleNamespace(lockstep=True, stopping=PassStoppingRule(5, tol))
    context: Any = SimpleNamespace(
        fit=SimpleNamespace(work=work), lanes=[], is_alone=alone, send_pass_report=send,
        end_pass=lambda: ledger.heard.append("turn"),
    )  # fmt: skip
    return DelayedAnswers(context, ledger)


def _passes(answers: DelayedAnswers) -> int:
    """Passes up to the end of the fit."""
    return next(n for n in range(1, 7) if answers.report(n, [], lambda: None))


def test_an_answer_is_taken_before_the_next_word() -> None:
    ledger = Ledger()
    answers = _answers(ledger)
    assert not answers.report(1, [], lambda: None)
    answers.store(10, {})
    assert not answers.report(2, [], lambda: None)
    assert ledger.heard == ["report 1", "answer", "store 10", "answer", "report 2"]


@pytest.mark.parametrize("stops", [None, 1, 3, 4])
def test_a_fit_that_is_told_to_stop_makes_the_pass_that_it_has_begun(stops: int | None) -> None:
    ledger = Ledger(stops)
    assert _passes(_answers(ledger)) == (5 if stops is None else stops + 1)
    assert ledger.heard[-2:] == ["answer", "turn"]


@pytest.mark.parametrize("options", [{"tol": 1e-3}, {"alone": True}], ids=str)
def test_an_answer_that_may_end_the_fit_is_waited_for(options: dict[str, Any]) -> None:
    ledger = Ledger(stops=3)
    assert _passes(_answers(ledger, **options)) == 3
    heard = [(f"report {n}", "answer", "turn") for n in (1, 2, 3)]
    assert ledger.heard == [word for words in heard for word in words]
