"""scikit-learn's callbacks (1.9) are called if its own code fits, and refused elsewhere."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import StandardScaler

pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks since 1.9")

X = np.arange(40.0).reshape(20, 2)
Y = np.arange(20) % 2
LAZY = da.from_array(X, chunks=(10, 2)), da.from_array(Y, chunks=10)
GRID = {"C": [1.0, 2.0]}


class Heard:
    """Callback that records its calls."""

    max_propagation_depth = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def setup(self, estimator: Any, context: Any) -> None:
        self.calls.append("setup")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.calls.append(f"begins {type(estimator).__name__}")

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        self.calls.append(f"ends {type(estimator).__name__}")


@pytest.mark.parametrize("estimator", [LogisticRegression(), GaussianNB()])
def test_estimators_name_the_alternative(estimator: Any) -> None:
    assert not hasattr(estimator, "set_callbacks")
    with pytest.raises(
        AttributeError, match=r"Its own callbacks are constructor parameters.*callbacks=\["
    ):
        estimator.set_callbacks(Heard())


def test_pipelines_warn_and_continue() -> None:
    recorder = Heard()
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).set_callbacks(recorder)
    with pytest.warns(UserWarning, match="LogisticRegression does not support callbacks"):
        pipeline.fit(X, Y)
    assert "ends StandardScaler" in recorder.calls
    assert "ends LogisticRegression" not in recorder.calls


def test_searches_call_them_for_rows_in_memory() -> None:
    recorder = Heard()
    with pytest.warns(UserWarning, match="does not support callbacks"):
        GridSearchCV(LogisticRegression(), GRID, cv=2).set_callbacks(recorder).fit(X, Y)
    assert recorder.calls[:2] == ["setup", "begins GridSearchCV"]
    assert recorder.calls[-1] == "teardown"


@pytest.mark.parametrize(
    "estimator", [StandardScaler(), GridSearchCV(LogisticRegression(), GRID, cv=2)]
)
def test_dask_rows_refuse_them(estimator: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"Remove them: set_callbacks\(\)"):
        estimator.set_callbacks(Heard()).fit(*LAZY)
