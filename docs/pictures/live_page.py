"""Pictures of the page in Dask's dashboard at work, for ``docs/live_page.md``.

    python docs/pictures/live_page.py [FOLDER]

It needs bokeh, playwright and the system's Chromium. The folder is ``docs/_static`` by default.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from PIL import Image
from scipy.stats import loguniform

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.model_selection import HyperbandSearchCV

#: The line at the head of the page, which is behind shadow roots.
HEAD = "Bokeh.documents[0].get_model_by_name('head').text"
MIDDLE = range(50, 91)
FOLDER = Path(__file__).resolve().parents[1] / "_static"


@contextmanager
def browser_page(width: int, height: int) -> Iterator[Any]:
    """A page of the system's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser.new_page(viewport={"width": width, "height": height})
        browser.close()


def rows(n: int) -> tuple[Any, Any]:
    """Rows of two classes that overlap, in 24 blocks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 30)).astype(np.float32)
    y = X @ rng.standard_normal(30) + 3 * rng.standard_normal(n) > 0
    return da.from_array(X, chunks=(n // 24, 30)), da.from_array(y, chunks=n // 24)


class KillAt:
    """Callback that kills the worker of the last lane after a pass."""

    def __init__(self, client: Client, number: int) -> None:
        self.client, self.number = client, number

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == self.number:
            last = max(run.lane_addresses)
            (pid,) = self.client.run(os.getpid, workers=[run.lane_addresses[last]]).values()
            os.kill(pid, signal.SIGKILL)

    def __deepcopy__(self, memo: dict[int, Any]) -> KillAt:
        return self


def picture(page: Any, path: Path, *, full: bool = True) -> None:
    """Keep what a page shows, in few colours."""
    page.wait_for_timeout(700)
    taken = Image.open(io.BytesIO(page.screenshot(full_page=full)))
    taken.convert("RGB").quantize(
        64, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(path, optimize=True)
    print(path, path.stat().st_size, "bytes")


def main(folder: Path) -> None:
    """Take all pictures."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        browser_page(1200, 500) as page,
    ):
        at = cluster.dashboard_link.replace("/status", "/training")
        X, y = (value.persist() for value in rows(600_000))
        SGDClassifier(max_iter=1, tol=None).fit(X, y, client=client)  # the page is there now
        sgd = SGDClassifier(
            policy="async", max_iter=90, tol=None, batch_size=256, early_stopping=True,
            run=Run(n_lanes=6), callbacks=[KillAt(client, 25)],
        )  # fmt: skip
        page.goto(at)
        page.wait_for_timeout(1000)
        fit = threading.Thread(target=lambda: sgd.fit(X, y, client=client))
        fit.start()
        while fit.is_alive() and not any(f"<b>{n}/90</b>" in page.evaluate(HEAD) for n in MIDDLE):
            time.sleep(0.2)
        picture(page, folder / "live_fit.png")
        fit.join()
        X, y = (value.persist() for value in rows(100_000))
        sgd = SGDClassifier(tol=None, learning_rate="constant", random_state=0)
        values = {"alpha": loguniform(1e-6, 1e-1), "eta0": loguniform(1e-4, 1e2)}
        HyperbandSearchCV(sgd, values, max_iter=27, random_state=0).fit(X, y)
        page.wait_for_timeout(2500)
        choice = page.locator("select")
        (name,) = (n for n in choice.locator("option").all_inner_texts() if "Hyperband" in n)
        choice.select_option(label=name)
        picture(page, folder / "live_search.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
