"""Every kind of input gives the results of NumPy rows in every method."""

from __future__ import annotations

import gc
import importlib
import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist import Run
from daskml_dist.backends.cupy_backend import CupyBackend
from daskml_dist.data.blocks import inspect_block, make_block
from daskml_dist.ensemble import HistGradientBoostingClassifier, VotingClassifier
from daskml_dist.errors import DataLostError, InvalidDataError, InvalidTypeError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from daskml_dist.metrics import accuracy_score
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import StandardScaler, TargetEncoder
from tests.fake_cupy import DeviceArray
from tests.quick import quick

N, D = 90, 4
COLUMNS = [f"x{i}" for i in range(D)]
ROWS = ((20, 0, 45, 25),)


def _base() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.7)
    return X, (X.sum(axis=1) + rng.normal(size=N) > 0).astype(int)


X0, Y0 = _base()
FRAME = pd.DataFrame(X0, columns=COLUMNS)


def _frame_parts(frame: pd.DataFrame | pd.Series) -> Any:
    """Return a Dask dataframe of uneven partitions, one of them empty."""
    cuts = np.cumsum([0, *ROWS[0]])
    parts = [dask.delayed(frame[a:b]) for a, b in itertools.pairwise(cuts)]
    return dd.from_delayed(parts, meta=frame[:0])


def _with_unknown_chunks(array: Any) -> da.Array:
    return array[da.ones(N, chunks=ROWS, dtype=bool)]


def _sparse_chunks(X: np.ndarray, kind: Callable[[Any], Any]) -> da.Array:
    cuts = np.cumsum([0, *ROWS[0]])
    blocks = [
        da.from_delayed(dask.delayed(kind)(X[a:b]), (b - a, D), meta=kind(np.empty((0, D))))
        for a, b in itertools.pairwise(cuts)
    ]
    return da.concatenate(blocks)


def _delayed(values: np.ndarray) -> list[Any]:
    cuts = np.cumsum([0, *ROWS[0]])
    return [dask.delayed(values[a:b]) for a, b in itertools.pairwise(cuts)]


KINDS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]] = {
    "NumPy": lambda X, y: (X, y),
    "NumPy, Fortran order": lambda X, y: (np.asfortranarray(X), y),
    "NumPy, column y": lambda X, y: (X, da.from_array(y[:, None], chunks=30)),
    "lists": lambda X, y: (X.tolist(), y.tolist()),
    "pandas": lambda X, y: (FRAME, pd.Series(y)),
    "pandas, Arrow columns": lambda X, y: (
        FRAME.convert_dtypes(dtype_backend="pyarrow"),
        pd.Series(y).convert_dtypes(dtype_backend="pyarrow"),
    ),
    "pandas, nullable columns": lambda X, y: (FRAME.astype("Float64"), pd.Series(y, dtype="Int64")),
    "pandas, y by name": lambda X, y: (FRAME.assign(income=y), "income"),
    "CSR matrix": lambda X, y: (sparse.csr_matrix(X), y),
    "CSC matrix": lambda X, y: (sparse.csc_matrix(X), y),
    "COO matrix": lambda X, y: (sparse.coo_matrix(X), y),
    "CSR array": lambda X, y: (sparse.csr_array(X), y),
    "COO array": lambda X, y: (sparse.coo_array(X), y),
    "dask Array": lambda X, y: (
        da.from_array(X, chunks=(*ROWS, D)),
        da.from_array(y, chunks=ROWS),
    ),
    "dask Array, y cut otherwise": lambda X, y: (
        da.from_array(X, chunks=(*ROWS, D)),
        da.from_array(y, chunks=7),
    ),
    "dask Array, y in memory": lambda X, y: (da.from_array(X, chunks=(*ROWS, D)), y),
    "dask Array of unknown chunks, y in memory": lambda X, y: (
        _with_unknown_chunks(da.from_array(X, chunks=(*ROWS, D))),
        y,
    ),
    "dask DataFrame, y in memory": lambda X, y: (_frame_parts(FRAME), y),
    "dask y, X in memory": lambda X, y: (X, da.from_array(y, chunks=ROWS)),
    "dask Array, column chunks": lambda X, y: (
        da.from_array(X, chunks=(*ROWS, (1, 3))),
        da.from_array(y, chunks=ROWS),
    ),
    "dask Array, unknown chunks": lambda X, y: (
        _with_unknown_chunks(da.from_array(X, chunks=(*ROWS, D))),
        _with_unknown_chunks(da.from_array(y, chunks=ROWS)),
    ),
    "dask Array of CSR": lambda X, y: (
        _sparse_chunks(X, sparse.csr_matrix),
        da.from_array(y, chunks=ROWS),
    ),
    "dask Array of COO arrays": lambda X, y: (
        _sparse_chunks(X, sparse.coo_array),
        da.from_array(y, chunks=ROWS),
    ),
    "dask DataFrame": lambda X, y: (_frame_parts(FRAME), _frame_parts(pd.Series(y))),
    "dask DataFrame, Arrow columns": lambda X, y: (
        _frame_parts(FRAME.convert_dtypes(dtype_backend="pyarrow")),
        _frame_parts(pd.Series(y)),
    ),
    "dask DataFrame, y by name": lambda X, y: (_frame_parts(FRAME.assign(income=y)), "income"),
    "dask DataFrame, y an Array": lambda X, y: (
        _frame_parts(FRAME),
        da.from_array(y, chunks=ROWS),
    ),
    "delayed blocks": lambda X, y: (_delayed(X), _delayed(y)),
    "delayed frames": lambda X, y: (
        [dask.delayed(pd.DataFrame)(block) for block in _delayed(X)],
        _delayed(y),
    ),
}
EVERY = pytest.mark.parametrize("kind", list(KINDS))
FULL_BATCH: dict[str, Any] = {
    "batch_size": None, "optimizer": "sgd", "learning_rate": 0.5, "max_iter": 6, "tol": None,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _in_threads() -> Iterator[None]:
    # Lazy results are computed by threads here; one test below uses worker processes.
    with dask.config.set(scheduler="threads"):
        yield


@pytest.fixture(scope="module")
def client_in_process() -> Iterator[Client]:
    with Client(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as client:
        yield client


TRUTH = SGDClassifier(**FULL_BATCH).fit(X0, Y0)
WEIGHT = np.random.default_rng(1).uniform(0.5, 2, size=N)
WEIGHTED = SGDClassifier(**FULL_BATCH).fit(X0, Y0, sample_weight=WEIGHT)
REGRESSED = SGDRegressor(**FULL_BATCH | {"learning_rate": 0.1}).fit(X0, Y0)
TWICE = SGDClassifier(**FULL_BATCH)
for _ in range(2):
    TWICE.partial_fit(X0, Y0, classes=[0, 1])


def _equal(found: Any, expected: Any) -> None:
    computed = dask.compute(found)[0]
    np.testing.assert_allclose(np.asarray(computed), expected, rtol=1e-6)


@EVERY
def test_every_kind_fits_and_predicts(kind: str, client_in_process: Client) -> None:
    X, y = KINDS[kind](X0, Y0)
    model = SGDClassifier(**FULL_BATCH).fit(X, y)
    _equal(model.coef_, TRUTH.coef_)
    _equal(model.intercept_, TRUTH.intercept_)
    assert model.score(X, y) == pytest.approx(TRUTH.score(X0, Y0), rel=1e-6)
    rows = X[COLUMNS] if isinstance(y, str) else X
    _equal(model.predict(rows), TRUTH.predict(X0))
    _equal(model.predict_proba(rows), TRUTH.predict_proba(X0))
    _equal(model.decision_function(rows), TRUTH.decision_function(X0))


@pytest.mark.parametrize("kind", quick(KINDS, *list(KINDS)[::4]))
def test_every_kind_continues_by_partial_fit(kind: str, client_in_process: Client) -> None:
    X, y = KINDS[kind](X0, Y0)
    model = SGDClassifier(**FULL_BATCH)
    for _ in range(2):
        model.partial_fit(X, y, classes=[0, 1])
    _equal(model.coef_, TWICE.coef_)


@pytest.mark.parametrize("kind", quick(KINDS, *list(KINDS)[1::4]))
def test_every_kind_in_regression(kind: str, client_in_process: Client) -> None:
    X, y = KINDS[kind](X0, Y0)
    model = SGDRegressor(**FULL_BATCH | {"learning_rate": 0.1}).fit(X, y)
    _equal(model.coef_, REGRESSED.coef_)
    assert model.score(X, y) == pytest.approx(REGRESSED.score(X0, Y0), rel=1e-6)


WEIGHTS: dict[str, Callable[[np.ndarray], Any]] = {
    "NumPy": lambda w: w,
    "list": lambda w: w.tolist(),
    "pandas": pd.Series,
    "dask Array": lambda w: da.from_array(w, chunks=ROWS),
    "dask Array, cut otherwise": lambda w: da.from_array(w, chunks=11),
    "dask Array, unknown chunks": lambda w: _with_unknown_chunks(da.from_array(w, chunks=ROWS)),
    "dask Series": lambda w: _frame_parts(pd.Series(w)),
    "delayed blocks": _delayed,
}


UNKNOWN = ["dask Array, unknown chunks", "dask Series", "delayed blocks"]


@pytest.mark.parametrize(
    ("kind", "weights"),
    [("dask Array", weights) for weights in WEIGHTS]
    + [("dask DataFrame", weights) for weights in UNKNOWN],
)
def test_every_kind_of_weight(kind: str, weights: str, client_in_process: Client) -> None:
    X, y = KINDS[kind](X0, Y0)
    model = SGDClassifier(**FULL_BATCH).fit(X, y, sample_weight=WEIGHTS[weights](WEIGHT))
    _equal(model.coef_, WEIGHTED.coef_)
    expected = WEIGHTED.score(X0, Y0, sample_weight=WEIGHT)
    assert model.score(X, y, sample_weight=WEIGHTS[weights](WEIGHT)) == pytest.approx(expected)


def test_target_and_weight_by_name_on_worker_processes(client: Client) -> None:
    frame = _frame_parts(FRAME.assign(income=Y0, w=WEIGHT))
    model = SGDClassifier(**FULL_BATCH).fit(frame, "income", sample_weight="w")
    _equal(model.coef_, WEIGHTED.coef_)
    assert model.feature_names_in_.tolist() == COLUMNS


def _parts(array: da.Array) -> list[Any]:
    return list(array.to_delayed().ravel())


def test_parts_of_persisted_collections(client: Client) -> None:
    """Parts hold no data, and refer to no task of their graph."""
    X, y = client.persist([da.from_array(X0, chunks=(10, D)), da.from_array(Y0, chunks=10)])
    parts = _parts(X), _parts(y)
    _equal(SGDClassifier(**FULL_BATCH).fit(*parts).coef_, TRUTH.coef_)
    streamed = SGDClassifier(**FULL_BATCH, run=Run(memory_budget=1_000)).fit(*parts)
    assert streamed.history_.extra["streamed"]
    _equal(streamed.coef_, TRUTH.coef_)
    keys = {*X.__dask_keys__()[0], *y.__dask_keys__()}
    del X, y
    deadline = time.monotonic() + 200
    while keys & set(client.futures):
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.02)
    gone = pytest.raises(DataLostError, match=r"Keep the collection that persist\(\) returned")
    with gone:
        SGDClassifier(**FULL_BATCH).fit(*parts)
    with dask.config.set(scheduler=client), pytest.raises(DataLostError, match="keep these"):
        accuracy_score(parts[1], parts[1])


def test_a_fit_releases_its_tasks_before_the_user_computes(
    client: Client, assert_clean: Any
) -> None:
    """Otherwise the scheduler would mix the fit's tasks with those of an optimized graph."""
    X, y = (
        _with_unknown_chunks(da.concatenate(_array_parts(X0))),
        _with_unknown_chunks(da.from_array(Y0, chunks=ROWS)),
    )
    for _ in range(3):
        SGDClassifier(**FULL_BATCH).fit(X, y)
        dask.compute(X, scheduler=client)
    assert_clean(client)


def _array_parts(array: np.ndarray) -> list[da.Array]:
    cuts = np.cumsum([0, *ROWS[0]])
    return [
        da.from_delayed(dask.delayed(array[a:b]), (b - a, D), dtype=float)
        for a, b in itertools.pairwise(cuts)
    ]


@pytest.mark.parametrize("labels", [Y0 > 0, pd.array(Y0, dtype="Int64"), Y0 * 1.0])
def test_labels_of_object_dtype(labels: Any) -> None:
    """As produced by pandas from nullable columns."""
    y = np.array(labels, dtype=object)
    in_memory = SGDClassifier(**FULL_BATCH).fit(X0, y)
    lazy = SGDClassifier(**FULL_BATCH).fit(da.from_array(X0, 45), da.from_array(y, 45))
    for model in in_memory, lazy:
        assert model.classes_.dtype == np.asarray(labels.tolist()).dtype
        _equal(model.coef_, TRUTH.coef_)


def test_an_unknown_column_name_is_refused() -> None:
    with pytest.raises(InvalidDataError, match=r"y='nothing' names no column of X: its columns"):
        SGDClassifier().fit(FRAME, "nothing")
    with pytest.raises(InvalidDataError, match="X is not a dataframe"):
        SGDClassifier().fit(X0, "income")


@pytest.mark.parametrize(
    "model",
    [SGDClassifier(), LogisticRegression(), VotingClassifier([("nb", GaussianNB())]),
     HistGradientBoostingClassifier(max_iter=1), TargetEncoder()],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_labels_that_are_numbers_in_one_block_and_text_in_another(model: Any) -> None:
    labels = [np.array([1, 2] * 5), np.array(["a", "b"] * 5)]
    X, y = [dask.delayed(X0[:10])] * 2, [*map(dask.delayed, labels)]
    with pytest.raises(InvalidDataError, match="y has labels of several types"):
        model.fit(X, y)


def test_delayed_blocks_mixed_with_others_are_refused() -> None:
    with pytest.raises(InvalidDataError, match=r"Wrap each in dask\.delayed"):
        SGDClassifier().fit([dask.delayed(X0), X0], [dask.delayed(Y0), Y0])


@pytest.mark.parametrize("n_blocks", [1, 2, 30])
def test_more_workers_than_blocks_and_more_blocks_than_workers(
    n_blocks: int, client: Client
) -> None:
    X = da.from_array(X0, chunks=(-(-N // n_blocks), D))
    y = da.from_array(Y0, chunks=-(-N // n_blocks))
    _equal(SGDClassifier(**FULL_BATCH).fit(X, y).coef_, TRUTH.coef_)


def test_weights_and_balanced_classes_equal_repeated_rows(client: Client) -> None:
    times = np.where(Y0 == 1, 3, 1)
    X, y = KINDS["dask Array"](X0, Y0)
    repeated = SGDClassifier(**FULL_BATCH).fit(np.repeat(X0, times, axis=0), np.repeat(Y0, times))
    by_weight = SGDClassifier(**FULL_BATCH).fit(X, y, sample_weight=da.from_array(times, chunks=9))
    by_class = SGDClassifier(class_weight={0: 1, 1: 3}, **FULL_BATCH).fit(X, y)
    _equal(by_weight.coef_, repeated.coef_)
    _equal(by_class.coef_, repeated.coef_)
    counts = np.bincount(Y0)
    balanced = SGDClassifier(class_weight="balanced", **FULL_BATCH).fit(X, y)
    same = SGDClassifier(**FULL_BATCH).fit(X0, Y0, sample_weight=(N / 2 / counts)[Y0])
    _equal(balanced.coef_, same.coef_)


# --- unreadable inputs -----------------------------------------------------------------------


def test_a_truncated_parquet_file_raises(tmp_path: Any, client: Client) -> None:
    for i in range(3):
        FRAME.assign(y=Y0).to_parquet(tmp_path / f"{i}.parquet")
    frame = dd.from_map(pd.read_parquet, sorted(tmp_path.glob("*.parquet")))
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        InvalidDataError, match=r"Block 1 could not be read: .* Repair or leave out"
    ):
        SGDClassifier().fit(frame, "y")


class _OfMissingModule:
    """Object of a module that this process has, and that the process that unpickles it lacks."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("missing_module",)


@pytest.mark.parametrize("lacking", ["scheduler", "worker"])
@pytest.mark.parametrize("fit", [SGDClassifier().fit, StandardScaler().fit], ids=["fit", "scaler"])
def test_a_module_that_the_cluster_lacks_is_not_called_a_broken_file(
    lacking: str, fit: Any, client: Client
) -> None:
    def read(block: Any, given: Any) -> Any:
        return block if given else importlib.import_module("missing_module")

    given = _OfMissingModule() if lacking == "scheduler" else None
    X = da.from_array(X0, chunks=45).map_blocks(read, given, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(InvalidDataError, match="Install the same packages there as here"):
        fit(X, da.from_array(Y0, chunks=45))


def _part(number: int) -> pd.DataFrame:
    """Return a partition that lacks a column of the others."""
    part = FRAME.assign(y=Y0)
    return part.drop(columns=part.columns[0]) if number == 1 else part


@pytest.mark.parametrize("way", ["from_map", "from_delayed", "map_partitions"])
@pytest.mark.parametrize("fit", [SGDClassifier().fit, StandardScaler().fit], ids=["fit", "scaler"])
def test_a_block_whose_columns_contradict_meta_raises(way: str, fit: Any, client: Client) -> None:
    meta = _part(0)[:0]
    if way == "from_map":
        frame = dd.from_map(_part, range(3), meta=meta)
    elif way == "from_delayed":
        frame = dd.from_delayed([dask.delayed(_part)(i) for i in range(3)], meta=meta)
    else:
        numbers = dd.from_pandas(pd.DataFrame({"number": range(3)}), npartitions=3)
        frame = numbers.map_partitions(lambda part: _part(int(part["number"].iloc[0])), meta=meta)
    with pytest.raises(InvalidDataError, match="Block 1 could not be read") as caught:
        fit(frame[list(FRAME.columns)], frame["y"])
    assert "not those that Dask was told" in str(caught.value)
    assert "file" not in str(caught.value).replace("where files are read", "")


@pytest.mark.parametrize("y", ["a", ["a", "b"]], ids=str)
def test_a_path_without_files_raises(y: Any, tmp_path: Any) -> None:
    frame = dd.read_parquet(str(tmp_path / "*.parquet"))
    with pytest.raises(InvalidDataError, match="perhaps no file matched the path"):
        SGDClassifier().fit(frame, y)
    with pytest.raises(InvalidDataError, match="perhaps no file matched the path"):
        StandardScaler().fit(frame)


def test_non_numeric_objects_are_refused(client: Client) -> None:
    X = np.array([[1.0, "a"], [2.0, "b"]], dtype=object)
    with pytest.raises(InvalidDataError, match=r"Block 0: X is not numeric"):
        SGDClassifier().fit(da.from_array(X, chunks=2), da.from_array(np.array([0, 1]), chunks=2))
    with pytest.raises(InvalidTypeError, match=r"X holds objects that are not numbers: .* 'dict'"):
        SGDClassifier().fit(np.array([[{}], [{}]]), [0, 1])


# --- CuPy rows on the CPU path, by a stand-in ------------------------------------------------


def test_rows_on_a_device_are_copied_once() -> None:
    block = make_block(
        0, DeviceArray(X0), DeviceArray(Y0), DeviceArray(WEIGHT), classification=True
    )
    assert block.device == "gpu"
    np.testing.assert_array_equal(block.X, X0)
    np.testing.assert_array_equal(block.y, Y0)


def test_rows_on_a_device_are_used_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fit on the device in the same process, unless the maths needs another dtype or order."""
    monkeypatch.setattr(CupyBackend, "problem", lambda: None)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    X = DeviceArray(X0)
    block = make_block(0, X, Y0, classification=True)
    assert block.on_device is X
    assert inspect_block(block).nbytes == X0.nbytes + Y0.nbytes
    assert DeviceArray.copied == 0
    sent = pickle.loads(pickle.dumps(block))
    assert sent.on_device is None
    np.testing.assert_array_equal(sent.X, X0)
    for other in (X0.astype(np.int32), np.asfortranarray(X0)):
        assert make_block(0, DeviceArray(other), Y0, classification=True).on_device is None
    assert make_block(0, X0, Y0, classification=True).on_device is None


def test_rows_on_devices_and_host_are_distinguished(client_in_process: Client) -> None:
    blocks = [dask.delayed(DeviceArray)(X0), dask.delayed(X0)]
    ys = [dask.delayed(Y0), dask.delayed(Y0)]
    with pytest.raises(
        InvalidDataError, match="Block 0 of X holds CuPy arrays and block 1 does not"
    ):
        SGDClassifier(device="cpu").fit(blocks, ys)
    same = SGDClassifier(device="cpu", **FULL_BATCH).fit([blocks[0], blocks[0]], ys)
    _equal(same.coef_, TRUTH.coef_)
