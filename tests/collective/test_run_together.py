"""Functions that ranks run together: their blocks, collectives, results and errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Security, get_client
from scipy import sparse

from daskml_dist.collective import RankGroup, run_together
from daskml_dist.errors import (
    FunctionError,
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    RankMismatchError,
    WaitTimeoutError,
)
from tests.collective import functions
from tests.collective.functions import add_up, list_blocks, make_every_call

# --- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_every_collective(where: str, request: pytest.FixtureRequest) -> None:
    client = request.getfixturevalue("client") if where == "cluster" else None
    assert run_together(client, make_every_call) == list(range(1 if client is None else 2))


def test_every_collective_over_sockets(client: Client) -> None:
    with dask.config.set({"daskml_dist.shared_memory": False}):
        assert run_together(client, make_every_call) == [0, 1]


def _frame() -> pd.DataFrame:
    return pd.DataFrame({"a": np.arange(10.0), "b": np.arange(10)})


COLLECTIONS: dict[str, Callable[[], Any]] = {
    "array": lambda: da.arange(10.0, chunks=3),
    "array cut both ways": lambda: da.ones((10, 4), chunks=(3, 2)) * np.arange(10)[:, None] / 4,
    "array of unknown chunks": lambda: da.arange(20.0, chunks=5)[da.arange(20, chunks=5) < 10],
    "frame": lambda: dd.from_pandas(_frame()[["a"]], npartitions=3),
    "bag": lambda: db.from_sequence(range(10), npartitions=3),
    "delayed": lambda: [dask.delayed(np.arange)(a, b) for a, b in ((0, 4), (4, 10))],
    "array in memory": lambda: np.arange(10.0),
    "frame in memory": lambda: _frame()[["a"]],
    "sparse rows in memory": lambda: sparse.csr_array(np.arange(10.0)[:, None]),
}


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("kind", COLLECTIONS)
def test_each_block_is_given_once(kind: str, persisted: bool, client: Client) -> None:
    collection = COLLECTIONS[kind]()
    if persisted and hasattr(collection, "persist"):
        collection = collection.persist()
    elif persisted:
        collection = list(dask.persist(*collection)) if isinstance(collection, list) else collection
    totals, counts = zip(*run_together(client, add_up, collection), strict=True)
    assert set(totals) == {45.0}
    assert sum(counts) >= 2
    del collection


def test_blocks_of_several_collections_are_aligned(client: Client) -> None:
    X, y = da.arange(10, chunks=3), da.arange(10, chunks=5) * 2
    z = pd.Series(np.arange(10) * 3)
    found = [block for blocks in run_together(client, list_blocks, [X, y, z]) for block in blocks]
    assert sorted(len(x) for x, _, _ in found) == [1, 3, 3, 3]
    for x, two, three in found:
        np.testing.assert_array_equal(two, 2 * x)
        np.testing.assert_array_equal(three, 3 * x)
    bag = db.from_sequence(range(8), npartitions=4)
    found = [b for blocks in run_together(client, list_blocks, [bag, np.arange(8)]) for b in blocks]
    assert sorted((list(one), other.tolist()) for one, other in found) == [
        ([a, a + 1], [a, a + 1]) for a in (0, 2, 4, 6)
    ]


def test_a_block_stays_with_its_worker(client: Client) -> None:
    workers = sorted(client.scheduler_info()["workers"])
    parts = [client.submit(np.arange, k, workers=[workers[k % 2]], pure=False) for k in range(4)]
    x = da.concatenate([da.from_delayed(part, (k,), int) for k, part in enumerate(parts)])
    x = client.persist(da.from_delayed(parts[1], (1,), int), workers=[workers[1]])
    found = run_together(client, lambda group, blocks, state: (group.workers, len(blocks)), x)
    assert found == [((workers[1],), 1)]  # blocks on one worker of two: a group of one
    del x, parts


def test_without_blocks_each_worker_is_a_rank(client: Client) -> None:
    found = run_together(client, lambda group, blocks, state: (blocks, group.hosts, state), state=3)
    assert found == [([], ("127.0.0.1", "127.0.0.1"), 3)] * 2


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        ([], InvalidDataError, "blocks is empty"),
        (np.empty((0, 3)), InvalidDataError, "no rows"),
        (3, InvalidTypeError, "no blocks of rows"),
        ([np.arange(3), {"a": 1}], InvalidTypeError, r"blocks\[1\] is 'dict'"),
        ([np.arange(3), np.arange(4)], InvalidDataError, r"\[3, 4\] rows"),
        (
            [db.from_sequence(range(4), npartitions=2), db.from_sequence(range(4), npartitions=4)],
            InvalidDataError, "different numbers of blocks",
        ),
        ([da.arange(4, chunks=2), da.arange(5, chunks=2)], InvalidDataError, "rows"),
    ],
)  # fmt: skip
def test_arguments_without_blocks_are_refused(
    blocks: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_together(None, add_up, blocks)


# --- results and errors ---------------------------------------------------------------------------


def test_results_may_be_of_any_type(client: Client) -> None:
    class Local:
        """Class that cannot be imported from a module."""

        def __init__(self, rank: int) -> None:
            self.rank = rank

    found = run_together(client, lambda group, blocks, state: Local(group.rank))
    assert [one.rank for one in found] == [0, 1]
    large = run_together(client, lambda group, blocks, state: np.full(4_000_000, group.rank))
    assert [int(array.sum()) for array in large] == [0, 4_000_000]
    large[1][0] = 7  # results belong to the caller


class Unknown:
    """Function of a module that workers do not have."""

    def __call__(self, group: RankGroup, blocks: Any, state: Any) -> None:
        """Do nothing."""

    def __reduce__(self) -> Any:
        return _import_unknown, ()


def _import_unknown() -> Any:
    raise ModuleNotFoundError("No module named 'mine'")


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "raises": (
        functions.raise_on_one,
        FunctionError,
        r"LookupError on rank 1 of 2 \(worker tcp.*no such",
    ),
    "returns early": (
        functions.return_on_one,
        RankMismatchError,
        "rank 0 is at .*; rank 1 has returned",
    ),
    "shapes": (functions.differ, RankMismatchError, r"float64\[3\] .*float64\[4\]"),
    "calls": (functions.cross, RankMismatchError, "rank 0 is at allreduce.*rank 1 is at allgather"),
    "hides an error": (functions.swallow, RankMismatchError, "different calls"),
    "cannot travel": (functions.make_lock, FunctionError, "pickle.*make locks, open files"),
    "exits": (functions.leave, FunctionError, "SystemExit"),
    "nested": (functions.nest, FunctionError, "called inside a function"),
    "unknown module": (Unknown(), FunctionError, "upload_file"),
    "words": (lambda g, b, s: g.allreduce("a"), FunctionError, "does not hold numbers"),
    "root": (lambda g, b, s: g.broadcast(1, root=2), FunctionError, "not one of the 2 ranks"),
    "targets": (lambda g, b, s: g.alltoall([1]), FunctionError, "each of the 2 ranks"),
    "reduction": (lambda g, b, s: g.allreduce(1, "mean"), FunctionError, '"sum", "max"'),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_end_all_ranks_and_name_theirs(kind: str, client: Client) -> None:
    function, error, message = ERRORS[kind]
    with pytest.raises(error, match=message) as found:
        run_together(client, function)
    if error is FunctionError and kind == "raises":
        assert found.value.rank == 1  # type: ignore[attr-defined]
        assert found.value.worker in str(found.value)  # type: ignore[attr-defined]
    assert run_together(client, add_up, np.arange(10.0))[0][0] == 45


def test_a_raised_error_has_the_ranks_error_as_its_cause() -> None:
    with pytest.raises(FunctionError, match="rank 0 of 1, ") as found:
        run_together(None, lambda group, blocks, state: 1 / 0)
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_a_sleeping_rank_is_named_in_the_timeout(client: Client) -> None:
    def sleep(group: RankGroup, blocks: Any, state: Any) -> None:
        if group.rank:
            time.sleep(4)  # shorter than all other timeouts
        group.barrier()

    with pytest.raises(
        WaitTimeoutError, match=r"Rank 0 waited 0.5 s for rank 1 in call 1.*timeout="
    ):
        run_together(client, sleep, timeout=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": 3}, "cannot be called"),
        ({"retries": -1}, "retries=-1"),
        ({"retries": 1.5}, r"retries=1.5"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": "60"}, "timeout='60'"),
        ({"server": {"w": 1}}, "not a ParameterServer"),
        ({"state": threading.Lock()}, "cannot be sent to workers"),
        ({"client": "somewhere"}, "client="),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        run_together(**{"client": None, "function": add_up, "blocks": np.arange(3.0), **arguments})


# --- with other work ------------------------------------------------------------------------------


def test_a_function_may_use_the_cluster(client: Client) -> None:
    def ask(group: RankGroup, blocks: Any, state: Any) -> int:
        found: int = get_client().submit(sum, [group.rank, 10], pure=False).result()
        return found

    assert run_together(client, ask) == [10, 11]


def test_function_runs_inside_a_task(client: Client) -> None:
    def task() -> Any:
        return run_together(None, add_up, da.arange(10.0, chunks=5))

    found = client.submit(task, pure=False).result()
    assert {total for total, _ in found} == {45.0}


def test_two_concurrent_runs_are_independent(client: Client) -> None:
    found: dict[int, Any] = {}

    def run(k: int) -> None:
        found[k] = [run_together(client, add_up, da.full(10, k, chunks=2)) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert {k: {total for run in runs for total, _ in run} for k, runs in found.items()} == {
        k: {10.0 * k} for k in range(3)
    }


def test_dask_collections_without_a_client_run_in_process() -> None:
    assert run_together(None, add_up, da.arange(10.0, chunks=5)) == [(45.0, 2)]


def test_function_runs_with_tls(assert_clean: Callable[..., None]) -> None:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",
            security=Security.temporary(),
        ) as cluster,
        Client(cluster) as client,
        dask.config.set({"daskml_dist.shared_memory": False}),
    ):
        assert run_together(client, make_every_call) == [0, 1]
        assert_clean(client)
