"""NVIDIA's client of the protocol: all of its requests are answered, in JSON and in raw bytes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.serving.app import App
from tests.serving.stand_ins import Metrics, Models
from tests.serving.threads import served

CLIENT = Path(__file__).with_name("asked_by_triton.py")


@pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None, reason="tritonclient[http] is not installed"
)
def test_tritonclient_gets_correct_replies() -> None:
    X = np.random.default_rng(0).standard_normal((30, 3))
    model = LogisticRegression().fit(X, np.where(X[:, 0] > 0, "yes", "nö"))
    with served(App(Models(m=model), Metrics())) as port:
        command = [sys.executable, str(CLIENT), str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [results[one] for one in ("live", "ready", "model", "other")] == [
        True,
        True,
        True,
        False,
    ]
    assert results["server"] == "daskml_dist"
    assert results["inputs"] == [{"name": "rows", "datatype": "FP64", "shape": [-1, 3]}]
    truth = [model.predict_proba(X).tolist(), model.predict(X).tolist()]
    assert len(results["answers"]) == 8
    assert all(answers == truth[: len(answers)] for answers in results["answers"])
    words = ["No model", "send shape [rows, 3]", "of version 7"]
    for (status, message), word in zip(results["errors"], words, strict=True):
        assert status.startswith("4")
        assert word in message
