"""Bins and quantiles of Dask collections: methods, weights, and sketches for many values."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from scipy import sparse

from daskml_dist.data.column_statistics import (
    QUANTILE_METHODS,
    SKETCH_SIZE,
    merge_sketches,
    sketch_column,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.preprocessing import (
    KBinsDiscretizer,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
)

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(size=500), RNG.integers(0, 6, 500), RNG.random(500) * 1e3])
WEIGHT = RNG.integers(0, 4, 500).astype(float)
EVERY_METHOD = [*QUANTILE_METHODS, "inverted_cdf", "averaged_inverted_cdf", "closest_observation"]


def _lazy(rows: Any = X) -> da.Array:
    return da.from_array(rows, chunks=(180, -1))


def _same_edges(ours: Any, theirs: Any) -> None:
    for found, expected in zip(ours.bin_edges_, theirs.bin_edges_, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_quantiles_are_those_of_numpy(method: str) -> None:
    q, column = np.linspace(0, 1, 37), X[:101, 1]
    sketch = merge_sketches([sketch_column(part) for part in np.array_split(column, 4)])
    np.testing.assert_allclose(sketch.quantile(q, method), np.quantile(column, q, method=method))
    ours = KBinsDiscretizer(4, quantile_method=method).fit(_lazy())
    _same_edges(ours, sklearn.preprocessing.KBinsDiscretizer(4, quantile_method=method).fit(X))


@pytest.mark.parametrize(
    "params",
    [
        {"quantile_method": "inverted_cdf"},
        {"quantile_method": "averaged_inverted_cdf"},
        {"strategy": "uniform"},
        {"strategy": "kmeans"},
    ],
    ids=str,
)
def test_weighted_bins(params: dict[str, Any]) -> None:
    rows = X[:, [0, 2]]  # means of few values tie
    ours = KBinsDiscretizer(4, **params).fit(_lazy(rows), sample_weight=WEIGHT)
    theirs = sklearn.preprocessing.KBinsDiscretizer(4, **params)
    _same_edges(ours, theirs.fit(rows, sample_weight=WEIGHT))
    repeated = np.repeat(rows, WEIGHT.astype(int), axis=0)
    _same_edges(ours, KBinsDiscretizer(4, **params).fit(_lazy(repeated)))


def test_a_column_of_few_values_is_exact_however_long() -> None:
    column = RNG.integers(0, 100, (40_000, 1)).astype(float) ** 2
    lazy = da.from_array(column, chunks=(9_000, 1))
    params: Any = {"encode": "ordinal", "quantile_method": "averaged_inverted_cdf"}
    ours = KBinsDiscretizer(7, **params).fit(lazy)
    theirs = sklearn.preprocessing.KBinsDiscretizer(7, subsample=None, **params)
    _same_edges(ours, theirs.fit(column))
    assert ours.rank_error_ == 0
    with pytest.warns(UserWarning, match="in feature 0 are removed"):
        assert KBinsDiscretizer(150, strategy="kmeans").fit(lazy).n_bins_ == 100
    scaler = RobustScaler().fit(lazy)
    assert scaler.rank_error_ == 0
    np.testing.assert_allclose(scaler.center_, np.median(column, axis=0))


def test_beyond_the_sketch_ranks_keep_their_bound() -> None:
    column = RNG.normal(size=(60_000, 1))
    lazy = da.from_array(column, chunks=(4_000, 1))
    ours = QuantileTransformer(n_quantiles=200).fit(lazy)
    assert 0 < ours.rank_error_ < 3e-4
    ranks = np.searchsorted(np.sort(column[:, 0]), ours.quantiles_[:, 0]) / len(column)
    assert np.abs(ranks - ours.references_).max() <= ours.rank_error_ + 1 / len(column)
    assert ours.quantiles_[[0, -1], 0].tolist() == [column.min(), column.max()]
    bins = KBinsDiscretizer(10, encode="ordinal").fit(lazy)
    share = np.bincount(bins.transform(lazy).compute()[:, 0].astype(int)) / len(column)
    np.testing.assert_allclose(share, 0.1, atol=2 * bins.rank_error_ + 1e-4)
    assert len(sketch_column(column[:, 0], np.ones(60_000)).values) <= SKETCH_SIZE


def test_warnings_name_adjusted_parameters() -> None:
    with pytest.warns(UserWarning, match="n_quantiles is set to n_samples"):
        assert QuantileTransformer().fit(_lazy()).n_quantiles_ == 500
    with pytest.warns(UserWarning, match="takes effect only with sparse"):
        QuantileTransformer(n_quantiles=5, ignore_implicit_zeros=True).fit(_lazy())
    with pytest.warns(UserWarning, match="Feature 0 is constant"):
        assert KBinsDiscretizer().fit(_lazy(np.ones((9, 1)))).n_bins_ == 1
    with pytest.warns(UserWarning, match=r"in feature 1 are removed"):
        assert KBinsDiscretizer(20).fit(_lazy()).n_bins_[1] < 8


def test_bad_input_is_refused() -> None:
    missing = X.copy()
    missing[200, 1] = np.nan
    with pytest.raises(InvalidDataError, match=r"Block 1 of X: Input X contains NaN"):
        KBinsDiscretizer().fit(_lazy(missing))
    with pytest.raises(InvalidDataError, match=r"(?s)Block 1 of X: Input X contains NaN.*Simple"):
        PolynomialFeatures().fit_transform(_lazy(missing)).compute()
    counts = _lazy().map_blocks(sparse.csr_array, meta=sparse.csr_array((0, 3)))
    with pytest.raises(InvalidDataError, match="does not support sparse"):
        KBinsDiscretizer().fit(counts)
    with pytest.raises(InvalidDataError, match="non-negative sparse"):
        QuantileTransformer(n_quantiles=5).fit(counts)
    with pytest.raises(InvalidParameterError, match="greater than the number of samples used"):
        QuantileTransformer(subsample=10).fit(_lazy())
    with pytest.raises(InvalidParameterError, match="quantile_method should"):
        KBinsDiscretizer(quantile_method="linear").fit(_lazy(), sample_weight=WEIGHT)
    with pytest.raises(InvalidDataError, match="All rows have weight 0"):
        KBinsDiscretizer(quantile_method="inverted_cdf").fit(_lazy(), sample_weight=np.zeros(500))
    with pytest.raises(InvalidDataError, match="empty output array"):
        PolynomialFeatures(0, include_bias=False).fit(_lazy())


def test_weights_of_frames_belong_to_rows_whatever_their_labels() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), index=rng.permutation(60), columns=["a", "b"])
    weight = pd.Series(rng.uniform(size=60), index=frame.index)
    lazy = dd.from_pandas(frame, npartitions=1, sort=False)
    its = dd.from_pandas(weight, npartitions=1, sort=False)
    params = {"n_bins": 4, "encode": "ordinal", "quantile_method": "averaged_inverted_cdf"}
    found = KBinsDiscretizer(**params).fit(lazy, sample_weight=its)
    wanted = KBinsDiscretizer(**params).fit(frame, sample_weight=weight)
    for ours, theirs in zip(found.bin_edges_, wanted.bin_edges_, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    with pytest.raises(InvalidDataError, match="Negative"):
        KBinsDiscretizer(**params).fit(lazy, sample_weight=-its)
