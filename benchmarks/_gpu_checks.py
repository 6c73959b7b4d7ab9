"""Checks of one visit to a GPU, in stages; `benchmarks gpu_once` runs them in child processes.

``python -m benchmarks._gpu_checks STAGE FIRST [--tiny]`` runs the checks of a stage from number
FIRST on. With ``STAGE:K/N`` it runs every N-th check, starting at the K-th. It prints "BEGIN
number" and "RESULT {...}" for each check, and "END". Without a usable GPU, checks that need one are
skipped, and the others compare the CPU with itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from benchmarks import gpu
from benchmarks._gpu_device import Device, largest_difference
from benchmarks._gpu_estimators import FITS, SPARSE_FITS, Fit, make_rows
from daskml_dist import Run, ensemble, linear_model, model_selection, preprocessing
from daskml_dist.backends import get_backend
from daskml_dist.backends.devices import gpu_problem
from daskml_dist.comm.base import WaitBound
from daskml_dist.comm.nccl import NcclGroup, find_gpu_and_nccl, make_identifier
from daskml_dist.errors import DaskMLDistError
from daskml_dist.policies import POLICIES

__all__ = ["STAGES", "Check", "run_checks", "take_part"]

_ROOT = Path(__file__).resolve().parents[1]
#: Policies whose lanes may read each other's partial updates: two fits with several lanes differ.
_RACING = ("async", "ssp", "hogwild")


class Skip(Exception):
    """Raised by a check whose requirements are missing on this machine."""


class Check(NamedTuple):
    """Check: its name, its function, and the limit of its time in seconds."""

    name: str
    run: Callable[[bool], Any]
    seconds: float


@functools.cache
def _device() -> str:
    """Return "gpu" if this process can use one, else "cpu"."""
    return "cpu" if gpu_problem() else "gpu"


def _need_gpu() -> Any:
    """Return CuPy; skip the check if no GPU can be used."""
    if problem := gpu_problem():
        raise Skip(problem)
    import cupy

    return cupy


def _take_difference(found: Any, expected: Any, most: float) -> str:
    """Return the largest difference of two arrays; raise if it exceeds the limit."""
    difference = largest_difference(found, expected)
    if not float(difference) <= most:  # also true for NaN
        raise AssertionError(f"differs by {difference}, more than {most:g}")
    return difference


def _time(work: Callable[[], Any]) -> tuple[str, Any]:
    since = time.perf_counter()
    result = work()
    return f"{time.perf_counter() - since:.2f} s", result


# --- smoke: the basis of all other checks -----------------------------------------------------

_PACKAGES = (
    "numpy", "scipy", "scikit-learn", "numba", "torch", "cupy-cuda13x", "dask", "distributed",
    "dask-cuda", "nccl4py", "nvidia-nccl-cu13", "ml_dtypes", "xgboost",
)  # fmt: skip


def _find_versions(tiny: bool) -> dict[str, str]:
    found = {"python": sys.version.split()[0], "cores": str(os.cpu_count())}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _find_gpu(tiny: bool) -> str:
    """Return the GPU's name, or the reason why there is none."""
    on = Device(tiny) if gpu_problem() is None else None
    if on is None:
        raise Skip(str(gpu_problem()))
    bandwidth = f"{on.copy_bandwidth / 1e9:,.0f} GB/s copied"
    return f"{gpu.FACTS['GPU'](on.xp)}, {bandwidth}, {on.call_overhead():.1f} us a call"


def _copy_by_threads(tiny: bool) -> str:
    """Check that copies of four threads, with kernels between them, keep their bits."""
    _need_gpu()
    backend = get_backend("gpu")
    rows = np.random.default_rng(0).random((1 << 14) if tiny else (1 << 22), dtype=np.float32)
    wrong: list[str] = []

    def copy(number: int) -> None:
        for _ in range(8):
            there = backend.to_device(rows + number)
            there += 1
            if not np.array_equal(backend.to_numpy(there), rows + number + 1):
                wrong.append(f"thread {number}")

    threads = [threading.Thread(target=copy, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise AssertionError(f"other bits came back: {wrong}")
    taken, _ = _time(lambda: backend.to_numpy(backend.to_device(rows)))
    return f"{rows.nbytes >> 20} MiB there and back: {taken}"


def _add_up_large_array(tiny: bool) -> str:
    """Compare a gradient of rows with more than 2^31 entries with that of their parts."""
    cupy = _need_gpu()
    backend = get_backend("gpu")
    n, d = (50_000 if tiny else 25_000_000), 100
    X, y = Device(tiny).rows(n, d)
    w = backend.to_device((np.arange(d + 1)[:, None] / d).astype(np.float32))
    whole, parts = (backend.to_device(np.zeros((d + 1, 1))) for _ in range(2))
    total = backend.add_fused("log_loss", w, X, y, None, whole)
    added = cupy.zeros(())
    for begin in range(0, n, n // 5):
        rows = slice(begin, begin + n // 5)
        added = added + backend.add_fused("log_loss", w, X[rows], y[rows], None, parts)
    _take_difference(float(total), float(added), 1e-6)
    return _take_difference(backend.to_numpy(whole), backend.to_numpy(parts), 1e-6)


def _grow_same_trees(kind: str, params: dict[str, Any], target: str, tiny: bool) -> str:
    """Check that the device's trees equal the CPU's, to the last bit."""
    X, y = make_rows(f"numbers {target}", 400 if tiny else 20_000, 12)
    X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    fits = [
        getattr(ensemble, kind)(device=device, **params).fit(X, y) for device in (_device(), "cpu")
    ]
    _check_same_trees(*fits)
    if _device() == "gpu":
        # Rows on the GPU are binned on the GPU.
        there = getattr(ensemble, kind)(device="gpu", **params).fit(_need_gpu().asarray(X), y)
        _check_same_trees(there, fits[1])
        np.testing.assert_array_equal(fits[0].predict(_need_gpu().asarray(X)), fits[1].predict(X))
    return "the same bits"


def _check_same_trees(one: Any, other: Any) -> None:
    found, expected = one._trees.packed(), other._trees.packed()
    odd = [name for name in expected if found[name].tobytes() != expected[name].tobytes()]
    if odd:
        raise AssertionError(f"trees differ in {odd}")


_BOOSTING = {"max_iter": 5, "early_stopping": False}
_FOREST = {"n_estimators": 4, "max_depth": 8, "random_state": 0}
_TREES = [
    ("HistGradientBoostingRegressor", _BOOSTING, "numbers"),
    ("HistGradientBoostingRegressor", {**_BOOSTING, "loss": "absolute_error"}, "numbers"),
    ("HistGradientBoostingRegressor", {**_BOOSTING, "loss": "poisson"}, "positive"),
    ("HistGradientBoostingClassifier", _BOOSTING, "two"),
    ("HistGradientBoostingClassifier", _BOOSTING, "three"),
    ("RandomForestClassifier", _FOREST, "three"),
    ("ExtraTreesRegressor", _FOREST, "numbers"),
]


def _make_smoke() -> Iterator[Check]:
    yield Check("versions", _find_versions, 60)
    yield Check("the GPU", _find_gpu, 60)
    yield Check("copies by threads", _copy_by_threads, 60)
    yield Check("more than 2^31 entries", _add_up_large_array, 60)
    for kind, params, target in _TREES:
        name = " ".join([kind, target, *([params["loss"]] if "loss" in params else [])])
        yield Check(name, partial(_grow_same_trees, kind, params, target), 60)


# --- fits: each estimator and policy, compared with the CPU -----------------------------------


def _compare_fits(fit: Fit, tiny: bool) -> str:
    X, y = make_rows(fit.rows, 240 if tiny else 20_000)
    given = () if y is None else (y,)
    taken, there = _time(lambda: fit.make(_device()).fit(X, *given))
    here = fit.make("cpu").fit(X, *given)
    worst, compared = 0.0, 0
    for name, value in _fitted_floats(here).items():
        difference = _take_difference(_fitted_floats(there)[name], value, fit.tolerance)
        worst, compared = max(worst, float(difference)), compared + 1
    assert compared
    if _device() == "gpu":
        _compare_rows_there(here, X)
    return f"{worst:.1e}, {taken}"


def _compare_rows_there(model: Any, X: Any) -> None:
    """Check that results for rows on the GPU equal those for rows on the host."""
    there = get_backend("gpu").to_device(X)
    for method in ("predict", "predict_proba", "score_samples", "transform"):
        if not hasattr(model, method):
            continue
        found, expected = getattr(model, method)(there), getattr(model, method)(X)
        found = found.get() if hasattr(found, "get") else found
        if expected.dtype.kind == "f":
            _take_difference(found, expected, 1e-4)
        elif (share := float(np.mean(found != expected))) > 1e-3:  # rounding may change a few
            raise AssertionError(f"{method} gives {share:.1%} of the rows other labels")


def _transform_there(kind: str, params: dict[str, Any], tiny: bool) -> str:
    """Fit a transformer to blocks of rows on the GPU, and transform them."""
    cupy = _need_gpu()
    X, _ = make_rows("counts", 240 if tiny else 20_000)
    transformer = getattr(preprocessing, kind)(**params)
    blocks = da.from_array(X, chunks=(len(X) // 4, -1))
    here = transformer.fit(blocks).transform(X)
    meta = np.empty((0, 0), X.dtype)
    found = transformer.fit(blocks.map_blocks(cupy.asarray, dtype=X.dtype, meta=meta))
    return _take_difference(found.transform(cupy.asarray(X)).get(), here, 1e-6)


_TRANSFORMERS: list[tuple[str, dict[str, Any]]] = [
    ("StandardScaler", {}),
    ("MinMaxScaler", {}),
    ("MaxAbsScaler", {}),
    ("RobustScaler", {}),
    ("OrdinalEncoder", {}),
    ("OneHotEncoder", {"sparse_output": False}),
]


def _fitted_floats(model: Any) -> dict[str, Any]:
    """Return a model's fitted float arrays by name; arrays in lists get a number."""
    found = {}
    for name, value in vars(model).items():
        if not name.endswith("_") or name == "history_":
            continue
        for number, array in enumerate(value if isinstance(value, list) else [value]):
            if np.asarray(array).dtype.kind == "f" and np.size(array):
                found[f"{name} {number}"] = array
    return found


def _make_sgd(device: str, policy: str, lanes: int, **more: Any) -> Any:
    return linear_model.SGDClassifier(
        device=device,
        policy=policy,
        run=Run(n_lanes=lanes),
        max_iter=3,
        tol=None,
        random_state=0,
        batch_size=512,
        **more,
    )


def _compare_policies(policy: str, lanes: int, tiny: bool) -> str:
    X, y = make_rows("numbers two", 240 if tiny else 20_000)
    most = 0.5 if lanes > 1 and policy in _RACING else 1e-3
    there, here = (_make_sgd(device, policy, lanes).fit(X, y) for device in (_device(), "cpu"))
    return _take_difference(there.coef_, here.coef_, most)


def _compare_searches(kind: str, options: dict[str, Any], estimator: Any, tiny: bool) -> str:
    X, y = make_rows("numbers two", 240 if tiny else 20_000)
    searches = [
        getattr(model_selection, kind)(estimator(device=device), **options).fit(X, y)
        for device in (_device(), "cpu")
    ]
    return _take_difference(*(search.best_score_ for search in searches), most=0.02)


_SEARCHES = [
    ("GridSearchCV", {"param_grid": {"C": [0.01, 1.0]}, "cv": 3}, linear_model.LogisticRegression),
    (
        "GridSearchCV",
        {"param_grid": {"alpha": [1e-4, 1.0]}, "cv": 3},
        partial(linear_model.SGDClassifier, max_iter=3, tol=None, random_state=0),
    ),
    (
        "HyperbandSearchCV",
        {"param_distributions": {"alpha": [1e-4, 1e-2, 1.0]}, "max_iter": 3, "random_state": 0},
        partial(linear_model.SGDClassifier, random_state=0),
    ),
]


def _fit_blocks_of_cupy(tiny: bool) -> str:
    """Fit to and predict blocks of rows on the GPU."""
    cupy = _need_gpu()
    X, y = make_rows("numbers two", 240 if tiny else 20_000)
    assert y is not None
    meta = np.empty((0, 0), np.float32)
    blocks = da.from_array(X, chunks=(len(X) // 4, -1)).map_blocks(
        cupy.asarray, dtype=X.dtype, meta=meta
    )
    model = linear_model.LogisticRegression(device="gpu")
    model.fit(blocks, da.from_array(y, chunks=len(X) // 4))
    np.testing.assert_array_equal(model.predict(cupy.asarray(X)), model.predict(X))
    here = linear_model.LogisticRegression(device="cpu").fit(X, y)
    return _take_difference(model.coef_, here.coef_, 1e-3)


def _fit_half_precision(dtype: str, tiny: bool) -> str:
    _need_gpu()
    X, y = make_rows("numbers two", 240 if tiny else 20_000)
    there = linear_model.LogisticRegression(device="gpu", run=Run(compute_dtype=dtype))
    here = linear_model.LogisticRegression(device="cpu")
    return _take_difference(there.fit(X, y).coef_, here.fit(X, y).coef_, 0.02)


def _make_fits() -> Iterator[Check]:
    for policy in POLICIES:
        for lanes in (1, 2):
            compare = partial(_compare_policies, policy, lanes)
            yield Check(f"SGDClassifier {policy}, {lanes} lanes", compare, 40)
    for fit in [*FITS, *SPARSE_FITS]:
        yield Check(fit.title, partial(_compare_fits, fit), 40)
    for number, (kind, options, estimator) in enumerate(_SEARCHES):
        compare = partial(_compare_searches, kind, options, estimator)
        yield Check(f"{kind} {number}", compare, 60)
    for kind, params in _TRANSFORMERS:
        yield Check(kind, partial(_transform_there, kind, params), 40)
    yield Check("blocks of CuPy", _fit_blocks_of_cupy, 60)
    for dtype in ("float16", "bfloat16"):
        yield Check(f"compute_dtype={dtype}", partial(_fit_half_precision, dtype), 60)


# --- nets: PyTorch ----------------------------------------------------------------------------


def _make_net(width: int = 256) -> Any:
    """Return a network wide enough for torch's kernels to outlast calls of CuPy."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def _compare_nets(policy: str, lanes: int, more: dict[str, Any], tiny: bool) -> str:
    """Compare the losses of each pass with the CPU's: unordered CUDA streams would show here."""
    try:
        import torch
    except ImportError as error:
        raise Skip(str(error)) from error
    from daskml_dist.neural_network import TorchClassifier

    if more.get("precision"):
        _need_gpu()
    if _device() == "gpu" and not torch.cuda.is_available():
        raise AssertionError("torch sees no CUDA device")
    X, y = make_rows("numbers three", 240 if tiny else 8_192)
    losses = []
    for device in (_device(), "cpu"):
        params = more if device == _device() else {**more, "precision": None}
        model = TorchClassifier(
            _make_net,
            device=device,
            policy=policy,
            run=Run(n_lanes=lanes),
            max_iter=3,
            batch_size=256,
            random_state=0,
            **params,
        )
        losses.append([record["loss"] for record in model.fit(X, y).history_.records])
    return _take_difference(*losses, most=0.1 if more.get("precision") else 2e-3)


def _make_nets() -> Iterator[Check]:
    for policy, lanes in (
        ("allreduce", 1),
        ("allreduce", 2),
        ("sync", 2),
        ("local", 2),
        ("average", 2),
        ("async", 1),
        ("hogwild", 1),
    ):
        compare = partial(_compare_nets, policy, lanes, {})
        yield Check(f"TorchClassifier {policy}, {lanes} lanes", compare, 60)
    for precision in ("bf16", "fp16"):
        compare = partial(_compare_nets, "allreduce", 1, {"precision": precision})
        yield Check(f"TorchClassifier {precision}", compare, 60)
    yield Check(
        "TorchClassifier early_stopping",
        partial(_compare_nets, "allreduce", 1, {"early_stopping": True}),
        60,
    )


# --- cluster ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_cluster(workers: int) -> Iterator[None]:
    """Open a cluster: one worker per GPU by dask-cuda; else Dask's own, sharing a GPU or none."""
    if workers == 1 and _device() == "gpu":
        from dask_cuda import LocalCUDACluster

        made = LocalCUDACluster(dashboard_address=":0")
    else:
        made = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
    with made as cluster, Client(cluster):
        yield


def _compare_on_cluster(workers: int, tiny: bool) -> dict[str, str]:
    X, y = make_rows("numbers two", 240 if tiny else 20_000)
    assert y is not None
    found = {}
    with _open_cluster(workers):
        blocks = [da.from_array(a, chunks=(len(X) // 4, *a.shape[1:])).persist() for a in (X, y)]
        models: dict[str, tuple[Callable[[str], Any], float]] = {
            "L-BFGS": (lambda device: linear_model.LogisticRegression(device=device), 2e-3)
        }
        for policy in ("sync", "allreduce", "local", "average", "async"):
            make = partial(_make_sgd, policy=policy, lanes=2)
            models[policy] = make, 0.5 if policy in _RACING else 2e-3
        for name, (make, most) in models.items():
            taken, there = _time(lambda make=make: make(_device()).fit(*blocks))
            difference = _take_difference(there.coef_, make("cpu").fit(*blocks).coef_, most)
            found[name] = f"{difference}, {taken}"
        make_trees = partial(ensemble.HistGradientBoostingClassifier, **_BOOSTING)
        _check_same_trees(*(make_trees(device=d).fit(*blocks) for d in (_device(), "cpu")))
    return found


def _make_cluster() -> Iterator[Check]:
    for workers in (1, 2):
        yield Check(f"{workers} workers", partial(_compare_on_cluster, workers), 120)


# --- NCCL: two ranks on one GPU ---------------------------------------------------------------

#: NCCL below 2.30 counts ranks with different host names as different GPUs; later it has a switch.
_TWO_RANKS = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_DEBUG": "WARN",
}


def join_ranks(rank: int, path: str, dies: bool) -> None:
    """Sum and broadcast as one of two ranks that meet through a file; rank 1 may die half-way."""
    import cupy

    if rank == 0:
        part = Path(path + ".part")
        part.write_bytes(make_identifier())
        part.rename(path)
    while not os.path.exists(path):
        time.sleep(0.01)
    group = NcclGroup.connect(rank, 2, Path(path).read_bytes(), WaitBound(40))
    for dtype in ("float32", "float64", "int64"):
        array = cupy.arange(3_000_001).astype(dtype) % 1000
        found = cupy.asnumpy(group.all_reduce(array + rank))
        np.testing.assert_array_equal(found, 2 * (np.arange(3_000_001) % 1000) + 1)
    assert float(group.broadcast(cupy.full(50, rank + 1.0), 0).sum()) == 50
    if not dies:
        group.close()
        return
    if rank == 1:
        os._exit(9)
    try:
        group.all_reduce(cupy.ones(1 << 20))
    except DaskMLDistError as error:
        print("after the other's end:", error, flush=True)
    else:
        raise AssertionError("a sum with a rank that has ended gave no error")
    group.abort()


def _run_two_ranks(dies: bool, tiny: bool) -> str:
    _need_gpu()
    if not find_gpu_and_nccl()[1]:
        raise Skip("NCCL is not installed")
    with tempfile.TemporaryDirectory() as folder:
        code = f"from benchmarks._gpu_checks import join_ranks; join_ranks(%d, %r, {dies})"
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", code % (rank, str(Path(folder, "identifier")))],
                env={**os.environ, **_TWO_RANKS, "NCCL_HOSTID": f"host-{rank}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=_ROOT,
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate(timeout=80)[0] for rank in ranks]
    for number, text in enumerate(outputs):
        print(f"-- rank {number}\n{text[-3000:]}")
    codes = [rank.returncode for rank in ranks]
    if codes != [0, 9 if dies else 0]:
        raise AssertionError(f"the ranks ended with {codes}: {outputs[0][-300:]}")
    return f"the ranks ended with {codes}"


def _make_nccl() -> Iterator[Check]:
    yield Check("two ranks on one GPU", partial(_run_two_ranks, False), 90)
    yield Check("a rank that ends", partial(_run_two_ranks, True), 90)


# --- tests with the mark gpu ------------------------------------------------------------------

#: Folders with tests that need a GPU, those that take longest first.
TEST_FOLDERS = (
    "solvers",
    "training/devices",
    "backends",
    "inference",
    "comm",
    "maths",
    "data",
    "metrics",
    "transformers",
    "neural_network",
)
#: Processes for the tests of a folder, if pytest-xdist is installed; three other folders run too.
_PROCESSES = 3


def _run_tests(folder: str, tiny: bool) -> str:
    _need_gpu()
    command = f"-m pytest -m gpu -q -W default -p no:cacheprovider --maxfail 40 tests/{folder}"
    if importlib.util.find_spec("xdist") is not None:
        command += f" -n {_PROCESSES}"
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout[-20_000:])
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    if done.returncode not in (0, 5):  # 5: no test of the folder has the mark
        raise AssertionError(last[0])
    return last[0]


def _make_tests() -> Iterator[Check]:
    for folder in TEST_FOLDERS:
        yield Check(f"tests/{folder}", partial(_run_tests, folder), 240)


# --- bench: timed cases, which run alone ------------------------------------------------------

#: Cases of `benchmarks gpu`, the most informative first, by the beginnings of their names.
_TIMED = (
    "copy in device memory",
    "kernel log_loss, 1 GB of float32, d = 100",
    "kernel log_loss, 1 GB of float32, d = 28",
    "kernel log_loss, 1 GB of float32, d = 512",
    "logistic gradient, 10,000,000 x 100",
    "kernel log_loss, 1 GB of float16",
    'a step of SGD, 65,536 x 512, policy="sync"',
    'a step of SGD, 8,192 x 512, policy="sync"',
    "L-BFGS, 10,000,000 x 100, its passes",
    "L-BFGS, 10,000,000 x 100, PyTorch's passes",
    "L-BFGS, 10,000,000 x 100, whole fit",
    "k-means, 64 centres, 1 GB of float32, d = 100",
    "boosting, bins of float32 rows",
    "boosting, 100 iterations, whole fit, GPU",
    "forest, 20 trees of depth 12, whole fit, GPU",
    "softmax of 10 classes, 1 GB of float32, d = 100",
    "gradient of CSR rows",
    "a step of adam",
)


def _time_case(begins: str, tiny: bool) -> dict[str, str]:
    case = next(case for name, case in gpu._cases() if name.startswith(begins))
    _need_gpu()
    on = Device(tiny)
    return dict(zip(gpu.COLUMNS[1:], case(on).cells(on.copy_bandwidth), strict=True))


def _time_boosting(tiny: bool) -> dict[str, str]:
    """Time boosting of 10,000,000 x 28 rows, and XGBoost's if it is installed."""
    n, iterations = (2_000, 3) if tiny else (10_000_000, 20)
    X = np.random.default_rng(0).random((n, 28), dtype=np.float32)
    y = X[:, 0] + X[:, 1] * X[:, 2] > 0.75
    _need_gpu()
    make = partial(ensemble.HistGradientBoostingClassifier, early_stopping=False, device="gpu")
    make(max_iter=2).fit(X[:2_000], y[:2_000])  # compiles
    found = {"ours": _time(lambda: make(max_iter=iterations).fit(X, y))[0]}
    with contextlib.suppress(ImportError):
        import cupy

        there = cupy.asarray(X)
        make(max_iter=2).fit(there[:2_000], y[:2_000])
        found["ours, rows on the GPU"] = _time(lambda: make(max_iter=iterations).fit(there, y))[0]
    with contextlib.suppress(ImportError):
        from xgboost import XGBClassifier

        peer = XGBClassifier(n_estimators=iterations, device="cuda", max_leaves=31, max_depth=0)
        found["XGBoost"] = _time(lambda: peer.fit(X, y))[0]
    return found


def _make_bench() -> Iterator[Check]:
    for begins in _TIMED:
        yield Check(begins, partial(_time_case, begins), 60)
    yield Check("boosting, 10,000,000 x 28", _time_boosting, 120)


# --- the child process ------------------------------------------------------------------------

#: Checks of each stage.
STAGES: dict[str, Callable[[], Iterator[Check]]] = {
    "smoke": _make_smoke,
    "fits": _make_fits,
    "nets": _make_nets,
    "cluster": _make_cluster,
    "nccl": _make_nccl,
    "tests": _make_tests,
    "bench": _make_bench,
}


def take_part(name: str) -> list[Check]:
    """Return the checks of a stage; for ``STAGE:K/N`` every N-th, starting at the K-th."""
    stage, _, part = name.partition(":")
    k, _, n = part.partition("/")
    return list(STAGES[stage]())[int(k or 0) :: int(n or 1)]


#: Errors after which a process can no longer call CUDA.
_BROKEN = (
    "IllegalAddress", "LaunchFailure", "illegal memory", "unspecified launch", "cudaErrorAssert",
    "isaligned", "HardwareStackError", "CUDA error",
)  # fmt: skip


def run_checks(checks: list[Check], first: int, tiny: bool) -> None:
    """Run checks from a number on, and print each result; end if CUDA is broken."""
    for number, check in enumerate(checks[first:], first):
        print(f"BEGIN {number}", flush=True)
        since, error = time.perf_counter(), None
        found: dict[str, Any] = {"name": check.name}
        try:
            found |= {"ok": True, "value": check.run(tiny)}
        except Skip as reason:
            found |= {"ok": None, "value": f"skipped: {reason}"}
        except Exception as failure:  # a failed check does not stop the others
            error = failure
            found |= {"ok": False, "value": f"{type(error).__name__}: {error}"[:600]}
            traceback.print_exc(file=sys.stdout)
        found["seconds"] = round(time.perf_counter() - since, 2)
        print("RESULT " + json.dumps(found, default=str), flush=True)
        if error is not None and any(
            symptom in f"{type(error).__name__} {error}" for symptom in _BROKEN
        ):
            os._exit(3)
    print("END", flush=True)
    os._exit(0)  # threads of an interrupted check would keep the process alive


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_checks(take_part(sys.argv[1]), int(sys.argv[2]), "--tiny" in sys.argv)
