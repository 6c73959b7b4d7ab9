"""Every public estimator with each callback of the package: it works, or the error says why not."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from daskml_dist import callbacks
from daskml_dist.base import BaseSteps
from daskml_dist.callbacks import (
    CSVLogger,
    EarlyStopping,
    EvalMonitor,
    MLflow,
    OptunaPruning,
    Progress,
    TensorBoard,
    TimeLimit,
)
from tests.contracts.compare import Refusal, attempt
from tests.contracts.small_fits import each_base, rows_of, small_estimator, small_estimators

FITTED_WITH_CALLBACKS = [
    name
    for name, model in small_estimators().items()
    if "callbacks" in model.get_params(deep=False)
]


class Trial:
    """Stand-in for a trial that is never pruned."""

    def __init__(self) -> None:
        self.reported: dict[int, float] = {}

    def report(self, value: float, step: int) -> None:
        self.reported[step] = value

    def should_prune(self) -> bool:
        return False


class SmallFit:
    """Estimator with its callbacks, which write into a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.trial, self.shown = Trial(), io.StringIO()

    def make_callback(self, callback: str) -> Any:
        """Return a callback of the package by its name."""
        makers: dict[str, Callable[[], Any]] = {
            "CSVLogger": lambda: CSVLogger(self.folder / "passes.csv"),
            "EarlyStopping": lambda: EarlyStopping("loss", patience=50),
            "EvalMonitor": lambda: EvalMonitor(rows_of(self.name)),
            "MLflow": lambda: MLflow(tracking_uri=f"sqlite:///{self.folder / 'runs.db'}"),
            "OptunaPruning": lambda: OptunaPruning(self.trial, "loss"),
            "Progress": lambda: Progress(Console(file=self.shown)),
            "TensorBoard": lambda: TensorBoard(self.folder / "events"),
            "TimeLimit": lambda: TimeLimit("1 hour"),
        }
        return makers[callback]()

    def fit(self, *names: str) -> Any:
        """Return the estimator, fitted with some callbacks."""
        X, y = rows_of(self.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return small_estimator(self.name, callbacks=list(map(self.make_callback, names))).fit(
                X, y
            )

    def check(self, names: Sequence[str], passes: list[int]) -> None:
        """Assert that each callback has reported all passes."""
        if "CSVLogger" in names:
            with open(self.folder / "passes.csv", newline="") as file:
                assert [int(line["pass"]) for line in csv.DictReader(file)] == passes
        if "Progress" in names:
            assert str(len(passes)) in self.shown.getvalue()
        if "OptunaPruning" in names:
            assert list(self.trial.reported) == passes
        if "TensorBoard" in names:
            assert list((self.folder / "events").iterdir())
        if "MLflow" in names:
            assert (self.folder / "runs.db").exists()


def test_every_callback_is_in_the_table() -> None:
    in_table = {"Checkpoint", *ALWAYS, "EvalMonitor", *MEASURING, *WITH_A_PACKAGE}
    assert in_table == set(callbacks.__all__)


#: Callbacks that every fit takes; that need a loss; and that need another package.
ALWAYS = ("CSVLogger", "Progress", "TimeLimit")
MEASURING = ("EarlyStopping", "OptunaPruning")
WITH_A_PACKAGE = {"MLflow": "mlflow", "TensorBoard": "tensorboardX"}


@pytest.mark.parametrize("name", each_base(FITTED_WITH_CALLBACKS))
def test_common_callbacks_work_with_every_fit(name: str, tmp_path: Path) -> None:
    small = SmallFit(name, tmp_path)
    found = small.fit(*ALWAYS)
    small.check(ALWAYS, [record["pass"] for record in found.history_])


@pytest.mark.parametrize("callback", ["EvalMonitor", *MEASURING])
@pytest.mark.parametrize("name", each_base(FITTED_WITH_CALLBACKS))
def test_monitoring_callbacks_work_or_name_alternatives(
    name: str, callback: str, tmp_path: Path
) -> None:
    """A fit records the monitored value, or the error names alternatives."""
    if callback == "OptunaPruning":
        pytest.importorskip("optuna", reason="needs the extra optuna")
    small = SmallFit(name, tmp_path)
    found = attempt(small.fit, callback)
    if isinstance(found, Refusal):
        assert found.is_ours
        assert ("parameters of this fit" if callback == "EvalMonitor" else "has no") in str(found)
        assert callback != "EvalMonitor" or name not in BY_STEPS
        return
    small.check([callback], [record["pass"] for record in found.history_])
    assert callback != "EvalMonitor" or all("eval_score" in record for record in found.history_)


#: Estimators whose parameters the client has after each pass.
BY_STEPS = {
    name
    for name, model in small_estimators().items()
    if isinstance(model, BaseSteps) and getattr(model, "solver", "") != "lbfgs"
}


@pytest.mark.slow
@pytest.mark.parametrize("callback", WITH_A_PACKAGE)
@pytest.mark.parametrize("name", FITTED_WITH_CALLBACKS)
def test_callbacks_of_optional_packages_work(name: str, callback: str, tmp_path: Path) -> None:
    pytest.importorskip(WITH_A_PACKAGE[callback])
    small = SmallFit(name, tmp_path)
    found = small.fit(callback)
    small.check([callback], [record["pass"] for record in found.history_])
