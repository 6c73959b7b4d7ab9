"""Blocks: conversion without needless copies, checks that name the block and the remedy."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dask.sizeof import sizeof
from distributed.comm.utils import from_frames, to_frames
from distributed.protocol import to_serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data import Block, BlockInfo, as_rows, check_finite, inspect_block, make_block
from daskml_dist.data.conversion import as_column
from daskml_dist.errors import InvalidDataError
from tests.fake_cupy import DeviceArray, FakeCupy, plug_in

X = np.arange(12.0).reshape(4, 3)
DENSE_AND_SPARSE = pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])


# --- features --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_array_that_is_right_is_not_copied(dtype: str) -> None:
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
def test_csr_that_is_right_is_not_copied(container: Any) -> None:
    values = container(X)
    rows = make_block(0, values, classification=False).X
    assert rows is values


@pytest.mark.parametrize(
    ("given", "expected"),
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
def test_dtype_of_dense_rows(given: str, expected: str) -> None:
    assert make_block(0, X.astype(given), classification=False).X.dtype == expected


@DENSE_AND_SPARSE
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_may_be_given(container: Any, dtype: str) -> None:
    block = make_block(0, container(X), X[:, 0], X[:, 1], dtype=dtype, classification=False)
    assert (block.X.dtype, block.sample_weight.dtype) == (dtype, dtype)
    assert block.y.dtype == np.float64  # targets keep the digits that they have


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


def test_unsorted_and_duplicate_entries_are_tidied_in_a_copy() -> None:
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


@pytest.mark.parametrize(
    "column",
    [
        ["x", "y"],
        pd.Series(["x", "y"], dtype=object),
        pd.Series(["x", "y"], dtype="category"),
        pd.to_datetime(["2020-01-01", "2020-01-02"]),
    ],
    ids=["string", "object", "categorical", "date"],
)
def test_columns_that_are_not_numbers(column: Any) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": column})
    with pytest.raises(
        InvalidDataError, match=r"(?s)\['b'\] of X are not numeric.*OneHotEncoder.*make_pipeline"
    ):
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


def test_objects_that_are_no_numbers_keep_numpy_s_error() -> None:
    with pytest.raises(TypeError, match=r"argument must be .* string.* number"):
        make_block(0, np.array([[{}]], object), classification=False)


@pytest.mark.parametrize("values", [X[0], X[None], 1.0, sparse.coo_array(X[0])])
def test_rows_must_be_2d(values: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"Block 1: Expected 2D array.*Reshape your data"):
        make_block(1, values, classification=False)


def test_ragged_rows() -> None:
    with pytest.raises(InvalidDataError, match=r"X is not an array: .*equal length"):
        as_rows([[1.0], [1.0, 2.0]])


# --- y and sample_weight ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "y",
    [
        [0, 1, 2, 3],
        np.arange(4)[:, None],
        pd.Series(range(4)),
        pd.Series(range(4), dtype="Int64"),
        pd.Series(range(4), dtype="int64[pyarrow]"),
        pd.DataFrame({"y": range(4)}),
    ],
    ids=["list", "column", "series", "nullable", "arrow", "dataframe"],
)
def test_y_of_every_kind(y: Any) -> None:
    labels = make_block(0, X, y, classification=True).y
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 1, 2, 3]
    target = make_block(0, X.astype("float32"), y, classification=False).y
    assert target.dtype == np.float64


@pytest.mark.parametrize(
    "labels",
    [
        np.array(list("abab")),
        pd.Series(list("abab")),
        pd.Series(list("abab"), dtype="category"),
        pd.Series(list("abab"), dtype="string[pyarrow]"),
        np.array([True, False, True, False]),
    ],
)
def test_labels_are_kept(labels: Any) -> None:
    block = make_block(0, X, labels, classification=True)
    assert block.y.tolist() == list(labels)


def test_several_outputs() -> None:
    with pytest.raises(InvalidDataError, match=r"y should be a 1d array, got .*\(4, 3\)"):
        make_block(0, X, X, classification=False)
    with pytest.raises(InvalidDataError, match=r"sample_weight should be a 1d array"):
        make_block(0, X, sample_weight=pd.DataFrame(X), classification=False)


def test_lengths_that_differ() -> None:
    with pytest.raises(InvalidDataError, match=r"Block 7: X has 4 rows but y has 3.*chunk_sizes"):
        make_block(7, X, [0, 1, 1], classification=True)
    with pytest.raises(InvalidDataError, match="Block 7: X has 4 rows but sample_weight has 1"):
        make_block(7, X, sample_weight=[1.0], classification=True)


@pytest.mark.parametrize(
    ("bad", "message"),
    [(np.nan, "NaN"), (np.inf, "infinity or a value too large for dtype"), (1e300, "float32")],
)
def test_targets_that_are_not_finite(bad: float, message: str) -> None:
    y = np.array([0.0, 1.0, bad, 1.0])
    with pytest.raises(InvalidDataError, match=rf"Block 2: Input y contains.*{message}.*row 2"):
        make_block(2, X.astype("float32"), y, classification=False)


@pytest.mark.parametrize(
    "labels",
    [
        [0.0, 1.0, np.nan, 1.0],
        [0.0, 1.0, np.inf, 1.0],
        np.array(["a", "b", None, "b"], object),
        pd.Series(["a", "b", None, "b"]),
        pd.Series(["a", "b", None, "b"], dtype="category"),
        pd.Series(["a", "b", pd.NA, "b"], dtype=object),
        pd.Series([1, 2, None, 2], dtype="Int64"),
    ],
)
def test_missing_labels(labels: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"Block 5: Input y contains (NaN|infinity).*Drop"):
        make_block(5, X, labels, classification=True)


def test_targets_that_are_not_numbers() -> None:
    with pytest.raises(InvalidDataError, match="Block 0: y is not numeric"):
        make_block(0, X, list("abab"), classification=False)
    for classification in (True, False):
        with pytest.raises(InvalidDataError, match="Complex data not supported: y"):
            make_block(0, X, X[:, 0] + 1j, classification=classification)


def test_scalar_weight_is_spread() -> None:
    block = make_block(0, X.astype("float32"), sample_weight=2.0, classification=False)
    assert block.sample_weight.dtype == np.float32
    assert block.sample_weight.tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-1.0, r"Negative values in sample_weight \(row 1 .*zero or more"),
        (np.nan, "Input sample_weight contains NaN"),
        (np.inf, "Input sample_weight contains infinity"),
    ],
)
def test_bad_weights(weight: float, message: str) -> None:
    with pytest.raises(InvalidDataError, match=f"Block 4: {message}"):
        make_block(4, X, sample_weight=[1.0, weight, 1.0, 1.0], classification=True)


def test_as_column_shares_memory() -> None:
    y = np.arange(4)[:, None]
    assert np.shares_memory(as_column(y, name="y"), y)
    series = pd.Series(X[:, 0])
    assert np.shares_memory(as_column(series, name="y"), series.to_numpy())


# --- finite ----------------------------------------------------------------------------------


@DENSE_AND_SPARSE
@pytest.mark.parametrize(
    ("bad", "message"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]
)
def test_check_finite_names_block_and_row(container: Any, bad: float, message: str) -> None:
    values = X.copy()
    values[2, 1] = bad
    values[3, 0] = np.nan
    block = make_block(9, container(values), classification=False)
    with pytest.raises(InvalidDataError, match=rf"Block 9: .*{message}.*row 2 .*SimpleImputer"):
        check_finite(block)


def test_check_finite_of_a_row_after_empty_ones() -> None:
    values = sparse.csr_array(([np.nan], ([3], [1])), shape=(5, 3))
    with pytest.raises(InvalidDataError, match="row 3 of the block"):
        check_finite(make_block(0, values, classification=False))


@DENSE_AND_SPARSE
def test_check_finite_passes(container: Any) -> None:
    check_finite(make_block(0, container(X), classification=False))
    check_finite(make_block(0, container(X[:0]), classification=False))
    large = np.full((4, 3), 3e38, "float32")  # their sum is not finite
    check_finite(make_block(0, container(large), classification=False))


def test_overflow_of_a_given_dtype_is_infinity() -> None:
    block = make_block(0, X + 1e300, dtype="float32", classification=False)
    with pytest.raises(InvalidDataError, match=r"too large for dtype\('float32'\)"):
        check_finite(block)


# --- facts -----------------------------------------------------------------------------------


def test_facts_of_labels() -> None:
    block = make_block(3, X, list("baab"), [1, 2, 3, 4], classification=True)
    info = inspect_block(block)
    assert (info.index, info.n_rows, info.n_features, info.nnz) == (3, 4, 3, None)
    assert (info.dtype, info.sparse, info.weight_sum, info.device) == ("float64", False, 10, "cpu")
    assert info.labels.tolist() == ["a", "b"]
    assert info.label_weights.tolist() == [5.0, 5.0]
    assert info.label_weights.dtype == np.float64
    assert info.targets is None


def test_facts_of_targets() -> None:
    block = make_block(0, sparse.csr_array(X, dtype="float32"), X[:, 0], classification=False)
    info = inspect_block(block)
    assert (info.dtype, info.sparse, info.nnz, info.weight_sum) == ("float32", True, 11, 4.0)
    assert (info.y_min, info.y_max, info.targets.mean) == (0.0, 9.0, 4.5)
    assert info.y_sample[0].tolist() == X[:, 0].tolist()
    assert info.labels is None


def test_facts_of_unweighted_labels() -> None:
    info = inspect_block(make_block(0, X, [1, 1, 0, 1], classification=True))
    assert info.label_weights.tolist() == [1.0, 3.0]
    assert info.label_weights.dtype == np.float64


@pytest.mark.parametrize("classification", [True, False])
def test_facts_of_an_empty_block(classification: bool) -> None:
    block = make_block(0, X[:0], X[:0, 0], X[:0, 0], classification=classification)
    info = inspect_block(block)
    assert (info.n_rows, info.n_features, info.weight_sum) == (0, 3, 0.0)
    if classification:
        assert (len(info.labels), len(info.label_weights)) == (0, 0)
    else:
        assert (info.y_min, info.y_max, info.targets.weight) == (None, None, 0.0)


def test_facts_without_y() -> None:
    info = inspect_block(make_block(0, X, classification=True))
    assert isinstance(info, BlockInfo)
    assert info.labels is None


def test_labels_of_different_types() -> None:
    block = make_block(1, X, np.array([1, "a", 1, "a"], object), classification=True)
    with pytest.raises(InvalidDataError, match=r"Block 1: .*different types.*astype\(str\)"):
        inspect_block(block)


def test_block_knows_its_size_and_pickles() -> None:
    block = make_block(0, X, X[:, 0], 1.0, classification=False)
    assert block.nbytes == X.nbytes + 2 * 4 * 8
    assert sizeof(block) >= block.nbytes
    values = sparse.csr_array(X)
    expected = values.data.nbytes + values.indices.nbytes + values.indptr.nbytes
    assert make_block(0, values, classification=False).nbytes == expected
    again = pickle.loads(pickle.dumps(block))
    np.testing.assert_array_equal(again.X, X)
    assert again.n_rows == 4


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 0, 3, -2]),
        np.array([5], dtype=np.uint8),
        np.array([True, False, True]),
        np.array([1.0, 0.0, -0.0, 15.0]),
        np.array([0.5, 1.5, 0.5]),
        np.array([0.0, 0.5, 1.0]),
        np.array([2**53 + 1, 2**53]),
        np.array([2**63, 2**63 + 1], dtype=np.uint64),
        np.array([0, 1000, 5]),
        np.array(["b", "a", "b"]),
    ],
    ids=str,
)
def test_labels_are_counted_as_numpy_counts_them(labels: Any) -> None:
    weights = np.linspace(0, 1, len(labels))
    for sample_weight in (None, weights):
        X = np.zeros((len(labels), 1))
        block = make_block(0, X, labels, sample_weight, classification=True)
        info = inspect_block(block)
        expected, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
        np.testing.assert_array_equal(info.labels, expected)
        assert info.labels is not None
        assert info.labels.dtype == labels.dtype
        sums = counts if sample_weight is None else np.bincount(inverse, weights)
        np.testing.assert_allclose(info.label_weights, sums)


# --- on a network of devices -----------------------------------------------------------------

#: What Dask's ucx asks for, and its tcp.
UCX, TCP = ("cuda", "dask", "pickle", "error"), ("dask", "pickle", "error")


def _sent(block: Block, serializers: tuple[str, ...]) -> tuple[list[Any], Block]:
    """The frames of a message with a block, and what is read of them."""
    frames = asyncio.run(to_frames({"block": to_serialize(block)}, serializers=serializers))
    again = asyncio.run(from_frames(frames, deserializers=serializers))["block"]
    return frames, again


def _device_block(there: Any) -> Block:
    return make_block(3, there, np.arange(4), np.ones(4, "float32"), classification=True)


def _check_sent(block: Block, again: Block, rows: NDArray[Any]) -> None:
    np.testing.assert_array_equal(again.X, rows)
    assert again.X.dtype == rows.dtype
    np.testing.assert_array_equal(again.y, block.y)
    np.testing.assert_array_equal(again.sample_weight, block.sample_weight)
    assert (again.index, again.device) == (block.index, block.device)


def test_rows_on_a_device_travel_as_they_are_under_ucx_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(FakeCupy, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    cuda_serialize.register(DeviceArray, lambda array: ({}, [array]))
    cuda_deserialize.register(DeviceArray, lambda _, frames: frames[0])
    block = _device_block(DeviceArray(X.astype("float32")))
    frames, again = _sent(block, UCX)
    assert any(frame is block.rows for frame in frames)
    assert again.rows is block.rows
    assert DeviceArray.copied == 0
    _check_sent(block, again, X.astype("float32"))
    frames, again = _sent(block, TCP)
    assert not any(isinstance(frame, DeviceArray) for frame in frames)
    assert isinstance(again.rows, np.ndarray)
    _check_sent(block, again, X.astype("float32"))


@pytest.mark.parametrize("serializers", [UCX, TCP])
def test_rows_in_host_memory_travel_so_on_any_network(serializers: tuple[str, ...]) -> None:
    block = make_block(3, X, np.arange(4), np.ones(4), classification=True)
    _check_sent(block, _sent(block, serializers)[1], X)


def test_rows_on_a_device_travel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody has read them in host memory too."""
    plug_in(FakeCupy, monkeypatch)
    block = _device_block(DeviceArray(np.zeros((4, 1000), "float32")))
    before = len(pickle.dumps(block))
    np.testing.assert_array_equal(block.X, 0)
    assert len(pickle.dumps(block)) == before


@pytest.mark.gpu
def test_cupys_rows_travel_as_they_are() -> None:
    import cupy

    rows = X.astype("float32")
    block = _device_block(cupy.asarray(rows))
    frames, again = _sent(block, UCX)
    assert any(isinstance(frame, cupy.ndarray) for frame in frames)
    assert isinstance(again.rows, cupy.ndarray)
    _check_sent(block, again, rows)
