"""The GPU: kernels compared with a copy's bandwidth, fits with PyTorch and the CPU.

Without a usable GPU every cell says "not measured", and the last line gives the reason.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from distributed import Client

from benchmarks._common import logistic_rows, markdown, persisted, processes
from benchmarks._gpu_device import FACTS, Case, Device, Measured, largest_difference
from benchmarks._gpu_kernels import kernel_cases
from benchmarks._gpu_trees import tree_cases
from daskml_dist import Run
from daskml_dist.backends.devices import gpu_problem
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.policies import POLICIES

COLUMNS = ("", "measured", "GB/s", "share of copy bandwidth", "difference")
#: Number of batches, of the largest size, in a pass of the SGD fit whose step is timed.
STEPS = 32


def run(tiny: bool = False) -> str:
    """Return the table; each row is also printed to stderr as soon as it is measured."""
    problem = gpu_problem()
    device = None if problem else Device(tiny)
    rows, reasons = [], [problem] if problem else []
    for name, case in _cases():
        cells = ["not measured"] * (len(COLUMNS) - 1)
        if device is not None:
            try:
                cells = case(device).cells(device.copy_bandwidth)
            except Exception as error:  # a failed case does not stop the others
                reasons.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
                print("Not measured:", reasons[-1], file=sys.stderr, flush=True)
            else:
                print(name, *cells, sep=" | ", file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):  # a case may have broken CUDA
                device.free()  # after `except`, since a traceback would hold the case's arrays
        rows.append([name, *cells])
    table = markdown("One GPU", COLUMNS, rows)
    return "\n".join([table, "", *(f"Not measured: {reason}" for reason in reasons)])


def _cases() -> Iterator[tuple[str, Case]]:
    for name, fact in FACTS.items():
        yield name, lambda on, fact=fact: Measured(value=fact(on.xp))
    yield "copy in device memory, read and written", _copy
    yield "CuPy call, host time", lambda on: Measured(value=f"{on.call_overhead():.1f} us")
    yield from kernel_cases()
    yield from tree_cases()
    for batch in (65_536, 8_192):
        for policy in ("sync", "async"):  # on the device alone, and with a server
            name = f'a step of SGD, {batch:,} x 512, policy="{policy}"'
            yield name, partial(_sgd_step, batch, policy)
    lbfgs = "L-BFGS, 10,000,000 x 100"
    yield f"{lbfgs}, its passes", partial(_lbfgs, "gpu", "its passes")
    yield f"{lbfgs}, PyTorch's passes", _torch_lbfgs
    yield f"{lbfgs}, whole fit", partial(_lbfgs, "gpu", "whole fit")
    yield f"{lbfgs}, cuML's whole fit (different stopping rule)", _cuml_lbfgs
    for part in ("its passes", "whole fit"):
        yield f"{lbfgs}, CPU, {part}", partial(_lbfgs, "cpu", part)
    yield from _fits("1 process", partial(processes, 1))
    yield from _fits("2 processes sharing the GPU", partial(processes, 2))
    for policy in POLICIES:
        yield f'SGDClassifier(policy="{policy}"), one lane, GPU and CPU', partial(_policy, policy)
    yield from _fits("LocalCUDACluster", _cuda_cluster)  # last: a hang loses no other result


def _fits(where: str, cluster: Callable[[], Any]) -> Iterator[tuple[str, Case]]:
    for what, make in MODELS.items():
        yield f"{what}, 1,000,000 x 100, {where}", partial(_fit, make, what, cluster)


def _copy(on: Device) -> Measured:
    return Measured(value=f"{on.copy_bandwidth / 1e9:,.0f} GB/s")


# -- fits ----------------------------------------------------------------------------------------


def _sgd_step(batch: int, policy: str, on: Device) -> Measured:
    """Measure a step by the host's clock, over whole passes."""
    batch = batch // 256 if on.tiny else batch
    X, y = on.rows(STEPS * 65_536 // (256 if on.tiny else 1), 512)
    steps = {"batch_size": batch, "max_iter": 6, "tol": None}
    model = SGDClassifier(device="gpu", policy=policy, run=Run(n_lanes=1), **steps)
    records = model.fit(X, y).history_.records[2:]  # the first passes compile and record
    taken = sum(r["seconds"] for r in records) / sum(r["steps"] for r in records)
    return Measured(taken * 1e3, batch * 512 * 4)


def _lbfgs_rows(on: Device) -> tuple[Any, Any]:
    return on.rows(10_000 if on.tiny else 10_000_000, 100)


def _lbfgs(where: str, part: str, on: Device) -> Measured:
    seconds, passes = _lbfgs_seconds(where, on)
    return Measured(seconds[part] * 1e3, difference=f"{passes} passes")


@functools.cache
def _lbfgs_seconds(where: str, on: Device) -> tuple[dict[str, float], int]:
    """Return the seconds of a fit, with checks of rows and labels, and of its passes alone."""
    X, y = _lbfgs_rows(on)
    warm = len(y)  # with all rows on the GPU, since memory is allocated for them too
    if where == "cpu":
        X, y, warm = on.backend.to_numpy(X), on.backend.to_numpy(y), 10_000
    model = LogisticRegression(device=where, run=Run(n_lanes=1 if where == "gpu" else None))
    model.fit(X[:warm], y[:warm])
    seconds, _ = _seconds(lambda: model.fit(X, y))
    records = model.history_.records
    parts = {"whole fit": seconds, "its passes": sum(r["seconds"] for r in records)}
    return parts, len(records)


def _torch_lbfgs(on: Device) -> Measured:
    """Solve the same objective by PyTorch's L-BFGS with its strong Wolfe search, on the same rows.

    Only the loop is timed, with rows and labels prepared.
    """
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch here is not for CUDA")
    X, y = (torch.from_dlpack(a) for a in _lbfgs_rows(on))
    w = torch.zeros(X.shape[1] + 1, device=X.device, requires_grad=True)
    passes = 0

    def closure(optimizer: Any) -> Any:
        nonlocal passes
        passes += 1
        optimizer.zero_grad()
        margins = y * (X @ w[:-1] + w[-1])
        loss = torch.nn.functional.softplus(-margins).mean() + w[:-1] @ w[:-1] / 2 / len(y)
        loss.backward()
        return loss

    def fit() -> None:
        nonlocal passes
        passes = 0
        with torch.no_grad():
            w.zero_()
        optimizer = torch.optim.LBFGS(
            [w], max_iter=100, tolerance_grad=1e-4, history_size=10, line_search_fn="strong_wolfe"
        )
        optimizer.step(partial(closure, optimizer))
        torch.cuda.synchronize()

    fit()
    seconds, _ = _seconds(fit)
    return Measured(seconds * 1e3, difference=f"{passes} passes")


def _cuml_lbfgs(on: Device) -> Measured:
    """Fit cuML's estimator of the same name: the objective has another scale and stopping rule."""
    from cuml.linear_model import LogisticRegression as Peer

    X, y = _lbfgs_rows(on)
    fit = partial(Peer(C=1.0, tol=1e-4, max_iter=100).fit, X, y)
    fit()
    seconds, model = _seconds(fit)
    return Measured(seconds * 1e3, difference=f"{int(model.n_iter_[0])} iterations")


MODELS: dict[str, Callable[[str], Any]] = {
    "LogisticRegression": lambda device: LogisticRegression(device=device, run=Run(n_lanes=2)),
    "softmax of 10 classes": lambda device: LogisticRegression(device=device, run=Run(n_lanes=2)),
    "SGDClassifier": lambda device: SGDClassifier(
        device=device, run=Run(n_lanes=2), batch_size=8192, max_iter=5, tol=None, random_state=0
    ),
}


@contextlib.contextmanager
def _cuda_cluster() -> Iterator[Client]:
    from dask_cuda import LocalCUDACluster

    with LocalCUDACluster(dashboard_address=":0") as cluster, Client(cluster) as client:
        yield client


def _fit(make: Callable[[str], Any], what: str, cluster: Callable[[], Any], on: Device) -> Measured:
    """Measure a whole fit with rows in the workers' host memory, and the same on the CPU."""
    X, y = logistic_rows(2_000 if on.tiny else 1_000_000, 100)
    if "softmax" in what:
        y = np.argmax(X[:, :10], axis=1)
    with cluster():
        X, y = persisted(X, 4), persisted(y, 4)
        make("gpu").fit(X, y)
        seconds, model = _seconds(lambda: make("gpu").fit(X, y))
        difference = largest_difference(model.coef_, make("cpu").fit(X, y).coef_)
    return Measured(seconds * 1e3, difference=difference)


def _policy(policy: str, on: Device) -> Measured:
    X, y = logistic_rows(2_000 if on.tiny else 200_000, 100)

    def fit(device: str) -> Any:
        model = SGDClassifier(
            device=device, run=Run(n_lanes=1), max_iter=3, tol=None, random_state=0
        )
        return model.fit(X, y, policy=policy)

    fit("gpu")
    seconds, model = _seconds(lambda: fit("gpu"))
    return Measured(seconds * 1e3, difference=largest_difference(model.coef_, fit("cpu").coef_))


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
