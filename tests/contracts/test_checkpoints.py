"""Every public estimator with a checkpoint: saved, resumed, stopped or killed and resumed."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.callbacks import Checkpoint
from daskml_dist.errors import CheckpointError, InvalidParameterError
from tests.contracts.compare import differences
from tests.contracts.results import fitted_numbers
from tests.contracts.small_fits import each_base, rows_of, small_estimator, small_estimators
from tests.subprocesses import ROOT, environment

#: Estimators whose fits may refuse checkpoints.
REFUSING = {
    "ALS",
    "ElasticNetCV",
    "LassoCV",
    "LogisticRegressionCV",
    "MiniBatchKMeans",
    "RidgeCV",
    "RidgeClassifierCV",
}


def _has(name: str, parameter: str) -> bool:
    return parameter in small_estimators()[name].get_params(deep=False)


#: Estimators whose fits accept checkpoints.
SAVING = [n for n in small_estimators() if _has(n, "callbacks") and n not in REFUSING]


class EndedError(Exception):
    """Error that stands for a lost client."""


class Leave:
    """Callback that ends a fit, or the whole process, at a pass."""

    def __init__(self, at: int, *, kill: bool = False) -> None:
        self.at, self.kill = at, kill

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == self.at:
            if self.kill:
                os._exit(9)
            raise EndedError


def fitted(name: str, checkpoint: Checkpoint | None = None, *callbacks: Any, **how: Any) -> Any:
    """Return a small estimator, fitted with a checkpoint given where its interface takes it."""
    saving: dict[str, Any] = {"callbacks": list(callbacks)}
    if checkpoint is not None and _has(name, "checkpoint"):
        saving["checkpoint"] = checkpoint
    elif checkpoint is not None:
        saving["callbacks"].append(checkpoint)
    X, y = rows_of(name)
    if how.pop("lazy", False):
        X, y = (v if v is None else da.from_array(v, chunks=(30, *v.shape[1:])) for v in (X, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return small_estimator(name, **saving, **how).fit(X, y)


def _same(name: str, found: Any, undisturbed: Any) -> None:
    """Assert that a fit has the attributes and passes of one without a checkpoint."""
    assert differences(fitted_numbers(found), fitted_numbers(undisturbed), 0.0, whole=True) == []
    X, _ = rows_of(name)
    for method in ("predict", "transform"):
        if isinstance(X, np.ndarray) and hasattr(undisturbed, method):
            np.testing.assert_array_equal(
                getattr(found, method)(X), getattr(undisturbed, method)(X)
            )
    for key in ("pass", "loss", "rows"):
        records = [[record[key] for record in fit.history_] for fit in (found, undisturbed)]
        np.testing.assert_array_equal(*records)


@pytest.mark.parametrize("name", each_base(SAVING))
def test_checkpointed_fits_resume(name: str, tmp_path: Path) -> None:
    path, undisturbed = tmp_path / "fit.npz", fitted(name)
    _same(name, fitted(name, Checkpoint(path)), undisturbed)
    # A fit of a single sum has no state to resume from.
    assert path.exists() or len(undisturbed.history_) <= 2
    going_on = Checkpoint(path, resume=True)
    _same(name, fitted(name, going_on), undisturbed)
    if len(undisturbed.history_) > 2:
        resuming = Checkpoint(tmp_path / "again.npz", resume=True)
        with pytest.raises(EndedError):
            fitted(name, resuming, Leave(2))
        _same(name, fitted(name, resuming), undisturbed)


@pytest.mark.parametrize("name", sorted(REFUSING))
def test_fits_without_checkpoints_refuse_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="does not support checkpoints: remove the"):
        fitted(name, Checkpoint(tmp_path / "fit.npz"))


@pytest.mark.parametrize("name", [n for n in SAVING if _has(n, "checkpoint")])
def test_a_checkpoint_among_callbacks_is_refused_with_the_parameters_name(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidParameterError, match=rf"{name}\(checkpoint="):
        fitted(name, None, Checkpoint(tmp_path / "fit.npz"))


@pytest.mark.parametrize(
    "name", ["HistGradientBoostingClassifier", "RandomForestRegressor", "KMeans", "SGDClassifier"]
)
def test_a_fit_without_random_state_resumes_with_the_saved_seed(name: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "fit.npz", resume=True)
    with pytest.raises(EndedError):
        fitted(name, checkpoint, Leave(2), random_state=None)
    resumed = fitted(name, checkpoint, random_state=None)
    assert resumed.random_state is None
    _same(name, fitted(name, checkpoint, random_state=None), resumed)


TREES = ["ExtraTreesRegressor", "HistGradientBoostingClassifier", "RandomForestClassifier"]


@pytest.mark.parametrize("name", TREES)
def test_a_cluster_resumes_trees_of_one_process(name: str, client: Client, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "fit.npz", resume=True)
    with pytest.raises(EndedError):
        fitted(name, checkpoint, Leave(2))
    found, undisturbed = fitted(name, checkpoint, lazy=True), fitted(name)
    X, _ = rows_of(name)
    np.testing.assert_array_equal(found.predict(X), undisturbed.predict(X))
    assert len(found.history_) >= 2


def test_files_of_other_trees_are_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "fit.npz", resume=True)
    fitted("HistGradientBoostingClassifier", checkpoint)
    with pytest.raises(CheckpointError, match="of another fit: its solver's learning_rate is"):
        fitted("HistGradientBoostingClassifier", checkpoint, learning_rate=0.5)
    with pytest.raises(CheckpointError, match="of another fit"):
        fitted("RandomForestClassifier", checkpoint)
    state, facts = np.zeros(3, np.uint8), None
    with pytest.raises(CheckpointError, match="has a state that cannot be read"):
        _spoilt(checkpoint, state, facts)


def _spoilt(checkpoint: Checkpoint, state: Any, facts: Any) -> None:
    from daskml_dist.training.checkpoint import CheckpointFiles, decode_solver_log

    files = CheckpointFiles.from_url(os.fspath(checkpoint.path), checkpoint.keep)
    found = files.load_newest_by(decode_solver_log)
    assert found is not None
    checkpoint.save(state, facts or found[1])
    fitted("HistGradientBoostingClassifier", checkpoint)


# Fits an estimator in a process that ends during the third pass, as by SIGKILL.
_KILLED = """
import sys
from daskml_dist.callbacks import Checkpoint
from tests.contracts.test_checkpoints import Leave, fitted
fitted(sys.argv[1], Checkpoint(sys.argv[2]), Leave(3, kill=True), lazy=sys.argv[3] == "lazy")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "lazy"])
@pytest.mark.parametrize("name", SAVING)
def test_a_fit_resumes_after_a_killed_process(name: str, kind: str, tmp_path: Path) -> None:
    lazy = kind == "lazy"
    if lazy and name in ("MatrixFactorization", "TwoTower"):
        pytest.skip("its ratings are a frame")
    path = tmp_path / "fit.npz"
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, name, str(path), kind],
        capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment(),
    )  # fmt: skip
    undisturbed = fitted(name, lazy=lazy)
    assert killed.returncode == (9 if len(undisturbed.history_) > 2 else 0), killed.stderr
    assert path.exists() or len(undisturbed.history_) <= 3
    found = fitted(name, Checkpoint(path, resume=True), lazy=lazy)
    X, _ = rows_of(name)
    if hasattr(undisturbed, "predict") and isinstance(X, np.ndarray):
        np.testing.assert_allclose(found.predict(X), undisturbed.predict(X), rtol=1e-6)
