"""The page of fits without a browser: reported events, stored fits, tables."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, get_client

from daskml_dist.diagnostics.curves import LEAST_SPAN
from daskml_dist.diagnostics.live import feed, plugin
from daskml_dist.diagnostics.live.feed import HANDLER, FitFeed
from daskml_dist.diagnostics.live.fits import (
    N_FITS,
    N_PASSES,
    RecentFits,
    make_lane_table,
    make_mark_table,
    make_pass_table,
    make_staleness_table,
)
from daskml_dist.diagnostics.live.plugin import NAME
from daskml_dist.linear_model import LogisticRegression, SGDClassifier

BEGIN = {
    "kind": "begin",
    "at": 0.0,
    "estimator": "SGDClassifier",
    "policy": "sync",
    "client": "c",
    "max_iter": 10,
    "n_lanes": 2,
    "n_servers": 1,
    "began": 1e9,
}


def _until(condition: Callable[[], Any], seconds: float = 200.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    return da.from_array(X, chunks=(50, 3)), da.from_array((X[:, 0] > 0).astype(int), chunks=50)


@pytest.mark.parametrize(
    ("planned", "passes", "left"), [(10, "2/10", 4.0), (None, "2", math.nan)], ids=["ten", "none"]
)
def test_remaining_time_is_shown_if_passes_are_planned(
    planned: int | None, passes: str, left: float
) -> None:
    fits = RecentFits()
    fits.take([BEGIN | {"fit": "a", "max_iter": planned}, _fit_of(1), _fit_of(2)])
    (fit,) = fits.all()
    assert fit.passes == passes
    assert fit.seconds_left == pytest.approx(left, nan_ok=True)


def _fit_of(number: int, **record: Any) -> dict[str, Any]:
    whole = {"pass": number, "rows": 100, "seconds": 0.5, "loss": 1 / number, "val_score": None}
    return {"fit": "a", "kind": "pass", "at": float(number), "record": whole | record}


def test_tables_show_the_reported_values() -> None:
    fits = RecentFits()
    fits.take([{"fit": "unknown", "kind": "end", "at": 1.0, "how": "ended"}])
    assert fits.all() == []
    fits.take([BEGIN | {"fit": "a"}, {"fit": "a", "kind": "lanes", "at": 0.0, "lanes": ["u", "v"]}])
    (fit,) = fits.all()
    assert math.isnan(fit.rows_per_second)
    assert math.isnan(fit.seconds_left)
    fits.take([_fit_of(1, bytes_pushed=2_000_000), _fit_of(2, val_score=0.75, seconds=1.5)])
    fits.take([{"fit": "a", "kind": "generation", "at": 2.5, "text": "v was lost", "n_passes": 2}])
    fits.take([{"fit": "a", "kind": "lanes", "at": 2.5, "lanes": ["u", "u"]}, _fit_of(3)])
    table = make_pass_table(fit)
    assert table["pass"] == [1.0, 2.0, 3.0]
    assert table["loss"] == [1.0, 0.5, 1 / 3]
    assert table["mb_pushed"][0] == 2.0
    assert table["val_score"][1] == 0.75
    assert math.isnan(table["val_score"][0])
    assert table["loss_high"][0] - table["loss_low"][0] == pytest.approx(LEAST_SPAN)
    assert table["rows_per_second"] == [200.0, 100 / 1.5, 200.0]
    assert fit.rows_per_second == 300 / 2.5
    assert fit.seconds_left == pytest.approx(7 * 2.5 / 3)
    lanes = make_lane_table(fit)
    assert list(zip(lanes["left"], lanes["right"], lanes["worker"], strict=True)) == [
        (0.0, 2.5, "u"), (0.0, 2.5, "v"), (2.5, 3.0, "u"), (2.5, 3.0, "u"),
    ]  # fmt: skip
    assert lanes["colour"][0] == lanes["colour"][3] != lanes["colour"][1]
    assert make_mark_table(fit) == {
        "at": [2.5],
        "bottom": [-0.5],
        "top": [1.5],
        "text": ["v was lost"],
    }
    fits.leave("another")
    assert fit.state == "running"
    fits.leave("c")
    assert fit.state == "its client has left"
    assert fit.seconds_left == 0.0
    assert all(
        not any(table(None).values())
        for table in (make_pass_table, make_lane_table, make_mark_table)
    )


def test_repeated_passes_replace_earlier_ones() -> None:
    fits = RecentFits()
    fits.take([BEGIN | {"fit": "a"}, *(_fit_of(number) for number in (1, 2, 3, 4))])
    lost = {"fit": "a", "kind": "generation", "at": 4.5, "text": "v was lost"}
    fits.take([lost | {"n_passes": 2}])
    (fit,) = fits.all()
    assert (fit.n_passes, make_pass_table(fit)["loss"]) == (2, [1.0, 0.5])
    fits.take([_fit_of(3, loss=0.3), _fit_of(4, loss=0.2), _fit_of(3, loss=0.25)])
    assert make_pass_table(fit)["loss"] == [1.0, 0.5, 0.25]


def test_only_the_last_fits_are_kept() -> None:
    fits = RecentFits()
    for number in range(N_FITS + 5):
        fits.take([BEGIN | {"fit": str(number)}])
    assert [fit.fit for fit in fits.all()] == [str(number) for number in range(5, N_FITS + 5)]
    fits.take([BEGIN | {"fit": "a"}, *(_fit_of(number + 1) for number in range(N_PASSES + 5))])
    assert len(make_pass_table(fits.all()[-1])["pass"]) == N_PASSES


def test_errors_of_the_page_do_not_fail_a_fit(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger=feed.__name__)
    fit_feed = FitFeed("SGDClassifier")
    for hook, more in (("on_fit_begin", ()), ("on_pass_end", ({},)), ("on_fit_end", ())):
        getattr(fit_feed, hook)(object(), *more)  # not a run
    assert "could not be updated" in caplog.text
    broken = SimpleNamespace(loop=client.loop, id="c", run_on_scheduler=None)

    class Hashable(SimpleNamespace):
        __hash__ = object.__hash__

    broken = Hashable(**vars(broken))
    line = feed._SchedulerLine()
    line.tell(broken, BEGIN | {"fit": "a"})
    assert _until(lambda: "rejected progress" in caplog.text)
    assert _until(lambda: not line._events)  # dropped after reporting


def _no_bokeh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bokeh", raising=False)


def _other_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "find_dashboard", lambda scheduler: scheduler)
    monkeypatch.setattr(plugin, "add_tab", lambda *args: 1 / 0)


@pytest.mark.parametrize("prepare", [_no_bokeh, _other_dashboard])
def test_without_a_page_there_is_no_tab_and_no_error(
    prepare: Callable[[Any], None], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch)
    SGDClassifier(max_iter=2, tol=None).fit(*_data())
    line = feed._lines[client]
    assert _until(lambda: line._has_page is False and not line._is_sending)
    SGDClassifier(max_iter=2, tol=None).fit(*_data())
    assert not line._events

    def traces(dask_scheduler: Any) -> bool:
        return NAME in dask_scheduler.plugins or HANDLER in dask_scheduler.handlers

    assert client.run_on_scheduler(traces) is False


@pytest.fixture
def fits(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Provide the fits stored by the cluster's scheduler, with tables, without drawing the page."""
    opened: list[Any] = []
    monkeypatch.setattr(plugin, "find_dashboard", lambda scheduler: scheduler)
    monkeypatch.setattr(plugin, "add_tab", lambda *args: opened.append(args))

    def read_fits(dask_scheduler: Any) -> Any:
        page = dask_scheduler.plugins.get(NAME)
        return (
            []
            if page is None
            else [(f, make_pass_table(f), make_lane_table(f)) for f in page.fits.all()]
        )

    def forget(dask_scheduler: Any) -> None:
        dask_scheduler.plugins.pop(NAME, None)
        dask_scheduler.handlers.pop(HANDLER, None)

    yield lambda: client.run_on_scheduler(read_fits)
    client.run_on_scheduler(forget)
    assert len(opened) == 1


def test_the_scheduler_has_the_values_of_the_history(
    client: Client, fits: Callable[[], Any]
) -> None:
    tasks: list[str] = []

    class Look:
        def on_pass_end(self, run: Any, record: Any) -> None:
            tasks.extend(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))

    sgd = SGDClassifier(
        policy="async", max_iter=3, tol=None, early_stopping=True, callbacks=[Look()]
    ).fit(*_data())
    exact = LogisticRegression().fit(*_data())

    class Boom:
        def on_pass_end(self, run: Any, record: Any) -> None:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        SGDClassifier(max_iter=3, callbacks=[Boom()]).fit(*_data())
    assert _until(lambda: len(fits()) == 3 and fits()[2][0].state != "running")
    shown_fits = fits()
    assert [fit.state for fit, _, _ in shown_fits] == ["ended", "ended", "failed: RuntimeError"]
    for fitted, (fit, table, lanes) in zip((sgd, exact), shown_fits, strict=False):
        assert fit.estimator == type(fitted).__name__
        assert fit.policy == fitted.history_.extra["policy"]
        counts = [list(record["staleness_counts"]) for record in fit.records]
        assert [{**r, "staleness_counts": c} for r, c in zip(fit.records, counts, strict=True)] == (
            fitted.history_.records
        )
        assert sum(make_staleness_table(fit)["count"]) == sum(map(sum, counts))
        assert table["loss"] == [record["loss"] for record in fitted.history_]
        assert table["rows_per_second"] == fitted.history_.rows_per_second
        assert set(lanes["worker"]) <= set(client.scheduler_info(n_workers=-1)["workers"])
        assert len(lanes["lane"]) == fit.n_lanes
    names = {name.rsplit("-daskml", 1)[0] for name in tasks if "-trainer-" in str(name)}
    assert names <= {f"SGDClassifier-trainer-{number}" for number in range(9)}
    assert names


def test_fits_of_a_client_that_left_are_not_running(
    client: Client, fits: Callable[[], Any]
) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        run = SimpleNamespace(
            client=other, run_id="r", policy_name="sync", max_iter=3, n_lanes=1, n_servers=1
        )
        FitFeed("SGDClassifier").on_fit_begin(run)
        assert _until(fits)
    assert _until(lambda: fits()[0][0].state == "its client has left")
    assert get_client() is client


def test_staleness_bars_exclude_repeated_passes() -> None:
    found = RecentFits()
    found.take([BEGIN | {"fit": "a"}])
    counts = [[3, 1], (1, 0, 2, 5), [0, 7], []]
    found.take([_fit_of(i + 1, staleness_counts=of) for i, of in enumerate(counts)])
    found.take([_fit_of(3, staleness_counts=[4])])  # repeated, with all later passes
    (fit,) = found.all()
    bars = {"versions": ["0", "1", "2+", "4+"], "count": [8, 1, 2, 5]}
    assert make_staleness_table(fit) == bars
    assert make_staleness_table(None) == {"versions": [], "count": []}
