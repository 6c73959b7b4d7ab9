"""Progress of searches and ensembles, on the screen and on the page."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event
from rich.console import Console
from sklearn.naive_bayes import GaussianNB

from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.compose import ColumnTransformer
from daskml_dist.data import computing
from daskml_dist.diagnostics import operation_progress
from daskml_dist.diagnostics.live import feed as page_feed
from daskml_dist.diagnostics.live.fits import RecentFits, make_rung_table
from daskml_dist.diagnostics.live.page import _format_fit_name, _make_fit_list, _make_header
from daskml_dist.ensemble import BaggingClassifier, VotingClassifier
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.metrics import accuracy_score
from daskml_dist.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HyperbandSearchCV,
    cross_validate,
)
from daskml_dist.preprocessing import MinMaxScaler, StandardScaler

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
Y = (X[:, 0] > 0).astype(int)
LAZY = da.from_array(X, chunks=(60, 3)), da.from_array(Y, chunks=60)
VALUES = {"alpha": [1e-4, 1e-3, 1e-2, 1e-1]}
SGD = SGDClassifier(tol=None, random_state=0)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Provide the lines shown without a terminal."""
    console = Console(file=io.StringIO(), force_terminal=False, _environ={})
    monkeypatch.setattr("rich.get_console", lambda: console)
    assert isinstance(console.file, io.StringIO)
    return lambda: console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> RecentFits:
    """Provide the fits on the page, from events that a client would send."""
    found = RecentFits()
    line = SimpleNamespace(tell=lambda client, event: found.take([event]))
    monkeypatch.setattr(page_feed, "get_scheduler_line", lambda client: line)
    monkeypatch.setattr("distributed.default_client", lambda: SimpleNamespace(id="c"))
    return found


def test_rungs_of_hyperband_are_on_the_screen_and_on_the_page(
    shown: Callable[[], list[str]], fits: RecentFits
) -> None:
    search = HyperbandSearchCV(SGD, VALUES, max_iter=9, cv=2, random_state=0, verbose=2)
    search.fit(X, Y)
    (fit,) = (one for one in fits.all() if one.estimator == "HyperbandSearchCV")
    assert fit.state == "ended"
    assert fit.phase == "fit of the best to all rows"
    expected = [(r["candidate"], r["bracket"], r["passes"], r["mean_test_score"])
            for r in search.history_]  # fmt: skip
    assert list(fit.rungs) == expected
    lines = shown()
    rungs = [line for line in lines if line.startswith("bracket")]
    assert rungs[0].startswith("bracket 2 at pass 1: 9 candidates, best score ")
    assert len(rungs) == len({(b, p) for _, b, p, _ in expected})
    assert lines[-1].startswith("HyperbandSearchCV: ")
    table = make_rung_table(fit)
    best = max(zip(table["came_to"], table["candidate"], strict=True))
    assert best[0] == pytest.approx(search.best_score_)
    assert "HyperbandSearchCV" in _make_header(fit)
    assert "lanes" not in _make_header(fit)
    assert _format_fit_name(fit).endswith("HyperbandSearchCV")
    assert "HyperbandSearchCV" in _make_fit_list(fits.all())


def test_rungs_of_halving_are_shown(fits: RecentFits, shown: Callable[[], list[str]]) -> None:
    search = HalvingGridSearchCV(
        SGD, VALUES, resource="max_iter", max_resources=4, min_resources=1, factor=2, cv=2
    ).fit(X, Y)
    (fit,) = (one for one in fits.all() if one.estimator == "HalvingGridSearchCV")
    scores = [score for *_, score in fit.rungs]
    np.testing.assert_array_equal(scores, search.cv_results_["mean_test_score"])
    alphas = [VALUES["alpha"][candidate] for candidate, *_ in fit.rungs]
    assert alphas == [params["alpha"] for params in search.cv_results_["params"]]
    assert shown() == []


WORKS: dict[str, Callable[[int], Any]] = {
    "GridSearchCV": lambda v: GridSearchCV(GaussianNB(), {"var_smoothing": [1e-9, 1e-3]}, cv=2,
                                           verbose=v).fit(*LAZY),
    "cross_validate": lambda v: cross_validate(SGD, *LAZY, cv=2, verbose=v),
    "VotingClassifier": lambda v: VotingClassifier([("a", SGD), ("b", SGD)], verbose=v).fit(*LAZY),
    "BaggingClassifier": lambda v: BaggingClassifier(SGD, 2, verbose=v).fit(*LAZY),
    "ColumnTransformer": lambda v: ColumnTransformer([("a", StandardScaler(), [0]),
                                                      ("b", "passthrough", [1])],
                                                     verbose=v).fit(LAZY[0]),
    "scoring": lambda v: _configured(v, lambda: accuracy_score(LAZY[1], LAZY[1])),
    "MinMaxScaler": lambda v: _configured(v, lambda: MinMaxScaler().fit(LAZY[0])),
    "CalibratedClassifierCV": lambda v: _configured(
        v, lambda: CalibratedClassifierCV(GaussianNB(), cv=2).fit(*LAZY)
    ),
}  # fmt: skip


def _configured(verbose: int, work: Callable[[], Any]) -> Any:
    with dask.config.set({"daskml_dist.verbose": verbose}):
        return work()


@pytest.mark.parametrize("name", list(WORKS))
def test_verbose_works_on_dask_collections(name: str, shown: Callable[[], list[str]]) -> None:
    WORKS[name](0)
    assert shown() == []
    WORKS[name](1)
    (line,) = shown()
    assert line.startswith(f"{name}: ")
    assert ", last: " in line


def test_a_failed_operation_is_shown_as_failed(
    fits: RecentFits, shown: Callable[[], list[str]]
) -> None:
    operation_progress.report_phase("nothing is under way")
    operation_progress.report_rung(
        "nothing", [{"candidate": 0, "bracket": 0, "resource": 1, "score": 1.0}]
    )
    rung = {"bracket": 0, "resource": 1, "score": math.nan}

    def fail() -> None:
        with operation_progress.report_operation("Search", 2):
            operation_progress.report_phase("fits", 3, 12)
            operation_progress.report_rung("rung", [rung | {"candidate": i} for i in range(2)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (fit,) = fits.all()
    assert (fit.state, fit.phase) == ("failed: ZeroDivisionError", "fits 3/12")
    assert not any(make_rung_table(fit).values())
    lines = shown()
    assert lines[0] == "rung: 2 candidates"
    assert lines[1].endswith("last: fits 3/12 fits")


def test_progress_of_blocks_is_shown_for_long_fits(
    client: Client, monkeypatch: pytest.MonkeyPatch, shown: Callable[[], list[str]]
) -> None:
    gate, found, phases = Event("blocks", client=client), RecentFits(), []

    def hold(block: Any, block_info: Any = None) -> Any:
        if (
            block_info and block_info[0]["chunk-location"][0]
        ):  # the first block is summarised before
            assert Event("blocks").wait(200)
        return block

    def tell(client: Any, event: dict[str, Any]) -> None:
        found.take([event])
        phases.append(event.get("text"))
        if "fitting 2 transformers: reading " in event.get("text", ""):
            gate.set()

    monkeypatch.setattr(page_feed, "get_scheduler_line", lambda client: SimpleNamespace(tell=tell))
    rows = da.from_array(X, chunks=(40, 3))
    columns = ColumnTransformer([("a", StandardScaler(), [0]), ("b", "passthrough", [1])])
    columns.fit(rows)
    assert not found.all()  # nothing is shown for a short fit
    monkeypatch.setattr(computing, "_NOTICE_SECONDS", 0.01)
    columns.fit(rows.map_blocks(hold, dtype=float, meta=np.empty((0, 3))))
    gate.clear()
    (fit,) = found.all()
    assert (fit.estimator, fit.state) == ("ColumnTransformer", "ended")
    assert any(str(phase).startswith("fitting 2 transformers: reading ") for phase in phases)
    assert not shown()


def test_blocks_are_counted_by_their_states_on_the_scheduler() -> None:
    states = {
        "memory": 2,
        "released": 3,
        "waiting": 1,
        "queued": 1,
        "processing": 1,
        "no-worker": 0,
    }
    scheduler = SimpleNamespace(task_groups={"block-a": SimpleNamespace(states=states)})
    client = SimpleNamespace(run_on_scheduler=lambda function: function(scheduler))
    reports: list[tuple[int, int]] = []
    assert computing._make_progress_look(client, "block-a", 8) is None  # no server listens there
    with computing.report_progress_to(lambda done, total: reports.append((done, total))):
        for name in ("block-a", "not there yet"):
            look = computing._make_progress_look(client, name, 8)
            assert look is not None
            look()
        assert computing._make_progress_look(client, "block-a", 0) is None
    assert reports == [(5, 8), (0, 8)]
