"""Inputs that are easily misread (types, missing values, orders) equal the same rows in NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
from scipy import sparse

from daskml_dist.data import batch_files
from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import convert_foreign
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import InvalidDataError, InvalidTypeError
from daskml_dist.feature_extraction import FieldHasher
from daskml_dist.inspection import partial_dependence
from daskml_dist.linear_model import LogisticRegression, Ridge
from daskml_dist.metrics import accuracy_score
from daskml_dist.naive_bayes import GaussianNB

# Dask's own, about the index of files.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

N = 60
ROWS = np.random.default_rng(0).integers(-40, 40, size=(N, 2)) / 8
LABELS = np.arange(N) % 2
FRAME = pd.DataFrame(ROWS, columns=["a", "b"]).assign(label=LABELS)
#: An integer that float64 cannot represent.
LARGE = 2**60 + 1


@pytest.fixture(autouse=True)
def no_client() -> Iterator[None]:
    """Compute in this thread."""
    with dask.config.set(scheduler="sync"):
        yield


def _load(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def _read(X: Any, y: Any = None, sample_weight: Any = None) -> tuple[Any, Any, Any]:
    """Return the rows, targets and weights of all blocks as a fit gets them."""
    found = as_collection(*take_named_columns(X, y, sample_weight), classification=True)
    if found.kind == "memory":
        blocks = [found.block_maker(0, *found.parts[0])]
    else:
        blocks = list(dask.compute(*found.delayed_blocks()))
    rows = [one.X.toarray() if sparse.issparse(one.X) else one.X for one in blocks]
    joined = [
        None if blocks[0].y is None else np.concatenate([one.y for one in blocks]),
        None
        if blocks[0].sample_weight is None
        else np.concatenate([one.sample_weight for one in blocks]),
    ]
    return np.concatenate(rows), *joined


# --- columns of every type -------------------------------------------------------------------

DAY = pd.Timestamp("2026-01-05 03:00", tz="Asia/Tokyo")
#: Arrow columns, and the values expected in a frame.
COLUMNS: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "decimals": (lambda: pa.array([1.25, None, 3]).cast(pa.decimal128(10, 2)), [1.25, None, 3.0]),
    "a dictionary of decimals": (
        lambda: pa.array(["1.5", "2.5", "1.5"]).cast(pa.decimal128(5, 1)).dictionary_encode(),
        [1.5, 2.5, 1.5],
    ),
    "a dictionary of words": (
        lambda: pa.array(["u", "v", None]).dictionary_encode(), ["u", "v", None],
    ),
    "bools with gaps": (lambda: pa.array([True, None, False]), [True, None, False]),
    "unsigned numbers": (lambda: pa.array([2**63 + 5, 1, 2], pa.uint64()), [2**63 + 5, 1, 2]),
    "unsigned numbers with gaps": (
        lambda: pa.array([2**63 + 5, None, 2], pa.uint64()), [2**63 + 5, None, 2],
    ),
    "large numbers with gaps": (lambda: pa.array([LARGE, None, -LARGE]), [LARGE, None, -LARGE]),
    "small numbers with gaps": (lambda: pa.array([1, None, 3]), [1.0, None, 3.0]),
    "gaps alone": (lambda: pa.nulls(3, pa.int64()), [None, None, None]),
    "moments of a zone": (lambda: pa.array([DAY, None, DAY]), [DAY, None, DAY]),
    "lists": (lambda: pa.array([[1, 2], None, []]), [[1, 2], None, []]),
    "lists of one length": (
        lambda: pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        [[1, 2], [3, 4], [5, 6]],
    ),
    "structs": (lambda: pa.array([{"x": 1}, {"x": 2}, {"x": 3}]), [{"x": 1}, {"x": 2}, {"x": 3}]),
}  # fmt: skip


def _makers(folder: Path, table: Any) -> dict[str, Any]:
    pa.parquet.write_table(table, folder / "t.parquet")
    tables = {"pyarrow": table, "dataset": pa.dataset.dataset(folder / "t.parquet")}
    try:
        import polars
    except ImportError:
        return tables
    frame = polars.from_arrow(table)
    frame.write_parquet(folder / "p.parquet")
    return {**tables, "polars": frame, "scan": polars.scan_parquet(folder / "p.parquet")}


def _plain(value: Any) -> Any:
    """Return a cell in comparable form: missing values as None, times in UTC."""
    if isinstance(value, np.ndarray | list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if value is None or value is pd.NaT or value is pd.NA or value != value:
        return None
    if isinstance(value, pd.Timestamp):
        return (value.tz_convert("UTC") if value.tz else value.tz_localize("UTC")).isoformat()
    return value.item() if hasattr(value, "item") else value


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_every_type_keep_their_values(case: str, tmp_path: Path) -> None:
    make, expected = COLUMNS[case]
    table = pa.table({"c": make(), "n": [0.0, 1.0, 2.0]})
    for name, one in _makers(tmp_path, table).items():
        (frame,) = dask.compute(convert_foreign(one))
        assert [_plain(cell) for cell in frame["c"]] == [_plain(e) for e in expected], name


def test_64_bit_ids_are_exact_despite_missing_values(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([LARGE, None, LARGE + 1]), "n": [0.0, 1.0, 2.0]})
    expected = FieldHasher(missing="own").fit_transform(
        pd.DataFrame({"id": pd.array([LARGE, None, LARGE + 1], "Int64"), "n": [0.0, 1.0, 2.0]})
    )
    for name, one in _makers(tmp_path, table).items():
        (found,) = dask.compute(FieldHasher(missing="own").fit_transform(one))
        assert (found != expected).nnz == 0, name


def test_string_targets_of_numeric_rows_need_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daskml_dist.data import parquet

    converted: list[list[str]] = []
    convert = parquet.convert_eager_table
    monkeypatch.setattr(
        parquet,
        "convert_eager_table",
        lambda table: (converted.append(list(table.column_names)), convert(table))[1],
    )
    words = np.array(["no", "yes"])[LABELS]
    FRAME.assign(label=words).to_parquet(tmp_path / "t.parquet")
    X, y, _ = _read(pa.dataset.dataset(tmp_path / "t.parquet"), "label")
    np.testing.assert_array_equal(X, ROWS)
    assert list(y) == list(words)
    assert converted == [["label"]]


# --- batches ---------------------------------------------------------------------------------


def _halves(make: Callable[[slice], Any]) -> Iterator[Any]:
    return (make(part) for part in (slice(0, 20), slice(20, 20), slice(20, N)))


def _tensors(part: slice) -> Any:
    torch = _load("torch")
    rows = torch.tensor(ROWS[part], requires_grad=True)
    return [rows, torch.tensor(LABELS[part])]


#: Generators of batches that all hold `ROWS` and `LABELS`.
BATCHES: dict[str, Callable[[], Iterator[Any]]] = {
    "pairs without weights": lambda: _halves(lambda s: (ROWS[s], LABELS[s], None)),
    "lists": lambda: _halves(lambda s: (ROWS[s].tolist() or ROWS[s], LABELS[s].tolist())),
    "an empty batch of objects first": lambda: iter(
        [(ROWS[:0].astype(object), LABELS[:0].astype(object)), (ROWS, LABELS)]
    ),
    "frames and nullable targets": lambda: _halves(
        lambda s: (FRAME[["a", "b"]][s], FRAME["label"][s].astype("Int64"))
    ),
    "other types": lambda: iter(
        [(ROWS[:20].astype("f4"), LABELS[:20].astype("i1")), (ROWS[20:], LABELS[20:])]
    ),
    "Dask's arrays": lambda: _halves(lambda s: (da.from_array(ROWS[s], chunks=7), LABELS[s])),
    "Arrow's tables": lambda: _halves(
        lambda s: (pa.Table.from_pandas(FRAME[["a", "b"]][s], preserve_index=False), LABELS[s])
    ),
    "sparse matrices and columns": lambda: _halves(
        lambda s: (sparse.coo_matrix(ROWS[s]), LABELS[s][:, None])
    ),
    "tensors with gradients": lambda: _halves(_tensors),
    "an index that repeats": lambda: _halves(
        lambda s: (FRAME[["a", "b"]][s].set_axis([7] * len(LABELS[s])), LABELS[s])
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches_of_any_kind_give_the_rows(case: str) -> None:
    X, y, weight = _read(BATCHES[case]())
    np.testing.assert_array_equal(X, ROWS)
    np.testing.assert_array_equal(y, LABELS)
    assert weight is None


def test_categories_are_those_of_all_batches() -> None:
    words = np.array(["x", "y", "z"])[np.arange(N) % 3]
    frame = FRAME.assign(word=words)
    parts = [frame[frame["word"] != "z"], frame[frame["word"] != "x"]]
    whole = pd.concat(parts).astype({"word": "category"})
    model = HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=2)
    expected = model.fit(whole, "label").predict_proba(whole.drop(columns="label"))
    batches = (part.astype({"word": "category"}) for part in parts)
    found = HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=2).fit(batches, "label")
    np.testing.assert_array_equal(found.predict_proba(whole.drop(columns="label")), expected)
    read, _, _ = take_named_columns((p.astype({"word": "category"}) for p in parts), None, None)
    assert sorted(read["word"].cat.categories) == ["x", "y", "z"]
    assert list(read["word"].compute()) == list(whole["word"])


def test_weights_of_batches_reach_nested_calls() -> None:
    weighted = iter([(ROWS, LABELS, np.ones(N))])
    model = HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=2).fit(weighted)
    with pytest.raises(ValueError, match="sample weights"):
        partial_dependence(model, ROWS, [0], method="recursion")
    assert "_fit_is_weighted" not in vars(model)
    model.fit(iter([(ROWS, LABELS)]))
    partial_dependence(model, ROWS, [0], method="recursion")


def test_a_missing_folder_is_created(tmp_path: Path) -> None:
    with dask.config.set({"temporary-directory": str(tmp_path / "a" / "b")}):
        X, *_ = _read(iter([ROWS]))
        np.testing.assert_array_equal(X, ROWS)


# --- files -----------------------------------------------------------------------------------


def _hive(folder: Path) -> Any:
    for year in (2024, 2025):
        (folder / f"year={year}").mkdir()
        rows = FRAME.iloc[:30] if year == 2024 else FRAME.iloc[30:]
        rows.to_parquet(folder / f"year={year}" / "0.parquet", index=False)
    return folder


def _spark(folder: Path) -> str:
    (folder / "rows.csv").mkdir()
    for k, part in enumerate(np.array_split(np.arange(N), 2)):
        FRAME.iloc[part].to_csv(folder / "rows.csv" / f"part-{k}.csv", index=False)
    (folder / "rows.csv" / "_SUCCESS").touch()
    return str(folder / "rows.csv")


def _arrow_files(folder: Path) -> list[str]:
    paths = [str(folder / f"{k}.arrow") for k in range(2)]
    for path, part in zip(paths, np.array_split(np.arange(N), 2), strict=True):
        pa.feather.write_feather(FRAME.iloc[part].reset_index(drop=True), path)
    return paths


def _lines(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in FRAME.to_dict("records")))
    return path


FILES: dict[str, Callable[[Path], Any]] = {
    "a folder of CSV": _spark,
    "a list of Arrow files": _arrow_files,
    "a pattern of one character": lambda p: (_arrow_files(p), f"{p}/?.arrow")[1],
    "lines of JSON": _lines,
    "a list of CSV files": lambda p: sorted((Path(_spark(p))).glob("*.csv")),
}


@pytest.mark.parametrize("case", FILES)
def test_files_give_the_rows(case: str, tmp_path: Path) -> None:
    X, y, _ = _read(FILES[case](tmp_path), "label")
    np.testing.assert_array_equal(X, ROWS)
    np.testing.assert_array_equal(y, LABELS)


def test_a_list_of_paths_gives_rows_without_labels(tmp_path: Path) -> None:
    paths = _arrow_files(tmp_path)
    model = Ridge().fit(paths, "label")
    rows = pa.Table.from_pandas(FRAME[["a", "b"]], preserve_index=False)
    pa.feather.write_feather(rows, tmp_path / "rows.arrow")
    answers = model.predict([str(tmp_path / "rows.arrow")])
    np.testing.assert_allclose(np.asarray(answers), model.predict(FRAME[["a", "b"]]), rtol=1e-12)
    assert accuracy_score(["a.csv", "b.csv"], ["a.csv", "c.csv"]) == 0.5


def test_partition_folders_become_columns(tmp_path: Path) -> None:
    dataset = pa.dataset.dataset(_hive(tmp_path), partitioning="hive")
    X, y, _ = _read(dataset, "label")
    np.testing.assert_array_equal(X, np.column_stack([ROWS, np.repeat([2024.0, 2025.0], 30)]))
    np.testing.assert_array_equal(y, LABELS)


def test_weights_and_several_targets_are_named(tmp_path: Path) -> None:
    FRAME.assign(w=1.0 + LABELS).to_parquet(tmp_path / "t.parquet")
    X, _, weight = _read(str(tmp_path / "t.parquet"), "label", "w")
    np.testing.assert_array_equal(X, ROWS)
    np.testing.assert_array_equal(weight, 1.0 + LABELS)
    model = Ridge().fit(str(tmp_path / "t.parquet"), ["label", "w"])
    assert model.coef_.shape == (2, 2)


# --- queries ---------------------------------------------------------------------------------


def test_functions_of_rows_on_a_scan_are_read_by_range(tmp_path: Path) -> None:
    polars = _load("polars")
    FRAME.to_parquet(tmp_path / "t.parquet", row_group_size=7)
    scan = polars.scan_parquet(tmp_path / "t.parquet")
    for query, expected in [
        (scan.with_row_index("number"), np.column_stack([np.arange(N), ROWS, LABELS])),
        (scan.filter(polars.col("label") == 1).select("a"), ROWS[LABELS == 1, :1]),
        (scan.slice(5, 11).select("b"), ROWS[5:16, 1:]),
        (scan.select(polars.col("a").cum_sum()), ROWS[:, :1].cumsum(axis=0)),
        (scan.sort("a").select("a"), np.sort(ROWS[:, :1], axis=0)),
    ]:
        np.testing.assert_array_equal(_read(query)[0], expected)


# --- grids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_targets_on_a_grid_are_aligned_with_its_cells(lazy: bool) -> None:
    """For any order of the dimensions of both."""
    xarray = _load("xarray")
    shape = (3, 4, 5)
    values = ROWS.reshape(*shape, 2)
    cube = xarray.Dataset(
        {
            # First a variable of fewer dimensions, so that the order of dimensions differs.
            "height": (("y", "x"), values[0, :, :, 1]),
            "red": (("time", "y", "x"), values[..., 0], {"units": "W"}),
            "blue": (("x", "y", "time"), values[..., 1].T),
        },
        coords={"time": [1, 2, 3], "crs": 4326},
    )
    assert tuple(cube.sizes) != ("time", "y", "x")
    target = xarray.DataArray(LABELS.reshape(shape).transpose(2, 1, 0), dims=("x", "y", "time"))
    weight = xarray.DataArray([1.0, 2.0, 3.0], dims="time")
    cube, target = (one.chunk({"time": 2, "x": 3}) if lazy else one for one in (cube, target))
    expected = np.column_stack([np.tile(ROWS[:20, 1], 3), ROWS])
    for y in (target, target.values.transpose(2, 1, 0).ravel(), "cover"):
        X = cube.assign(cover=target) if isinstance(y, str) else cube
        rows, labels, _ = _read(X, y)
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(labels, LABELS)
    _, _, weights = _read(cube, target, weight)
    np.testing.assert_array_equal(weights, np.repeat([1.0, 2.0, 3.0], 20))
    answers = GaussianNB().fit(cube, target).predict(cube)
    found = np.asarray(answers).reshape(cube["red"].shape)
    one = GaussianNB().fit(cube, target).predict(cube.isel(time=[1]))
    np.testing.assert_array_equal(found[1].ravel(), np.asarray(one))


# --- refused inputs --------------------------------------------------------------------------


def _used() -> Iterator[Any]:
    batches = iter([(ROWS, LABELS)])
    Ridge().fit(batches)
    return batches


def _closed(_: Path) -> Any:
    connection = _load("duckdb").connect()
    relation = connection.sql("select 1.0 as a, 0 as label")
    connection.close()
    return Ridge().fit(relation, "label")


def _twice(_: Path) -> Any:
    return Ridge().fit(pa.table([ROWS[:, 0], ROWS[:, 1]], names=["a", "a"]), LABELS)


def _mixed_files(folder: Path) -> Any:
    for name, frame in (("0", FRAME), ("1", FRAME.rename(columns={"b": "c"}))):
        pa.feather.write_feather(frame, str(folder / f"{name}.arrow"))
    return Ridge().fit(f"{folder}/*.arrow", "label")


def _broken(folder: Path) -> Any:
    (folder / "t.parquet").write_bytes(b"PAR1 no file of Parquet PAR1")
    return Ridge().fit(pa.dataset.dataset(folder / "t.parquet", schema=pa.schema([])), "label")


def _full_disk(_: Path) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_files.pickle, "dump", fail)
        return Ridge().fit(iter([(ROWS, LABELS)]))


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "a generator that was read": (lambda _: Ridge().fit(_used()), InvalidDataError, "a new one"),
    "no batch": (lambda _: Ridge().fit(iter([])), InvalidDataError, "yields no batch"),
    "batches without rows": (
        lambda _: Ridge().fit(iter([(ROWS[:0], LABELS[:0])])), InvalidDataError, "0 sample",
    ),
    "labels of several types": (
        lambda _: LogisticRegression().fit(iter([(ROWS, LABELS), (ROWS, LABELS == 1)])),
        InvalidDataError, "several dtypes",
    ),
    "two columns of one name": (_twice, InvalidDataError, "several columns"),
    "two columns of one name in batches": (
        lambda _: Ridge().fit(iter([FRAME.set_axis(["a", "a", "label"], axis=1)]), "label"),
        InvalidDataError, "several columns",
    ),
    "a closed connection": (_closed, InvalidDataError, "connection is open"),
    "a scan of no files": (
        lambda p: Ridge().fit(_load("polars").scan_parquet(p / "no.parquet"), "label"),
        InvalidDataError, "could not be read",
    ),
    "a broken file": (_broken, InvalidDataError, "could not be read"),
    "Arrow files of two tables": (_mixed_files, InvalidDataError, "of one table"),
    "files of two kinds": (
        lambda _: Ridge().fit(["a.csv", "b.parquet"], "y"), InvalidDataError, "several kinds",
    ),
    "a full disk": (_full_disk, InvalidDataError, "temporary-directory"),
    "the only column as y": (
        lambda _: Ridge().fit(pa.table({"label": LABELS}), "label"), InvalidDataError, "0 feature",
    ),
    "arrays of one length": (
        lambda _: Ridge().fit(
            _load("polars").DataFrame({"a": [[1.0, 2.0]]}).cast(
                {"a": _load("polars").Array(_load("polars").Float64, 2)}
            ),
            [1.0],
        ),
        InvalidDataError, "not numeric",
    ),
    "times of the day": (
        lambda _: FieldHasher().fit(pa.table({"a": pa.array([1, 2], pa.time32("s"))})),
        InvalidTypeError, "values of time",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unreadable_inputs_name_the_remedy(case: str, tmp_path: Path) -> None:
    call, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        call(tmp_path)
