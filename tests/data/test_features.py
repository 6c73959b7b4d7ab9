"""Features of a block: conversion without needless copies, dtypes, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from daskml_dist.data import as_rows, make_block
from daskml_dist.errors import InvalidDataError
from tests.data.rows import DENSE_AND_SPARSE, X


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_suitable_array_is_not_copied(dtype: str) -> None:
    values = X.astype(dtype)
    block = make_block(0, values, values[:, 0], values[:, 1], classification=False)
    assert block.X is values
    contiguous = np.ones(4, dtype)
    block = make_block(0, values, contiguous, contiguous, classification=False)
    assert np.shares_memory(block.y, contiguous)
    assert np.shares_memory(block.sample_weight, contiguous)


def test_row_slice_is_not_copied() -> None:
    assert np.shares_memory(make_block(0, X[1:3], classification=False).X, X)


@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csr_matrix])
def test_suitable_csr_is_not_copied(container: Any) -> None:
    values = container(X)
    rows = make_block(0, values, classification=False).X
    assert rows is values


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float64"),
        ("int8", "float64"),
        ("uint64", "float64"),
        ("bool", "float64"),
        ("object", "float64"),
    ],
)
def test_dtype_of_dense_rows(dtype: str, expected: str) -> None:
    assert make_block(0, X.astype(dtype), classification=False).X.dtype == expected


@DENSE_AND_SPARSE
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_may_be_given(container: Any, dtype: str) -> None:
    block = make_block(0, container(X), X[:, 0], X[:, 1], dtype=dtype, classification=False)
    # Weights keep their precision until a fit has scaled them.
    assert (block.X.dtype, block.sample_weight.dtype) == (dtype, X.dtype)
    assert block.y.dtype == np.float64  # targets keep the precision


def test_fortran_order_becomes_c_order() -> None:
    rows = make_block(0, np.asfortranarray(X), classification=False).X
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, X)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
def test_every_sparse_format_becomes_csr(form: str) -> None:
    rows = make_block(0, sparse.csr_array(X).asformat(form), classification=False).X
    assert rows.format == "csr"
    np.testing.assert_array_equal(rows.toarray(), X)


def test_sparse_integers_become_float64() -> None:
    assert make_block(0, sparse.csr_array(X.astype(int)), classification=False).X.dtype == "float64"


def test_unsorted_and_duplicate_entries_are_merged_in_a_copy() -> None:
    values = sparse.csr_array(
        (np.array([1.0, 2.0, 4.0]), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 3)
    )
    rows = make_block(0, values, classification=False).X
    assert rows.indices.tolist() == [0, 2]
    assert rows.data.tolist() == [2.0, 5.0]
    assert values.indices.tolist() == [2, 0, 2]


def test_int64_indices_become_int32_where_they_fit() -> None:
    values = sparse.csr_array(X)
    values.indices, values.indptr = values.indices.astype("int64"), values.indptr.astype("int64")
    rows = make_block(0, values, classification=False).X
    assert (rows.indices.dtype, rows.indptr.dtype) == ("int32", "int32")
    assert np.shares_memory(rows.data, values.data)
    wide = sparse.csr_array(([1.0], ([0], [2**31 + 5])), shape=(1, 2**31 + 6))
    assert make_block(0, wide, classification=False).X.indices.dtype == "int64"


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float32", "float32"], "float32"),
        (["Float32", "float32"], "float32"),
        (["float32", "float64"], "float64"),
        (["float32", "int64"], "float64"),
        (["Int64", "boolean"], "float64"),
        (["float[pyarrow]", "float[pyarrow]"], "float32"),
        (["int64[pyarrow]", "bool"], "float64"),
    ],
)
def test_dtype_of_dataframe(dtypes: list[str], expected: str) -> None:
    frame = pd.DataFrame({"a": [0, 1, 1], "b": [1, 0, 1]})
    frame = frame.astype(dict(zip("ab", dtypes, strict=True)))
    rows = make_block(0, frame, classification=False).X
    assert rows.dtype == expected
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, [[0, 1], [1, 0], [1, 1]])


def test_missing_values_of_extension_types_are_nan() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64")})
    np.testing.assert_array_equal(make_block(0, frame, classification=False).X, [[1], [np.nan]])


ENCODED = r"OneHotEncoder.*make_pipeline"


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        (["x", "y"], ENCODED),
        (pd.Series(["x", "y"], dtype=object), ENCODED),
        (pd.Series(["x", "y"], dtype="category"), ENCODED),
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), r"\.dt\.hour.*total_seconds"),
    ],
    ids=["string", "object", "categorical", "date"],
)
def test_columns_that_are_not_numbers(column: Any, remedy: str) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": column})
    with pytest.raises(InvalidDataError, match=rf"(?s)\['b'\] of X are not numeric.*{remedy}"):
        make_block(0, frame, classification=False)


@pytest.mark.parametrize(
    "values",
    [
        X + 1j,
        sparse.csr_array(X + 1j),
        pd.DataFrame(X + 1j),
    ],
    ids=["array", "sparse", "dataframe"],
)
def test_complex_features(values: Any) -> None:
    with pytest.raises(InvalidDataError, match="Complex data not supported: X is complex"):
        make_block(0, values, classification=False)


@pytest.mark.parametrize("values", [[["a"]], np.array([["a"]], object), np.array([[b"1"]])])
def test_strings(values: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"Block 3: X is not numeric.*OrdinalEncoder"):
        make_block(3, values, classification=False)


def test_non_numeric_objects_keep_numpy_s_error() -> None:
    with pytest.raises(TypeError, match=r"argument must be .* string.* number"):
        make_block(0, np.array([[{}]], object), classification=False)


@pytest.mark.parametrize("values", [X[0], X[None], 1.0, sparse.coo_array(X[0])])
def test_rows_must_be_2d(values: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"Block 1: Expected 2D array.*Reshape your data"):
        make_block(1, values, classification=False)


def test_ragged_rows() -> None:
    with pytest.raises(InvalidDataError, match=r"X is not an array: .*equal length"):
        as_rows([[1.0], [1.0, 2.0]])
