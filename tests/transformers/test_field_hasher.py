"""Fields of ids and numbers as virtual columns: by plain Python, whatever holds the rows."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import defaultdict
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.utils import murmurhash3_32

from daskml_dist.backends.id_hashing import mix_ids
from daskml_dist.data import field_hashing
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    NotFittedError,
)
from daskml_dist.feature_extraction import FieldHasher, NamespaceHasher
from tests.subprocesses import environment

BITS, MASK = 54, 2**54 - 1
MISSING = MASK


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


# --- the truth, in plain Python ------------------------------------------------------------------


def mix(number: int) -> int:
    """Return the mixed 54 bits of a 64-bit number, as in the class's notes."""
    x = number & MASK ^ number >> BITS
    x = (x ^ x >> 27) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 27


def unmix(mixed: int) -> int:
    """Return the number below 2**54 with the given mixed bits."""
    x = mixed ^ mixed >> 27
    for factor in (0x94D049BB133111EB, 0xBF58476D1CE4E5B9):
        x = x * pow(factor & MASK, -1, 2**54) & MASK
        x = x ^ x >> 27
    return x


def text_id(text: str, field: str, hashing: str = "stable") -> int:
    if hashing == "vowpal":
        return murmurhash3_32(text, seed=murmurhash3_32(field, positive=True), positive=True)
    return int(pd.util.hash_array(np.array([text], dtype=object), categorize=False)[0])


def expected_rows(
    columns: dict[Any, list[Any]],
    *,
    numeric: tuple[Any, ...] = (),
    bags: str = "mean",
    hashing: str = "stable",
) -> list[dict[int, float]]:
    """Entries of each row, of columns of plain values."""

    def find_id(value: Any, field: Any) -> int:
        if value is None:
            return MISSING
        if hashing == "vowpal" or isinstance(value, str):
            return text_id(str(value), str(field), hashing)
        return int(value)

    rows = []
    for values in zip(*columns.values(), strict=True):
        row: dict[int, float] = defaultdict(float)
        for field, (name, value) in enumerate(zip(columns, values, strict=True)):
            if name in numeric:
                row[mix(MISSING if value is None else 0) << 8 | field] += (
                    1 if value is None else value
                )
                continue
            ids = value if isinstance(value, list) else [value]
            for one in ids:
                weight = 1 / len(ids) if bags == "mean" else 1.0
                row[mix(find_id(one, name)) << 8 | field] += weight
        rows.append(dict(row))
    return rows


def found_rows(matrix: Any) -> list[dict[int, float]]:
    """Entries of each row of a CSR matrix, which are sorted and distinct."""
    assert matrix.shape[1] == 2**62
    assert matrix.indices.dtype == np.int64
    rows = []
    for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        indices = matrix.indices[start:stop]
        assert (np.diff(indices) > 0).all()
        rows.append(dict(zip(indices.tolist(), matrix.data[start:stop].tolist(), strict=True)))
    return rows


def assert_rows(matrix: Any, expected: list[dict[int, float]]) -> None:
    found = found_rows(matrix)
    assert [sorted(row) for row in found] == [sorted(row) for row in expected]
    for hashed, row in zip(found, expected, strict=True):
        assert hashed == pytest.approx(row, rel=1e-6)


# --- hashes --------------------------------------------------------------------------------------


def test_mixing_is_one_to_one():
    rng = np.random.default_rng(0)
    small = np.arange(5000, dtype=np.uint64)
    drawn = rng.integers(0, 2**54, 5000, dtype=np.uint64)
    numbers = np.concatenate([small, drawn, np.array([2**54 - 1], np.uint64)])
    mixed = mix_ids(numbers)
    assert mixed.tolist() == [mix(int(n)) for n in numbers]
    assert [unmix(int(m)) for m in mixed] == numbers.tolist()
    assert mixed.max() <= MASK
    # Consecutive ids are spread evenly over buckets of both high and low bits.
    for bits in (mixed[:5000] >> np.uint64(48), mixed[:5000] & np.uint64(63)):
        counts = np.bincount(bits.astype(int), minlength=64)
        assert ((counts - 5000 / 64) ** 2 / (5000 / 64)).sum() < 120  # chi-squared of 63


def test_hashes_are_pinned():
    """A model that is kept for years is read by them."""
    matrix = FieldHasher().fit_transform(pd.DataFrame({"a": [1], "b": ["clerk"]}))
    pandas_hash = 15110684321242803020  # of the text
    expected = [mix(1) << 8, mix(pandas_hash) << 8 | 1]
    assert sorted(matrix.indices.tolist()) == sorted(expected)
    assert mix(1) == 0x22C6107177EBD0


def test_hashes_do_not_depend_on_the_seed_of_python():
    code = (
        "import pandas as pd\n"
        "from daskml_dist.feature_extraction import FieldHasher\n"
        "frame = pd.DataFrame({'a': ['x', 'y'], 'b': [['u', 'v'], ['w']]})\n"
        "print(FieldHasher().fit_transform(frame).indices.tolist())"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    command, environ = [sys.executable, "-c", code], environment(PYTHONHASHSEED=seed)
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout
    frame = pd.DataFrame({"a": ["x", "y"], "b": [["u", "v"], ["w"]]})
    assert output == f"{FieldHasher().fit_transform(frame).indices.tolist()}\n"


# --- what holds the rows -------------------------------------------------------------------------

PLAIN = {
    "user": [17, 0, 2**54 - 2, 2**62 + 5, 17, 3],
    "site": ["news", "shop", "", "news", "\u00e4", "news"],
    "flag": [True, False, True, True, False, False],
    "age": [20.5, 0.0, -3.0, 1e6, 0.25, 7.0],
}
FRAME = pd.DataFrame(PLAIN)
TRUTH = expected_rows(PLAIN, numeric=("age",))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FRAME,
        lambda: FRAME.astype({"site": object}),
        lambda: FRAME.astype({"site": "category"}),
        lambda: FRAME.astype({"site": "string", "user": "Int64", "flag": "boolean"}),
        lambda: FRAME.astype({"site": pd.ArrowDtype(pa.string()), "user": "int64[pyarrow]"}),
        lambda: FRAME.astype({"site": pd.ArrowDtype(pa.large_string()), "age": "float64[pyarrow]"}),
        lambda: FRAME.astype(object),
        lambda: FRAME.astype({"user": "uint64", "age": "Float64"}),
        lambda: pa.table(PLAIN),
        lambda: pa.table({**PLAIN, "site": pa.array(PLAIN["site"]).dictionary_encode()}),
        lambda: dd.from_pandas(FRAME, npartitions=2),
        lambda: dd.from_pandas(FRAME.astype({"site": "category"}), npartitions=3),
    ],
    ids=["pandas", "objects", "categories", "nullable", "arrow", "large strings", "all objects",
         "unsigned", "table", "dictionaries", "Dask", "Dask categories"],
)  # fmt: skip
def test_equal_ids_are_equal_in_any_column(make):
    rows = make()
    hasher = FieldHasher().fit(rows)
    assert hasher.fields_ == list(PLAIN)
    assert hasher.kinds_ == ["integer", "text", "integer", "numeric"]
    assert hasher.n_features_in_ == 4
    found = hasher.transform(rows)
    if hasattr(found, "dask"):
        assert found.shape[1] == 2**62
        assert found.dtype == np.float32
        found = found.compute()
    assert found.dtype == np.float32
    assert_rows(found, TRUTH)


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool", "int32"])
def test_columns_of_an_array_are_fields(kind, monkeypatch):
    monkeypatch.setattr(field_hashing, "_SLAB_ROWS", 8)
    rows = np.random.default_rng(0).integers(0, 2, (41, 3)).astype(kind)
    truth = expected_rows({j: rows[:, j].tolist() for j in range(3)})
    hasher = FieldHasher().fit(rows)
    assert hasher.fields_ == [0, 1, 2]
    assert_rows(hasher.transform(rows), truth)
    lazy = FieldHasher().fit_transform(da.from_array(rows, chunks=(15, 2)))
    assert lazy.chunks[0] == (15, 15, 11)
    assert_rows(lazy.compute(), truth)
    assert_rows(FieldHasher().fit_transform(rows[:5].tolist()), truth[:5])


def test_arrays_of_floats_and_texts():
    floats = np.random.default_rng(0).normal(size=(5, 3))
    truth = expected_rows({j: floats[:, j].tolist() for j in range(3)}, numeric=(0, 1, 2))
    assert_rows(FieldHasher(dtype="float64").fit_transform(floats), truth)
    texts = np.array([["a", "b"], ["b", "a"]])
    truth = expected_rows({j: texts[:, j].tolist() for j in range(2)})
    for rows in (texts, texts.astype(object), texts.tolist()):
        assert_rows(FieldHasher().fit_transform(rows), truth)
    assert_rows(
        FieldHasher().fit_transform([[7, "a", 0.5], [8, "b", 2.0]]),
        expected_rows({0: [7, 8], 1: ["a", "b"], 2: [0.5, 2.0]}, numeric=(2,)),
    )


def test_dates_are_ids_of_their_moment():
    moments = pd.to_datetime(["2024-05-01 00:00", "1969-12-31 23:59:59.5", "2024-05-01 00:00"],
                             format="ISO8601")  # fmt: skip
    nanoseconds = [int(one.value) & 2**64 - 1 for one in moments]
    truth = expected_rows({"at": nanoseconds})
    for column in (
        moments.as_unit("ms"),
        moments.as_unit("ns"),
        moments.tz_localize("UTC").tz_convert("Europe/Zurich"),
        pd.Series(list(moments), dtype=object),
        pd.Series(moments).astype("category"),
        pd.Series(moments).astype("timestamp[us][pyarrow]"),
    ):
        frame = pd.DataFrame({"at": column})
        assert_rows(FieldHasher().fit_transform(frame), truth)


BAGS = {
    "user": [1, 2, 3, 4],
    "tags": [["a", "b", "a"], [], ["c"], ["b", "\u00e4"]],
    "pages": [[5], [6, 5, 5, 6], [], [7, 2**60]],
}


@pytest.mark.parametrize("bags", ["mean", "sum"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame(BAGS),
        lambda: pd.DataFrame({**BAGS, "pages": [np.array(b, np.int64) for b in BAGS["pages"]]}),
        lambda: pd.DataFrame({**BAGS, "tags": [tuple(b) for b in BAGS["tags"]]}),
        lambda: pa.table(BAGS),
        lambda: dd.from_pandas(pa.table(BAGS).to_pandas(types_mapper=pd.ArrowDtype), npartitions=2),
        lambda: dd.from_delayed(
            [dask.delayed(pd.DataFrame(BAGS)[:1]), dask.delayed(pd.DataFrame(BAGS)[1:])],
            meta=pd.DataFrame(BAGS)[:0], verify_meta=False,
        ),
    ],
    ids=["lists", "arrays", "tuples", "table", "Dask of Arrow", "Dask of objects"],
)  # fmt: skip
def test_bags_of_ids(make, bags):
    with dask.config.set({"dataframe.convert-string": False}):
        rows = make()
        hasher = FieldHasher(bags=bags).fit(rows)
        assert hasher.kinds_ == ["integer", "texts", "integers"]
        found = hasher.transform(rows)
        found = found.compute() if hasattr(found, "dask") else found
    assert_rows(found, expected_rows(BAGS, bags=bags))


def test_missing_values_have_a_separate_id():
    plain = {
        "user": [1, None, 3],
        "site": ["a", None, None],
        "tags": [["a", None], None, ["b"]],
        "age": [1.5, None, 0.0],
    }
    truth = expected_rows(plain, numeric=("age",))
    frame = pd.DataFrame({**plain, "user": pd.array(plain["user"], dtype="Int64")})
    frame["age"] = [1.5, np.inf, 0.0]
    hasher = FieldHasher(missing="own").fit(frame)
    assert_rows(hasher.transform(frame), truth)
    for changed in (
        frame.assign(user=frame["user"].astype("float64")),
        frame.assign(site=frame["site"].astype("category")),
        frame.assign(site=frame["site"].astype(object).where(frame["site"].notna(), np.nan)),
        frame.assign(user=pd.Series(plain["user"], dtype=object)),
        frame.assign(age=pd.array([1.5, pd.NA, 0.0], dtype="Float64")),
        pd.DataFrame(pa.table(plain).to_pandas(types_mapper=pd.ArrowDtype)),
    ):
        assert_rows(hasher.transform(changed), truth)


def test_numbers_and_columns_that_are_named():
    frame = pd.DataFrame({"label": [0, 1], "b": [3, 4], "a": [1.0, 2.0], "c": [1.0, 5.0]})
    hasher = FieldHasher(["c", "a", "b"], numeric=["b", "c"]).fit(frame)
    plain = {"c": [1.0, 5.0], "a": [1, 2], "b": [3, 4]}
    truth = expected_rows(plain, numeric=("b", "c"))
    assert hasher.kinds_ == ["numeric", "float", "numeric"]
    assert hasher.feature_names_in_.tolist() == ["c", "a", "b"]
    # Other columns, and the order of all, are not looked at.
    assert_rows(hasher.transform(frame[["a", "b", "c"]]), truth)
    found = hasher.transform(dd.from_pandas(frame, npartitions=2))
    assert_rows(found.compute(), truth)
    rows = np.array([[9, 3], [8, 4]])
    assert_rows(
        FieldHasher([1], numeric=[1]).fit_transform(rows), expected_rows({1: [3, 4]}, numeric=(1,))
    )


def test_hashes_of_vowpal_wabbit():
    """Hashes equal those of `NamespaceHasher`, whose rows equal Vowpal Wabbit's."""
    plain = {"user": [17, 4], "site": ["news", "shop"], "tags": [["a", "b"], ["b"]], "age": [2, 3]}
    frame = pd.DataFrame(plain).astype({"age": "float32"})
    matrix = FieldHasher(hashing="vowpal").fit_transform(frame)
    assert_rows(matrix, expected_rows(plain, numeric=("age",), hashing="vowpal"))
    spaces = [
        {"user": [str(user)], "site": site, "tags": " ".join(tags)}
        for user, site, tags in zip(*list(plain.values())[:3], strict=True)
    ]
    theirs = NamespaceHasher(2**31 - 1, alternate_sign=False).transform(spaces)
    for row in range(2):
        hashes = {unmix(c >> 8) for c in found_rows(matrix)[row] if c & 255 != 3}
        assert {h % 2**31 % (2**31 - 1) for h in hashes} == set(theirs[[row]].indices.tolist())


def test_unknown_chunks_and_empty_blocks():
    frame = dd.from_pandas(FRAME, npartitions=3)
    remaining = frame[frame["user"] != 17]
    found = FieldHasher().fit(FRAME).transform(remaining)
    assert np.isnan(found.shape[0])
    assert_rows(found.compute(), [TRUTH[i] for i in (1, 2, 3, 5)])
    none = FieldHasher().fit(frame).transform(frame[frame["user"] == 1])
    assert none.compute().shape == (0, 2**62)
    assert FieldHasher().fit_transform(FRAME[:0]).shape == (0, 2**62)
    blocks = [dask.delayed(np.array([[1, 2]])), dask.delayed(np.array([[3, 4]]))]
    found = FieldHasher().fit(np.array([[1, 2]])).transform(blocks)
    assert_rows(found.compute(), expected_rows({0: [1, 3], 1: [2, 4]}))


def test_lazy_results_are_of_the_fit_before():
    rows = da.from_array(np.array([[1], [2]]), chunks=1)
    hasher = FieldHasher().fit(rows)
    lazy = hasher.transform(rows)
    hasher.set_params(hashing="vowpal").fit(rows)
    assert_rows(lazy.compute(), expected_rows({0: [1, 2]}))
    unpickled = pickle.loads(pickle.dumps(hasher))
    assert_rows(unpickled.transform(rows).compute(), expected_rows({0: [1, 2]}, hashing="vowpal"))
    with pytest.raises(NotFittedError):
        clone(hasher).transform(rows)


# --- refusals ------------------------------------------------------------------------------------

OBJECTS = pd.Series([1, "1", 2], dtype=object)


@pytest.mark.parametrize(
    ("params", "rows", "error", "match"),
    [
        ({}, {"a": [1, -2]}, InvalidDataError, r"'a'.*holds -2, but ids cannot.*astype\(str"),
        ({}, {"a": ["x", None]}, InvalidDataError, r"'a' holds missing ids.*missing='own'"),
        ({}, {"a": pd.array([1, None])}, InvalidDataError, "'a' holds missing ids"),
        ({}, {"a": [["x"], None]}, InvalidDataError, "'a' holds missing ids"),
        ({}, {"a": [["x"], [None]]}, InvalidDataError, "'a' holds missing ids"),
        ({}, {"a": [1.0, np.nan]}, InvalidDataError, r"'a' holds NaN, infinity.*missing='own'"),
        ({}, {"a": [np.inf]}, InvalidDataError, "'a' holds NaN, infinity"),
        ({}, {"a": [1e300]}, InvalidDataError, "float32 cannot"),
        ({}, {"a": OBJECTS}, InvalidTypeError, r"'a' holds values of mixed types.*astype\(str\)"),
        ({}, {"a": [[1, "1"]]}, InvalidTypeError, "'a' holds values of mixed types"),
        ({}, {"a": [["x"], "y"]}, InvalidTypeError, "'a' holds values of mixed types"),
        ({}, {"a": [[0.5, 1.0]]}, InvalidDataError, "'a' holds 0.5, but ids"),
        ({}, {"a": [2**70, 1]}, InvalidDataError, r"'a' holds ids that do not fit 64 bits"),
        ({}, {"a": [1j]}, InvalidTypeError, "complex128 cannot be used as ids"),
        ({}, {"a": pd.to_timedelta([1, 2])}, InvalidTypeError, "cannot be used as ids"),
        ({"numeric": []}, {"a": [0.5]}, InvalidDataError, r"holds 0.5, .*numeric=\['a'\]"),
        ({"numeric": ["a"]}, {"a": ["x"]}, InvalidDataError, "'a' is of kind text, but numeric"),
        ({"numeric": ["b"]}, {"a": ["x"]}, InvalidParameterError, "'b' is not a column"),
        ({"numeric": "a"}, {"a": ["x"]}, InvalidParameterError, r"numeric='a'"),
        ({"columns": ["b"]}, {"a": ["x"]}, InvalidParameterError, r"no column 'b'.*\['a'\]"),
        ({"columns": "a"}, {"a": ["x"]}, InvalidParameterError, r"columns=\['a'\]"),
        ({"columns": ["a", "a"]}, {"a": ["x"]}, InvalidParameterError, "named twice"),
        ({"bags": "max"}, {"a": [1]}, InvalidParameterError, "bags='max'"),
        ({"hashing": "md5"}, {"a": [1]}, InvalidParameterError, "hashing='md5'"),
        ({"missing": "drop"}, {"a": [1]}, InvalidParameterError, "missing='drop'"),
        ({"dtype": "int8"}, {"a": [1]}, InvalidParameterError, "dtype='int8'"),
        ({"dtype": "what"}, {"a": [1]}, InvalidParameterError, "dtype='what'"),
        (
            {"hashing": "vowpal"}, {"a": pd.to_datetime(["2024-01-01"])}, InvalidDataError,
            "'a' holds dates.*strftime",
        ),
        ({}, {f"c{j}": [1] for j in range(256)}, InvalidDataError, "256 columns, .* 255 fields"),
    ],
)  # fmt: skip
def test_rows_and_parameters_that_are_refused(params, rows, error, match):
    with pytest.raises(error, match=match):
        FieldHasher(**params).fit_transform(pd.DataFrame(rows))


def test_as_many_fields_as_there_are():
    matrix = FieldHasher().fit_transform(np.ones((1, 255), int))
    assert sorted((matrix.indices & 255).tolist()) == list(range(255))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda X: X.drop(columns="site"), InvalidDataError, "site"),
        (lambda X: X.assign(more=1), InvalidDataError, "more"),
        (lambda X: X[["site", "user"]], InvalidDataError, r"order.*(?s:.)*feature_names_in_"),
        (lambda X: X.to_numpy()[:, :1], InvalidDataError, "1 features.*expecting 2"),
        (lambda X: X.assign(user=["1", "2"]), InvalidTypeError, "'user' is of kind text.*Int64"),
        (lambda X: X.assign(site=[1, 2]), InvalidTypeError, r"'site' is of kind integer.*astype"),
        (lambda X: X.assign(site=[["a"], ["b"]]), InvalidTypeError, "'site' is of kind texts"),
        (lambda X: X.assign(user=[0.5, 1]), InvalidDataError, "holds 0.5"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "Dask"])
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_other_rows_than_those_of_the_fit(change, error, match, lazy):
    frame = pd.DataFrame({"user": [1, 2], "site": ["a", "b"]})
    hasher, changed = FieldHasher().fit(frame), change(frame)
    if lazy and isinstance(changed, pd.DataFrame):
        with dask.config.set({"dataframe.convert-string": False}):
            changed = dd.from_pandas(changed, npartitions=2)
    with pytest.raises(error, match=match):
        dask.compute(hasher.transform(changed))


def test_blocks_of_objects_agree_on_their_kind():
    def lazy(*parts: Any) -> Any:
        frames = [pd.DataFrame({"a": pd.Series(part, dtype=object)}) for part in parts]
        return dd.from_delayed(list(map(dask.delayed, frames)), meta=frames[0][:0])

    with dask.config.set({"dataframe.convert-string": False}):
        with pytest.raises(InvalidTypeError, match=r"'a'.*mixed types \(integer and text\)"):
            FieldHasher().fit(lazy([1, 2], ["1"]))
        hasher = FieldHasher(missing="own").fit(lazy([1, 2], [None], [], [3]))
        assert hasher.kinds_ == ["integer"]
        found = hasher.transform(lazy([1, 2], [None], [], [3])).compute()
    assert_rows(found, expected_rows({"a": [1, 2, None, 3]}))


def test_lists_that_dask_has_made_texts_of():
    frame = pd.DataFrame({"tags": [["a", "b"], ["c"]]})
    with dask.config.set({"dataframe.convert-string": True}):
        lazy = dd.from_pandas(frame, npartitions=1)
        with pytest.raises(InvalidDataError, match=r"'tags'.*which look like lists.*convert-"):
            FieldHasher().fit_transform(lazy).compute()
        truth = expected_rows({"tags": ["['a', 'b']", "['c']"]})
        assert_rows(FieldHasher().fit_transform(lazy.astype("category")).compute(), truth)
    assert_rows(FieldHasher().fit_transform(frame.map(str)), truth)


def test_rows_that_are_no_table():
    with pytest.raises(InvalidDataError, match="Expected 2D array"):
        FieldHasher().fit(np.array([1, 2]))
    with pytest.raises(InvalidTypeError, match="sparse matrix"):
        FieldHasher().fit(FieldHasher().fit_transform([[1]]))
    with pytest.raises(InvalidDataError, match="number of columns is unknown"):
        FieldHasher().fit([dask.delayed(np.ones((2, 2)))])
