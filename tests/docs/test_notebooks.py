"""Notebooks of the site: stored without outputs, and each runs from its first cell to its last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT

BOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
#: What comes of each, beside no error: kinds of outputs, and words in some of them.
EXPECTED = {
    "jupyter": ("image/png", ["10 passes in", "suggestion 0."]),
    "gpu_box": ("image/png", ["5 passes in", "0.9"]),
    "hpc": ("image/png", ["60 passes in", "'generation': 1", "dask_worker"]),
}


def _outputs(book: Any) -> list[Any]:
    return [output for cell in book["cells"] for output in cell.get("outputs", ())]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_stored_without_outputs(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert _outputs(book) == []
    assert all(cell.get("execution_count") is None for cell in book["cells"])
    assert all(not cell["metadata"] for cell in book["cells"])
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    assert path.stem in EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient comes with the extra docs")
    pytest.importorskip("ipykernel", reason="ipykernel comes with the extra docs")
    pytest.importorskip("matplotlib")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(book, timeout=280, resources=where).execute()
    kind, words = EXPECTED[path.stem]
    outputs = _outputs(book)
    assert any(kind in output.get("data", {}) for output in outputs)
    texts = " ".join(
        str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
        for output in outputs
    )
    for word in words:
        assert word in texts, texts
