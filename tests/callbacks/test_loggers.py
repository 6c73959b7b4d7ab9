"""Loggers, read by the libraries that they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskml_dist.callbacks import MLflow, TensorBoard
from daskml_dist.linear_model import SGDClassifier

X = np.random.default_rng(0).normal(size=(100, 3))
Y = (X[:, 0] > 0).astype(int)


class Fails:
    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        raise RuntimeError("not today")


def test_tensorboard_reads_the_passes(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = SGDClassifier(max_iter=3, tol=None, callbacks=[TensorBoard(tmp_path)]).fit(X, Y)
    read = events.EventAccumulator(str(tmp_path)).Reload()
    logged = [(event.step, event.value) for event in read.Scalars("loss")]
    expected = [(r["pass"], pytest.approx(r["loss"], rel=1e-6)) for r in model.history_]
    assert logged == expected


def test_mlflow_has_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more libraries
    mlflow = pytest.importorskip("mlflow")
    uri = tmp_path.as_uri()
    logger = MLflow("trial", "passes", uri)
    model = SGDClassifier(max_iter=3, tol=None, callbacks=[logger]).fit(X, Y)
    with pytest.raises(RuntimeError, match="not today"):
        SGDClassifier(callbacks=[logger, Fails()]).fit(X, Y)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("passes")
    failed, run = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])
    assert (run.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert run.info.run_name == "trial"
    assert run.data.params["max_iter"] == "3"
    logged = [metric.value for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert logged == [record["loss"] for record in model.history_]
