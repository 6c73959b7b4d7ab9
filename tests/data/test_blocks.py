"""Blocks: the facts collected about each when rows are summarised."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dask.sizeof import sizeof
from scipy import sparse

from daskml_dist.data import BlockInfo, check_finite, inspect_block, make_block
from daskml_dist.errors import InvalidDataError
from tests.data.rows import DENSE_AND_SPARSE, X


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
    large = np.full((4, 3), 3e38, "float32")  # their sum overflows
    check_finite(make_block(0, container(large), classification=False))


def test_overflow_of_a_given_dtype_is_infinity() -> None:
    block = make_block(0, X + 1e300, dtype="float32", classification=False)
    with pytest.raises(InvalidDataError, match=r"too large for dtype\('float32'\)"):
        check_finite(block)


TENSORS = {
    "bytes": (np.ones((4, 3, 2), np.uint8), "uint8"),
    "bools": (np.ones((4, 3, 2), bool), "bool"),
    "halves": (np.ones((4, 3, 2, 2), np.float16), "float16"),
    "doubles": (np.ones((4, 3)), "float64"),
    "long doubles": (np.ones((4, 3), np.longdouble), "float64"),
    "big ends": (np.ones((4, 3), ">i4"), "int32"),
    "objects": (np.ones((4, 3), object), "float64"),
    "lists": ([[[1, 2], [3, 4]]], "int64"),
    "sparse": (sparse.csr_array(np.eye(3, dtype=np.int8)), "int8"),
    "frame": (pd.DataFrame({"a": np.ones(3, "uint8"), "b": np.ones(3, bool)}), "uint8"),
    "numbers of pandas": (pd.DataFrame({"a": pd.array([1, 2], "Int16")}), "int16"),
    "a missing number": (pd.DataFrame({"a": pd.array([1, None], "Int16")}), "float64"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_keep_their_dtype_and_shape(name: str) -> None:
    tensor, dtype = TENSORS[name]
    block = make_block(0, tensor, tensors=True)
    info = inspect_block(block)
    assert (info.dtype, block.X.dtype) == (dtype, dtype)
    assert (block.n_rows, *info.row_shape) == np.shape(tensor)
    assert block.X.dtype.isnative
    if isinstance(tensor, np.ndarray) and tensor.dtype == dtype:
        assert block.X is tensor
    values = block.X.data if sparse.issparse(block.X) else block.X
    assert info.nbytes >= values.nbytes == values.size * np.dtype(dtype).itemsize


def test_tensors_not_finite_are_named() -> None:
    bad = np.zeros((5, 3, 2, 2), "float16")
    bad[3, 1, 1, 0] = np.nan
    with pytest.raises(InvalidDataError, match=r"Block 2: .*NaN.*row 3 of the block"):
        check_finite(make_block(2, bad, tensors=True))
    check_finite(make_block(2, np.full((5, 3, 2), 255, "uint8"), tensors=True))
    for wrong in (np.ones(4), np.float64(1)):
        with pytest.raises(InvalidDataError, match="Expected 2D array, got"):
            make_block(2, wrong, tensors=True)


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
    unpickled = pickle.loads(pickle.dumps(block))
    np.testing.assert_array_equal(unpickled.X, X)
    assert unpickled.n_rows == 4


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
