"""The page in a browser shows the history's values, also behind prefixes and proxies."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist.linear_model import SGDClassifier
from tests.diagnostics.in_browser import columns, open_browser, open_proxy
from tests.lost_workers import wait_for_three
from tests.training.recovery.strikes import (
    N_PASSES,
    Strike,
    lazy_rows,
    make_classifier,
    make_killer,
)

#: Seconds that the browser may take on a busy machine.
_PATIENCE = 100.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


def _open(browser: Any) -> Any:
    page = browser.new_page()
    page.set_default_timeout(_PATIENCE * 1000)
    return page


def _check(page: Any, clf: SGDClassifier, n_passes: int) -> dict[str, list[Any]]:
    """Check that the browser shows the history of a finished fit."""
    page.get_by_text(f"pass {n_passes}/{n_passes}").first.wait_for()
    page.get_by_text("ended").first.wait_for()
    # Another listed fit may have ended too; the passes show which one is selected.
    deadline = time.monotonic() + _PATIENCE
    while len((shown := columns(page, "passes"))["pass"]) < n_passes:
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)
    for key in ("pass", "loss", "staleness_mean", "staleness_max"):
        np.testing.assert_array_equal(shown[key], [record[key] for record in clf.history_])
    assert shown["rows_per_second"] == clf.history_.rows_per_second
    for way in ("pushed", "pulled"):
        moved = [record[f"bytes_{way}"] / 1e6 for record in clf.history_]
        assert shown[f"mb_{way}"] == moved
    return shown


def test_values_equal_the_history_also_after_a_loss(browser: Any, crew: LocalCluster) -> None:
    base = f"http://127.0.0.1:{crew.scheduler.http_server.port}"
    with Client(crew) as client:
        wait_for_three(client)
        undisturbed = make_classifier("async", early_stopping=True).fit(*lazy_rows())
        page = _open(browser)
        page.goto(f"{base}/status")
        page.get_by_role("link", name="Training").click()
        shown = _check(page, undisturbed, N_PASSES)
        scores = [record["val_score"] for record in undisturbed.history_]
        assert shown["val_score"] == scores
        # A busy machine may lose a worker without a kill.
        changes = undisturbed.history_.extra["generations"]
        assert len(columns(page, "lanes")["lane"]) == 3 * (1 + len(changes))
        # On the same page another fit appears, loses a worker and continues.
        strike = Strike(make_killer(client, "both"))
        struck = make_classifier("async", strike, max_iter=2 * N_PASSES).fit(*lazy_rows())
        assert strike.events
        shown = _check(page, struck, 2 * N_PASSES)
        assert all(score is None or math.isnan(score) for score in shown["val_score"])
        assert columns(page, "marks")["text"] == list(map(str, strike.events))
        assert len(set(columns(page, "lanes")["worker"])) > 1


@pytest.mark.parametrize("prefix", ["", "/dask"])
def test_the_page_works_behind_a_proxy_or_a_prefix(browser: Any, prefix: str) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"http_prefix": prefix} if prefix else {},
        ) as cluster,
        Client(cluster),
    ):  # fmt: skip
        clf = SGDClassifier(max_iter=3, tol=None).fit(*lazy_rows())
        to = f"127.0.0.1:{cluster.scheduler.http_server.port}"

        async def proxy() -> tuple[Any, int]:
            return open_proxy(to)

        server, port = cluster.sync(proxy)
        base = f"http://{to}{prefix}" if prefix else f"http://127.0.0.1:{port}/proxy/8787"
        try:
            for name in ("training", "individual-training"):
                page = _open(browser)
                page.goto(f"{base}/{name}")
                _check(page, clf, 3)
                page.close()
        finally:
            cluster.loop.add_callback(server.stop)
