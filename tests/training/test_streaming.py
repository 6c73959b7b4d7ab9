"""Blocks that do not fit in memory together are prefetched in each pass and then dropped."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
from daskml_dist.data.collection import as_collection
from daskml_dist.data.streamed_blocks import BlockRecipes, BlockStream, make_recipes
from daskml_dist.ensemble import RandomForestClassifier
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.client import gpu_sharing, membership
from tests.quick import quick

N, D = 4000, 5
POLICIES = ["sync", "allreduce", "ssp", "async", "local", "average", "hogwild"]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    y = (X @ rng.normal(size=D) + 0.3 * rng.normal(size=N) > 0).astype(int)
    return X, y


@pytest.fixture(scope="module")
def parquet(rows: tuple[np.ndarray, np.ndarray], tmp_path_factory: Any) -> str:
    X, y = rows
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(D)]).assign(y=y)
    folder = tmp_path_factory.mktemp("parquet")
    cuts = [0, 100, 900, 900, 1700, 2500, 3200, N]  # uneven, one empty
    for i, (a, b) in enumerate(itertools.pairwise(cuts)):
        frame[a:b].to_parquet(folder / f"part-{i}.parquet")
    return str(folder)


def _frame(parquet: str) -> tuple[Any, Any]:
    frame = dd.read_parquet(parquet)
    return frame[[f"x{i}" for i in range(D)]], frame["y"]


# A worker may hold two of six blocks of the largest size.
SMALL = 2 * 800 * (D + 1) * 8


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_rows_larger_than_gpu_memory_are_streamed(
    parquet: str, client: Client, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the smallest GPU known to Dask is the limit, unless the fit uses the CPU."""
    listed = membership.list_workers

    def with_gpus(client: Client) -> Any:
        workers = listed(client)
        for i, worker in enumerate(workers.values()):
            worker["gpu"] = {"name": "small", "memory-total": [SMALL, None][i]}
        return workers

    monkeypatch.setattr(membership, "list_workers", with_gpus)
    model = SGDClassifier(device=device, max_iter=1, tol=None).fit(*_frame(parquet))
    assert model.history_.extra["streamed"] is (device == "auto")


@pytest.mark.parametrize("shared", [False, True])
def test_workers_that_share_a_gpu_divide_its_memory(
    parquet: str, client: Client, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows take 3 * SMALL; two workers may use 4.8 * SMALL, or 2.4 * SMALL on one GPU."""
    listed, call_workers = membership.list_workers, gpu_sharing.call_workers

    def with_gpus(client: Client) -> Any:
        workers = listed(client)
        for worker in workers.values():
            worker["gpu"] = {"name": "large", "memory-total": 4 * SMALL}
        return workers

    def own_gpus(*args: Any) -> dict[str, str]:
        found = call_workers(*args)
        assert list(found.values()) == ["", ""]  # tests hide GPUs from workers
        return found if shared else {address: str(i) for i, address in enumerate(found)}

    monkeypatch.setattr(membership, "list_workers", with_gpus)
    monkeypatch.setattr(gpu_sharing, "call_workers", own_gpus)
    model = SGDClassifier(max_iter=1, tol=None).fit(*_frame(parquet))
    assert model.history_.extra["streamed"] is shared


@pytest.mark.parametrize(
    ("visible", "gpu"), [(None, "0"), ("", ""), ("3", "3"), ("1,0", "1"), ("GPU-5f, 0", "GPU-5f")]
)
def test_a_worker_uses_the_first_gpu_that_it_sees(
    visible: str | None, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_sharing.first_visible_gpu() == gpu


# --- whole fits ------------------------------------------------------------------------------


def _full_batch(**more: Any) -> SGDClassifier:
    return SGDClassifier(
        optimizer="sgd", learning_rate=0.5, batch_size=None, max_iter=8, tol=None, **more
    )


def test_streamed_full_batches_equal_gradient_descent(
    parquet: str, rows: tuple[np.ndarray, np.ndarray], client: Client
) -> None:
    streamed = _full_batch(run=Run(memory_budget=SMALL)).fit(*_frame(parquet))
    truth = _full_batch().fit(*rows)
    assert streamed.history_.extra["streamed"]
    np.testing.assert_allclose(streamed.coef_, truth.coef_, rtol=1e-10)


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "ssp"))
def test_every_policy_learns_from_a_stream(policy: str, parquet: str, client: Client) -> None:
    X, y = _frame(parquet)
    streamed = SGDClassifier(
        policy=policy, run=Run(memory_budget=SMALL), max_iter=6, random_state=0
    )
    streamed.fit(X, y)
    assert streamed.history_.extra["streamed"]
    assert all(record["rows"] == N for record in streamed.history_)
    assert streamed.score(X, y) > 0.9


def test_streamed_fits_are_reproducible_and_independent_of_lanes(
    parquet: str, client: Client
) -> None:
    def fit(**more: Any) -> Any:
        model = SGDClassifier(
            run=Run(memory_budget=SMALL, n_lanes=2, deterministic=True), random_state=3, **more
        )
        return model.fit(*_frame(parquet)).coef_

    np.testing.assert_array_equal(fit(), fit())


def test_a_large_budget_keeps_blocks_in_memory(parquet: str, client: Client) -> None:
    in_memory = _full_batch(run=Run(memory_budget="1 GiB")).fit(*_frame(parquet))
    assert not in_memory.history_.extra["streamed"]


def test_held_out_rows_of_a_stream_are_never_trained_on(parquet: str, client: Client) -> None:
    options = {"early_stopping": True, "random_state": 0, "max_iter": 3}
    streamed = SGDClassifier(run=Run(memory_budget=SMALL, n_lanes=2), **options).fit(
        *_frame(parquet)
    )
    in_memory = SGDClassifier(run=Run(memory_budget="1 GiB", n_lanes=2), **options).fit(
        *_frame(parquet)
    )
    assert streamed.history_.extra["streamed"]
    assert [r["rows"] for r in streamed.history_] == [r["rows"] for r in in_memory.history_]
    assert streamed.history_[-1]["val_score"] > 0.9


def test_persisted_rows_are_streamed_from_their_workers(
    rows: tuple[np.ndarray, np.ndarray], client: Client
) -> None:
    X, y = rows
    lazy = (da.from_array(X, chunks=(500, D)), da.from_array(y, chunks=500))
    persisted = dask.persist(*lazy)
    streamed = _full_batch(run=Run(memory_budget=SMALL)).fit(*persisted)
    assert streamed.history_.extra["streamed"]
    np.testing.assert_allclose(streamed.coef_, _full_batch().fit(X, y).coef_, rtol=1e-10)
    assert client.who_has(persisted[0])  # still in memory


def test_a_shuffle_is_not_repeated_in_each_pass(parquet: str, client: Client) -> None:
    frame = dd.read_parquet(parquet).shuffle("x0", npartitions=8)
    X, y = frame[[f"x{i}" for i in range(D)]], frame["y"]
    streamed = _full_batch(run=Run(memory_budget=SMALL)).fit(X, y)
    assert streamed.history_.extra["streamed"]
    truth = _full_batch().fit(*(part.compute() for part in (X, y)))
    np.testing.assert_allclose(streamed.coef_, truth.coef_, rtol=1e-9)


def test_streamed_regression_reaches_the_optimum(parquet: str, client: Client) -> None:
    X, y = _frame(parquet)
    model = SGDRegressor(run=Run(memory_budget=SMALL), max_iter=3, random_state=0).fit(X, y)
    assert model.history_.extra["streamed"]
    assert model.score(X, y) > 0.3


def test_a_checkpointed_stream_resumes(parquet: str, tmp_path: Path, client: Client) -> None:
    options: dict[str, Any] = {"run": Run(memory_budget=SMALL), "random_state": 0, "tol": None}
    whole = SGDClassifier(max_iter=4, **options).fit(*_frame(parquet))
    path = str(tmp_path / "fit.npz")
    SGDClassifier(max_iter=2, checkpoint=Checkpoint(path), **options).fit(*_frame(parquet))
    resumed = SGDClassifier(max_iter=4, checkpoint=Checkpoint(path), **options)
    resumed.fit(*_frame(parquet))
    assert resumed.history_.extra["streamed"]
    np.testing.assert_allclose(resumed.coef_, whole.coef_, rtol=1e-10)


def test_a_dask_collection_streams_without_a_client(parquet: str) -> None:
    streamed = _full_batch(run=Run(memory_budget=SMALL)).fit(*_frame(parquet))
    assert streamed.history_.extra["streamed"]


def _arrays(rows: Any, parquet: str) -> tuple[Any, Any]:
    X, y = rows
    return da.from_array(X, chunks=(500, D)), da.from_array(y, chunks=500)


def _scaled(rows: Any, parquet: str) -> tuple[Any, Any]:
    X, y = dask.persist(*_frame(parquet))
    return StandardScaler().fit_transform(X), y


def _shuffled(rows: Any, parquet: str) -> tuple[Any, Any]:
    frame = dd.read_parquet(parquet).shuffle("x0", npartitions=4)
    return frame[[f"x{i}" for i in range(D)]], frame["y"]


def _pandas_parts(rows: Any, parquet: str) -> tuple[Any, Any]:
    frame = dd.from_pandas(pd.DataFrame(rows[0]), npartitions=5)
    return frame, dd.from_pandas(pd.Series(rows[1]), npartitions=5)


def _computed(rows: Any, parquet: str) -> tuple[Any, Any]:
    X, y = _arrays(rows, parquet)
    return X.map_blocks(np.negative), y


#: Rows in every accepted kind of collection, in blocks of 500 rows and more.
ROWS_OF_KINDS: dict[str, Any] = {
    "Parquet": lambda rows, parquet: _frame(parquet),
    "persisted Parquet": lambda rows, parquet: dask.persist(*_frame(parquet)),
    "shuffled Parquet": _shuffled,
    "scaled persisted frame": _scaled,
    "frames": _pandas_parts,
    "arrays": _arrays,
    "computed arrays": _computed,
    "persisted arrays": lambda *args: dask.persist(*_arrays(*args)),
    "sparse arrays": lambda *args: (
        _arrays(*args)[0].map_blocks(sparse.csr_matrix),
        _arrays(*args)[1],
    ),
    "delayed blocks": lambda *args: tuple(list(v.to_delayed().ravel()) for v in _arrays(*args)),
}


@pytest.mark.parametrize("kind", ROWS_OF_KINDS)
def test_a_block_larger_than_the_budget_is_refused(
    kind: str, rows: tuple[np.ndarray, np.ndarray], parquet: str, client: Client
) -> None:
    X, y = ROWS_OF_KINDS[kind](rows, parquet)
    with pytest.raises(InvalidDataError, match=r"Block \d takes .* smaller chunks .*memory_budget"):
        _full_batch(run=Run(memory_budget=10_000)).fit(X, y)


def test_a_block_larger_than_one_workers_budget_is_refused(
    rows: tuple[np.ndarray, np.ndarray], client: Client
) -> None:
    """One worker would exceed its budget, although all workers together would not."""
    X, y = (da.from_array(values) for values in rows)
    nbytes = N * (D + 1) * 8
    with pytest.raises(InvalidDataError, match=rf"Block 0 takes {nbytes:,} bytes, more than the"):
        _full_batch(run=Run(memory_budget=nbytes - 1)).fit(X, y)
    assert not _full_batch(run=Run(memory_budget=nbytes)).fit(X, y).history_.extra["streamed"]


def test_rows_in_memory_larger_than_the_budget_are_refused(
    rows: tuple[np.ndarray, np.ndarray], client: Client
) -> None:
    nbytes = N * (D + 1) * 8 // 2  # budget of each of two workers
    with pytest.raises(InvalidDataError, match=r"arrays? .*dask.array.from_array.*memory_budget"):
        _full_batch(run=Run(memory_budget=nbytes - 1)).fit(*rows, client=client)
    _full_batch(run=Run(memory_budget=nbytes)).fit(*rows, client=client)


def test_trees_reserve_half_of_the_budget_for_bins(
    rows: tuple[np.ndarray, np.ndarray], client: Client
) -> None:
    block = 500 * (D + 1) * 8
    model = RandomForestClassifier(2, max_depth=2, random_state=0)
    with pytest.raises(InvalidDataError, match=rf"Block \d takes {block:,} bytes, more than the"):
        model.set_params(run=Run(memory_budget=2 * block - 2)).fit(*_arrays(rows, ""))
    model.set_params(run=Run(memory_budget=2 * block)).fit(*_arrays(rows, ""))
    assert model.history_.extra["streamed"]


def test_a_file_that_changes_during_the_fit_raises(tmp_path: Path, client: Client) -> None:
    for i in range(6):
        pd.DataFrame({"x": np.arange(800.0), "y": np.arange(800) % 2}).to_parquet(
            tmp_path / f"{i}.parquet"
        )

    class Cut:
        def on_pass_end(self, run: Any, record: Any) -> None:
            for i in range(6):
                frame = pd.DataFrame({"x": [1.0], "y": [0]})
                frame.to_parquet(tmp_path / "new")
                (tmp_path / "new").rename(tmp_path / f"{i}.parquet")

    frame = dd.read_parquet(str(tmp_path))
    model = SGDClassifier(
        run=Run(memory_budget=2 * 800 * 16), max_iter=500, tol=None, callbacks=Cut()
    )
    with pytest.raises(
        InvalidDataError, match=r"Block \d (had 800 rows|could not be recomputed).*persist"
    ):
        model.fit(frame[["x"]], frame["y"])


# --- recipes ---------------------------------------------------------------------------------


def test_a_recipe_recomputes_the_block(parquet: str) -> None:
    X, y = _frame(parquet)
    lazy = as_collection(X, y, classification=True).delayed_blocks()
    expected = dask.compute(*lazy)
    recipes = make_recipes(lazy).of_rows({b.index: b.n_rows for b in expected})
    assert recipes.repeated_work < 2
    assert not recipes.held_keys
    packed = BlockRecipes.unpack_recipes(recipes.pack([1, 3]))
    assert set(packed.targets) == {1, 3}
    for i in (1, 3):
        block = packed.make_block(i, lambda key: pytest.fail("nothing is held"))
        np.testing.assert_array_equal(block.X, expected[i].X)
        np.testing.assert_array_equal(block.y, expected[i].y)


def test_shared_tasks_count_as_repeated_work() -> None:
    pieces = [dask.delayed(np.arange)(i) for i in range(20)]
    blocks = [dask.delayed(np.add)(dask.delayed(np.concatenate)(pieces), i) for i in range(8)]
    assert make_recipes(blocks).repeated_work > 3


# --- the stream ------------------------------------------------------------------------------


class _Reader:
    """Reader that counts reads and live blocks."""

    def __init__(self) -> None:
        self.passes_to_read: list[int] = []
        self.lock = threading.Lock()

    def __call__(self, number: int) -> int:
        with self.lock:
            self.passes_to_read.append(number)
        return number * 10


def _stream(reader: Any, groups: list[list[int]], ahead: int, last: int = 3) -> BlockStream[int]:
    return BlockStream(
        reader, lambda pass_: groups, last, ahead, ThreadPoolExecutor(1), lambda since: None
    )


@pytest.mark.parametrize("ahead", [1, 2, 3, 5, 20])
def test_a_stream_reads_each_block_once_a_pass(ahead: int) -> None:
    groups = [[3, 1], [0], [4, 2]]
    reader = _Reader()
    stream = _stream(reader, groups, ahead)
    stream.seek(1)
    for _ in range(3):
        for group in groups:
            for _ in range(4):
                assert [stream[n] for n in group] == [n * 10 for n in group]
    assert reader.passes_to_read == [3, 1, 0, 4, 2] * 3


def test_a_stream_holds_only_the_group_and_prefetched_blocks() -> None:
    stream = _stream(_Reader(), [[i] for i in range(50)], ahead=3)
    stream.seek(1)
    for n in range(50):
        assert stream[n] == n * 10
        assert len(stream._open) == 1
        assert len(stream._reads) <= 3


def test_a_stream_skips_to_a_later_group() -> None:
    stream = _stream(_Reader(), [[0, 1], [2, 3], [4, 5]], ahead=2)
    stream.seek(2)
    assert stream[5] == 50
    assert stream.read_out_of_order(1) == 10
    assert stream[4] == 40
    assert stream[0] == 0  # the next pass


def test_a_failed_read_raises_where_the_block_is_used() -> None:
    def broken(number: int) -> int:
        if number == 2:
            raise OSError("interrupted")
        return number

    stream = _stream(broken, [[0], [1], [2]], ahead=3)
    stream.seek(1)
    assert stream[1] == 1
    with pytest.raises(OSError, match="interrupted"):
        stream[2]


def test_a_hanging_read_times_out() -> None:
    release = threading.Event()

    def check(since: float) -> None:
        if time.monotonic() - since > 0.1:
            raise TimeoutError("given up")

    with ThreadPoolExecutor(1) as pool:
        stream = BlockStream(lambda n: release.wait(30), lambda p: [[0]], 1, 1, pool, check)
        stream.seek(1)
        with pytest.raises(TimeoutError, match="given up"):
            stream[0]
        release.set()
