"""Collections: any input becomes aligned parts without computing the data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from daskml_dist.data import Block, Collection, as_collection, is_dask
from daskml_dist.data.lazy import join_column_chunks
from daskml_dist.errors import InvalidDataError, InvalidTypeError

X = np.arange(24.0).reshape(8, 3)
Y = np.arange(8.0)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
UNEVEN = (1, 4, 3)


@pytest.fixture(autouse=True)
def _in_process() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def blocks_of(collection: Collection, **options: Any) -> list[Block]:
    return list(dask.compute(*collection.delayed_blocks(**options)))


def assert_whole(collection: Collection, *, weights: Any = None) -> list[Block]:
    """Check that the blocks hold all of X and Y, aligned, in order."""
    blocks = blocks_of(collection)
    assert [block.index for block in blocks] == list(range(len(blocks)))
    rows = [b.X.toarray() if sparse.issparse(b.X) else b.X for b in blocks]
    np.testing.assert_array_equal(np.concatenate(rows), X)
    np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), Y)
    if weights is not None:
        found = np.concatenate([b.sample_weight for b in blocks])
        np.testing.assert_array_equal(found, weights)
    return blocks


def lazy(values: Any, chunks: Any) -> da.Array:
    return da.from_array(values, chunks=chunks)


def unknown(array: da.Array) -> da.Array:
    """Return the same array with row chunks of unknown sizes."""
    return array[da.from_array(np.ones(len(array), bool), chunks=array.chunks[0])]


# --- in memory -------------------------------------------------------------------------------


def test_numpy_is_one_part_and_not_copied() -> None:
    collection = as_collection(X, Y, Y)
    assert (collection.kind, collection.n_features, collection.n_rows) == ("memory", 3, 8)
    assert collection.row_counts == [8]
    assert collection.feature_names is None
    [block] = assert_whole(collection, weights=Y)
    assert np.shares_memory(block.X, X)
    assert np.shares_memory(block.y, Y)


@pytest.mark.parametrize("values", [X.tolist(), FRAME, sparse.csc_array(X), sparse.coo_matrix(X)])
@pytest.mark.parametrize("y", [Y.tolist(), Y[:, None], pd.Series(Y), pd.DataFrame(Y)])
def test_every_kind_in_memory(values: Any, y: Any) -> None:
    collection = as_collection(values, y)
    assert collection.kind == "memory"
    assert_whole(collection)


def test_csr_in_memory_is_not_copied() -> None:
    values = sparse.csr_array(X)
    [(part, _, _)] = as_collection(values, Y).parts
    assert np.shares_memory(part.data, values.data)


def test_feature_names() -> None:
    for frame in (FRAME, dd.from_pandas(FRAME, npartitions=2)):
        names = as_collection(frame).feature_names
        assert names.dtype == object
        assert names.tolist() == ["a", "b", "c"]
    assert as_collection(pd.DataFrame(X)).feature_names is None
    # scikit-learn's transformers raise a TypeError.
    with pytest.raises(InvalidTypeError, match=r"string names.*columns\.astype\(str\)"):
        as_collection(FRAME.rename(columns={"a": 0}))


@pytest.mark.parametrize("weight", [2, 2.0, np.float32(2)])
def test_scalar_weight(weight: Any) -> None:
    for values in (X, lazy(X, (UNEVEN, 3)), dd.from_pandas(FRAME, npartitions=2)):
        blocks = blocks_of(as_collection(values, sample_weight=weight))
        assert np.concatenate([b.sample_weight for b in blocks]).tolist() == [2.0] * 8


# --- Dask arrays -----------------------------------------------------------------------------


def test_uneven_chunks() -> None:
    collection = as_collection(lazy(X, (UNEVEN, 3)), lazy(Y, (UNEVEN,)))
    assert (collection.kind, collection.n_features, collection.n_rows) == ("dask", 3, 8)
    assert collection.row_counts == list(UNEVEN)
    assert [b.n_rows for b in assert_whole(collection)] == list(UNEVEN)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize("known", [True, False])
def test_column_chunks_are_joined(
    container: Any, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    array = lazy(X, (UNEVEN, (2, 1)))
    array = (array if known else unknown(array)).map_blocks(container)
    with caplog.at_level(logging.INFO, logger="daskml_dist"):
        collection = as_collection(array, lazy(Y, (UNEVEN,)))
    assert "2 column chunks" in caplog.text
    assert collection.n_features == 3
    blocks = assert_whole(collection)
    assert {sparse.issparse(b.X) for b in blocks} == {container is not np.asarray}


def test_one_column_chunk_is_left_alone() -> None:
    array = lazy(X, (UNEVEN, 3))
    assert join_column_chunks(array) is array


@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csr_matrix, sparse.csc_array])
def test_sparse_chunks(container: Any) -> None:
    collection = as_collection(lazy(X, (UNEVEN, 3)).map_blocks(container), Y)
    assert {b.X.format for b in assert_whole(collection)} == {"csr"}


def test_rows_of_y_and_weights_are_rechunked_as_x() -> None:
    collection = as_collection(lazy(X, (UNEVEN, 3)), lazy(Y, (3, 3, 2)), lazy(Y, (8,)))
    assert [b.n_rows for b in assert_whole(collection, weights=Y)] == list(UNEVEN)


@pytest.mark.parametrize("y", [Y, Y.tolist(), pd.Series(Y), Y[:, None]])
def test_y_in_memory_is_split_like_x(y: Any) -> None:
    collection = as_collection(lazy(X, (UNEVEN, 3)), y, pd.Series(Y))
    assert [b.n_rows for b in assert_whole(collection, weights=Y)] == list(UNEVEN)


@pytest.mark.parametrize("values", [X, FRAME, sparse.csc_matrix(X), X.tolist()])
def test_x_in_memory_is_split_like_y(values: Any) -> None:
    collection = as_collection(values, lazy(Y, (UNEVEN,)))
    assert collection.kind == "dask"
    assert [b.n_rows for b in assert_whole(collection)] == list(UNEVEN)


def test_unknown_chunks() -> None:
    array, y = unknown(lazy(X, (UNEVEN, 3))), unknown(lazy(Y, (UNEVEN,)))
    collection = as_collection(array, y, y)
    assert (collection.row_counts, collection.n_rows, collection.n_features) == (None, None, 3)
    assert_whole(collection, weights=Y)


def test_rows_known_from_y_alone() -> None:
    collection = as_collection(unknown(lazy(X, (UNEVEN, 3))), lazy(Y, (UNEVEN,)), Y)
    assert collection.row_counts == list(UNEVEN)
    assert_whole(collection, weights=Y)


def test_y_with_one_column() -> None:
    assert_whole(as_collection(lazy(X, (UNEVEN, 3)), lazy(Y[:, None], (3, 1))))


def test_empty_chunks() -> None:
    collection = as_collection(lazy(X, ((0, 5, 0, 3), 3)), lazy(Y, (4,)))
    assert collection.row_counts == [0, 5, 0, 3]
    assert [b.n_rows for b in assert_whole(collection)] == [0, 5, 0, 3]


def test_float32_is_kept_and_dtype_is_passed_on() -> None:
    collection = as_collection(lazy(X.astype("float32"), (UNEVEN, 3)), Y)
    assert {b.X.dtype.name for b in blocks_of(collection)} == {"float32"}
    assert {b.X.dtype.name for b in blocks_of(collection, dtype="float64")} == {"float64"}


def test_labels_are_kept() -> None:
    labels = np.array(list("abcabcab"))
    [first, *_] = blocks_of(as_collection(lazy(X, (2, 3)), labels, classification=True))
    assert first.y.tolist() == ["a", "b"]


def test_nothing_is_computed_and_shared_work_is_done_once() -> None:
    loads = []

    def load(chunk: Any) -> Any:
        loads.append(chunk.shape)
        return chunk

    table = lazy(X, (UNEVEN, 3)).map_blocks(load, meta=np.empty((0, 0)))
    collection = as_collection(table[:, :2], table[:, 2])
    assert loads == []
    blocks_of(collection)
    assert len(loads) == 3


# --- Dask dataframes -------------------------------------------------------------------------


@pytest.mark.parametrize("npartitions", [1, 3])
def test_dataframe(npartitions: int) -> None:
    frame = dd.from_pandas(FRAME.assign(y=Y), npartitions=npartitions)
    for y in (frame["y"], frame[["y"]], frame["y"].to_dask_array()):
        collection = as_collection(frame[["a", "b", "c"]], y, frame["y"])
        assert (collection.kind, collection.n_features) == ("dask", 3)
        assert collection.row_counts is None
        assert len(assert_whole(collection, weights=Y)) == npartitions


def test_dataframe_with_array_of_as_many_blocks() -> None:
    frame = dd.from_pandas(FRAME, npartitions=2)
    collection = as_collection(frame, lazy(Y, (4,)))
    assert collection.row_counts == [4, 4]
    assert_whole(collection)


def test_array_with_series_of_as_many_blocks() -> None:
    series = dd.from_pandas(pd.Series(Y, name="y"), npartitions=2)
    assert_whole(as_collection(lazy(X, (4, 3)), series))


def test_empty_partitions() -> None:
    frame = dd.from_pandas(FRAME.assign(y=Y), npartitions=4)
    frame = frame[frame["a"] > 12]
    blocks = blocks_of(as_collection(frame[["a", "b"]], frame["y"]))
    assert [b.n_rows for b in blocks] == [0, 0, 1, 2]


def test_lengths_that_differ_at_run_time() -> None:
    frame = dd.from_pandas(FRAME, npartitions=2)
    collection = as_collection(frame, lazy(Y, ((3, 5),)))
    # Either block may be computed first.
    with pytest.raises(InvalidDataError, match=r"Block (0: .* 4 rows .* 3|1: .* 4 rows .* 5)\."):
        blocks_of(collection)


def test_shared_work_of_a_dataframe_is_done_once() -> None:
    loads = []

    def load(frame: Any) -> Any:
        loads.append(len(frame))
        return frame

    frame = dd.from_pandas(FRAME.assign(y=Y), npartitions=2)
    frame = frame.map_partitions(load, meta=frame._meta)
    collection = as_collection(frame[["a", "b", "c"]], frame["y"])
    assert loads == []
    assert_whole(collection)
    assert loads == [4, 4]


@pytest.mark.parametrize("dtype", ["str", "object", "category"])
def test_columns_that_are_not_numbers(dtype: str) -> None:
    frame = FRAME.assign(b=pd.Series(list("abcabcab"), dtype=dtype))
    for values in (frame, dd.from_pandas(frame, npartitions=2)):
        with pytest.raises(InvalidDataError, match=r"(?s)\['b'\].*OneHotEncoder.*make_pipeline"):
            as_collection(values)


def test_remedy_for_columns_that_are_not_numbers_works() -> None:
    frame = dd.from_pandas(FRAME.assign(b=list("abcabcab")), npartitions=2)
    frame = frame.categorize(columns=["b"])
    collection = as_collection(dd.get_dummies(frame, columns=["b"]))
    assert {b.X.shape[1] for b in blocks_of(collection)} == {5}


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [Y[:7], lazy(Y[:7], (4,)), pd.Series(Y[:7])])
@pytest.mark.parametrize("values", [X, lazy(X, (4, 3))])
def test_lengths_that_differ(values: Any, y: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"inconsistent .*: X has 8, y has 7 rows"):
        as_collection(values, y)
    with pytest.raises(InvalidDataError, match=r"inconsistent .*sample_weight has 7 rows"):
        as_collection(values, Y, y)


@pytest.mark.parametrize(
    "values",
    [X[:0], FRAME[:0], sparse.csr_array((0, 3)), lazy(X[:0], (4, 3)), lazy(X, (4, 3))[8:]],
)
def test_no_rows(values: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"0 sample\(s\) \(shape=\(0, 3\)\) .*filter"):
        as_collection(values)


@pytest.mark.parametrize("values", [X[:, :0], FRAME[[]], lazy(X, (4, 3))[:, :0]])
def test_no_features(values: Any) -> None:
    message = r"0 feature\(s\) \(shape=\(\d*, 0\)\) while a minimum of \d* is required."
    with pytest.raises(InvalidDataError, match=message):
        as_collection(values)


@pytest.mark.parametrize(
    "values",
    [Y, 1.0, X[None], pd.Series(Y), lazy(Y, (4,)), dd.from_pandas(pd.Series(Y), npartitions=2)],
    ids=["1d", "0d", "3d", "series", "lazy 1d", "lazy series"],
)
def test_rows_must_be_2d(values: Any) -> None:
    remedy = r"Expected 2D array.*(Reshape your data|X\.to_frame\(\))"
    with pytest.raises(InvalidDataError, match=remedy):
        as_collection(values)


@pytest.mark.parametrize(
    "y", [X, FRAME, lazy(X, (4, 3)), dd.from_pandas(FRAME, npartitions=2), Y[0], lazy(Y, (4,))[0]]
)
def test_several_outputs(y: Any) -> None:
    for values in (X, lazy(X, (4, 3))):
        with pytest.raises(InvalidDataError, match="y should be a 1d array, got an array of shape"):
            as_collection(values, y)


def test_weights_with_several_columns() -> None:
    with pytest.raises(InvalidDataError, match="Sample weights must be 1D array or scalar"):
        as_collection(X, Y, X)


@pytest.mark.parametrize("y", [lazy(Y, (2,)), unknown(lazy(Y, (2,)))])
def test_unknown_chunks_and_other_number_of_blocks(y: da.Array) -> None:
    with pytest.raises(InvalidDataError, match=r"y has 4 blocks, .*compute_chunk_sizes\(\)"):
        as_collection(unknown(lazy(X, (4, 3))), y)


def test_known_chunks_and_series_of_other_number_of_partitions() -> None:
    series = dd.from_pandas(pd.Series(Y, name="y"), npartitions=4)
    with pytest.raises(InvalidDataError, match=r"y has 4 blocks, .*to_dask_array\(lengths=True\)"):
        as_collection(lazy(X, (4, 3)), series)


@pytest.mark.parametrize("values", [unknown(lazy(X, (4, 3))), dd.from_pandas(FRAME, npartitions=2)])
def test_unknown_chunks_and_y_in_memory(values: Any) -> None:
    """Rows are counted, and those in memory are split accordingly."""
    collection = as_collection(values, Y)
    assert collection.n_rows == len(Y)
    assert_whole(collection)
    with pytest.raises(InvalidDataError, match=f"X has {len(Y)}, y has {len(Y) - 1} rows"):
        as_collection(values, Y[:-1])


def test_unknown_chunks_and_x_in_memory() -> None:
    assert_whole(as_collection(X, unknown(lazy(Y, (4,)))))
    with pytest.raises(InvalidDataError, match=f"y has {len(Y)}, X has {len(Y) - 1} rows"):
        as_collection(X[:-1], unknown(lazy(Y, (4,))))


def test_compute_chunk_sizes_is_the_remedy() -> None:
    assert_whole(as_collection(unknown(lazy(X, (4, 3))).compute_chunk_sizes(), Y))


def test_complex_and_strings() -> None:
    for values in (X + 1j, lazy(X + 1j, (4, 3)), sparse.csr_array(X + 1j)):
        with pytest.raises(InvalidDataError, match="Complex data not supported"):
            as_collection(values)
    for values in (X.astype(str), lazy(X.astype(str), (4, 3))):
        with pytest.raises(InvalidDataError, match=r"X is not numeric .*OrdinalEncoder"):
            as_collection(values)


def test_ragged_rows() -> None:
    with pytest.raises(InvalidDataError, match=r"X is not an array: .*equal length"):
        as_collection([[1.0], [1.0, 2.0]])


def test_other_dask_collections() -> None:
    bag = dask.bag.from_sequence([1, 2], npartitions=1)
    with pytest.raises(InvalidDataError, match=r"X is a .*Pass a Dask Array or DataFrame"):
        as_collection(bag)
    with pytest.raises(InvalidDataError, match=r"y is a .*Pass a Dask Array or DataFrame"):
        as_collection(X, bag)


def test_one_delayed_object_is_one_block() -> None:
    found = as_collection(dask.delayed(X), dask.delayed(X[:, 0]))
    assert (found.kind, len(found.parts)) == ("dask", 1)


def test_is_dask() -> None:
    assert is_dask(lazy(X, (4, 3)))
    assert is_dask(dd.from_pandas(FRAME, npartitions=1))
    assert not any(map(is_dask, (X, FRAME, None, 1.0, X.tolist())))
