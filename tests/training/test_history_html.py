"""The history as HTML contains curves and all numbers of its records."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.training.history import History

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
Y = np.where(X[:, 0] > 0, "<b>yes", "no & no")


def _record(number: int, **more: Any) -> dict[str, Any]:
    start = {
        "pass": number, "loss": 1.0 / number, "rows": 10, "steps": 1, "seconds": 0.5,
        "bytes_pushed": 4_000_000, "bytes_pulled": 0, "val_score": None,
    }  # fmt: skip
    return start | more


def _texts(history: History) -> tuple[list[str], dict[str, str]]:
    root = ET.fromstring(history._repr_html_())
    cells = ["".join(cell.itertext()) for row in root.iter("tr") for cell in row]
    return [found.text or "" for found in root.iter("title")], dict(
        zip(cells[::2], cells[1::2], strict=True)
    )


def test_html_shows_curves_and_summary() -> None:
    extra = {
        "policy": "ssp", "n_lanes": 3, "n_servers": 0, "lost_rows": 7,
        "generations": [{"generation": 1, "reason": "<tcp> lost"}],
    }  # fmt: skip
    records = [_record(n, eval_score=0.5 + n / 100) for n in range(1, 4)]
    titles, facts = _texts(History(records, extra, interrupted=True))
    assert titles == [
        "loss 1 to 0.333333 (0.333333 to 1)",
        "eval_score 0.51 to 0.53 (0.51 to 0.53)",
    ]
    assert facts == {
        "passes": "3, in 1.5 s, interrupted", "rows a second": "20", "traffic": "12.0 MB",
        "policy": "ssp", "lanes": "3", "rows lost for good": "7", "generation 1": "<tcp> lost",
    }  # fmt: skip


@pytest.mark.parametrize(
    "records",
    [[], [_record(1)], [_record(1, loss=float("nan"), seconds=0.0)],
     [_record(n, loss=float(n % 7)) for n in range(1, 3000)]],
    ids=["none", "one", "nan", "many"],
)  # fmt: skip
def test_html_is_well_formed_for_any_records(records: list[dict[str, Any]]) -> None:
    text = History(records)._repr_html_()
    ET.fromstring(text)
    assert "nan" not in text
    assert len(text) < 12_000
    corners = re.findall(r"points=\"([^\"]*)", text)
    assert len(corners) == any(np.isfinite(r["loss"]) for r in records)


@pytest.mark.parametrize(
    "estimator", [SGDClassifier(max_iter=2, tol=None), LogisticRegression(), GaussianNB()]
)
def test_a_fitted_estimator_includes_its_history_in_html(estimator: Any) -> None:
    assert "daskml-history" not in estimator._repr_html_()
    estimator.fit(X, Y)
    assert estimator._repr_html_().endswith(estimator.history_._repr_html_())
    assert "daskml-history" in estimator._repr_mimebundle_()["text/html"]
