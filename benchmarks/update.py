"""A step of an optimizer on float32 parameters: one compiled pass, compared with NumPy, PyTorch."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._common import markdown
from daskml_dist.backends.base import Step
from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.optimizers import get_optimizer

#: Numbers of parameters: of a linear model, of ten linear models, of a network 784-256-10.
SIZES = [65, 7_850, 203_530]
OPTIMIZERS = ["sgd", "adagrad", "adam"]
ROWS, RATE = 256, 1e-3


def run(tiny: bool = False) -> str:
    """Return the table."""
    rows = []
    for size in SIZES[:1] if tiny else SIZES:
        for name in OPTIMIZERS[-1:] if tiny else OPTIMIZERS:
            passes, fused, torch = _measured(
                [make(name, size) for make in (_by_passes, _at_once, _torch)], 3 if tiny else 200
            )
            beside = ["not installed", ""]
            if torch is not None:
                beside = [f"{torch:.1f}", f"{torch / fused:.1f}"]
            figures = f"{fused:.1f}", f"{passes:.1f}", f"{passes / fused:.1f}"
            rows.append([f"{size:,}", name, *figures, *beside])
    columns = ["parameters", "optimizer", "one pass, us", "NumPy", "ratio", "torch", "ratio"]
    return markdown(
        "A step over float32 parameters, including averaging and the L2 penalty", columns, rows
    )


def _measured(steps: list[Callable[[], Any] | None], times: int) -> list[float | None]:
    """Return the median microseconds of each step, measured in turn."""
    taken: list[list[float]] = [[] for _ in steps]
    for _ in range(times):
        for step, each in zip(steps, taken, strict=True):
            if step is not None:
                step()  # refills the caches that the other steps have evicted
                since = time.perf_counter()
                step()
                each.append((time.perf_counter() - since) * 1e6)
    return [statistics.median(each) if each else None for each in taken]


def _arrays(name: str, size: int) -> tuple[Any, Any, Any, Any]:
    optimizer, rng = get_optimizer(name), np.random.default_rng(0)
    w, grad = rng.normal(size=(2, size, 1)).astype(np.float32)
    return optimizer, w, grad, optimizer.init(w)


def _at_once(name: str, size: int) -> Callable[[], Any]:
    optimizer, w, grad, opt_state = _arrays(name, size)
    step, backend = Step(w, grad, opt_state, ROWS, RATE, 9, 0.0, 1e-4, size), NumpyBackend()
    return lambda: backend.update(optimizer, step)


def _by_passes(name: str, size: int) -> Callable[[], Any]:
    optimizer, w, sums, opt_state = _arrays(name, size)
    grad = np.empty_like(sums)

    def step() -> None:
        np.divide(sums, ROWS, out=grad)
        grad[...] += 1e-4 * w
        optimizer.update(w, grad, opt_state, RATE, 9)

    return step


def _torch(name: str, size: int) -> Callable[[], Any] | None:
    """Return PyTorch's fused optimizer step in one thread, given a mean gradient."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(1)
    _, w, grad, _ = _arrays(name, size)
    parameter = torch.nn.Parameter(torch.from_numpy(w))
    parameter.grad = torch.from_numpy(grad)
    make = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[name]
    return make([parameter], lr=RATE, weight_decay=1e-4, fused=True).step
