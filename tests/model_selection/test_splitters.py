"""Splitters give scikit-learn's splits, also for Dask collections with any chunks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn import model_selection as truth

from daskml_dist import model_selection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from tests.quick import in_turn
from tests.versions import OLD_SCIKIT_LEARN

RNG = np.random.default_rng(0)
N = 103
X = RNG.normal(size=(N, 3))
Y = RNG.choice(["a", "b", "c"], N, p=[0.5, 0.3, 0.2])
GROUPS = RNG.integers(0, 17, N)
CHUNKS = [(50, 53), (10,) * 10 + (3,), (103,)]

#: Splitters whose splits of Dask collections equal scikit-learn's row by row.
EQUAL = [
    ("KFold", {"n_splits": 5}),
    ("StratifiedKFold", {"n_splits": 5}),
    ("GroupKFold", {"n_splits": 4}),
    ("GroupKFold", {"n_splits": 3, "shuffle": True, "random_state": 0}),
    ("TimeSeriesSplit", {"n_splits": 4}),
    ("TimeSeriesSplit", {"n_splits": 4, "gap": 3, "max_train_size": 20, "test_size": 7}),
]
#: Random splitters.
DRAWN = [
    ("KFold", {"n_splits": 4, "shuffle": True}),
    ("StratifiedKFold", {"n_splits": 3, "shuffle": True}),
    ("ShuffleSplit", {"n_splits": 6, "test_size": 0.2, "train_size": 0.5}),
    ("StratifiedShuffleSplit", {"n_splits": 4, "test_size": 0.2}),
]


@pytest.fixture(autouse=True)
def in_this_thread() -> Any:
    with dask.config.set(scheduler="sync"):
        yield


def _column(name: str) -> Any:
    return {"StratifiedKFold": Y, "StratifiedShuffleSplit": Y}.get(name)


def _lazy(chunks: tuple[int, ...]) -> tuple[da.Array, da.Array, da.Array]:
    columns = [da.from_array(value, chunks=(chunks,)) for value in (Y, GROUPS)]
    return da.from_array(X, chunks=(chunks, 3)), *columns


def _splits(splitter: Any, chunks: tuple[int, ...]) -> list[tuple[Any, Any]]:
    found = []
    for train, test in splitter.split(*_lazy(chunks)):
        assert train.dtype == test.dtype == bool
        found.append((np.flatnonzero(train.compute()), np.flatnonzero(test.compute())))
    return found


@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
@pytest.mark.parametrize("chunks", CHUNKS, ids=len)
@pytest.mark.parametrize(("name", "options"), EQUAL)
def test_splits_equal_those_of_scikit_learn(
    name: str, options: dict[str, Any], chunks: tuple[int, ...]
) -> None:
    if name == "GroupKFold" and OLD_SCIKIT_LEARN:
        pytest.skip("groups of one size came in any order before scikit-learn 1.8")
    expected = list(getattr(truth, name)(**options).split(X, Y, GROUPS))
    found = _splits(getattr(model_selection, name)(**options), chunks)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for side, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(side, other)


@pytest.mark.parametrize(("drawn", "chunks"), in_turn(DRAWN, CHUNKS))
def test_random_splits_have_scikit_learns_sizes(
    drawn: tuple[str, dict[str, Any]], chunks: tuple[int, ...]
) -> None:
    name, options = drawn
    splitter = getattr(truth, name)(random_state=0, **options)
    ours = getattr(model_selection, name)(random_state=0, **options)
    expected, found = list(splitter.split(X, Y)), _splits(ours, chunks)
    for (train, test), (others, expected_test) in zip(found, expected, strict=True):
        assert not set(train) & set(test)
        assert abs(len(train) - len(others)) <= 1
        assert abs(len(test) - len(expected_test)) <= 1
        if _column(name) is not None:
            sizes = [np.unique(Y[at], return_counts=True)[1] for at in (test, expected_test)]
            assert np.abs(np.subtract(*sizes)).max() <= 1
    again = _splits(getattr(model_selection, name)(random_state=0, **options), chunks)
    assert all((a[1] == b[1]).all() for a, b in zip(found, again, strict=True))
    other = _splits(getattr(model_selection, name)(random_state=1, **options), chunks)
    pairs = zip(found, other, strict=True)
    assert any(len(a[1]) != len(b[1]) or (a[1] != b[1]).any() for a, b in pairs)
    if "KFold" in name:
        assert sorted(np.concatenate([test for _, test in found])) == list(range(N))
    if len(chunks) == 2:  # every block contributes its share
        assert all(0.2 < (test < 50).mean() < 0.8 for _, test in found)


@pytest.mark.parametrize(("name", "options"), EQUAL + DRAWN)
def test_rows_in_memory_are_split_by_scikit_learn(name: str, options: dict[str, Any]) -> None:
    groups = GROUPS if name == "GroupKFold" else None
    if (name, options) in DRAWN:
        options = options | {"random_state": 3}
    expected = getattr(truth, name)(**options).split(X, Y, groups)
    found = getattr(model_selection, name)(**options).split(X, Y, groups)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a[1], b[1])


def test_chunks_of_unknown_sizes_are_counted() -> None:
    rows, labels, _ = _lazy((50, 53))
    some = rows[:, 0] > -0.5
    selected = X[:, 0] > -0.5
    found = list(model_selection.StratifiedKFold(3).split(rows[some], labels[some]))
    expected = list(truth.StratifiedKFold(3).split(X[selected], Y[selected]))
    for (_, test), (_, expected_test) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.flatnonzero(test.compute()), expected_test)


#: Rows of any kind, of which a splitter only uses the first axis.
SHAPES: dict[str, Any] = {
    "1-D": X[:, 0],
    "texts": np.array([f"row {i}" for i in range(N)], dtype=object),
    "4-D": RNG.normal(size=(N, 1, 2, 2)),
    "series": pd.Series(X[:, 0], name="x"),
    "frame": pd.DataFrame(X, columns=["a", 1, "c"]),  # no estimator accepts mixed names
    "sparse": scipy.sparse.csr_matrix(X),
}


def _lazily_cut(rows: Any, name: str) -> Any:
    if hasattr(rows, "iloc"):
        return dd.from_pandas(rows, chunksize=40)
    chunks = (40, *rows.shape[1:-1], 1) if name == "4-D" else (40, *rows.shape[1:])
    return da.from_array(rows, chunks=chunks, asarray=False)


def _as_dense(rows: Any) -> Any:
    return rows.toarray() if scipy.sparse.issparse(rows) else np.asarray(rows)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
def test_only_the_first_axis_of_rows_counts(kind: str) -> None:
    rows, lazy = SHAPES[kind], _lazily_cut(SHAPES[kind], kind)
    labels, groups = (da.from_array(value, chunks=(40,)) for value in (Y, GROUPS))
    for name, options in EQUAL[1:3] + DRAWN[3:]:
        splitter = getattr(model_selection, name)(**options)
        for train, test in splitter.split(lazy, labels, groups):
            masks = dask.compute(train, test)
            assert not (np.asarray(masks[0]) & np.asarray(masks[1])).any()
        if (name, options) in EQUAL and not (name == "GroupKFold" and OLD_SCIKIT_LEARN):
            expected = list(getattr(truth, name)(**options).split(X, Y, GROUPS))[-1][1]
            np.testing.assert_array_equal(np.flatnonzero(masks[1]), expected)
    # As the first argument and as another.
    for arrays in ((lazy, labels), (labels, lazy)):
        found = model_selection.train_test_split(*arrays, shuffle=False)
        theirs = truth.train_test_split(
            *((rows, Y) if arrays[0] is lazy else (Y, rows)), shuffle=False
        )
        for ours, other in zip(found, theirs, strict=True):
            np.testing.assert_array_equal(_as_dense(ours.compute()), _as_dense(other))
    if hasattr(rows, "iloc"):  # arrays in memory become lazy next to lazy rows
        _, side, *_ = model_selection.train_test_split(labels, rows, shuffle=False)[1:]
        assert type(side.compute()) is type(rows)


def test_delayed_blocks_are_split_into_delayed_blocks() -> None:
    blocks = [dask.delayed(part) for part in (X[:50], X[50:])]
    found = model_selection.train_test_split(blocks, shuffle=False)
    for ours, other in zip(found, truth.train_test_split(X, shuffle=False), strict=True):
        np.testing.assert_array_equal(np.concatenate(dask.compute(*ours)), other)


def test_blocks_of_different_lengths_raise() -> None:
    frame = dd.from_pandas(pd.DataFrame(X), chunksize=40)
    masks = next(
        model_selection.StratifiedKFold(2).split(frame, da.from_array(Y, chunks=((50, 40, 13),)))
    )
    with pytest.raises(InvalidDataError, match=r"Block \d: X has \d+ rows but y has"):
        masks[0].compute()


def test_scalars_are_refused() -> None:
    with pytest.raises(InvalidDataError, match="Expected 2D array, got 0D"):
        next(model_selection.KFold(2).split(da.from_array(np.array(1.0))))


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize("frame", [False, True])
def test_train_test_split(frame: bool, stratify: bool) -> None:
    rows, labels, _ = _lazy((50, 53))
    if frame:
        table = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=2)
        rows, labels = table, dd.from_pandas(pd.Series(Y), npartitions=2)
    classes = labels if stratify else None
    parts = model_selection.train_test_split(
        rows, labels, test_size=0.2, random_state=0, stratify=classes
    )
    train, test, y_train, y_test = dask.compute(*parts)
    assert (len(train), len(test)) == (len(y_train), len(y_test)) == (82, 21)
    assert type(train) is (pd.DataFrame if frame else np.ndarray)
    both = np.concatenate([np.asarray(train), np.asarray(test)])
    np.testing.assert_array_equal(both[np.lexsort(both.T)], X[np.lexsort(X.T)])
    where = {tuple(row): label for row, label in zip(X.tolist(), Y, strict=True)}
    assert [where[tuple(row)] for row in np.asarray(test).tolist()] == list(np.asarray(y_test))
    if stratify:
        assert np.unique(np.asarray(y_test), return_counts=True)[1].tolist() == [10, 7, 4] or (
            np.abs(
                np.unique(np.asarray(y_test), return_counts=True)[1]
                - np.unique(Y, return_counts=True)[1] * 0.2
            ).max()
            <= 1
        )


@pytest.mark.parametrize("stratify", [False, True])
def test_train_test_split_keeps_a_quarter_by_default(stratify: bool) -> None:
    rows, labels = da.from_array(X, chunks=(30, -1)), da.from_array(Y, chunks=30)
    parts = model_selection.train_test_split(rows, stratify=labels if stratify else None)
    expected = truth.train_test_split(X, stratify=Y if stratify else None)
    assert [len(part.compute()) for part in parts] == [len(part) for part in expected]


def test_train_test_split_in_order() -> None:
    rows, labels, _ = _lazy((50, 53))
    parts = model_selection.train_test_split(rows, labels, shuffle=False)
    expected = truth.train_test_split(X, Y, shuffle=False)
    for ours, theirs in zip(dask.compute(*parts), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "sizes", "chunks"),
    in_turn(
        [{}, {"shuffle": False}, {"stratify": True}],
        [{}, {"test_size": 7, "train_size": 0.6}],
        [*CHUNKS, (0, 1, 60, 0, 42)],
    ),
    ids=str,
)
def test_train_test_split_knows_its_chunk_sizes(
    options: dict[str, Any], sizes: dict[str, Any], chunks: tuple[int, ...]
) -> None:
    rows, labels, _ = _lazy(chunks)
    unknown = rows[da.ones(N, chunks=(chunks,)) > 0]
    options = {**options, "random_state": 0}
    if "stratify" in options:
        options["stratify"] = labels
    for part in model_selection.train_test_split(rows, labels, unknown, **options, **sizes):
        blocks = [part.blocks[i].compute() for i in range(part.numblocks[0])]
        assert [len(block) for block in blocks] == list(part.chunks[0])
        assert part.numblocks[0] == len(chunks)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda r, y, g: model_selection.KFold(200).split(r), InvalidDataError, "n_splits=200"),
        (lambda r, y, g: model_selection.GroupKFold(30).split(r, y, g), InvalidDataError, "groups"),
        (
            lambda r, y, g: model_selection.GroupKFold(3).split(r, y),
            InvalidParameterError,
            "groups",
        ),
        (lambda r, y, g: model_selection.StratifiedKFold(90).split(r, y), InvalidDataError, "90"),
        (lambda r, y, g: model_selection.StratifiedKFold(3).split(r), InvalidParameterError, "'y'"),
        (
            lambda r, y, g: model_selection.ShuffleSplit(test_size=200).split(r),
            InvalidParameterError,
            "test_size=200",
        ),
        (
            lambda r, y, g: model_selection.ShuffleSplit(test_size=0.7, train_size=0.7).split(r),
            InvalidParameterError,
            "Lower test_size",
        ),
        (
            lambda r, y, g: model_selection.ShuffleSplit(40).split(r),
            InvalidParameterError,
            "at most 33",
        ),
        (
            lambda r, y, g: model_selection.TimeSeriesSplit(200).split(r),
            InvalidDataError,
            "splits=200",
        ),
    ],
)
def test_errors_name_the_remedy(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        list(call(*_lazy((50, 53))))


@pytest.mark.parametrize("sizes", [{"test_size": 2}, {"train_size": 2, "test_size": 10}])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_sides_smaller_than_the_number_of_labels_are_refused(sizes: Any, is_lazy: bool) -> None:
    labels: Any = np.arange(30) % 3
    labels = da.from_array(labels, chunks=8) if is_lazy else labels
    with pytest.raises(InvalidDataError, match="number of classes = 3"):
        next(model_selection.StratifiedShuffleSplit(**sizes).split(labels, labels))
    with pytest.raises(InvalidDataError, match="number of classes = 3"):
        model_selection.train_test_split(labels, stratify=labels, **sizes)


def test_nullable_groups_above_the_digits_of_floats() -> None:
    ids = GROUPS.astype(np.uint64) + np.uint64(2**63)
    expected = list(truth.GroupKFold(4).split(X, groups=ids))
    found = list(model_selection.GroupKFold(4).split(X, groups=pd.Series(ids, dtype="UInt64")))
    for split, one in zip(found, expected, strict=True):
        for own, theirs in zip(split, one, strict=True):
            np.testing.assert_array_equal(own, theirs)


@pytest.mark.parametrize("types_of_rows", [GROUPS % 2, np.arange(N) // 50 % 2], ids=["in", "by"])
@pytest.mark.parametrize("name", ["StratifiedKFold", "StratifiedShuffleSplit", "GroupKFold"])
def test_labels_and_groups_of_several_types_are_named(name: str, types_of_rows: Any) -> None:
    """They are in one block, or each block has its own type."""
    mixed = da.from_array(np.array([1, "a"], object)[types_of_rows], chunks=50)
    of = "groups" if name == "GroupKFold" else "y"
    with pytest.raises(InvalidDataError, match=f"{of} has labels of several types"):
        next(getattr(model_selection, name)(2).split(da.from_array(X, chunks=50), mixed, mixed))


@pytest.mark.parametrize("missing", [None, pd.NA, np.nan])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ["StratifiedKFold", "GroupKFold"])
def test_missing_labels_and_groups_are_named(name: str, lazy: bool, missing: Any) -> None:
    column = pd.Series([1.0, 2.0] * 10 if missing is np.nan else ["a", "b"] * 10)
    column[7] = missing
    rows: Any = pd.DataFrame({"x": np.arange(20.0)})
    if lazy:
        rows, column = (dd.from_pandas(one, npartitions=3) for one in (rows, column))
    given = {"y" if name == "StratifiedKFold" else "groups": column}
    with pytest.raises(InvalidDataError, match=f"{next(iter(given))} contains NaN"):
        list(getattr(model_selection, name)(2).split(rows, **given))
