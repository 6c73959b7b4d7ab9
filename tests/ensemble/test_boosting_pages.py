"""The code on the documentation pages about boosting runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.array as da

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_our_side_of_coming_from_trees() -> None:
    _, our_code = re.findall(
        r"```python\n(.*?)```", (DOCS / "coming_from_trees.md").read_text(), re.S
    )
    known: dict[str, Any] = {}
    exec(our_code, known)
    model, X = known["model"], known["X"]
    assert isinstance(model.predict_proba(X), da.Array)
    assert model.score(known["X_val"], known["y_val"]) > 0.8
