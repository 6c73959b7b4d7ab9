"""A checkpoint for tests to corrupt."""

from __future__ import annotations

from pathlib import Path

import pytest

from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint
from tests.training.checkpoints.saves import PARAMS, X, Y


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    """Return a checkpoint of a fit, which is the only one."""
    saved = Checkpoint(tmp_path / "fit.npz", resume=True, keep=1)
    SGDClassifier(checkpoint=saved, max_iter=2, **PARAMS).fit(X, Y)
    return saved
