"""Containers of other libraries as rows: xarray, pydata/sparse, sparse columns, lazy tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse as scipy_sparse
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB as OthersGaussianNB

from daskml_dist import model_selection
from daskml_dist.compose import make_column_transformer
from daskml_dist.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    VotingClassifier,
)
from daskml_dist.errors import InvalidDataError
from daskml_dist.feature_extraction import CountVectorizer
from daskml_dist.frequent_patterns import frequent_itemsets
from daskml_dist.impute import SimpleImputer
from daskml_dist.inspection import permutation_importance
from daskml_dist.linear_model import Ridge
from daskml_dist.metrics import accuracy_score, r2_score, silhouette_score
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import LabelEncoder, OrdinalEncoder, StandardScaler
from tests import fake_cupy

NAMES = ["a", "b", "c"]
ROWS = np.random.default_rng(0).integers(0, 3, size=(60, 3)).astype(float)
LABELS = (ROWS[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(ROWS, columns=NAMES)
ZEROS_OUT = pd.SparseDtype("float64", 0.0)


@pytest.fixture(autouse=True)
def in_this_thread() -> Iterator[None]:
    with dask.config.set(scheduler="sync"):
        yield


class _GpuRows:
    """Rows on a GPU with CuPy's interface, which NumPy cannot convert."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}
    device = SimpleNamespace(type="cuda")

    def __init__(self, rows: Any) -> None:
        self.rows, self.shape, self.ndim, self.dtype = rows, rows.shape, rows.ndim, rows.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


class _Tensor(_GpuRows):
    def detach(self) -> Any:
        return SimpleNamespace(cpu=lambda: SimpleNamespace(numpy=lambda: self.rows))


class _Frame(_GpuRows):
    def get(self, key: Any) -> Any:  # for a column, not a copy of all
        raise AssertionError

    def to_pandas(self) -> Any:
        return (pd.DataFrame if self.ndim == 2 else pd.Series)(self.rows)


class _NumbaArray(_GpuRows):
    def copy_to_host(self) -> Any:
        return self.rows


_Tensor.__module__, _Frame.__module__ = "torch", "cudf.core.series"
_NumbaArray.__module__ = "numba.cuda.cudadrv.devicearray"


@pytest.mark.parametrize("kind", [_Tensor, _Frame, _NumbaArray, fake_cupy.DeviceArray])
def test_rows_on_a_gpu_of_any_library_are_read(kind: Any) -> None:
    X, y = kind(ROWS), kind(LABELS)
    expected = GaussianNB().fit(ROWS, LABELS)
    if kind is not fake_cupy.DeviceArray:  # fits on a GPU read it
        model = GaussianNB().fit(X, y)
        np.testing.assert_allclose(model.theta_, expected.theta_, 1e-12)
        np.testing.assert_allclose(model.predict(X), expected.predict(ROWS))
    for one in (StandardScaler(), OrdinalEncoder()):
        expected_rows = clone(one).fit(ROWS).transform(ROWS)
        for found in (one.fit(X).transform(X), clone(one).fit_transform(X)):
            # Transformed rows stay on the GPU.
            rows = found.get() if isinstance(found, fake_cupy.DeviceArray) else found
            np.testing.assert_allclose(rows, expected_rows, 1e-12, 1e-15)
    np.testing.assert_array_equal(LabelEncoder().fit_transform(y), LABELS)
    bagged = BaggingClassifier(GaussianNB(), n_estimators=2, random_state=0)
    found = clone(bagged).fit(X, y).predict(X)
    np.testing.assert_array_equal(found, bagged.fit(ROWS, LABELS).predict(ROWS))


def _load(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def _lazy_rows() -> da.Array:
    return da.from_array(ROWS, chunks=(20, 3))


def _data_array(rows: Any, *names: str) -> Any:
    coords = {"column": list(names)} if names else {}
    return _load("xarray").DataArray(rows, dims=("row", "column"), coords=coords)


#: The same rows in other containers: a function that makes them, and whether columns are named.
KINDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "xarray": (lambda: _data_array(ROWS, *NAMES), True),
    "xarray on Dask": (lambda: _data_array(_lazy_rows(), *NAMES), True),
    "xarray in column chunks": (lambda: _data_array(_lazy_rows().rechunk((20, 2)), *NAMES), True),
    "xarray without names": (lambda: _data_array(_lazy_rows()), False),
    "sparse frame": (lambda: FRAME.astype(ZEROS_OUT), True),
    "mixed frame": (lambda: FRAME.assign(a=FRAME["a"].astype(ZEROS_OUT)), True),
    "frame that leaves out NaN": (lambda: FRAME.astype(pd.SparseDtype("float64")), True),
    "sparse Dask frame": (lambda: dd.from_pandas(FRAME.astype(ZEROS_OUT), chunksize=20), True),
    "mixed Dask frame": (
        lambda: dd.from_pandas(FRAME.assign(a=FRAME["a"].astype(ZEROS_OUT)), chunksize=20),
        True,
    ),
    "COO": (lambda: _load("sparse").COO.from_numpy(ROWS), False),
    "GCXS": (lambda: _load("sparse").GCXS.from_numpy(ROWS), False),
    "DOK": (lambda: _load("sparse").DOK.from_numpy(ROWS), False),
    "blocks of COO": (lambda: _lazy_rows().map_blocks(_load("sparse").COO.from_numpy), False),
    "blocks of GCXS": (lambda: _lazy_rows().map_blocks(_load("sparse").GCXS.from_numpy), False),
    "delayed blocks of COO": (
        lambda: [dask.delayed(_load("sparse").COO.from_numpy(part)) for part in np.split(ROWS, 3)],
        False,
    ),
}


def _dense(values: Any) -> Any:
    (values,) = dask.compute(values)
    return values.toarray() if hasattr(values, "toarray") else np.asarray(values)


def _labels_beside(rows: Any) -> Any:
    lazy = isinstance(rows, list) or dask.is_dask_collection(rows)
    return da.from_array(LABELS, chunks=20) if lazy else LABELS


def _check_names(fitted: Any, named: bool) -> None:
    assert list(getattr(fitted, "feature_names_in_", [])) == (NAMES if named else [])


#: scikit-learn's warning about such rows in memory.
IGNORE_MIXED_COLUMNS = pytest.mark.filterwarnings(
    "ignore:pandas.DataFrame with sparse columns found"
)


@IGNORE_MIXED_COLUMNS
@pytest.mark.parametrize("kind", KINDS)
def test_estimators_take_rows_of_any_kind(kind: str) -> None:
    make, named = KINDS[kind]
    rows = make()
    y = _labels_beside(rows)
    for model in (Ridge(), GaussianNB()):
        expected = clone(model).fit(ROWS, LABELS)
        found = clone(model).fit(rows, y)
        _check_names(found, named)
        np.testing.assert_allclose(_dense(found.predict(rows)), expected.predict(ROWS), atol=1e-9)
        assert found.score(rows, y) == pytest.approx(expected.score(ROWS, LABELS))
    if isinstance(rows, list):
        return  # scikit-learn's members and transformers read the number of columns
    scaler = StandardScaler(with_mean=False).fit(rows, y)
    _check_names(scaler, named)
    scaled = StandardScaler(with_mean=False).fit_transform(ROWS)
    np.testing.assert_allclose(_dense(scaler.transform(rows)), scaled)
    np.testing.assert_allclose(_dense(scaler.inverse_transform(scaler.transform(rows))), ROWS)
    if named:
        encoder = OrdinalEncoder().fit(rows)
        _check_names(encoder, named)
        np.testing.assert_array_equal(_dense(encoder.transform(rows)), ROWS)
        columns = make_column_transformer(
            (StandardScaler(with_mean=False), ["b"]), remainder="passthrough"
        )
        expected = _dense(clone(columns).fit_transform(FRAME))
        np.testing.assert_allclose(_dense(columns.fit(rows).transform(rows)), expected)
    voters = VotingClassifier([("one", OthersGaussianNB())])
    if not _is_sparse(rows):  # this member refuses sparse rows
        answers = voters.fit(rows, y).predict(rows)
        _check_names(voters, named)
        assert answers.shape == (60,) or "frame" in kind
        np.testing.assert_array_equal(_dense(answers), GaussianNB().fit(ROWS, LABELS).predict(ROWS))


def _is_sparse(rows: Any) -> bool:
    block = getattr(rows, "_meta", rows)
    if hasattr(block, "dtypes"):
        return all(hasattr(dtype, "fill_value") for dtype in block.dtypes)
    return "sparse" in type(block).__module__


@IGNORE_MIXED_COLUMNS
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_kind_are_split_and_scored(kind: str) -> None:
    rows = KINDS[kind][0]()
    y = _labels_beside(rows)
    for (train, test), (_, expected_test) in zip(
        model_selection.KFold(3).split(rows, y), model_selection.KFold(3).split(ROWS), strict=True
    ):
        (test,) = dask.compute(test)
        np.testing.assert_array_equal(
            np.flatnonzero(test) if len(test) == 60 else test, expected_test
        )
        del train
    scores = model_selection.cross_val_score(Ridge(), rows, y, cv=model_selection.KFold(3))
    lazy = da.from_array(ROWS, chunks=(20, 3)), da.from_array(LABELS, chunks=20)
    np.testing.assert_allclose(
        scores, model_selection.cross_val_score(Ridge(), *lazy, cv=model_selection.KFold(3))
    )
    search = model_selection.GridSearchCV(Ridge(), {"alpha": [1.0]}, cv=2).fit(rows, y)
    assert search.best_estimator_.coef_.shape == (3,)
    if "NaN" not in kind:  # scikit-learn does not read these
        assert silhouette_score(rows, y) == pytest.approx(silhouette_score(ROWS, LABELS))
    if not isinstance(rows, list):
        train, test = model_selection.train_test_split(rows, shuffle=False)
        np.testing.assert_array_equal(_dense(train), ROWS[:45])


def test_predictions_for_xarray_have_known_sizes() -> None:
    X, y = _data_array(_lazy_rows(), *NAMES), _load("xarray").DataArray(LABELS, dims="row")
    lazy_y = y.chunk(row=30)  # with other chunks than the rows
    model = Ridge().fit(X, lazy_y, sample_weight=_load("xarray").DataArray(np.ones(60)).chunk(20))
    assert model.predict(X).chunks == ((20, 20, 20),)
    assert r2_score(lazy_y, model.predict(X)) == pytest.approx(model.score(X, y))
    assert accuracy_score(lazy_y, lazy_y) == accuracy_score(y, y) == 1.0
    encoder = LabelEncoder().fit(lazy_y)
    np.testing.assert_array_equal(encoder.transform(lazy_y), LABELS)
    other = X.assign_coords(column=["a", "c", "b"])
    with pytest.raises(InvalidDataError, match="in the same order"):
        model.predict(other)
    framed = StandardScaler().set_output(transform="pandas").fit(X).transform(X)
    assert list(framed.compute().columns) == NAMES
    importance = permutation_importance(model, X, lazy_y, n_repeats=1, random_state=0)
    assert importance.importances_mean.argmax() == 0


def test_texts_in_xarray_are_vectorized() -> None:
    texts = np.array(["red blue", "red", "blue blue", "red"], dtype=object)
    lazy = _load("xarray").DataArray(da.from_array(texts, chunks=2), dims="row")
    expected = CountVectorizer().fit_transform(list(texts)).toarray()
    np.testing.assert_array_equal(_dense(CountVectorizer().fit_transform(lazy)), expected)


@pytest.mark.parametrize("dtype", ["bool", "int64"])
@pytest.mark.parametrize("lazy", [False, True])
def test_itemsets_of_sparse_columns(lazy: bool, dtype: str) -> None:
    baskets = (FRAME > 0).astype(dtype)
    columns = baskets.astype(pd.SparseDtype(dtype, np.dtype(dtype).type(0)))
    baskets_given = dd.from_pandas(columns, npartitions=2) if lazy else columns
    pd.testing.assert_frame_equal(frequent_itemsets(baskets_given), frequent_itemsets(baskets))


def test_sparse_columns_of_bool_are_numbers() -> None:
    frame = (FRAME > 0).astype(pd.SparseDtype(bool, False))
    expected = StandardScaler(with_mean=False).fit_transform(FRAME > 0)
    for rows in (frame, dd.from_pandas(frame, npartitions=2)):
        found = StandardScaler(with_mean=False).fit_transform(rows)
        np.testing.assert_allclose(_dense(found), expected)


def test_a_frame_of_sparse_columns_stays_sparse() -> None:
    from daskml_dist.data.conversion import as_rows

    frame = FRAME.astype(pd.SparseDtype("float32", 0.0))
    rows = as_rows(frame)
    assert scipy_sparse.issparse(rows)
    assert rows.dtype == np.float32
    assert type(as_rows(frame.assign(a=1.0))) is np.ndarray
    target = FRAME["a"].astype(ZEROS_OUT)
    np.testing.assert_allclose(Ridge().fit(ROWS, target).coef_, Ridge().fit(ROWS, ROWS[:, 0]).coef_)


#: The same rows as queries and datasets, which every entry point accepts.
UNREADY: dict[str, Callable[[], Any]] = {
    "Polars": lambda: _load("polars").LazyFrame(FRAME.to_dict("list")),
    "DuckDB": lambda: _load("duckdb").from_df(FRAME),
    "Dataset": lambda: _load("xarray").Dataset({name: ("row", FRAME[name]) for name in NAMES}),
}


@pytest.mark.parametrize("kind", UNREADY)
def test_queries_and_datasets_are_accepted_by_every_function(kind: str) -> None:
    rows, y = UNREADY[kind](), LABELS
    voters = VotingClassifier([("one", OthersGaussianNB())])
    encode = make_column_transformer((StandardScaler(), ["a"]))
    expected = Ridge().fit(FRAME, y)
    np.testing.assert_allclose(Ridge().fit(rows, y).coef_, expected.coef_, atol=1e-9)
    np.testing.assert_allclose(_dense(expected.predict(rows)), expected.predict(FRAME))
    scaled = StandardScaler().fit_transform(FRAME)
    np.testing.assert_allclose(_dense(StandardScaler().fit_transform(rows)), scaled)
    np.testing.assert_allclose(_dense(StandardScaler().fit(FRAME).transform(rows)), scaled)
    np.testing.assert_allclose(_dense(encode.fit(rows).transform(rows)), scaled[:, :1])
    assert voters.fit(rows, y).score(rows, y) == voters.fit(FRAME, y).score(FRAME, y)
    assert len(list(model_selection.KFold(2).split(rows))) == 2
    assert len(model_selection.train_test_split(rows, shuffle=False)) == 2
    assert model_selection.cross_val_score(Ridge(), rows, y, cv=2).shape == (2,)
    search = model_selection.GridSearchCV(Ridge(), {"alpha": [1.0]}, cv=2).fit(rows, y)
    assert search.best_estimator_.coef_.shape == (3,)
    assert silhouette_score(rows, y) == pytest.approx(silhouette_score(ROWS, LABELS))


def _masked(values: Any, lazy: bool) -> Any:
    """Return values, every seventh of which is masked."""
    found = np.ma.masked_array(values, mask=np.arange(values.size).reshape(values.shape) % 7 == 0)
    return da.from_array(found, chunks=(20, *values.shape[1:])) if lazy else found


@pytest.mark.parametrize("lazy", [False, True])
def test_masked_entries_are_missing(lazy: bool) -> None:
    rows = _masked(ROWS, lazy)
    gaps = np.where(np.arange(ROWS.size).reshape(ROWS.shape) % 7 == 0, np.nan, ROWS)
    found = HistGradientBoostingClassifier(max_iter=3).fit(rows, LABELS)
    wanted = HistGradientBoostingClassifier(max_iter=3).fit(gaps, LABELS)
    (labels,) = dask.compute(found.predict(rows))
    np.testing.assert_array_equal(labels, wanted.predict(gaps))
    for scaler in (StandardScaler(), SimpleImputer()):
        (scaled,) = dask.compute(scaler.fit_transform(rows))
        np.testing.assert_allclose(scaled, scaler.fit_transform(gaps))
    unmasked = da.from_array(ROWS, chunks=(20, 3)) if lazy else ROWS
    for call in (
        lambda: Ridge().fit(rows, LABELS),
        lambda: GaussianNB().fit(unmasked, _masked(LABELS, lazy)),
        lambda: GaussianNB().fit(unmasked, _masked(LABELS.astype(str), lazy)),
        lambda: Ridge().fit(unmasked, LABELS, sample_weight=_masked(np.ones(60), lazy)),
        lambda: accuracy_score(_masked(LABELS, lazy), LABELS),
    ):
        with pytest.raises(InvalidDataError, match="contains NaN"):
            call()
    whole = np.ma.masked_array(LABELS, mask=False)
    labels = GaussianNB().fit(unmasked, da.from_array(whole, chunks=20) if lazy else whole).classes_
    assert labels.dtype == LABELS.dtype
