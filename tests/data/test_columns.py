"""Statistics of columns and distinct values equal NumPy, pandas and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from daskml_dist.data.column_statistics import (
    compute_column_moments,
    compute_column_ranges,
    find_distinct_rows,
)
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import encode_labels


def unaligned(rows: NDArray[Any]) -> NDArray[Any]:
    """Provide the rows at an odd address, as data received over a network may have."""
    memory = np.empty(rows.nbytes + 1, dtype=np.uint8)[1:].view(rows.dtype)
    memory.reshape(rows.shape)[...] = rows
    return memory.reshape(rows.shape)


LAYOUTS = pytest.mark.parametrize(
    "lay", [np.ascontiguousarray, np.asfortranarray, unaligned], ids=["C", "F", "unaligned"]
)


@LAYOUTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(("n_rows", "width"), [(1, 2), (20_001, 3), (50, 700)])
def test_statistics_equal_those_of_numpy(
    lay: Callable[[Any], Any], dtype: str, missing: float, n_rows: int, width: int
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(1e4, 1.0, size=(n_rows, width)).astype(dtype)
    rows[rng.random(rows.shape) < missing] = np.nan
    rows[0] = 1e4
    rows[:, 0] = np.nan if missing else 3.0
    array = lay(rows)
    count, mean, var = compute_column_moments(array)
    low, high = compute_column_ranges(array)
    has_values = np.isfinite(rows).any(axis=0)
    np.testing.assert_array_equal(count, np.isfinite(rows).sum(axis=0))
    assert np.isnan(mean[~has_values]).all()
    assert np.isnan(var[~has_values]).all()
    assert np.isnan(low[~has_values]).all()
    assert np.isnan(high[~has_values]).all()
    some = rows[:, has_values].astype(np.float64)
    np.testing.assert_allclose(mean[has_values], np.nanmean(some, axis=0), rtol=1e-13)
    np.testing.assert_allclose(var[has_values], np.nanvar(some, axis=0), rtol=1e-9, atol=1e-20)
    assert low.dtype == high.dtype == dtype
    np.testing.assert_array_equal(low[has_values], np.nanmin(some, axis=0))
    np.testing.assert_array_equal(high[has_values], np.nanmax(some, axis=0))
    np.testing.assert_array_equal(array, rows)


@LAYOUTS
@pytest.mark.parametrize("statistic", [compute_column_moments, compute_column_ranges])
def test_infinity_is_refused(lay: Callable[[Any], Any], statistic: Callable[[Any], Any]) -> None:
    rows = np.zeros((10, 2))
    rows[3] = np.nan
    rows[4, 1] = -np.inf
    with pytest.raises(InvalidDataError, match="infinity"):
        statistic(lay(rows))


NAMES = ["b", "a", "c", "a", "b", "a"]
COLUMNS = {
    "categories": pd.Categorical(NAMES, categories=["z", "c", "b", "a"]),
    "categories, all there": pd.Categorical(NAMES),
    "categories, missing": pd.Categorical(["b", None, "a", "a", None, "b"]),
    "categories of numbers": pd.Categorical([3, 1, 3, 3, 1, 3]),
    "strings": pd.array(NAMES, dtype="str"),
    "strings, missing": pd.array(["b", None, "a", "a", None, "b"], dtype="str"),
    "nullable": pd.array([1, None, 1, 5, 5, None], dtype="Int64"),
    "objects": np.array([*NAMES[:4], None, np.nan], dtype=object),
    "together": np.array([7, 5, 7, 7, 5, 9], dtype=np.int8),
    "apart": np.array([2**62, -5, 0, 0, -5, 1]),
    "unsigned": np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 0, 0, 0], dtype=np.uint64),
    "whole": np.array([1.0, 0.0, 1.0, 3.0, 3.0, -0.0]),
    "numbers": np.array([1.5, np.nan, 1.5, 0.0, -0.0, np.nan]),
    "bools": np.array([True, False, True, True, True, True]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_inverse_indices_restore_the_rows(name: str) -> None:
    frame = pd.DataFrame({"other": np.arange(6), name: pd.Series(COLUMNS[name])})
    few, places = find_distinct_rows(frame)
    assert list(few.columns) == list(frame.columns)
    assert list(few.dtypes) == list(frame.dtypes)
    for j in range(2):
        found = few.iloc[:, j].take(places[j]).reset_index(drop=True)
        pd.testing.assert_series_equal(found, frame.iloc[:, j])
        used = few.iloc[np.unique(places[j]), j]
        assert used.nunique(dropna=False) == frame.iloc[:, j].nunique(dropna=False)


@pytest.mark.parametrize("name", [n for n, v in COLUMNS.items() if isinstance(v, np.ndarray)])
def test_inverse_indices_of_arrays(name: str) -> None:
    column = np.asarray(COLUMNS[name])
    few, places = find_distinct_rows(np.stack([column, column[::-1]], axis=1))
    assert few.dtype == column.dtype
    for j, rows in enumerate([column, column[::-1]]):
        pd.testing.assert_series_equal(pd.Series(few[places[j], j]), pd.Series(rows))
        assert set(places[j]) == set(range(max(places[j]) + 1))


@pytest.mark.parametrize(
    "classes",
    [
        np.array([4, 5, 6]),
        np.array([-128, -127, -126], dtype=np.int8),
        np.array([0, 1, 3]),
        np.array([2**64 - 2, 2**64 - 1], dtype=np.uint64),
        np.array(["a", "b"]),
        np.array([0.0, 1.0]),
    ],
)
def test_codes_of_labels(classes: NDArray[Any]) -> None:
    at = np.random.default_rng(0).integers(0, len(classes), 50)
    codes = encode_labels(classes[at], classes, np.int32)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, at)
