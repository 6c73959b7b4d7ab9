"""Encoders of categories: every kind of column, missing values, given categories, errors."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from distributed import Client
from scipy import sparse
from sklearn.base import clone

from daskml_dist import preprocessing
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from tests.quick import in_turn

N = 120
CUTS = [0, 0, 30, 30, 100, N]  # two blocks are empty


def _columns() -> dict[str, pd.Series]:
    rng = np.random.default_rng(0)
    words = rng.choice(["x", "y", "z"], N).astype(object)
    words[110] = "only here"
    with_none, with_both = words.copy(), words.copy()
    with_none[::7] = None
    with_both[::7], with_both[3::7] = None, np.nan
    numbers = rng.integers(0, 4, N)
    return {
        "str": pd.Series(words, dtype="str"),
        "str, missing": pd.Series(with_none, dtype="str"),
        "object": pd.Series(words, dtype=object),
        "object, None": pd.Series(with_none, dtype=object),
        "object, None and NaN": pd.Series(with_both, dtype=object),
        "categorical": pd.Series(pd.Categorical(words, ["z", "y", "x", "only here", "unused"])),
        "categorical numbers": pd.Series(pd.Categorical(numbers, [3, 2, 1, 0])),
        "int": pd.Series(numbers),
        "uint8": pd.Series(numbers.astype("uint8")),
        "Int64, missing": pd.Series(numbers).astype("Int64").where(pd.Series(numbers > 0)),
        "bool": pd.Series(numbers > 1),
        "bool as object": pd.Series(numbers > 1).astype(object),
        "float, missing": pd.Series(rng.choice([1.5, 2.5, np.nan], N)),
        "float32": pd.Series(rng.choice([1.5, 2.5], N).astype("float32")),
    }


COLUMNS = _columns()
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("OneHotEncoder", {}),
    ("OneHotEncoder", {"drop": "first", "sparse_output": False}),
    ("OneHotEncoder", {"drop": "if_binary"}),
    ("OneHotEncoder", {"min_frequency": 15}),
    ("OneHotEncoder", {"max_categories": 2, "handle_unknown": "infrequent_if_exist"}),
    ("OrdinalEncoder", {}),
    ("OrdinalEncoder", {"encoded_missing_value": -5, "min_frequency": 0.2}),
    ("OrdinalEncoder", {"handle_unknown": "use_encoded_value", "unknown_value": -1}),
]


@pytest.fixture(autouse=True)
def _columns_stay_as_they_are() -> Any:
    """Dask would make Arrow's strings of objects, and NaN of None."""
    with dask.config.set({"dataframe.convert-string": False}):
        yield


def _lazy(values: Any) -> Any:
    parts = [dask.delayed(values[a:b]) for a, b in itertools.pairwise(CUTS)]
    return dd.from_delayed(parts, meta=values[:0])


def _both(name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    return (getattr(module, name)(**options) for module in (preprocessing, sklearn.preprocessing))


def _dense(X: Any) -> Any:
    X = dask.compute(X)[0]
    return np.asarray(X.toarray() if sparse.issparse(X) else X)


def _assert_same(ours: Any, theirs: Any, lazy: Any, rows: Any) -> None:
    for found, expected in zip(ours.categories_, theirs.categories_, strict=True):
        assert found.dtype == expected.dtype
        assert [str(value) for value in found] == [str(value) for value in expected]
    result, expected = ours.transform(lazy), theirs.transform(rows)
    assert result.dtype == expected.dtype
    assert sparse.issparse(result._meta) == sparse.issparse(expected)
    np.testing.assert_array_equal(_dense(result), _dense(expected))
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    if hasattr(theirs, "drop_idx_"):
        np.testing.assert_array_equal(ours.drop_idx_, theirs.drop_idx_)
    if hasattr(theirs, "infrequent_categories_"):
        assert str(ours.infrequent_categories_) == str(theirs.infrequent_categories_)


@pytest.mark.parametrize(("encoder", "column"), in_turn(OPTIONS, COLUMNS))
def test_every_kind_of_column(encoder: tuple[str, dict[str, Any]], column: str) -> None:
    name, options = encoder
    frame = pd.DataFrame({"a": COLUMNS[column], "b": np.arange(N) % 3})
    ours, theirs = _both(name, options)
    lazy = _lazy(frame)
    _assert_same(ours.fit(lazy), theirs.fit(frame), lazy, frame)
    unpickled = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(
        _dense(unpickled.transform(frame)), _dense(theirs.transform(frame))
    )
    clone(ours)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["U", "object", "object, None", "mixed", "int", "bool"])
@pytest.mark.parametrize("name", ["OneHotEncoder", "OrdinalEncoder"])
def test_arrays(name: str, kind: str, known: bool) -> None:
    rng = np.random.default_rng(0)
    words = rng.choice(["a", "bb", "ccc"], (N, 2)).astype("U12")
    words[110, 0] = "only here"
    numbers = rng.integers(0, 5, (N, 2))
    with_none, mixed = words.astype(object), words.astype(object)
    with_none[::9, 1] = None
    mixed[:, 1] = numbers[:, 1]
    X = {"U": words, "object": words.astype(object), "object, None": with_none, "mixed": mixed,
         "int": numbers, "bool": numbers > 2}[kind]  # fmt: skip
    lazy = da.from_array(X, chunks=(17, 2))
    if not known:
        lazy = lazy[da.ones(N, chunks=17, dtype=bool)]
    ours, theirs = _both(name, {})
    _assert_same(ours.fit(lazy), theirs.fit(X), lazy, X)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop": ["y"]},
        {"min_frequency": 25},
        {"max_categories": 3, "handle_unknown": "infrequent_if_exist"},
    ],
)
def test_given_categories_keep_their_order_and_their_rows(options: dict[str, Any]) -> None:
    """The order is not that of sorting, and one category has no rows."""
    options = {"categories": [["z", "nowhere", "x", "only here", "y"]], **options}
    frame = pd.DataFrame({"a": COLUMNS["str"]})
    ours, theirs = _both("OneHotEncoder", options)
    lazy = _lazy(frame)
    _assert_same(ours.fit(lazy), theirs.fit(frame), lazy, frame)


def test_lazy_results_do_not_change_with_a_later_fit() -> None:
    frame = pd.DataFrame({"a": COLUMNS["str"]})
    encoder = preprocessing.OneHotEncoder().fit(_lazy(frame))
    lazy = encoder.transform(_lazy(frame))
    encoder.fit(_lazy(frame.replace("x", "w")))
    expected = sklearn.preprocessing.OneHotEncoder().fit_transform(frame)
    np.testing.assert_array_equal(_dense(lazy), expected.toarray())


def test_on_worker_processes(client: Client) -> None:
    frame = pd.DataFrame({"a": COLUMNS["object, None"], "b": COLUMNS["float, missing"]})
    for name in ("OneHotEncoder", "OrdinalEncoder"):
        ours, theirs = _both(name, {"min_frequency": 10})
        lazy = _lazy(frame)
        _assert_same(ours.fit(lazy), theirs.fit(frame), lazy, frame)


# --- targets ---------------------------------------------------------------------------------


def _target(kind: str) -> pd.Series:
    rng = np.random.default_rng(1)
    return {
        "number": lambda: pd.Series(rng.normal(size=N)),
        # The first blocks hold whole numbers, which look like labels.
        "whole at first": lambda: pd.Series(np.r_[np.arange(60.0), rng.normal(size=N - 60)]),
        "bool": lambda: pd.Series(rng.random(N) > 0.5),
        "sorted": lambda: pd.Series(np.sort(rng.integers(0, 3, N))),
        "words": lambda: pd.Series(rng.choice(["n", "y", "z"], N), dtype=object),
        "one value": lambda: pd.Series(np.zeros(N, dtype=int)),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "categories", "smooth"),
    in_turn(
        ["number", "whole at first", "bool", "sorted", "words", "one value"],
        ["auto", [["z", "y", "never", "x", "only here"]]],
        ["auto", 2.0],
    ),
)
def test_target_encodings(kind: str, categories: Any, smooth: Any) -> None:
    frame, y = pd.DataFrame({"a": COLUMNS["str"]}), _target(kind)
    ours, theirs = _both("TargetEncoder", {"categories": categories, "smooth": smooth})
    ours.fit(_lazy(frame), _lazy(y))
    theirs.fit(frame, y)
    assert ours.target_type_ == theirs.target_type_
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    assert ours.categories_[0].tolist() == theirs.categories_[0].tolist()
    np.testing.assert_allclose(ours.target_mean_, theirs.target_mean_)
    np.testing.assert_allclose(ours.encodings_, theirs.encodings_, rtol=1e-8, atol=1e-12)
    found = ours.transform(_lazy(frame)).compute()
    np.testing.assert_allclose(found, theirs.transform(frame), rtol=1e-8, atol=1e-12)
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    crossed = ours.fit_transform(_lazy(frame), _lazy(y)).compute()
    assert crossed.shape == found.shape
    assert np.isfinite(crossed).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_target_that_is_missing_names_its_block(value: float) -> None:
    y = _target("number")
    y[50] = value
    with pytest.raises(InvalidDataError, match=r"Block 3: Input y contains .*\nEvery row needs"):
        preprocessing.TargetEncoder().fit(_lazy(pd.DataFrame({"a": COLUMNS["str"]})), _lazy(y))


@pytest.mark.parametrize("make", [_lazy, lambda values: values], ids=["lazy", "in memory"])
def test_rows_and_targets_that_have_no_encoding(make: Any) -> None:
    y = np.arange(40) % 2
    frame = pd.DataFrame({"a": y + 1})
    mixed = pd.Series(np.where(y == 1, "a", y.astype(object)))
    encoder = preprocessing.TargetEncoder
    for rows, target, kind, remedy in [
        (frame, mixed, "auto", "labels of several types.*Convert all"),
        (frame, mixed, "binary", "labels of several types.*Convert all"),
        (frame, mixed, "continuous", 'y is not numeric.*target_type="auto"'),
        (mixed.to_frame("a"), pd.Series(y), "auto", "uniformly strings or numbers.*Make each"),
    ]:
        with pytest.raises((InvalidDataError, InvalidTypeError), match=remedy):
            encoder(target_type=kind).fit(make(rows), make(target))


def test_sparse_rows_are_refused_without_a_word_on_targets() -> None:
    X = da.from_array(np.eye(8), chunks=(4, 8)).map_blocks(sparse.csr_array)
    with pytest.raises(InvalidTypeError, match=r"Sparse data was passed.*toarray\(\)") as caught:
        preprocessing.TargetEncoder().fit(X, da.arange(8, chunks=4))
    assert "target" not in str(caught.value)


def test_a_target_of_another_type() -> None:
    X, words = _lazy(pd.DataFrame({"a": COLUMNS["str"]})), _lazy(_target("words"))
    with pytest.raises(InvalidDataError, match=r"Block \d: y is not numeric \(could not convert"):
        preprocessing.TargetEncoder(target_type="continuous").fit(X, words)
    with pytest.raises(InvalidParameterError, match=r"y has 3 values"):
        preprocessing.TargetEncoder(target_type="binary").fit(X, words)


# --- errors ----------------------------------------------------------------------------------


def test_a_category_to_drop_that_is_not_there() -> None:
    with pytest.raises(
        InvalidParameterError, match=r"(?s)supposed to be dropped.*change one of them"
    ):
        preprocessing.OneHotEncoder(drop=["w"]).fit(_lazy(pd.DataFrame({"a": COLUMNS["str"]})))


def test_a_category_that_is_not_given_names_its_block() -> None:
    encoder = preprocessing.OneHotEncoder(categories=[["x", "y", "z"]])
    with pytest.raises(InvalidDataError, match=r"Block 4 of X: Found unknown.*'only here'"):
        encoder.fit(_lazy(pd.DataFrame({"a": COLUMNS["str"]})))


def test_other_columns_than_those_of_the_fit() -> None:
    frame = pd.DataFrame({"a": COLUMNS["str"], "b": COLUMNS["int"]})
    encoder = preprocessing.OrdinalEncoder().fit(_lazy(frame))
    with pytest.raises(InvalidDataError, match="feature names should match"):
        encoder.transform(_lazy(frame[["b", "a"]]))


def test_missing_values_of_pandas_are_taken_in_memory_as_lazily() -> None:
    text = pd.Series(["a", pd.NA, "b", "a"], dtype="string")
    frame = pd.DataFrame({"s": text, "i": pd.Series([1, pd.NA, 2, 1], dtype="Int64")})
    encoder = preprocessing.OneHotEncoder(sparse_output=False)
    in_memory = encoder.fit_transform(frame)
    np.testing.assert_array_equal(encoder.fit(frame).transform(frame), in_memory)
    lazy = dd.from_pandas(frame, npartitions=2)
    np.testing.assert_array_equal(encoder.fit_transform(lazy).compute(), in_memory)
