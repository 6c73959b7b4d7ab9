"""Fixtures that every test file shares."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys

# Python 3.11's cached properties hold a lock of all objects of a class, 3.12's none. Dask computes
# in such properties (divisions of a sorted frame) while its scheduler, which a LocalCluster has in
# the client's process, waits for the same lock. Properties that are made from here on hold none.
if sys.version_info < (3, 12):
    functools.RLock = contextlib.nullcontext  # type: ignore[attr-defined]
# Processes side by side, each with threads for all cores, mostly wait for each other. Libraries
# read this where they are loaded, so it comes before them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, futures_of

import daskml_dist
from daskml_dist.backends import Backend, get_backend
from daskml_dist.backends.devices import STORED, gpu_problem, stored_dtype
from daskml_dist.errors import DeviceUnavailableError

# Tests of the benchmarks import them; behind everything, so that an installed package stays first.
sys.path.append(str(Path(__file__).resolve().parents[1]))

DATA_VARIABLE = "DASKML_DIST_DATA"


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all but ``pytest -m gpu``, so that ``device="auto"`` is the CPU elsewhere.

    Before anything asks CUDA; processes that tests start inherit it. Nor do they load machine code
    of other sources.
    """
    from tests.forked_workers import fork_workers
    from tests.idle_clusters import keep_idle_clusters_quiet
    from tests.machine_code import drop_stale
    from tests.shared_builds import open_shared_folder

    # Also where containers forbid it: without bytecode, each process that a test starts would parse
    # the whole package.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    keep_idle_clusters_quiet()
    shared = contextlib.ExitStack()
    shared.enter_context(open_shared_folder())
    config.add_cleanup(shared.close)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Sessions side by side compile in turns, as workers do.
        import tests.numba_at_work  # noqa: F401
    else:
        drop_stale(Path(daskml_dist.__file__).parent)
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        fork_workers()  # which CUDA does not bear


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while thousands of tests are collected, which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave thousands of collected tests out of each later look for garbage.

    What little of them is garbage stays: to look for it takes a second.
    """
    gc.freeze()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, also while a cluster of the session, silenced, has raised pytest's level."""
    caplog.handler.setLevel(logging.NOTSET)
    return caplog


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the user is told, also while a cluster silences its logs."""
    caplog.handler.setLevel(logging.WARNING)
    return caplog


@pytest.fixture(scope="module", autouse=True)
def leave_what_stays_out() -> None:
    """Leave what modules before have loaded and compiled out of each look for garbage, too."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (problem := gpu_problem()):
        pytest.skip(f"{problem} Tests of a GPU run under `pytest -m gpu` alone.")


@pytest.fixture(
    params=["numpy", "cupy's calls on numpy", pytest.param("cupy", marks=pytest.mark.gpu)]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn; the GPU's is skipped, with the reason, where it cannot run.

    Its calls are then made on NumPy and SciPy, which have the same functions, and its kernels
    compiled for the host.
    """
    if request.param == "cupy's calls on numpy":
        from tests.cuda_emulation import EmulatedCupy

        if shutil.which("g++") is None:
            pytest.skip("no g++ here")
        return EmulatedCupy()
    return get_backend({"numpy": "cpu", "cupy": "gpu"}[request.param])


@pytest.fixture(params=STORED[1:])
def stored(request: pytest.FixtureRequest) -> str:
    """Each dtype that a GPU may store features in."""
    try:
        stored_dtype(request.param)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; tests that use it carry the marker `data`."""
    sibling = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get(DATA_VARIABLE) or sibling)
    if not folder.is_dir():
        pytest.skip(f"no folder of real data: set {DATA_VARIABLE}")
    return folder


def _start_workers(n_workers: int, silence_logs: int) -> LocalCluster:
    """Start worker processes of one thread on the loopback interface."""
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=":0",
        silence_logs=silence_logs,
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes, which all tests share."""
    with _start_workers(2, logging.ERROR) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_workers() -> Iterator[LocalCluster]:
    """Three worker processes, once for all tests that may kill them."""
    with _start_workers(3, logging.CRITICAL) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def crew(three_workers: LocalCluster) -> Iterator[LocalCluster]:
    """Three worker processes, whose nannies bring others where these are killed."""
    # So long after a worker was lost Dask looks whether another has come; where that one was just
    # killed as well, it ends their nanny.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}):
        from tests.lost_workers import wait_for_three

        with Client(three_workers, set_as_default=False) as client:
            wait_for_three(client)
        yield three_workers


@pytest.fixture
def client(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of the shared cluster; fails the test if it left anything there."""
    with Client(cluster) as client:
        yield client
        # The traceback of a failed test keeps its variables alive, and with them its futures.
        if not getattr(request.node, "failed", False):
            assert_clean(client, keep=list(getattr(request.node, "funcargs", {}).values()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        item.failed = True  # type: ignore[attr-defined]
    return report


def assert_clean(client: Client, keep: Any = (), timeout: float = 200.0) -> None:
    """Assert that the cluster holds no task, actor or lock but the data in `keep`.

    Parameters
    ----------
    client : Client
    keep : collection or nested lists of collections and futures
        What the test itself persisted and still holds.
    timeout : float
        Seconds to wait, since futures are released in the background.
    """
    kept = {future.key for future in futures_of(keep)}
    deadline = time.monotonic() + timeout
    while left := _left_behind(client, kept):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind on the cluster: {left}; {_holders(client, left)}")
        gc.collect()
        time.sleep(0.005)


def _left_behind(client: Client, kept: set[Any]) -> dict[str, Any]:
    found = client.run_on_scheduler(_scheduler_state)
    found["tasks"] = sorted(set(found["tasks"]) - kept, key=str)
    actors: dict[str, list[Any]] = client.run(_worker_actors)
    found["actors"] = {address: keys for address, keys in actors.items() if keys}
    return {what: names for what, names in found.items() if names}


def _holders(client: Client, left: dict[str, Any]) -> str:
    """Return who keeps the tasks: their state on the scheduler, and futures of this process."""

    def states(dask_scheduler: Any) -> list[str]:
        tasks = [
            dask_scheduler.tasks[key]
            for key in left.get("tasks", ())
            if key in dask_scheduler.tasks
        ]
        return [
            f"{ts.key}: {ts.state}, wanted by {[c.client_key for c in ts.who_wants or ()]}, "
            f"needed by {[other.key for other in ts.dependents]}"
            for ts in tasks
        ]

    counts = {key: client.refcount.get(key, 0) for key in left.get("tasks", ())}
    return f"{client.run_on_scheduler(states)}; futures of {client.id}: {counts}"


def _scheduler_state(dask_scheduler: Any) -> dict[str, Any]:
    extensions = dask_scheduler.extensions
    leases = extensions["semaphores"].leases
    return {
        "tasks": list(dask_scheduler.tasks),
        "locks": [name for name in leases if leases[name]],
        "multi-locks": list(extensions["multi_locks"].requests),
    }


def _worker_actors(dask_worker: Any) -> list[Any]:
    return list(dask_worker.state.actors)


@pytest.fixture(name="assert_clean")
def assert_clean_fixture() -> Callable[..., None]:
    """`assert_clean(client, keep=())`, for a check in the middle of a test or another cluster."""
    return assert_clean
