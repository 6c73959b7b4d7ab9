"""Raw logs of benchmarks have enough information to repeat a run, and none about the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._log import RunLog


def test_a_log_shows_how_to_repeat_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASKML_DIST_BENCH", str(tmp_path))
    monkeypatch.setenv("NETWORKS", "MLP")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # set by parallel tests
    log = RunLog("networks", tiny=True)
    monkeypatch.setenv("DASKML_DIST_LATER", "1")  # as left by clusters
    log.write(tmp_path / "logs", "| a table |")
    head, _, text = (tmp_path / "logs" / "networks.txt").read_text().partition("\n\n")
    assert text == "| a table |\n"
    assert "NETWORKS=MLP python -m benchmarks networks --tiny" in head
    assert "DASKML_DIST_BENCH=FOLDER " in head
    assert str(tmp_path) not in head
    assert "DASKML_DIST_LATER" not in head
    for heading in ("begun: ", "commit: ", "machine: ", "load average: ", "numpy ", "dask "):
        assert heading in head
