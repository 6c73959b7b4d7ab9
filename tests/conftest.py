"""Fixtures shared by all test files."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys

# In Python 3.11 cached properties share a lock among all objects of a class; 3.12 has none. Dask
# computes in such properties (divisions of a sorted frame) while its scheduler, which runs in the
# client's process with a LocalCluster, waits for the same lock. Properties created after this line
# hold no lock.
if sys.version_info < (3, 12):
    functools.RLock = contextlib.nullcontext  # type: ignore[attr-defined]
# Several processes, each with threads for all cores, would mostly wait for each other. Libraries
# read this variable when they are loaded, so it must be set first.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
import re
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, futures_of

import daskml_dist
from daskml_dist.backends import Backend, get_backend
from daskml_dist.backends.devices import STORED, gpu_problem, stored_dtype
from daskml_dist.errors import DeviceUnavailableError

# Tests of the benchmarks import them; appended last, so that an installed package has precedence.
sys.path.append(str(Path(__file__).resolve().parents[1]))

DATA_VARIABLE = "DASKML_DIST_DATA"


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs except with ``pytest -m gpu``, so that ``device="auto"`` is the CPU otherwise.

    This happens before any code uses CUDA; processes that tests start inherit it. They also do not
    load machine code of other sources.
    """
    from tests.forked_workers import fork_workers
    from tests.idle_clusters import keep_idle_clusters_quiet
    from tests.machine_code import drop_stale
    from tests.shared_builds import open_shared_folder

    # Even in containers that disable it: without bytecode, each process that a test starts would
    # parse the whole package.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    keep_idle_clusters_quiet()
    shared = contextlib.ExitStack()
    shared.enter_context(open_shared_folder())
    config.add_cleanup(shared.close)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Concurrent sessions compile one after the other, as workers do.
        import tests.numba_at_work  # noqa: F401
    else:
        drop_stale(Path(daskml_dist.__file__).parent)
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        fork_workers()  # CUDA does not support forks


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection while thousands of tests, which are kept, are collected."""
    # Dask's slicing restores the state in which its module was loaded: it would stay disabled.
    import_module("dask.array.slicing")
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(50_000, 20, 20)  # the default takes a tenth of the tests' time


def pytest_collection_finish() -> None:
    """Exclude thousands of collected tests from later garbage collections.

    The little garbage among them is not freed: finding it would take a second.
    """
    gc.freeze()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return pytest's fixture, also if a silenced cluster of the session has raised its level."""
    caplog.handler.setLevel(logging.NOTSET)
    return caplog


@pytest.fixture
def user_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the log messages for the user, also while a cluster silences its logs."""
    caplog.handler.setLevel(logging.WARNING)
    return caplog


@pytest.fixture(scope="module", autouse=True)
def leave_what_stays_out() -> None:
    """Exclude objects loaded and compiled by earlier modules from garbage collections too."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Collect the last garbage once, rather than all objects ten times when pytest ends."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (problem := gpu_problem()):
        pytest.skip(f"{problem} Tests of a GPU run under `pytest -m gpu` alone.")


@pytest.fixture(
    params=["numpy", "cupy's calls on numpy", pytest.param("cupy", marks=pytest.mark.gpu)]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return each backend in turn; the GPU's is skipped, with the reason, if it cannot run.

    Without a GPU, its calls are made on NumPy and SciPy, which have the same functions, and its
    kernels are compiled for the host.
    """
    if request.param == "cupy's calls on numpy":
        from tests.cuda_emulation import EmulatedCupy

        if shutil.which("g++") is None:
            pytest.skip("no g++ here")
        return EmulatedCupy()
    return get_backend({"numpy": "cpu", "cupy": "gpu"}[request.param])


@pytest.fixture(params=["stand-in", pytest.param("cupy", marks=pytest.mark.gpu)])
def to_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes arrays and CSR matrices of CuPy, or stand-ins for them."""
    if request.param == "cupy":
        return _to_cupy
    from tests import fake_cupy

    fake_cupy.plug_in(fake_cupy.FakeCupy, monkeypatch)
    monkeypatch.setattr(fake_cupy.DeviceArray, "copied", 0)
    return fake_cupy.to_device


def _to_cupy(rows: Any) -> Any:
    if not hasattr(rows, "tocsr"):
        return import_module("cupy").asarray(rows)
    return import_module("cupyx.scipy.sparse").csr_matrix(rows.tocsr())


@pytest.fixture(params=STORED[1:])
def stored(request: pytest.FixtureRequest) -> str:
    """Return each dtype in which a GPU may store features."""
    try:
        stored_dtype(request.param)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of real data; tests that use it have the marker `data`."""
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
    """Start two worker processes, shared by all tests."""
    with _start_workers(2, logging.ERROR) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_workers() -> Iterator[LocalCluster]:
    """Start three worker processes, once for all tests that may kill them."""
    with _start_workers(3, logging.CRITICAL) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def crew(three_workers: LocalCluster) -> Iterator[LocalCluster]:
    """Return three worker processes, which their nannies replace if they are killed."""
    # After this time Dask checks whether a lost worker was replaced; if the replacement was just
    # killed too, Dask would end their nanny.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}):
        from tests.lost_workers import wait_for_three

        with Client(three_workers, set_as_default=False) as client:
            wait_for_three(client)
        yield three_workers


@pytest.fixture
def client(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Return a client of the shared cluster; fail the test if it leaves anything there."""
    with Client(cluster) as client:
        yield client
        # The traceback of a failed test keeps its variables alive, and so its futures.
        if not getattr(request.node, "failed", False):
            assert_clean(client, keep=list(getattr(request.node, "funcargs", {}).values()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        item.failed = True  # type: ignore[attr-defined]
    return report


def assert_clean(client: Client, keep: Any = (), timeout: float = 200.0) -> None:
    """Assert that the cluster holds no task, actor or lock except the data in `keep`.

    Parameters
    ----------
    client : Client
    keep : collection or nested lists of collections and futures
        Data that the test itself persisted and still holds.
    timeout : float
        Seconds to wait, since futures are released in the background.
    """
    kept_keys = {future.key for future in futures_of(keep)}
    deadline = time.monotonic() + timeout
    while left := _left_behind(client, kept_keys):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind on the cluster: {left}; {_holders(client, left)}")
        gc.collect()
        time.sleep(0.005)


def _left_behind(client: Client, kept_keys: set[Any]) -> dict[str, Any]:
    found = client.run_on_scheduler(_scheduler_state)
    found["tasks"] = sorted(set(found["tasks"]) - kept_keys, key=str)
    actors: dict[str, list[Any]] = client.run(_worker_actors)
    found["actors"] = {address: keys for address, keys in actors.items() if keys}
    return {what: names for what, names in found.items() if names}


def _holders(client: Client, left: dict[str, Any]) -> str:
    """Describe what keeps the tasks: their state on the scheduler, and this process's futures."""

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
    """Return `assert_clean`, for a check in the middle of a test or on another cluster."""
    return assert_clean
