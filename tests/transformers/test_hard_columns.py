"""Columns and parameters at the edge of what transformers can fit."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn import impute, preprocessing
from sklearn.pipeline import make_pipeline

from daskml_dist.compose import Blockwise, ColumnTransformer
from daskml_dist.decomposition import IncrementalPCA
from daskml_dist.impute import SimpleImputer
from daskml_dist.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from daskml_dist.wrappers import ParallelPostFit

# Constant and huge features are what the tests are about; scikit-learn warns of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Feature 0 is constant:UserWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
ROWS = np.random.default_rng(0).normal(size=(12, 3))


def _lazy(rows: Any, chunks: Any = 4) -> Any:
    return da.from_array(rows, chunks=(chunks, -1), asarray=False)


@pytest.mark.parametrize(
    "transformer",
    [
        MaxAbsScaler(copy=False),
        MinMaxScaler(copy=False),
        QuantileTransformer(n_quantiles=5, copy=False),
        RobustScaler(copy=False),
        SimpleImputer(copy=False, missing_values=ROWS[2, 1]),
        StandardScaler(copy=False),
        ColumnTransformer([("all", StandardScaler(copy=False), slice(0, 3))]),
        Blockwise(preprocessing.StandardScaler(copy=False).fit(ROWS)),
        ParallelPostFit(make_pipeline(preprocessing.StandardScaler(copy=False))),
    ],
    ids=lambda t: type(t).__name__,
)
def test_lazy_blocks_are_left_unchanged(transformer: Any) -> None:
    rows = ROWS.copy()
    lazy = _lazy(rows)
    found = transformer.fit(rows.copy() if isinstance(transformer, ParallelPostFit) else lazy)
    found = found.transform(lazy)
    first = found.compute(scheduler="synchronous")
    assert_allclose(rows, ROWS, rtol=0)
    # The second computation reads the same blocks.
    assert_allclose(found.compute(scheduler="synchronous"), first, rtol=0)


def test_lazy_results_are_left_unchanged_by_the_inverse() -> None:
    scaled = np.random.default_rng(1).normal(size=(12, 3))
    expected = scaled.copy()
    scaler = StandardScaler(copy=False).fit(_lazy(ROWS))
    scaler.inverse_transform(_lazy(scaled)).compute(scheduler="synchronous")
    assert_allclose(scaled, expected, rtol=0)


@pytest.mark.parametrize("encode", ["ordinal", "onehot", "onehot-dense"])
def test_bins_of_a_constant_feature_are_undone(encode: str) -> None:
    rows = np.c_[np.full(12, 7.0), ROWS]
    binner = KBinsDiscretizer(3, encode=encode, strategy="uniform").fit(_lazy(rows))
    whole = preprocessing.KBinsDiscretizer(3, encode=encode, strategy="uniform").fit(rows)
    codes = binner.transform(_lazy(rows))
    found = binner.inverse_transform(codes).compute()
    assert_allclose(found, whole.inverse_transform(whole.transform(rows)))


def test_single_categories_are_undone() -> None:
    rows = np.full((6, 2), 5.0)
    encoder = OrdinalEncoder().fit(_lazy(rows))
    found = encoder.inverse_transform(encoder.transform(_lazy(rows))).compute()
    assert found.tolist() == rows.tolist()


@pytest.mark.parametrize("dtype", [bool, int, float, object])
@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(handle_unknown="ignore"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
        OneHotEncoder(handle_unknown="infrequent_if_exist"),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan),
    ],
    ids=str,
)
def test_unknown_categories_are_undone_as_none(encoder: Any, dtype: Any) -> None:
    rows = np.array([[1, 0], [0, 0], [1, 1], [0, 0]]).astype(dtype)
    encoder.fit(_lazy(rows[1::2], 1))
    found = encoder.inverse_transform(encoder.transform(_lazy(rows, 2))).compute()
    known = rows[:1].tolist()[0][1:]
    missing = np.nan if dtype is float else None
    expected = [[missing, *known], [*known, *known], [missing, missing], [*known, *known]]
    assert [[None if v != v else v for v in row] for row in found.tolist()] == [
        [None if v != v else v for v in row] for row in expected
    ]


def test_infrequent_categories_are_undone() -> None:
    rows = np.array([[0, 0], [0, 1], [1, 0], [2, 1]])
    encoder = OneHotEncoder(max_categories=2, handle_unknown="infrequent_if_exist").fit(rows)
    found = encoder.inverse_transform(encoder.transform(_lazy(rows, 2))).compute()
    assert found.tolist() == encoder.inverse_transform(encoder.transform(rows)).tolist()


def test_bools_of_frames_have_bins() -> None:
    frame = pd.DataFrame({"a": [True, False, True], "b": [True, True, False]})
    binner = KBinsDiscretizer(2, encode="ordinal", strategy="uniform").fit(frame)
    expected = [[1, 1], [0, 1], [1, 0]]
    assert binner.transform(frame).tolist() == expected
    assert binner.transform(dd.from_pandas(frame, npartitions=2)).compute().tolist() == expected


@pytest.mark.parametrize("strategy", ["uniform", "quantile", "kmeans"])
def test_features_narrower_than_a_bin_have_one(strategy: str) -> None:
    rows = np.c_[1e-300 * ROWS[:, 0], ROWS[:, 1]]
    if strategy == "uniform":
        rows[:, 0] = 0  # bins of equal width are never joined
    with pytest.warns(UserWarning, match="constant|too small"):
        binned = KBinsDiscretizer(3, encode="ordinal", strategy=strategy).fit(_lazy(rows))
    assert binned.n_bins_.tolist() == [1, 3]
    assert (binned.transform(_lazy(rows)).compute()[:, 0] == 0).all()
    for encode in ("ordinal", "onehot", "onehot-dense"):
        with pytest.warns(UserWarning, match="constant|too small"):
            whole = KBinsDiscretizer(3, encode=encode, strategy=strategy).fit(rows)
        assert whole.n_bins_.tolist() == [1, 3]
        undone = whole.inverse_transform(whole.transform(rows))
        assert_allclose(undone[:, 1], binned.inverse_transform(binned.transform(rows))[:, 1])


@pytest.mark.parametrize("strategy", ["mean", "median", "constant"])
@pytest.mark.parametrize("gap", [0, -1])
def test_statistic_may_equal_the_mark_of_missing_values(strategy: str, gap: int) -> None:
    rows = np.array([[gap - 2, 5.0], [gap + 2, 7.0], [gap, 1.0], [gap - 3, gap], [gap + 3, 6.0]])
    options = {"strategy": strategy, "missing_values": gap, "fill_value": gap}
    whole = impute.SimpleImputer(**options, add_indicator=True).fit(rows)
    imputer = SimpleImputer(**options, add_indicator=True).fit(_lazy(rows, 2))
    assert_allclose(imputer.statistics_.astype(float), whole.statistics_.astype(float))
    assert_allclose(imputer.transform(_lazy(rows, 2)).compute(), whole.transform(rows))


def test_constant_for_unsigned_integers() -> None:
    rows = np.array([[0, 3], [7, 255]], np.uint8)
    imputer = SimpleImputer(strategy="constant", missing_values=7, fill_value=np.uint8(1))
    found = imputer.fit(_lazy(rows, 1)).transform(_lazy(rows, 1)).compute()
    assert found.dtype == np.uint8
    assert found.tolist() == [[0, 3], [1, 255]]


def test_constant_for_missing_texts_that_are_empty() -> None:
    rows = np.array([["a", ""], ["b", "c"], ["", "d"]], dtype=object)
    options = {"strategy": "constant", "missing_values": "", "fill_value": "none"}
    whole = impute.SimpleImputer(**options).fit(rows)
    imputer = SimpleImputer(**options).fit(_lazy(rows, 1))
    assert imputer.transform(_lazy(rows, 1)).compute().tolist() == whole.transform(rows).tolist()


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (3,)], ids=str)
def test_huge_values_after_a_block_of_missing_ones(sizes: tuple[int, ...]) -> None:
    rows = np.array([[np.nan, 1e300], [np.nan, 1e300], [1e300, 1e300]])
    whole = preprocessing.StandardScaler().fit(rows)
    scaler: Any = StandardScaler().fit(_lazy(rows, sizes))
    assert_allclose(scaler.var_, whole.var_)
    assert_allclose(scaler.scale_, whole.scale_)


def test_constant_feature_with_small_weights_is_not_scaled_up() -> None:
    rows = np.c_[np.full(40, 0.1), np.arange(40.0)]
    weights = np.random.default_rng(0).uniform(1e-4, 1e-3, 40)
    lazy, lazy_weights = _lazy(rows, 3), da.from_array(weights, chunks=3)
    scaler: Any = StandardScaler().fit(lazy, sample_weight=lazy_weights)
    assert scaler.scale_[0] == 1
    assert_allclose(scaler.transform(lazy).compute()[:, 0], 0, atol=1e-12)


@pytest.mark.parametrize("with_std", [True, False])
def test_weighted_features_may_be_missing_in_all_rows(with_std: bool) -> None:
    rows = np.full((6, 1), np.nan)
    weights = np.array([1.0, 2, 0, 0, 1, 1])
    whole = preprocessing.StandardScaler(with_std=with_std).fit(rows, sample_weight=weights)
    lazy = _lazy(rows, 2), None, da.from_array(weights, chunks=2)
    scaler = StandardScaler(with_std=with_std).fit(*lazy)
    assert np.isnan(scaler.mean_).all()
    assert np.isnan(whole.mean_).all()


def test_distances_of_sparse_blocks() -> None:
    from daskml_dist.metrics import euclidean_distances, pairwise_distances_argmin

    rows = sparse.random(12, 5, density=0.5, format="csr", random_state=0)
    others = np.random.default_rng(0).random((3, 5))
    dense = np.linalg.norm(rows.toarray()[:, None] - others, axis=2)
    lazy = da.from_array(rows, chunks=((5, 0, 7), 5), asarray=False)
    assert_allclose(euclidean_distances(lazy, others).compute(), dense)
    assert_allclose(euclidean_distances(lazy, sparse.csr_matrix(others)).compute(), dense)
    assert np.asarray(pairwise_distances_argmin(lazy, others)).tolist() == (
        dense.argmin(axis=1).tolist()
    )


@pytest.mark.parametrize(
    "transformer",
    [IncrementalPCA(2), QuantileTransformer(n_quantiles=4, output_distribution="normal")],
    ids=str,
)
def test_rows_of_sparse_blocks(transformer: Any) -> None:
    rows = np.kron(np.eye(3), [[1.0, 0.0], [2.0, 3.0]])
    expected = transformer.fit_transform(sparse.csr_array(rows))
    found = transformer.fit_transform(sparse.bsr_array(rows, blocksize=(2, 2)))
    assert_allclose(_dense(found), _dense(expected))


def _dense(rows: Any) -> Any:
    return rows.toarray() if sparse.issparse(rows) else rows
