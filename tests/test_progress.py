"""The progress of a fit, drawn into strings: live in a terminal, lines elsewhere."""

from __future__ import annotations

import copy
import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live

from daskml_dist.diagnostics import Progress

RUN = SimpleNamespace(max_iter=3, policy_name="ssp", n_lanes=4, n_servers=1)
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def _record(number: int, **values: Any) -> dict[str, Any]:
    record = {
        "pass": number,
        "loss": 1 / number,
        "rows": 1_000_000,
        "seconds": 0.5,
        "staleness_mean": 0.25,
        "staleness_max": 3,
        "val_score": None,
    }
    return record | values


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("TERM", "xterm-256color")
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=25)


@pytest.fixture
def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _fit(progress: Progress, run: Any = RUN, passes: int = 2) -> None:
    progress.on_fit_begin(run)
    for number in range(1, passes + 1):
        progress.on_pass_end(run, _record(number))
    progress.on_fit_end(run)


def test_plain_output_is_a_line_for_each_pass_and_a_summary(plain: Console) -> None:
    _fit(Progress(plain))
    first, second, summary = _text(plain).splitlines()
    numbers = "2,000,000 rows/s  staleness 0.25 mean, 3 max"
    assert first.startswith(f"pass 1/3  loss 1  {numbers}  0:")
    assert second.startswith(f"pass 2/3  loss 0.5  {numbers}  0:")
    assert summary.startswith("fit: 2 passes in ")
    assert summary.endswith(" s  loss 0.5  ssp, 4 lanes, 1 server")


def test_plain_output_has_no_control_codes_and_is_ascii(plain: Console) -> None:
    _fit(Progress(plain))
    assert "\x1b" not in _text(plain)
    assert _text(plain).isascii()


def test_verbose_0_leaves_the_summary_alone(plain: Console) -> None:
    progress = Progress(plain, verbose=0)
    progress.on_fit_begin(RUN)
    progress.on_pass_end(RUN, _record(1))
    progress.on_generation(RUN, "a worker left")
    progress.on_fit_end(RUN)
    (summary,) = _text(plain).splitlines()
    assert summary.startswith("fit: 1 pass in ")


def test_numbers_that_are_missing_are_left_out(plain: Console) -> None:
    progress = Progress(plain)
    progress.on_fit_begin(object())
    record = {"seconds": 0.0, "staleness_mean": None, "staleness_max": None, "val_score": 0.875}
    progress.on_pass_end(object(), _record(1, **record))
    progress.on_fit_end(object())
    line, summary = _text(plain).splitlines()
    assert line.startswith("pass 1  loss 1  val score 0.875  0:")
    assert summary.endswith(" s  loss 1  val score 0.875")


def test_max_iter_overrides_that_of_the_run(plain: Console) -> None:
    _fit(Progress(plain, max_iter=7), passes=1)
    assert _text(plain).startswith("pass 1/7")


def test_an_event_is_no_markup(plain: Console) -> None:
    progress = Progress(plain)
    progress.on_generation(RUN, "[red]tcp://[::1]:80[/red] left")
    assert _text(plain) == "generation: [red]tcp://[::1]:80[/red] left\n"


def test_a_terminal_gets_a_live_display_and_one_line_at_the_end(terminal: Console) -> None:
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    assert HIDE_CURSOR in _text(terminal)
    assert "pass 0/3" in _text(terminal)
    assert "ssp, 4 lanes, 1 server" in _text(terminal)
    progress.on_pass_end(RUN, _record(1, val_score=0.875))
    for part in ("pass 1/3", "loss 1", "2,000,000 rows/s", "0.25 mean, 3 max", "val score 0.875"):
        assert part in _text(terminal)
    progress.on_fit_end(RUN)
    rest = _text(terminal).split(SHOW_CURSOR)[-1]
    assert rest.endswith("\n")
    assert "fit: 1 pass in " in rest
    assert rest.count("\n") == 1


def test_a_generation_is_a_line_above_the_live_display(terminal: Console) -> None:
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    smaller = SimpleNamespace(**vars(RUN) | {"n_lanes": 3})
    progress.on_generation(smaller, "a worker left")
    progress.on_fit_end(smaller)
    assert "generation: a worker left\n" in _text(terminal)
    assert "3 lanes" in _text(terminal)


@pytest.mark.parametrize("width", [8, 20, 40])
def test_a_narrow_terminal_is_fine(width: int, terminal: Console) -> None:
    terminal.width = width
    _fit(Progress(terminal))
    assert SHOW_CURSOR in _text(terminal)


def test_a_run_without_max_iter_is_fine(terminal: Console) -> None:
    _fit(Progress(terminal), run=object())
    assert "pass 2" in _text(terminal)


def _assert_quiet(console: Console) -> None:
    text = _text(console)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR)
    assert text.rindex(HIDE_CURSOR) < text.rindex(SHOW_CURSOR)


def test_the_streams_are_given_back(terminal: Console) -> None:
    streams = sys.stdout, sys.stderr
    _fit(Progress(terminal))
    assert (sys.stdout, sys.stderr) == streams
    _assert_quiet(terminal)


def test_a_record_that_cannot_be_shown_stops_the_live_display(terminal: Console) -> None:
    streams = sys.stdout, sys.stderr
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    with pytest.raises((ValueError, TypeError)):
        progress.on_pass_end(RUN, _record(1, loss="low"))
    assert (sys.stdout, sys.stderr) == streams
    _assert_quiet(terminal)


def test_an_event_that_cannot_be_shown_stops_the_live_display(terminal: Console) -> None:
    class Event:
        def __str__(self) -> str:
            raise KeyboardInterrupt

    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    with pytest.raises(KeyboardInterrupt):
        progress.on_generation(RUN, Event())
    _assert_quiet(terminal)


def test_a_new_fit_ends_the_display_of_one_that_died(terminal: Console) -> None:
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    progress.on_pass_end(RUN, _record(2))
    _fit(progress, passes=1)
    _assert_quiet(terminal)
    assert "fit: 1 pass in " in _text(terminal)


def test_lines_are_printed_where_another_live_display_refuses_ours(
    terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(live: Live, refresh: bool = False) -> None:
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(Live, "start", refuse)
    _fit(Progress(terminal))
    assert len(_text(terminal).splitlines()) == 3
    assert HIDE_CURSOR not in _text(terminal)


@pytest.mark.parametrize("installed", [True, False])
def test_a_notebook_needs_ipywidgets_for_the_live_display(
    installed: bool, plain: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed or None)
    monkeypatch.setattr(Live, "start", lambda live, refresh=False: started.append(refresh))
    plain.is_jupyter = True
    Progress(plain).on_fit_begin(RUN)
    assert started == [True] * installed


def test_a_dumb_terminal_gets_lines(terminal: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    _fit(Progress(dumb))
    assert HIDE_CURSOR not in _text(dumb)
    assert _text(dumb).count("\n") == 3


def test_the_default_is_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    _fit(Progress())
    assert "fit: 2 passes in " in capsys.readouterr().out


def test_it_can_be_copied_as_clone_does(plain: Console) -> None:
    progress = copy.deepcopy(Progress(plain, max_iter=5, verbose=0))
    assert (progress.console, progress.max_iter, progress.verbose) == (plain, 5, 0)
