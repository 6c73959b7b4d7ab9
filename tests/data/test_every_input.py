"""Every kind of input gives the blocks, fits and predictions of NumPy rows, bit for bit.

`INPUTS` is the table shown in docs/data.md. Kinds of missing packages are skipped.
"""

from __future__ import annotations

import gc
import gzip
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
from distributed import Client
from scipy import sparse
from sklearn.base import clone

from daskml_dist.data import batch_files, collection, table_frames, table_scans
from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidTypeError
from daskml_dist.linear_model import Ridge, SGDClassifier
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import StandardScaler

# Dask's own, about the index of files.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

N = 480
NAMES = ["a", "b", "c"]
_RANDOM = np.random.default_rng(0)
#: Multiples of 1/8, which text files represent exactly.
ROWS = _RANDOM.integers(-80, 80, size=(N, 3)) / 8
LABELS = (ROWS[:, 0] + _RANDOM.normal(size=N) > 0).astype(np.int64)
FRAME = pd.DataFrame(ROWS, columns=NAMES).assign(label=LABELS)
#: Shape of the grid whose cells are the rows.
GRID = {"time": 8, "north": 10, "east": 6}

Made = tuple[Any, Any]
Maker = Callable[[Path], Made]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Split these few rows into several parts, and compute in this thread without a client."""
    for module in (table_frames, table_scans):
        monkeypatch.setattr(module, "PART_BYTES", 150 * 8 * 4)
    monkeypatch.setattr(table_frames, "_MIN_PART_ROWS", 1)
    with dask.config.set(scheduler="sync"):
        yield


def _load(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def _parquet(folder: Path, n_files: int = 3) -> Path:
    """Write the rows to Parquet files, of several row groups each."""
    path = folder / "rows"
    path.mkdir(exist_ok=True)
    for k, part in enumerate(np.array_split(np.arange(N), n_files)):
        FRAME.iloc[part].reset_index(drop=True).to_parquet(
            path / f"{k}.parquet", row_group_size=60, index=False
        )
    return path


def _csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    FRAME.to_csv(path, index=False)
    return path


def _written(path: Path, write: Callable[[Path], Any]) -> Path:
    write(path)
    return path


def _dataset(lazy: bool, grid: bool) -> Any:
    """Return the rows as variables of an xarray.Dataset, of one dimension or of a grid."""
    shape = GRID if grid else {"row": N}
    columns = {
        name: (tuple(shape), FRAME[name].to_numpy().reshape(tuple(shape.values())))
        for name in FRAME.columns
    }
    dataset = _load("xarray").Dataset(columns)
    return dataset.chunk({next(iter(shape)): 3}) if lazy else dataset


def _compress(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


def _arrow() -> Any:
    return pa.Table.from_pandas(FRAME, preserve_index=False)


def _batches(make: Callable[[pd.DataFrame], Any]) -> Iterator[Any]:
    return (make(FRAME.iloc[first : first + 130]) for first in range(0, N, 130))


def _duckdb(folder: Path) -> Any:
    duckdb = _load("duckdb")
    return duckdb.sql(f"select * from '{_parquet(folder)}/*.parquet' where a < 1000")


def _zarr(folder: Path, values: Any, chunks: Any) -> Any:
    zarr = _load("zarr")
    array = zarr.create_array(
        str(folder / f"{len(chunks)}.zarr"), shape=values.shape, chunks=chunks, dtype=values.dtype,
        overwrite=True,
    )  # fmt: skip
    array[:] = values
    return array


def _memory_path(folder: Path) -> str:
    import fsspec

    files = fsspec.filesystem("memory")
    for one in sorted(_parquet(folder).iterdir()):
        files.pipe(f"/every_input/{one.name}", one.read_bytes())
    return "memory://every_input/*.parquet"


def _lazy(rows: Any, chunk: int = 120) -> Any:
    return da.from_array(rows, chunks=(chunk, *rows.shape[1:]))


#: Makers of X and y, by the names that docs/data.md gives them.
INPUTS: dict[str, Maker] = {
    "numpy.ndarray": lambda _: (ROWS, LABELS),
    "list": lambda _: (ROWS.tolist(), LABELS.tolist()),
    "pandas.DataFrame": lambda _: (FRAME, "label"),
    "scipy.sparse": lambda _: (sparse.coo_array(ROWS), LABELS),
    "dask.array": lambda _: (_lazy(ROWS), _lazy(LABELS)),
    "dask.dataframe": lambda _: (dd.from_pandas(FRAME, npartitions=4), "label"),
    "dask.delayed": lambda _: (
        [dask.delayed(part) for part in np.split(ROWS, 4)],
        [dask.delayed(part) for part in np.split(LABELS, 4)],
    ),
    "sparse.COO": lambda _: (_load("sparse").COO.from_numpy(ROWS), LABELS),
    "xarray.DataArray": lambda _: (
        _load("xarray").DataArray(ROWS, dims=("row", "column"), coords={"column": NAMES}),
        _load("xarray").DataArray(LABELS, dims="row"),
    ),
    "xarray.DataArray of Dask": lambda _: (
        _load("xarray").DataArray(_lazy(ROWS), dims=("row", "column"), coords={"column": NAMES}),
        _load("xarray").DataArray(_lazy(LABELS), dims="row"),
    ),
    "xarray.Dataset": lambda _: (_dataset(False, False), "label"),
    "xarray.Dataset of Dask": lambda _: (_dataset(True, False), "label"),
    "xarray.Dataset of a grid": lambda _: (_dataset(True, True), "label"),
    "polars.DataFrame": lambda _: (_load("polars").DataFrame(_arrow()), "label"),
    "pyarrow.Table": lambda _: (_arrow(), "label"),
    "narwhals.DataFrame": lambda _: (_load("narwhals").from_native(_arrow()), "label"),
    "polars.scan_parquet": lambda folder: (
        _load("polars").scan_parquet(_parquet(folder) / "*.parquet"), "label",
    ),
    "polars.scan_csv": lambda folder: (_load("polars").scan_csv(_csv(folder)), "label"),
    "polars.LazyFrame": lambda folder: (
        _load("polars").scan_parquet(_parquet(folder) / "*.parquet")
        .filter(_load("polars").col("a") < 1000),
        "label",
    ),
    "narwhals.LazyFrame": lambda folder: (
        _load("narwhals").from_native(_load("polars").scan_csv(_csv(folder))), "label",
    ),
    "duckdb.DuckDBPyRelation": lambda folder: (_duckdb(folder), "label"),
    "pyarrow.dataset": lambda folder: (pa.dataset.dataset(_parquet(folder)), "label"),
    "pyarrow.dataset, filtered": lambda folder: (
        pa.dataset.dataset(_parquet(folder)).filter(pa.dataset.field("a") < 1000), "label",
    ),
    "pyarrow.dataset.Scanner": lambda folder: (
        pa.dataset.dataset(_parquet(folder)).scanner(), "label",
    ),
    "pyarrow.RecordBatchReader": lambda _: (_arrow().to_reader(max_chunksize=130), "label"),
    "path of Parquet": lambda folder: (f"{_parquet(folder)}/*.parquet", "label"),
    "path of a folder": lambda folder: (_parquet(folder), "label"),
    "path of a store": lambda folder: (_memory_path(folder), "label"),
    "path of CSV": lambda folder: (str(_csv(folder)), "label"),
    "path of compressed CSV": lambda folder: (_compress(_csv(folder)), "label",
    ),
    "path of JSON lines": lambda folder: (
        _written(
            folder / "rows.jsonl", lambda p: FRAME.to_json(p, orient="records", lines=True)
        ),
        "label",
    ),
    "path of Arrow": lambda folder: (
        _written(folder / "rows.arrow", lambda p: pa.feather.write_feather(_arrow(), p)), "label",
    ),
    "path of Zarr": lambda folder: (
        (_zarr(folder, ROWS, (100, 3)), str(folder / "2.zarr"))[1], LABELS,
    ),
    "zarr.Array": lambda folder: (
        _zarr(folder, ROWS, (100, 2)), _zarr(folder, LABELS, (100,)),
    ),
    "generator of arrays": lambda _: (_batches(lambda f: f[NAMES].to_numpy()), LABELS),
    "generator of tuples": lambda _: (
        _batches(lambda f: (f[NAMES].to_numpy(), f["label"].to_numpy())), None,
    ),
    "generator of frames": lambda _: (_batches(lambda f: f), "label"),
    "generator of sparse matrices": lambda _: (
        _batches(lambda f: (sparse.csr_array(f[NAMES].to_numpy()), f["label"])), None,
    ),
}  # fmt: skip


def _dense(values: Any) -> Any:
    (values,) = dask.compute(values)
    return values.toarray() if hasattr(values, "toarray") else np.asarray(values)


def _cut_alike(X: Any, y: Any) -> Made:
    """Return the rows in NumPy, or, if X is lazy, as a Dask array with the same blocks."""
    if not is_dask(X):
        return ROWS, LABELS
    lazy = as_collection(X, y, classification=True).delayed_blocks()
    chunks = tuple(block.n_rows for block in dask.compute(*lazy))
    return da.from_array(ROWS, chunks=(chunks, 3)), da.from_array(LABELS, chunks=(chunks,))


@pytest.mark.parametrize("name", INPUTS)
def test_blocks_equal_the_rows_in_numpy(name: str, tmp_path: Path) -> None:
    inputs = take_named_columns(*INPUTS[name](tmp_path), None)
    found = as_collection(*inputs, classification=True)
    if found.kind == "memory":
        blocks = [found.block_maker(0, *found.parts[0])]
    else:
        blocks = dask.compute(*found.delayed_blocks())
    X = np.concatenate([_dense(block.X) for block in blocks])
    y = np.concatenate([block.y for block in blocks])
    assert X.dtype == ROWS.dtype
    assert y.dtype == LABELS.dtype
    np.testing.assert_array_equal(X, ROWS)
    np.testing.assert_array_equal(y, LABELS)
    if found.row_counts is not None:
        assert found.row_counts == [block.n_rows for block in blocks]


@pytest.mark.parametrize("name", INPUTS)
def test_fits_and_predictions_equal_those_of_numpy(name: str, tmp_path: Path) -> None:
    """Sums are added in the order of blocks, so both need the same blocks."""
    X, y = INPUTS[name](tmp_path)
    rows, target, _ = take_named_columns(X, y, None)
    # A generator is exhausted by now: make another one.
    model = SGDClassifier(random_state=0, max_iter=3, tol=None).fit(*INPUTS[name](tmp_path))
    if not sparse.issparse(rows) and "sparse" not in name:
        expected = clone(model).fit(*_cut_alike(rows, target))
        np.testing.assert_array_equal(model.coef_, expected.coef_)
    assert model.classes_.dtype == LABELS.dtype
    np.testing.assert_array_equal(_dense(model.predict(rows)), model.predict(_plain(model, ROWS)))
    assert model.score(rows, target) == model.score(_plain(model, ROWS), LABELS)


def _plain(model: Any, rows: Any) -> Any:
    """Return rows with the column names of the fit, if any."""
    names = getattr(model, "feature_names_in_", None)
    return rows if names is None else pd.DataFrame(rows, columns=names)


def test_the_documented_table_has_every_input() -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    table = text.split("| tested |")[1].split("\n\n")[0].splitlines()[2:]
    documented = [name for line in table for name in re.findall(r"`([^`]+)`", line.split("|")[-2])]
    assert sorted(documented) == sorted(INPUTS)


LAZY_TABLES = [
    "polars.scan_parquet", "polars.LazyFrame", "duckdb.DuckDBPyRelation", "pyarrow.dataset",
    "path of Parquet", "generator of tuples", "generator of frames", "xarray.Dataset of a grid",
]  # fmt: skip


@pytest.mark.parametrize("name", LAZY_TABLES)
def test_workers_read_their_own_parts(
    name: str, tmp_path: Path, client: Client, assert_clean: Callable[..., None]
) -> None:
    X, y = INPUTS[name](tmp_path)
    model = GaussianNB().fit(X, y)
    expected = GaussianNB().fit(ROWS, LABELS)
    np.testing.assert_allclose(model.theta_, expected.theta_, rtol=1e-12)
    rows, *_ = take_named_columns(*INPUTS[name](tmp_path), None)
    answers = model.predict(rows)
    np.testing.assert_array_equal(client.compute(answers).result(), expected.predict(ROWS))


@pytest.mark.parametrize("name", LAZY_TABLES)
def test_rows_beyond_the_budget_are_streamed(name: str, tmp_path: Path) -> None:
    from daskml_dist import Run

    model = SGDClassifier(random_state=0, max_iter=2, tol=None, run=Run(memory_budget=6_000))
    X, y, _ = take_named_columns(*INPUTS[name](tmp_path), None)
    model.fit(X, y)
    assert model.history_.extra["streamed"]
    rows, target = _cut_alike(X, y)
    np.testing.assert_array_equal(model.coef_, clone(model).fit(rows, target).coef_)


@pytest.mark.parametrize("name", ["polars.scan_parquet", "pyarrow.dataset", "polars.LazyFrame"])
def test_columns_of_numbers_need_no_frame(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the columns that a fit needs are read, directly into rows."""
    X, y, _ = take_named_columns(*INPUTS[name](tmp_path), None)
    columns_read: list[list[str]] = []
    for kind in (table_scans._PolarsScan, table_scans._ArrowFragments):
        read = kind.read_part

        def spy(self: Any, part: Any, columns: list[str], read: Any = read) -> Any:
            columns_read.append(columns)
            return read(self, part, columns)

        monkeypatch.setattr(kind, "read_part", spy)
    monkeypatch.setattr(table_frames.TableRead, "__call__", None)
    blocks = dask.compute(*as_collection(X[["a", "c"]], y, classification=True).delayed_blocks())
    assert len(blocks) > 2
    assert {tuple(sorted(columns)) for columns in columns_read} == {("a", "c", "label")}
    assert len(columns_read) == len(blocks)
    np.testing.assert_array_equal(np.concatenate([b.X for b in blocks]), ROWS[:, [0, 2]])


def test_strings_and_missing_values_are_read_through_frames(tmp_path: Path) -> None:
    polars = _load("polars")
    table = polars.DataFrame(
        {
            "n": [1, None, 3], "f": [0.5, None, 1.5], "word": ["x", "y", "x"],
            "kind": polars.Series(["u", "v", "u"], dtype=polars.Categorical),
            "price": polars.Series(["1.25", "2.5", "3"]).cast(polars.Decimal(10, 2)),
        }
    )  # fmt: skip
    table.write_parquet(tmp_path / "t.parquet")
    lazy = [
        polars.scan_parquet(tmp_path / "t.parquet"),
        pa.dataset.dataset(tmp_path / "t.parquet"),
        table.to_arrow(),
        table,
    ]
    for one in lazy:
        (frame,) = dask.compute(convert_foreign(one))
        np.testing.assert_array_equal(frame["n"].to_numpy("f8", na_value=np.nan), [1, np.nan, 3])
        np.testing.assert_array_equal(frame["f"], [0.5, np.nan, 1.5])
        assert list(frame["word"]) == ["x", "y", "x"]
        assert list(frame["kind"]) == ["u", "v", "u"]
        assert frame["price"].dtype == np.float64
    labels = GaussianNB().fit(lazy[0].select("price", "word"), "word")
    assert list(labels.classes_) == ["x", "y"]


def test_columns_of_lazy_tables_are_matched_by_name(tmp_path: Path) -> None:
    polars = _load("polars")
    scan = polars.scan_parquet(_parquet(tmp_path) / "*.parquet")
    model = Ridge().fit(scan, "label")
    assert list(model.feature_names_in_) == NAMES
    with pytest.raises(InvalidDataError, match="in the same order"):
        model.predict(scan.select("b", "a", "c"))
    answers = model.predict(scan.select(NAMES))
    assert sum(answers.chunks[0]) == N
    with pytest.raises(InvalidDataError, match="Did you mean 'label'"):
        Ridge().fit(scan, "labels")


def test_predictions_of_a_grid_have_its_shape() -> None:
    grid = _dataset(True, True)
    model = Ridge().fit(grid, "label")
    features = grid[NAMES]
    answers = model.predict(features).reshape(tuple(features.sizes.values()))
    expected = Ridge().fit(ROWS, LABELS).predict(ROWS).reshape(tuple(GRID.values()))
    np.testing.assert_allclose(answers.compute(), expected, rtol=1e-9)
    grid["answer"] = (tuple(GRID), answers)
    assert grid["answer"].isel(time=0).shape == (10, 6)
    # A variable without a time dimension is constant over time.
    flat = grid.assign(a=grid["a"].isel(time=0))
    scaled = StandardScaler().fit(flat[NAMES])
    assert scaled.mean_[0] == pytest.approx(ROWS[:60, 0].mean())
    words = grid.assign(kind=grid["a"].astype(str))
    assert GaussianNB().fit(words[["a", "kind"]], "kind").classes_.dtype.kind in "OU"
    with pytest.raises(InvalidDataError, match="reset_coords"):
        Ridge().fit(grid[[]], LABELS)


def test_a_query_runs_once_and_its_rows_are_released_after_the_last_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    init = batch_files.RowsFolder.__init__

    def spy(self: Any) -> None:
        init(self)
        folders.append(self.path)

    monkeypatch.setattr(batch_files.RowsFolder, "__init__", spy)
    query, y = INPUTS["polars.LazyFrame"](tmp_path)
    model = SGDClassifier(random_state=0, max_iter=3).fit(query, y)
    assert len(folders) == 1
    answers = model.predict(query.select(NAMES))
    assert len(folders) == 2
    gc.collect()
    assert [Path(folder).exists() for folder in folders] == [False, True]
    np.testing.assert_array_equal(answers.compute(), model.predict(_plain(model, ROWS)))
    del answers
    gc.collect()
    assert not any(Path(folder).exists() for folder in folders)


def test_files_invisible_to_a_worker_raise_with_a_remedy() -> None:
    folder = batch_files.RowsFolder()
    folder.write("X-0", ROWS)
    unpickled = pickle.loads(pickle.dumps(folder))
    np.testing.assert_array_equal(unpickled.read("X-0"), ROWS)
    del folder
    gc.collect()
    with pytest.raises(InvalidDataError, match="temporary-directory"):
        unpickled.read("X-0")


def test_changed_files_are_detected(tmp_path: Path) -> None:
    polars = _load("polars")
    path = tmp_path / "t.parquet"
    FRAME.to_parquet(path)
    rows = convert_foreign(polars.scan_parquet(path))
    FRAME.iloc[:200].to_parquet(path)
    with pytest.raises(InvalidDataError, match="have changed since"):
        rows.compute()


def _mixed() -> Iterator[Any]:
    yield ROWS
    yield FRAME


#: What is refused: the call, the error and its words.
REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no files": (lambda p: Ridge().fit(f"{p}/*.parquet", "y"), InvalidDataError, "the path"),
    "no CSV": (lambda p: Ridge().fit(f"{p}/none.csv", "y"), InvalidDataError, "the path"),
    "no Arrow": (lambda p: Ridge().fit(f"{p}/*.arrow", "y"), InvalidDataError, "the path"),
    "no store": (lambda _: Ridge().fit("xyz://a/b.csv", "y"), InvalidDataError, "the path"),
    "an empty folder": (lambda p: Ridge().fit(p, LABELS), InvalidTypeError, "read_parquet"),
    "a text": (lambda _: Ridge().fit("label", LABELS), InvalidTypeError, "is a string"),
    "NumPy's file": (lambda p: Ridge().fit(f"{p}/x.npy", "y"), InvalidTypeError, "mmap_mode"),
    "another batch": (lambda _: Ridge().fit(_mixed(), LABELS), InvalidDataError, "the same col"),
    "a wider batch": (
        lambda _: Ridge().fit(iter([ROWS, ROWS[:, :2]]), LABELS), InvalidDataError, "Batch 1",
    ),
    "other words": (
        lambda _: Ridge().fit(iter([ROWS, ROWS.astype(str)]), LABELS), InvalidDataError, "dtypes",
    ),
    "a shorter target": (
        lambda _: Ridge().fit(iter([(ROWS, LABELS[1:])]), None), InvalidDataError, "different leng",
    ),
    "two targets": (
        lambda _: Ridge().fit(iter([(ROWS, LABELS)]), LABELS), InvalidTypeError, "given, too",
    ),
    "no target": (lambda _: Ridge().fit(iter([ROWS]), None), InvalidDataError, "y is None"),
    "single rows": (lambda _: Ridge().fit(iter(ROWS), LABELS), InvalidTypeError, "read only once"),
    "batches to predict": (
        lambda _: Ridge().fit(ROWS, LABELS).predict(iter([ROWS])), InvalidTypeError, "only once",
    ),
    "a lazy target": (
        lambda _: Ridge().fit(ROWS, iter(LABELS)), InvalidTypeError, "y is a .*read only once",
    ),
    "an empty query": (
        lambda p: Ridge().fit(
            pa.dataset.dataset(_parquet(p)).filter(pa.dataset.field("a") > 1000), "label"
        ),
        InvalidDataError, "0 sample",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_inputs_name_the_remedy(case: str, tmp_path: Path) -> None:
    call, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        call(tmp_path)


@pytest.mark.parametrize(
    ("package", "kind", "words"),
    [
        ("pyspark.sql.classic.dataframe", "DataFrame", r"write\.parquet"),
        ("anndata._core.anndata", "AnnData", r"adata\.X"),
        ("h5py._hl.files", "File", "from_array"),
        ("zarr.core.group", "Group", "pass one"),
        ("ibis.expr.types.relations", "Table", "to_pyarrow"),
        ("torch.utils.data.dataloader", "DataLoader", r"iter\(loader\)"),
        ("datasets.arrow_dataset", "Dataset", "to_parquet"),
        ("_duckdb", "DuckDBPyConnection", "a relation of it"),
    ],
)
def test_unsupported_kinds_name_the_remedy(package: str, kind: str, words: str) -> None:
    value = type(kind, (), {"__module__": package})()
    with pytest.raises(InvalidTypeError, match=words):
        Ridge().fit(value, LABELS)


def test_an_object_whose_dtype_is_a_method_is_no_text() -> None:
    value = type("Connection", (), {"dtype": lambda self, name: name})()
    with pytest.raises(InvalidDataError, match="Expected 2D array"):
        Ridge().fit(value, LABELS)


@pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated metadata")
def test_a_group_that_xarray_did_not_write_names_the_remedy(tmp_path: Path) -> None:
    _load("xarray")
    path = str(tmp_path / "group.zarr")
    _load("zarr").open_group(path, mode="w").create_array("X", data=ROWS)
    with pytest.raises(InvalidDataError, match=r"Pass the array .*\['name'\].* with xarray"):
        Ridge().fit(path, LABELS)


def test_weights_come_with_batches() -> None:
    weight = np.where(LABELS, 2.0, 1.0)
    batches = (
        (ROWS[first : first + 100], LABELS[first : first + 100], weight[first : first + 100])
        for first in range(0, N, 100)
    )
    expected = Ridge().fit(ROWS, LABELS, weight)
    np.testing.assert_allclose(Ridge().fit(batches).coef_, expected.coef_, rtol=1e-9)
    mixed = iter([ROWS.astype(int), ROWS, ROWS[:0]])
    rows, _, _ = take_named_columns(mixed, None, None)
    assert rows.dtype == np.float64
    assert rows.chunks[0] == (N, N)
    assert collection.find_length(rows) == 2 * N
