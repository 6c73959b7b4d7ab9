"""Notebook output during and after a fit, in a real kernel."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from daskml_dist.diagnostics.display import Snapshot, make_status_html, make_summary_html
from daskml_dist.diagnostics.status import _MAX_RECORDS, Status

FIT = """
import numpy as np, IPython
from daskml_dist.linear_model import SGDClassifier
X = np.random.default_rng(0).normal(size=(400, 3))
seen = []
class Slow:  # than the pause between two pictures
    def on_pass_end(self, run, record):
        import time; time.sleep(0.3)
y = (X[:, 0] > 0).astype(int)
clf = SGDClassifier(max_iter=4, tol=None, verbose=1, callbacks=[Slow()], random_state=0).fit(X, y)
"""


def _texts(html: str) -> list[str]:
    return [text.strip() for text in ET.fromstring(html).itertext() if text.strip()]


def _record(number: int, **more: Any) -> dict[str, Any]:
    return {
        "pass": number, "loss": 1 / number, "rows": 10, "seconds": 0.5, "staleness_mean": 0.0,
        "staleness_max": 0, "val_score": None, **more,
    }  # fmt: skip


def test_html_of_phases_and_passes() -> None:
    status = Status(4)
    status.enter("reading", 3, 12)
    assert _texts(make_status_html(status))[0] == "reading 3/12 blocks"
    assert 'aria-valuenow="25"' in make_status_html(status)
    status.enter("placing")
    assert "progressbar" not in make_status_html(status)
    status.title = "sync, <b>"
    for number in (1, 2):
        status.add(_record(number, val_score=0.5))
    title, position, numbers, *_ = _texts(make_status_html(status))
    assert (title, position) == ("sync, <b>", "pass 2/4")
    assert numbers.startswith("loss 0.5  20 rows/s")
    assert numbers.endswith("ETA <= 0:00:01")
    assert 'aria-valuenow="50"' in make_status_html(status)
    curves = [title.text for title in ET.fromstring(make_summary_html(status)).iter("title")]
    assert [re.split(" ", str(text))[0] for text in curves] == ["loss", "val_score"]
    assert repr(Snapshot("words", "<p/>")) == "words"


def test_very_many_passes_keep_their_curve_short() -> None:
    status = Status(None)
    for number in range(1, 5 * _MAX_RECORDS):
        status.add(_record(number))
    assert _MAX_RECORDS / 3 < len(status.records) <= _MAX_RECORDS
    passes = [record["pass"] for record in status.records]
    assert passes[0] == 1
    assert passes == sorted(set(passes))
    assert passes[-1] > 4.9 * _MAX_RECORDS


def test_a_notebook_shows_one_output_rewritten_in_place(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient comes with the extra docs")
    pytest.importorskip("ipykernel", reason="ipykernel comes with the extra docs")
    nbformat = pytest.importorskip("nbformat")
    # Packages loaded by Dask may print: CuPy loads Optuna, which has a progress bar.
    cells = [nbformat.v4.new_code_cell(code) for code in ("import dask.array", FIT, "clf")]
    book = nbformat.v4.new_notebook(cells=cells)
    updates: list[str] = []

    class Watched(nbclient.NotebookClient):  # type: ignore[misc]
        def process_message(self, message: Any, *args: Any) -> Any:
            if message["msg_type"] in ("display_data", "update_display_data"):
                updates.append(message["content"]["data"]["text/html"])
            return super().process_message(message, *args)

    Watched(book, timeout=280, resources={"metadata": {"path": tmp_path}}).execute()
    (output,) = book.cells[1].outputs
    assert output["output_type"] == "display_data"
    shown = output["data"]["text/html"]
    assert "4 passes in" in _texts(shown)[0]
    assert "4 passes in" in output["data"]["text/plain"]
    positions = [_texts(html)[1] for html in updates if "progressbar" in html]
    assert {"pass 2/4", "pass 3/4"} <= set(positions)
    assert any("ETA" in html for html in updates)
    assert "daskml-history" in book.cells[2].outputs[0]["data"]["text/html"]
