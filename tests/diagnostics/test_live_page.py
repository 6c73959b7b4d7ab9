"""The page in Dask's dashboard, as sent to a browser; it needs bokeh."""

from __future__ import annotations

import math
import time
import urllib.request
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist.diagnostics.live.fits import RecentFits
from daskml_dist.diagnostics.live.plugin import NAME
from daskml_dist.linear_model import SGDClassifier

pytest.importorskip("bokeh", reason="no bokeh: pip install 'daskml-dist[viz]'")


def _get(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url) as answer:
        return answer.status, answer.read().decode()


def test_the_tab_shows_the_values_of_the_history() -> None:
    from bokeh.client import pull_session
    from bokeh.models import Label

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 3))
    X, y = da.from_array(rows, chunks=(100, 3)), da.from_array((rows[:, 0] > 0) * 1, chunks=100)

    def read_states(dask_scheduler: Any) -> list[str]:
        page = dask_scheduler.plugins.get(NAME)
        return [] if page is None else [fit.state for fit in page.fits.all()]

    def tabs(dask_scheduler: Any) -> int:
        applications = dask_scheduler.http_application.applications
        return sum("/training" in getattr(app, "app_paths", ()) for app in applications)

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        base = f"http://127.0.0.1:{cluster.scheduler.http_server.port}"
        assert ">Training<" not in _get(f"{base}/status")[1]
        for number in (1, 2):
            sgd = SGDClassifier(max_iter=4, tol=None, early_stopping=True).fit(X, y)
            deadline = time.monotonic() + 200
            while client.run_on_scheduler(read_states) != ["ended"] * number:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert client.run_on_scheduler(tabs) == 1
        status, page = _get(f"{base}/training")
        assert status == 200
        assert page.count(">Training<") == 1
        assert ">Training<" in _get(f"{base}/status")[1]
        session = pull_session(url=f"{base}/training")
        try:
            document = session.document
            shown = document.select_one({"name": "passes"}).data
            for key in ("pass", "loss", "val_score", "staleness_mean", "staleness_max"):
                recorded = [math.nan if r[key] is None else r[key] for r in sgd.history_]
                np.testing.assert_array_equal(shown[key], recorded)
            assert list(shown["rows_per_second"]) == sgd.history_.rows_per_second
            pushed = [record["bytes_pushed"] / 1e6 for record in sgd.history_]
            assert list(shown["mb_pushed"]) == pushed
            assert len(document.select_one({"name": "lanes"}).data["lane"]) == 2
            assert "SGDClassifier" in document.select_one({"name": "head"}).text
            assert len(document.select_one({"name": "choice"}).options) == 3
            shown_words = [
                label.text for label in document.select({"type": Label}) if label.visible
            ]
            assert shown_words == []  # each figure has its values
        finally:
            session.close()


def test_figures_without_values_show_the_reason() -> None:
    from bokeh.document import Document
    from bokeh.models import Label

    from daskml_dist.diagnostics.live.page import show

    fits = RecentFits()
    begin = {"estimator": "Ridge", "policy": "sync", "client": "c", "max_iter": 1, "n_lanes": 1}
    fits.take([{"fit": "a", "kind": "begin", "at": 0.0, "began": 0.0, "n_servers": 1} | begin])
    record = {"pass": 1, "loss": 0.5, "seconds": 1.0, "rows": 10, "bytes_pushed": 8}
    fits.take([{"fit": "a", "kind": "pass", "at": 1.0, "record": record}])
    document = Document()
    show(fits, {}, document)
    texts = {label.text for label in document.select({"type": Label}) if label.visible}
    assert {text.split(":")[0] for text in texts} == {
        "No score recorded", "This fit applies no stale gradients.",
    }  # fmt: skip
