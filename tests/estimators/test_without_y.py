"""Custom estimators without a target, by rounds and by steps, on the public base classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.typing import NDArray

from daskml_dist import Run
from daskml_dist.backends import Backend
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.models.base import BatchRows, Model, Parameters, Part, StepModel
from daskml_dist.policies import POLICIES, get_policy
from daskml_dist.solvers import Solution, Solver, Statistic, Sums
from daskml_dist.training.dataset_info import DatasetInfo

X = np.random.default_rng(0).normal([1.0, 2.0, 3.0], size=(90, 3))
WEIGHT = np.random.default_rng(1).random(len(X))
LAZY = da.from_array(X, chunks=(20, -1))
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(w=WEIGHT)


def _kind() -> Any:
    """Return an estimator class defined as in a notebook, whose module workers do not have."""

    class Plain(Model):
        def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
            raise AssertionError("there is no target")

    class Total(Statistic):
        """Weighted sum of the rows."""

        def shape(self, model: Any) -> tuple[int, ...]:
            return (3,)

        def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> float:
            assert rows.y is None
            weight = np.ones(len(rows.X)) if rows.weight is None else rows.weight
            out += weight @ rows.X
            return float("nan")

    class Mean(Solver):
        name = "mean"
        max_passes = 1

        def solve(self, model: Any, sums: Sums, start: Any) -> Solution:
            return Solution(sums(Total()) / sums.n_rows)

    class Centre(BaseRounds):
        """Mean of the rows, and distances to it."""

        def __init__(
            self, *, run: Any = None, device: str = "auto", callbacks: Any = None, verbose: int = 0
        ) -> None:
            self.run = run
            self.device = device
            self.callbacks = callbacks
            self.verbose = verbose

        def fit(self, X: Any, y: Any = None, sample_weight: Any = None, client: Any = None) -> Any:
            self._fit(X, y, sample_weight, client)
            return self

        def predict(self, X: Any) -> Any:
            return self._map_raw_predictions(None, X, np.float64, None)

        def _check_params(self) -> None:
            pass

        def _problem(self, rows: DatasetInfo) -> tuple[Model, Solver]:
            assert rows.classes is None
            return Plain(), Mean()

        def _set_fitted(self, solution: Solution, model: Any, rows: DatasetInfo) -> None:
            self.n_features_in_ = rows.summary.n_features
            self.mean_ = solution.w

        def _raw_prediction(self) -> Any:
            return partial(_distance, self.mean_)

    def _distance(mean: NDArray[Any], X: Any) -> NDArray[Any]:
        return np.asarray(((X - mean) ** 2).sum(axis=1))

    return Centre


@pytest.mark.parametrize(
    ("rows", "weight"),
    [(LAZY, None), (X, WEIGHT), (LAZY, 2.0)],
    ids=["plain", "weighted, in memory", "of one weight"],
)
def test_rounds_without_a_target(client: Client, rows: Any, weight: Any) -> None:
    model = _kind()(run=Run(n_lanes=3)).fit(rows, sample_weight=weight)
    mean = np.average(X, axis=0, weights=None if np.ndim(weight) == 0 else weight)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-12)
    found = np.asarray(model.predict(rows))
    np.testing.assert_allclose(found, ((X - mean) ** 2).sum(axis=1), rtol=1e-12)
    assert model.history_.extra["n_lanes"] == 3


def test_in_this_process_and_with_names() -> None:
    model = _kind()().fit(FRAME, "c", sample_weight="w")  # y is ignored, as in scikit-learn
    np.testing.assert_allclose(model.mean_, np.average(X, axis=0, weights=WEIGHT), rtol=1e-12)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    lazy = _kind()().fit(dd.from_pandas(FRAME[["a", "b", "c"]], npartitions=3))
    np.testing.assert_allclose(lazy.mean_, X.mean(axis=0), rtol=1e-12)


def test_rows_of_custom_estimators_are_validated() -> None:
    kind = _kind()
    with pytest.raises(NotFittedError):
        kind().predict(X)
    with pytest.raises(InvalidDataError, match="expecting 3 features"):
        kind().fit(X).predict(X[:, :2])
    with pytest.raises(InvalidDataError, match="NaN"):
        kind().fit(X * np.nan)
    with pytest.raises(InvalidParameterError, match="does not use n_servers"):
        kind().set_params(run__n_servers=2).fit(X)


# --- by steps --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Nearness(StepModel):
    """Model of half the squared distance of the rows to a point."""

    n_features: int

    @property
    def parameters(self) -> Parameters:
        return Parameters((Part("point", (self.n_features,)),))

    def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
        raise AssertionError("there is no target")

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> float:
        away = self.parameters.views(w)["point"] - rows.X
        views = self.parameters.views(out)
        views["point"] += away.sum(axis=0)
        return 0.5 * float((away**2).sum())

    def identity(self) -> dict[str, Any]:
        return {"n_features": self.n_features}


class _Point(BaseSteps):
    """Estimator of the mean of the rows by gradient steps."""

    def __init__(
        self,
        max_iter: int = 80,
        policy: Any = "sync",
        optimizer: Any = "sgd",
        learning_rate: float = 0.1,
        batch_size: Any = None,
        warm_start: bool = False,
        run: Any = None,
    ) -> None:
        self.max_iter = max_iter
        self.policy = policy
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.run = run

    def _model(self, rows: DatasetInfo, last: Any) -> StepModel:
        assert rows.classes is None
        return _Nearness(rows.summary.n_features)

    def _set_parameters(self, w: NDArray[Any], model: _Nearness, rows: DatasetInfo) -> None:
        self.n_features_in_ = model.n_features
        self.point_ = model.parameters.views(w)["point"]


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_without_a_target(policy: str) -> None:
    model = _Point(policy=policy, run=Run(n_lanes=2)).fit(X, None)
    # For free-running lanes the last one determines the result: the mean of its rows.
    atol = 0.05 if get_policy(policy).lockstep else 0.6
    np.testing.assert_allclose(model.point_, X.mean(axis=0), atol=atol)
    assert model.history_.extra["policy"] == policy
    assert model.t_ == 80 * len(X)


def test_steps_without_a_target_continue() -> None:
    whole = _Point(8).fit(X, None)
    parts = _Point(4, warm_start=True).fit(X, None).fit(X, None)
    np.testing.assert_array_equal(parts.point_, whole.point_)
    with pytest.raises(InvalidDataError, match="expecting 3 features"):
        parts.fit(X[:, :2], None)
