"""Bad input raises an error of the package that names the remedy, before any work is started."""

from __future__ import annotations

import threading
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning

from daskml_dist import Run
from daskml_dist.backends.devices import gpu_problem
from daskml_dist.cluster import KMeans
from daskml_dist.errors import (
    DaskMLDistError,
    DeviceUnavailableError,
    InvalidDataError,
    InvalidParameterError,
)
from daskml_dist.linear_model import (
    LinearRegression,
    LogisticRegression,
    SGDClassifier,
    SGDRegressor,
)
from daskml_dist.metrics import accuracy_score, mean_squared_error
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.policies import BoundedStaleness, get_policy
from daskml_dist.training.worker.lane import Lane

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0] > 0


def _no_work(*_: Any) -> Any:
    pytest.fail("work was started")


#: Reading it fails the test.
UNREAD = da.from_delayed(
    __import__("dask").delayed(_no_work)(), shape=(60, 3), dtype=float, meta=np.empty((0, 0))
)


@pytest.mark.parametrize(
    ("params", "remedy"),
    [
        ({"policy": "bsp"}, "Use one of .*'allreduce'.*'sync'"),
        ({"loss": "poisson"}, "hinge"),
        ({"optimizer": "rmsprop"}, "adagrad"),
        ({"learning_rate": "slow"}, "constant"),
        ({"learning_rate": -1.0}, "> 0"),
        ({"penalty": "l3"}, "elasticnet"),
        ({"alpha": -1.0}, "alpha"),
        ({"batch_size": 0}, "integer >= 1"),
        ({"max_iter": 0}, "integer >= 1"),
        ({"run": Run(n_lanes=0)}, "integer >= 1"),
        ({"run": Run(n_servers=2.5)}, "integer >= 1"),
        ({"device": "tpu"}, "cpu"),
        ({"validation_fraction": 1.5}, "between 0 and 1"),
        ({"tol": -1.0}, ">= 0"),
        ({"class_weight": "equal"}, "balanced"),
        ({"callbacks": object()}, "on_pass_end"),
        ({"checkpoint": "somewhere"}, "Checkpoint"),
    ],
)
def test_parameters(params: dict[str, Any], remedy: str) -> None:
    with pytest.raises(InvalidParameterError, match=remedy):
        SGDClassifier(**params).fit(UNREAD, da.from_array(Y, chunks=60))


def test_a_policy_given_to_fit() -> None:
    with pytest.raises(InvalidParameterError, match="Unknown policy"):
        SGDClassifier().fit(X, Y, policy="fastest")
    with pytest.raises(InvalidParameterError, match="integer >= 0"):
        BoundedStaleness(staleness=-1)
    with pytest.raises(InvalidParameterError, match="Use one of"):
        get_policy(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("y", "weight", "remedy"),
    [
        (Y[:50], None, "50"),
        (np.ones(60), None, "only one class"),
        (Y, -np.ones(60), "Negative"),
        (Y, np.full(60, np.nan), "NaN"),
        (Y, np.zeros(60), "weights are zero"),
        (Y, np.ones(59), "59"),
        (None, None, "y"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_rows(y: Any, weight: Any, remedy: str, lazy: bool) -> None:
    arrays = [X, y, weight]
    if lazy:
        arrays = [None if a is None else da.from_array(a, chunks=20) for a in arrays]
    with pytest.raises(InvalidDataError, match=remedy):
        SGDClassifier().fit(*arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(value: float) -> None:
    bad = X.copy()
    bad[33, 1] = value
    with pytest.raises(InvalidDataError, match=r"NaN|infinity"):
        SGDClassifier().fit(bad, Y)


@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize("model", [KMeans(2), LinearRegression(), LogisticRegression()])
def test_non_finite_rows_of_a_block_shared_by_lanes(
    model: Any, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first lane to compute its sum has rows without NaN."""
    bad, turns, usual = X.copy(), threading.Lock(), Lane.add_statistic
    bad[row, 1] = np.nan

    def one_after_the_other(lane: Lane, *arguments: Any) -> Any:
        with turns:
            return usual(lane, *arguments)

    monkeypatch.setattr(Lane, "add_statistic", one_after_the_other)
    with pytest.raises(InvalidDataError, match=r"contains NaN \(row"):
        clone(model).set_params(run=Run(n_lanes=2)).fit(bad, Y)


def test_an_empty_collection() -> None:
    with pytest.raises(InvalidDataError, match="0 sample"):
        SGDClassifier().fit(X[:0], Y[:0])
    with pytest.raises(DaskMLDistError, match="0 sample"):
        SGDClassifier().fit(da.from_array(X, chunks=20)[:0], da.from_array(Y, chunks=20)[:0])


def test_chunks_that_cannot_be_aligned() -> None:
    unknown = da.from_array(X, chunks=(20, 3))[da.from_array(Y, chunks=20)]
    with pytest.raises(InvalidDataError, match="compute_chunk_sizes"):
        SGDClassifier().fit(unknown, da.from_array(Y, chunks=30))


def test_a_target_outside_the_domain() -> None:
    with pytest.raises(InvalidDataError, match="poisson"):
        SGDRegressor(loss="poisson").fit(X, X[:, 0])


@pytest.mark.skipif(gpu_problem() is None, reason="there is a GPU")
def test_no_gpu() -> None:
    with pytest.raises(DeviceUnavailableError, match='device="auto"'):
        SGDClassifier(device="gpu").fit(X, Y)


def test_divergence_raises() -> None:
    with pytest.raises(DaskMLDistError, match="learning_rate"):
        SGDRegressor(optimizer="sgd", learning_rate=1e6, max_iter=50).fit(X * 1e6, X[:, 0])


def test_predict_before_fit() -> None:
    with pytest.raises(DaskMLDistError, match="Call 'fit'"):
        SGDClassifier().predict(X)


@pytest.mark.parametrize("n_rows", [60, 70_000])
def test_continuous_targets_are_refused_as_labels(n_rows: int) -> None:
    """Few labels are checked by scikit-learn, many block by block."""
    rows = np.zeros((n_rows, 1))
    y = np.arange(n_rows) % 3.0
    SGDClassifier(max_iter=1, tol=None).fit(rows, y)
    y[-1] = 0.5
    with pytest.raises(InvalidDataError, match="a regressor for a continuous target"):
        SGDClassifier().fit(rows, y)
    y[-1] = np.nan
    with pytest.raises(InvalidDataError, match="Input y contains NaN"):
        SGDClassifier().fit(rows, y)


_MISSING: dict[str, Any] = {
    "NaN": pd.Series(["a", np.nan, "b"], dtype=object),
    "None": pd.Series(["a", None, "b"], dtype=object),
    "NA": pd.Series(["a", pd.NA, "b"], dtype="string"),
    "str": pd.Series(["a", None, "b"], dtype="str"),
    "category": pd.Series(["a", None, "b"], dtype="category"),
    "date": pd.Series(pd.to_datetime(["2020-01-01", None, "2020-01-02"])),
    "Int64": pd.Series([0, pd.NA, 1], dtype="Int64"),
    "boolean": pd.Series([False, pd.NA, True], dtype="boolean"),
    "numbers": pd.Series([0, pd.NA, 1], dtype=object),
}


@pytest.mark.parametrize("kind", _MISSING)
@pytest.mark.parametrize("lazy", [False, True])
def test_missing_labels_are_reported_as_nan(kind: str, lazy: bool) -> None:
    y, rows = _MISSING[kind], pd.DataFrame(X[:3], columns=list("abc"))
    calls = [
        lambda: GaussianNB().fit(rows, y),
        lambda: LinearRegression().fit(rows, y),
        lambda: accuracy_score(y, y),
        lambda: mean_squared_error(y, y),
    ]
    if lazy:
        rows, y = (dd.from_pandas(values, npartitions=1) for values in (rows, y))
    for call in calls:
        with pytest.raises(InvalidDataError, match=r"contains NaN.*row 1|contains NaN or inf"):
            call()


def test_a_frame_of_one_column_keeps_its_dtype() -> None:
    y = pd.DataFrame({"y": pd.Series(Y).astype("boolean")})
    with pytest.warns(DataConversionWarning, match="column-vector"):
        model = GaussianNB().fit(X, y)
    assert model.classes_.dtype == bool
