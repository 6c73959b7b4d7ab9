"""Pictures of JupyterLab during and after a fit, and of the site's first page.

    python docs/pictures/notebook_and_site.py SITE [FOLDER]

It needs jupyterlab, playwright and the system's Chromium. SITE is the folder of the built site,
FOLDER ``docs/_static`` by default.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from live_page import FOLDER, browser_page, picture

CELLS = (
    """\
import dask.array as da
from dask.distributed import Client, LocalCluster
from daskml_dist.linear_model import SGDClassifier

client = Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0"))
X = da.random.default_rng(0).normal(size=(80_000, 20), chunks=(10_000, 20)).persist()
noise = da.random.default_rng(1).normal(size=80_000, chunks=10_000)
y = (X[:, :5].sum(axis=1) + 2 * noise > 0).persist()""",
    """\
clf = SGDClassifier(
    policy="async", learning_rate=2e-4, max_iter=40, tol=None,
    early_stopping=True, n_iter_no_change=40, verbose=1, random_state=0,
)
clf.fit(X, y)""",
)
NOTHING = {"execution_count": None, "metadata": {}, "outputs": []}


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """JupyterLab on a notebook of the cells, until it ends; its address."""
    cells = [{"cell_type": "code", "source": cell, **NOTHING} for cell in CELLS]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    (folder / "fit.ipynb").write_text(json.dumps(book))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"]
    command += ["--allow-root", f"--port={port}"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            line = next(line for line in server.stderr if "http://127.0.0.1" in line)
            address, token = line[line.index("http") :].strip().split("/lab?token=")
            _wait_for(port)
            yield f"{address}/doc/tree/fit.ipynb?token={token}"
        finally:
            server.terminate()


def _wait_for(port: int) -> None:
    """It names its address a moment before it listens."""
    while True:
        with socket.socket() as caller:
            if not caller.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)


def notebook(page: Any, folder: Path) -> None:
    """Pictures of the last cell: while it runs, and after."""
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cells.nth(1).wait_for()
    page.get_by_text("Python 3").first.wait_for()
    page.wait_for_timeout(3000)
    page.get_by_role("button", name="No", exact=True).click()  # no news, please
    cells.nth(0).locator(".cm-content").click()
    for _ in CELLS:
        page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(300)
    output = cells.nth(1).locator(".jp-OutputArea")
    output.get_by_text("pass 12/40").first.wait_for(timeout=90_000)
    picture(page, folder / "notebook_fit.png")
    output.get_by_text("40 passes in").first.wait_for(timeout=90_000)
    cells.nth(1).locator(".daskml-history").first.wait_for()
    output.scroll_into_view_if_needed()
    picture(page, folder / "notebook_fitted.png")


def main(site: Path, folder: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as place, browser_page(1100, 760) as page:
        with lab(Path(place)) as address:
            page.goto(address)
            notebook(page, folder)
        page.goto((site / "index.html").resolve().as_uri())
        picture(page, folder / "site.png", full=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
