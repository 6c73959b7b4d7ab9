"""Predictions have the same rows and kind as X, and are lazy if X is lazy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Alias
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.dask_internals.expressions import lower_partitions
from daskml_dist.errors import InvalidDataError
from daskml_dist.inference import map_rows
from daskml_dist.linear_model import SGDClassifier

X = np.arange(24.0).reshape(8, 3)
W = np.array([[1.0, 2.0], [0.0, 1.0], [-1.0, 0.5]])
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
CONTAINERS = [np.asarray, sparse.csr_array, sparse.csr_matrix]
LABELS = np.array(["no", "maybe"])


@pytest.fixture(autouse=True)
def _in_process() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def one_output(rows: Any) -> NDArray[Any]:
    assert rows.shape[0] > 0
    return np.asarray(rows @ W[:, 0].astype(rows.dtype))


def two_outputs(rows: Any) -> NDArray[Any]:
    return np.asarray(rows @ W.astype(rows.dtype))


def labels(rows: Any) -> NDArray[Any]:
    return LABELS[(one_output(rows) > -5).astype(int)]


def lazy(chunks: Any, values: Any = X) -> da.Array:
    return da.from_array(values, chunks=chunks)


def unknown(array: da.Array) -> da.Array:
    return array[da.from_array(np.ones(len(array), bool), chunks=array.chunks[0])]


FUNCTIONS = pytest.mark.parametrize(
    ("function", "dtype", "n_outputs"),
    [(one_output, "float64", None), (two_outputs, "float64", 2), (labels, LABELS.dtype, None)],
    ids=["one", "two", "labels"],
)


@FUNCTIONS
@pytest.mark.parametrize("values", [X, X.tolist(), FRAME, sparse.csr_array(X), sparse.csc_array(X)])
def test_rows_in_memory(
    function: Callable[[Any], NDArray[Any]], dtype: Any, n_outputs: int | None, values: Any
) -> None:
    found = map_rows(function, values, dtype=dtype, n_outputs=n_outputs, row_shape=(3,))
    assert isinstance(found, np.ndarray)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, function(X))


@FUNCTIONS
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("columns", [3, (2, 1)])
@pytest.mark.parametrize("known", [True, False])
def test_dask_array(
    function: Callable[[Any], NDArray[Any]],
    dtype: Any,
    n_outputs: int | None,
    container: Any,
    columns: Any,
    known: bool,
) -> None:
    array = lazy(((1, 0, 4, 3), columns))
    array = (array if known else unknown(array)).map_blocks(container)
    found = map_rows(function, array, dtype=dtype, n_outputs=n_outputs)
    assert isinstance(found, da.Array)
    assert isinstance(found._meta, np.ndarray)
    assert found.dtype == dtype
    assert found.ndim == (1 if n_outputs is None else 2)
    if known:
        assert found.chunks[0] == (1, 0, 4, 3)
    assert found.chunks[1:] == (() if n_outputs is None else ((n_outputs,),))
    np.testing.assert_array_equal(found.compute(), function(X))


@FUNCTIONS
@pytest.mark.parametrize("npartitions", [1, 3])
def test_dask_dataframe(
    function: Callable[[Any], NDArray[Any]], dtype: Any, n_outputs: int | None, npartitions: int
) -> None:
    frame = dd.from_pandas(FRAME, npartitions=npartitions)
    found = map_rows(function, frame, dtype=dtype, n_outputs=n_outputs, row_shape=(3,))
    assert isinstance(found, da.Array)
    assert found.dtype == dtype
    assert np.isnan(found.chunks[0]).all()
    assert len(found.chunks[0]) == npartitions
    assert found.chunks[1:] == (() if n_outputs is None else ((n_outputs,),))
    np.testing.assert_array_equal(found.compute(), function(X))


@pytest.mark.parametrize("n_outputs", [None, 2])
def test_empty_partitions(n_outputs: int | None) -> None:
    frame = dd.from_pandas(FRAME, npartitions=4)
    function = one_output if n_outputs is None else two_outputs
    found = map_rows(function, frame[frame["a"] > 12], dtype="float64", n_outputs=n_outputs)
    np.testing.assert_array_equal(found.compute(), function(X[X[:, 0] > 12]))


@pytest.mark.parametrize("values", [X[:0], lazy((4, 3))[:0], sparse.csr_array((0, 3))])
def test_no_rows(values: Any) -> None:
    found = np.asarray(map_rows(one_output, values, dtype=LABELS.dtype))
    assert found.shape == (0,)
    assert found.dtype == LABELS.dtype


def test_object_labels() -> None:
    classes = np.array(["no", "maybe"], object)
    for values in (X, lazy((3, 3)), dd.from_pandas(FRAME, npartitions=2)):
        found = map_rows(
            lambda rows: classes[(one_output(rows) > -5).astype(int)], values, dtype=object
        )
        assert found.dtype == object
        assert np.asarray(found).tolist() == labels(X).tolist()


def test_float32_is_kept() -> None:
    dtypes = []

    def function(rows: Any) -> NDArray[Any]:
        dtypes.append(rows.dtype.name)
        return one_output(rows)

    for values in (X.astype("float32"), lazy((3, 3), X.astype("float32"))):
        found = map_rows(function, values, dtype="float32")
        assert np.asarray(found).dtype == np.float32
    assert set(dtypes) == {"float32"}


def test_suitable_array_is_not_copied() -> None:
    found = map_rows(lambda rows: rows[:, 0], X, dtype="float64")
    assert np.shares_memory(found, X)


def test_nothing_runs_before_compute() -> None:
    calls = []

    def function(rows: Any) -> NDArray[Any]:
        calls.append(rows.shape)
        return one_output(rows)

    for values in (lazy((4, 3)), lazy((4, 2)), dd.from_pandas(FRAME, npartitions=2)):
        found = map_rows(function, values, dtype="float64")
        assert calls == []
        found.compute()
        assert calls == [(4, 3), (4, 3)]
        calls.clear()


def test_result_is_part_of_further_graphs() -> None:
    found = map_rows(two_outputs, lazy((3, 3)), dtype="float64", n_outputs=2)
    np.testing.assert_array_equal(found.argmax(axis=1).compute(), two_outputs(X).argmax(axis=1))
    np.testing.assert_array_equal(found[2:5].compute(), two_outputs(X)[2:5])


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [X, FRAME, lazy((4, 3)), dd.from_pandas(FRAME, npartitions=2)])
def test_other_number_of_features(values: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"X has 3 features, but .* is expecting 4 features"):
        map_rows(one_output, values, dtype="float64", row_shape=(4,))


@pytest.mark.parametrize("values", [X[0], lazy((4,), X[:, 0])])
def test_rows_must_be_2d(values: Any) -> None:
    with pytest.raises(InvalidDataError, match="Reshape your data"):
        map_rows(one_output, values, dtype="float64")


def test_rows_that_are_not_finite() -> None:
    values = X.copy()
    values[5, 1] = np.nan
    with pytest.raises(InvalidDataError, match=r"Input X contains NaN \(row 5"):
        map_rows(one_output, values, dtype="float64")
    found = map_rows(one_output, lazy((4, 3), values), dtype="float64")
    with pytest.raises(InvalidDataError, match=r"Block 1: Input X contains NaN \(row 1"):
        found.compute()
    frame = dd.from_pandas(pd.DataFrame(values), npartitions=2)
    found = map_rows(one_output, frame, dtype="float64")
    with pytest.raises(InvalidDataError, match=r"Input X contains NaN \(row 1"):
        found.compute()


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_linear_model_detects_non_finite_rows(
    wrong: float, dtype: str, width: int, container: Any
) -> None:
    """Without a separate check: also in columns without effect, and in the last piece."""
    coef, intercept = np.zeros((width, 5), dtype=dtype), np.zeros(width, dtype=dtype)
    raw = SGDClassifier()
    raw.coef_, raw.intercept_, raw.n_features_in_ = coef, intercept, 5
    assert raw._raw_prediction().shows_not_finite
    values = np.ones((70_000, 5), dtype=dtype)
    assert not raw.decision_function(container(values)).any()
    for row, column in ((0, 0), (33_000, 4), (69_999, 2)):
        values[row, column] = wrong
        with pytest.raises(InvalidDataError, match=rf"Input X contains .* \(row {row} of"):
            raw.decision_function(container(values))
        values[row, column] = 1


def test_finite_rows_may_have_infinite_predictions() -> None:
    clf = SGDClassifier()
    clf.coef_, clf.intercept_, clf.n_features_in_ = np.full((1, 2), 3e38, "f4"), np.zeros(1), 2
    rows = np.array([[1e38, 1e38], [-1e38, -1e38], [0, 0]], dtype="f4")
    np.testing.assert_array_equal(clf.decision_function(rows), [np.inf, -np.inf, 0])


def test_columns_that_are_not_numbers() -> None:
    frame = dd.from_pandas(FRAME.assign(b="x"), npartitions=2)
    with pytest.raises(InvalidDataError, match=r"\['b'\] of X are not numeric"):
        map_rows(one_output, frame, dtype="float64")


def test_following_operations_are_fused_with_predictions() -> None:
    rows = lazy((2, 3)).persist()
    found = map_rows(one_output, rows, dtype="float64") + 1
    (graph,) = dask.optimize(found)
    assert len(dict(graph.dask)) == 2 * rows.numblocks[0]
    np.testing.assert_array_equal(found, one_output(X) + 1)


def test_persisted_partitions_need_no_separate_task() -> None:
    frame = dd.from_pandas(FRAME, npartitions=2).persist()
    graph = lower_partitions(frame)[0].dask
    for piece in lower_partitions(frame):
        assert not isinstance(graph[piece.key], Alias)
