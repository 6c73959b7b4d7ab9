"""Display of a fit's phases in terminals, logs and notebooks, and its timing."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from daskml_dist.diagnostics import display
from daskml_dist.diagnostics.progress import Progress
from daskml_dist.diagnostics.status import Status

RUN = SimpleNamespace(max_iter=3, policy_name="ssp", n_lanes=4, n_servers=1)
RECORD = {
    "pass": 1, "loss": 1.0, "rows": 4, "seconds": 2.0, "staleness_mean": 0.0, "staleness_max": 0,
    "val_score": None,
}  # fmt: skip


class Timers:
    """Timers that the test fires."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: Callable[[], None] = lambda: None

    def __call__(self, seconds: float, function: Any, args: tuple[Any, ...]) -> Any:
        self.seconds.append(seconds)
        self._last = lambda: function(*args)
        return SimpleNamespace(start=lambda: None, cancel=lambda: None, daemon=False)

    def ring(self) -> None:
        self._last()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(display, "Timer", timers)
    return timers


@pytest.fixture
def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40, _environ={})


def _lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.split("  ")[0] for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        (("waiting for workers", 0, None), "waiting for workers"),
        (("reading", 12, 40), "reading 12/40 blocks"),
        (("reading", 0, 1), "reading 0/1 block"),
        (("finding a learning rate", 0, None), "finding a learning rate"),
        (("training", 0, None), "pass 0/20"),
    ],
)
def test_each_phase_has_its_text(phase: tuple[str, int, int | None], shown: str) -> None:
    status = Status(20)
    status.enter(*phase)
    assert status.position() == shown
    status.add(RECORD)
    assert status.position() == "pass 1/20"
    assert status.metrics().endswith("  ETA <= 0:00:38")


def test_no_remaining_time_is_shown_for_a_distant_bound() -> None:
    """A solver's bound counts every line search that could fail, far more than it makes."""
    status = Status(15_050)
    for number, is_shown in ((1, False), (150, False), (151, True)):
        status.add(RECORD | {"pass": number})
        assert ("ETA" in status.metrics()) is is_shown


@pytest.mark.parametrize(("verbose", "seconds", "passes"), [(1, 5.0, ["pass 1/3"]), (2, 1.0, [])])
def test_a_log_gets_lines_about_a_long_phase_less_and_less_often(
    plain: Console, timers: Timers, verbose: int, seconds: float, passes: list[str]
) -> None:
    progress = Progress(plain, verbose=verbose)
    progress.on_phase("reading", 0, 40)
    early = timers._last
    progress.on_phase("reading", 12, 40)
    timers.ring()
    progress.on_phase("reading", 13, 40)
    timers.ring()
    progress.on_phase("placing", 0, None)
    early()  # its thread had already started
    progress.on_fit_begin(RUN)
    progress.on_phase("training", 0, None)
    progress.on_pass_end(RUN, RECORD)
    timers.ring()  # a log with a line for each pass needs no further lines
    progress.on_fit_end(RUN)
    timers.ring()
    progress.on_phase("end", 0, None)
    each = ["ssp, 4 lanes, 1 server: fit begins, at most 3 passes", "pass 1/3"]
    shown = _lines(plain)
    assert shown[:2] == ["reading 12/40 blocks", "reading 13/40 blocks"]
    assert shown[2:-1] == (each if verbose == 2 else passes)
    assert shown[-1].startswith("ssp, 4 lanes, 1 server: 1 pass in ")
    assert timers.seconds[:4] == [seconds, 2 * seconds, 4 * seconds, seconds]


def test_phases_of_hours_are_logged_every_ten_minutes(plain: Console, timers: Timers) -> None:
    progress = Progress(plain)
    progress.on_phase("reading", 0, 40)
    for _ in range(10):
        timers.ring()
    assert timers.seconds[-2:] == [600.0, 600.0]
    progress.on_phase("end", 0, None)


def test_a_fit_that_fails_before_its_start_restores_the_terminal() -> None:
    terminal = Console(
        file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "xterm-256color"}
    )
    progress = Progress(terminal)
    progress.on_phase("reading", 3, 40)
    progress.on_phase("end", 0, None)
    assert isinstance(terminal.file, io.StringIO)
    live, summary = terminal.file.getvalue().rsplit("\x1b[?25h", 1)
    assert "reading 3/40 blocks" in live
    assert "last: reading 3/40 blocks" in summary
    progress.on_phase("end", 0, None)
    assert terminal.file.getvalue().endswith(summary)


def test_lines_of_passes_are_plain_in_a_terminal_too(timers: Timers) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    progress = Progress(terminal, verbose=2)
    progress.on_fit_begin(RUN)
    progress.on_pass_end(RUN, RECORD)
    progress.on_fit_end(RUN)
    assert [line[:8] for line in _lines(terminal)] == ["ssp, 4 l", "pass 1/3", "ssp, 4 l"]
    assert isinstance(terminal.file, io.StringIO)
    assert "\x1b" not in terminal.file.getvalue()


def test_a_notebook_shows_each_phase(plain: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    handle = SimpleNamespace(update=shown.append)
    module = SimpleNamespace(display=lambda first, display_id: shown.append(first) or handle)
    monkeypatch.setattr(importlib, "import_module", {"IPython.display": module}.__getitem__)
    plain.is_jupyter = True
    progress = Progress(plain)
    for phase in ("reading", "placing", "end"):
        progress.on_phase(phase, 0, None)
    plain.is_jupyter = False
    with plain.capture() as captured:
        for one in shown:
            plain.print(one)
    reading, placing, summary = captured.get().splitlines()[-3:]
    assert reading.startswith("reading")
    assert placing.startswith("placing")
    assert summary.startswith("no pass in ")
