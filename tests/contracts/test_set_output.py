"""``set_output`` of every public transformer gives frames of pandas and Dask as in scikit-learn."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse

from daskml_dist.decomposition import PCA
from tests.contracts.small_fits import rows_of, small_estimator, small_estimators

NAMES = [
    name
    for name, model in small_estimators().items()
    if hasattr(model, "transform") and hasattr(model, "set_output")
]
#: Parameters that make results dense: scikit-learn makes no frames of sparse results either.
DENSE: dict[str, dict[str, Any]] = {
    "KBinsDiscretizer": {"encode": "onehot-dense"},
    "OneHotEncoder": {"sparse_output": False},
}


def _rows(name: str) -> tuple[Any, ...]:
    """Return X as a frame with a non-default index, and y if the fit takes one."""
    X, y = rows_of(name)
    X = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X, columns=list("abcd"))
    X.index = pd.RangeIndex(100, 100 + len(X))
    return (X,) if y is None else (X, pd.Series(y, index=X.index, name="y"))


def _small(name: str) -> Any:
    return small_estimator(name, **DENSE.get(name, {}))


def _twin_of(model: Any) -> Any:
    """Return scikit-learn's transformer with the same parameters; None if it has none."""
    module = importlib.import_module(f"sklearn.{type(model).__module__.split('.')[1]}")
    theirs = getattr(module, type(model).__name__, None)
    if theirs is None:
        return None
    # Starting values and solvers differ, but not column names.
    known = inspect.signature(theirs).parameters.keys() - {"init", "solver"}
    return theirs(**{n: v for n, v in model.get_params(deep=False).items() if n in known})


def _check_frame(found: Any, values: Any, like: pd.DataFrame, columns: Any) -> None:
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == list(columns)
    pd.testing.assert_index_equal(found.index, like.index)
    np.testing.assert_allclose(_numbers(found), _numbers(values), rtol=1e-12)


def _numbers(values: Any) -> Any:
    """Return a result as numbers; categories as codes."""
    if isinstance(values, pd.DataFrame):
        columns = [column.cat.codes if column.dtype == "category" else column
                   for _, column in values.items()]  # fmt: skip
        return np.column_stack(columns).astype(float)
    return np.asarray(values.toarray() if sparse.issparse(values) else values, dtype=float)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_transform_returns_pandas_or_dask_frames(name: str) -> None:
    rows = _rows(name)
    lazy = tuple(dd.from_pandas(part, npartitions=2) for part in rows)
    model = _small(name).fit(*rows)
    values, of_dask = model.transform(rows[0]), model.transform(lazy[0])
    columns = model.get_feature_names_out()
    model.set_output(transform="pandas")
    _check_frame(model.transform(rows[0]), values, rows[0], columns)
    found = model.transform(lazy[0])
    assert isinstance(found, dd.DataFrame)
    assert list(found.columns) == list(columns)
    _check_frame(found.compute(), values, rows[0], columns)
    pd.testing.assert_series_equal(found.dtypes, model.transform(rows[0]).dtypes)
    model.set_output(transform="default")
    assert type(model.transform(lazy[0])) is type(of_dask)
    assert type(model.transform(rows[0])) is type(values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_lazy_frames_declare_the_labels_and_dtypes_of_the_rows(name: str) -> None:
    """Dask plans later steps by them: `reset_index` would name a column that no row has."""
    rows = _rows(name)
    model = _small(name).fit(*rows).set_output(transform="pandas")
    X = rows[0].set_axis(pd.Index([f"row {i}" for i in range(len(rows[0]))], name="id"))
    numbers = X.select_dtypes("float64").columns
    X = X.astype(dict.fromkeys(numbers, np.float32))
    found = model.transform(dd.from_pandas(X, npartitions=2))
    computed = found.compute()
    pd.testing.assert_series_equal(found.dtypes, computed.dtypes)
    assert (found.index.name, found.index.dtype) == ("id", computed.index.dtype)
    assert list(found.reset_index().columns) == list(computed.reset_index().columns)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_fit_transform_is_lazy_too(name: str) -> None:
    lazy = tuple(dd.from_pandas(part, npartitions=2) for part in _rows(name))
    model = _small(name).set_output(transform="pandas")
    found = model.fit_transform(*lazy)
    # The codes of a fold are learned from other rows: they are joined as arrays.
    expected = da.Array if name == "TargetEncoder" else dd.DataFrame
    assert isinstance(found, expected)
    array = lazy[0].to_dask_array(lengths=True)
    if name not in ("Categorizer", "DummyEncoder", "ColumnTransformer"):  # only for frames
        framed = _small(name).fit(array, *lazy[1:]).set_output(transform="pandas").transform(array)
        assert isinstance(framed, dd.DataFrame)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_frames_equal_those_of_scikit_learn(name: str) -> None:
    rows = _rows(name)
    model = _small(name).set_output(transform="pandas")
    twin = _twin_of(model)
    if twin is None:
        pytest.skip("scikit-learn has no such transformer")
    found = model.fit(*rows).transform(rows[0])
    expected = twin.set_output(transform="pandas").fit(*rows).transform(rows[0])
    assert type(found) is type(expected)
    assert list(found.columns) == list(expected.columns)
    pd.testing.assert_index_equal(found.index, expected.index)
    assert found.dtypes.tolist() == expected.dtypes.tolist()


def test_lazy_frames_follow_the_configuration_under_which_they_were_made() -> None:
    """The tasks run later, and in threads and processes that do not have it."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    lazy = da.from_array(rows, chunks=(20, 3))
    model = PCA(2).fit(rows)
    with sklearn.config_context(transform_output="pandas"):
        found = model.transform(lazy)
    np.testing.assert_allclose(found.compute(), model.transform(rows), atol=1e-12)
