"""Scores of boosting on real data, beside scikit-learn's at the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._boosting_scores import adult, flights


@pytest.mark.data
@pytest.mark.slow
def test_adult_is_classified_as_well(data_dir: Path) -> None:
    found = adult(data_dir / "adult", peers=False)
    assert found["daskml_dist"]["accuracy"] >= found["scikit-learn"]["accuracy"] - 0.003
    assert found["daskml_dist"]["AUC"] >= found["scikit-learn"]["AUC"] - 0.003


@pytest.mark.data
@pytest.mark.slow
def test_delays_of_flights_are_predicted_as_well(data_dir: Path) -> None:
    found = flights(data_dir, peers=False)
    assert found["daskml_dist"]["R2"] >= found["scikit-learn"]["R2"] - 0.003
    # LightGBM's, less 0.3 points: it cuts the long tail of delays into more bins than scikit-learn.
    assert found["daskml_dist"]["R2"] >= 0.8991 - 0.003
