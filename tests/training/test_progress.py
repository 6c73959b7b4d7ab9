"""Progress display of a fit, rendered into strings: live in a terminal, lines elsewhere."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live

from daskml_dist import cluster, decomposition, ensemble, linear_model, neural_network, tree
from daskml_dist.callbacks.base import find_fit_facts
from daskml_dist.diagnostics.progress import Progress
from daskml_dist.errors import InvalidParameterError

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
def terminal() -> Console:
    environment = {"TERM": "xterm-256color"}
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=120, height=25, _environ=environment)


@pytest.fixture
def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40, _environ={})


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _fit(progress: Progress, run: Any = RUN, passes: int = 2) -> None:
    progress.on_fit_begin(run)
    for number in range(1, passes + 1):
        progress.on_pass_end(run, _record(number))
    progress.on_fit_end(run)


def _assert_cursor_restored(console: Console) -> None:
    """Assert that the cursor is visible again after the last live display."""
    text = _text(console)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) > 0
    assert text.rindex(HIDE_CURSOR) < text.rindex(SHOW_CURSOR)


def test_plain_output_is_a_line_for_each_pass_and_a_summary(plain: Console) -> None:
    _fit(Progress(plain, verbose=2))
    opening, first, second, summary = _text(plain).splitlines()
    numbers = "2M rows/s  staleness 0.25 (max 3)"
    assert first.endswith("  ETA <= 0:00:01")  # two passes of half a second
    assert opening == "ssp, 4 lanes, 1 server: fit begins, at most 3 passes"
    assert first.startswith(f"pass 1/3  loss 1  {numbers}  0:")
    assert second.startswith(f"pass 2/3  loss 0.5  {numbers}  0:")
    assert summary.startswith("ssp, 4 lanes, 1 server: 2 passes in ")
    assert summary.endswith(" s, loss 0.5, 2M rows/s")


def test_plain_output_has_no_control_codes_and_is_ascii(plain: Console) -> None:
    _fit(Progress(plain, verbose=2))
    assert "\x1b" not in _text(plain)
    assert _text(plain).isascii()


def test_the_validation_score_is_shown_where_there_is_one(plain: Console) -> None:
    progress = Progress(plain, verbose=2)
    progress.on_fit_begin(RUN)
    progress.on_pass_end(RUN, _record(1))
    progress.on_pass_end(RUN, _record(2, val_score=0.875))
    progress.on_fit_end(RUN)
    _, without, with_score, summary = _text(plain).splitlines()
    assert "val score" not in without
    assert "val score 0.875" in with_score
    assert summary.endswith("val score 0.875")


@pytest.mark.parametrize(
    ("rows", "seconds", "shown"),
    [
        (5, 1.0, "5 rows/s"),
        (999_600, 1000.0, "1k rows/s"),
        (1_500_000, 1.0, "1.5M rows/s"),
        (10**12, 1.0, "1e+03G rows/s"),
        (10, 0.0, "- rows/s"),
    ],
)
def test_rows_per_second_are_shown_with_a_unit(
    plain: Console, rows: int, seconds: float, shown: str
) -> None:
    progress = Progress(plain, verbose=2)
    progress.on_fit_begin(RUN)
    progress.on_pass_end(RUN, _record(1, rows=rows, seconds=seconds))
    assert f"  {shown}  " in _text(plain)


def test_max_iter_of_the_callback_overrides_that_of_the_run(plain: Console) -> None:
    _fit(Progress(plain, max_iter=7, verbose=2))
    assert "pass 1/7" in _text(plain)


def test_the_planned_number_of_passes_may_be_unknown(plain: Console) -> None:
    _fit(Progress(plain, verbose=2), run=SimpleNamespace(**vars(RUN) | {"max_iter": None}))
    opening, first, *_ = _text(plain).splitlines()
    assert opening.endswith("fit begins")
    assert first.startswith("pass 1  ")


# The number of passes is planned if the user limits it: for steps and for trees.
PLANNED = {
    "SGDClassifier": (linear_model.SGDClassifier(max_iter=2, tol=None), 2),
    "MLPClassifier": (neural_network.MLPClassifier((2,), solver="sgd", max_iter=2, tol=0.0), 2),
    "RandomForestClassifier": (ensemble.RandomForestClassifier(3), 3),
    "DecisionTreeClassifier": (tree.DecisionTreeClassifier(), 1),
    "HistGradientBoostingClassifier": (ensemble.HistGradientBoostingClassifier(max_iter=3), 3),
    "MLPClassifier by a solver": (
        neural_network.MLPClassifier((2,), solver="lbfgs", alpha=1.0, max_iter=500),
        None,
    ),
    "LogisticRegression": (linear_model.LogisticRegression(), None),
    "Ridge": (linear_model.Ridge(), None),
    "Lasso": (linear_model.Lasso(alpha=0.1), None),
    "KMeans": (cluster.KMeans(2, random_state=0), None),
    "PCA": (decomposition.PCA(1), None),
}


@pytest.mark.parametrize("name", PLANNED)
def test_max_iter_of_a_solver_is_not_shown_as_planned(name: str, plain: Console) -> None:
    facts: list[dict[str, Any]] = []

    class Tell:
        def on_fit_begin(self, run: Any) -> None:
            assert run.max_iter == planned
            facts.append(find_fit_facts(run))

    model, planned = PLANNED[name]
    X = np.random.default_rng(0).normal(size=(60, 3))
    callbacks = [Tell(), Progress(plain, verbose=2)]
    if "callbacks" not in model.get_params():
        model.callbacks = callbacks
    else:
        model.set_params(callbacks=callbacks)
    model.fit(X, (X[:, 0] > 0).astype(float))
    whole = "" if planned is None else f"/{planned}"
    assert f"\npass 1{whole}  " in _text(plain)
    assert ("ETA" in _text(plain)) == (planned is not None and planned > 1)
    assert facts[0].get("max_iter") == planned


@pytest.mark.parametrize(
    ("wrong", "remedy"), [({"max_iter": 0}, "at least 1, or None"), ({"verbose": "yes"}, "0 for")]
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any], remedy: str) -> None:
    with pytest.raises(InvalidParameterError, match=remedy):
        Progress(**wrong)


def test_an_event_is_printed_as_a_line_without_markup(plain: Console) -> None:
    progress = Progress(plain)
    progress.on_fit_begin(RUN)
    progress.on_generation(RUN, "[red]tcp://[::1]:80[/red] left")
    assert _text(plain).splitlines()[-1] == "membership changed: [red]tcp://[::1]:80[/red] left"


def test_a_fit_that_failed_before_a_pass_has_a_summary(plain: Console) -> None:
    _fit(Progress(plain), passes=0)
    assert "0 passes in " in _text(plain).splitlines()[-1]


def test_a_second_on_fit_end_prints_nothing(plain: Console) -> None:
    progress = Progress(plain)
    _fit(progress)
    before = _text(plain)
    progress.on_fit_end(RUN)
    assert _text(plain) == before


def test_hooks_outside_a_fit_print_nothing(plain: Console) -> None:
    progress = Progress(plain)
    progress.on_pass_end(RUN, _record(1))
    progress.on_generation(RUN, "a worker left")
    progress.on_fit_end(RUN)
    assert _text(plain) == ""


def test_a_terminal_gets_a_live_line_and_a_summary_in_its_place(terminal: Console) -> None:
    streams = sys.stdout, sys.stderr
    _fit(Progress(terminal))
    live, summary = _text(terminal).rsplit(SHOW_CURSOR, 1)
    for part in ("pass 2/3", "loss 0.5", "2M rows/s", "staleness 0.25 (max 3)"):
        assert part in live
    assert "ssp, 4 lanes, 1 server: 2 passes in " in summary
    assert summary.count("\n") == 1
    assert (sys.stdout, sys.stderr) == streams
    _assert_cursor_restored(terminal)


def test_an_event_is_a_line_above_the_live_one(terminal: Console) -> None:
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    progress.on_generation(RUN, "a worker left")
    progress.on_fit_end(RUN)
    assert "membership changed: a worker left\n" in _text(terminal).rsplit(SHOW_CURSOR, 1)[0]


@pytest.mark.parametrize("width", [8, 20, 40])
def test_a_narrow_terminal_is_supported(width: int, terminal: Console) -> None:
    terminal.width = width
    _fit(Progress(terminal))
    _assert_cursor_restored(terminal)


def test_an_event_that_cannot_be_shown_leaves_no_live_display(terminal: Console) -> None:
    class Event:
        def __str__(self) -> str:
            raise KeyboardInterrupt

    streams = sys.stdout, sys.stderr
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    with pytest.raises(KeyboardInterrupt):
        progress.on_generation(RUN, Event())
    progress.on_fit_end(RUN)  # as CallbackList does after any error
    assert (sys.stdout, sys.stderr) == streams
    _assert_cursor_restored(terminal)


def test_a_record_that_cannot_be_shown_leaves_no_live_display(terminal: Console) -> None:
    streams = sys.stdout, sys.stderr
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    with pytest.raises(KeyError):
        progress.on_pass_end(RUN, {})
    progress.on_fit_end(RUN)
    assert (sys.stdout, sys.stderr) == streams
    _assert_cursor_restored(terminal)


def test_a_new_fit_ends_the_display_of_an_unfinished_one(terminal: Console) -> None:
    progress = Progress(terminal)
    progress.on_fit_begin(RUN)
    _fit(progress, passes=1)
    _assert_cursor_restored(terminal)
    assert "1 pass in " in _text(terminal)


def test_a_line_is_printed_where_another_live_display_refuses_ours(
    terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(live: Live, refresh: bool = False) -> None:
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(Live, "start", refuse)
    _fit(Progress(terminal))
    assert len(_text(terminal).splitlines()) == 1
    assert HIDE_CURSOR not in _text(terminal)


def test_a_dumb_terminal_gets_a_line() -> None:
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    _fit(Progress(dumb))
    assert HIDE_CURSOR not in _text(dumb)
    assert _text(dumb).count("\n") == 1


class Handle:
    """Stand-in for the handle that IPython's display returns."""

    def __init__(self, first: Any) -> None:
        self.shown = [first]

    def update(self, renderable: Any) -> None:
        self.shown.append(renderable)


def test_a_notebook_gets_an_output_rewritten_in_place(
    plain: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[Handle] = []

    def display(renderable: Any, display_id: bool) -> Handle:
        handles.append(Handle(renderable))
        return handles[-1]

    module = SimpleNamespace(display=display)
    monkeypatch.setattr(importlib, "import_module", {"IPython.display": module}.__getitem__)
    plain.is_jupyter = True
    _fit(Progress(plain))
    (handle,) = handles
    assert "2 passes in " in str(handle.shown[-1])
    assert _text(plain) == ""


def test_a_notebook_without_ipython_falls_back_to_a_line(
    plain: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    progress = Progress(plain)
    plain.is_jupyter = True
    progress.on_fit_begin(RUN)
    plain.is_jupyter = False  # rich itself would now print through IPython
    progress.on_fit_end(RUN)
    assert "0 passes in " in _text(plain)


def test_the_default_is_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    _fit(Progress())
    assert "2 passes in " in capsys.readouterr().out


def test_a_copy_shares_the_console_and_a_pickle_leaves_it_behind(plain: Console) -> None:
    progress = Progress(plain, max_iter=5, verbose=2)
    copied, unpickled = copy.deepcopy(progress), pickle.loads(pickle.dumps(progress))
    assert (copied.console, copied.max_iter, copied.verbose) == (plain, 5, 2)
    assert (unpickled.console, unpickled.max_iter, unpickled.verbose) == (None, 5, 2)
