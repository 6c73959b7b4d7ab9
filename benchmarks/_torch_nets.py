"""PyTorch networks for comparisons, and peers that train them: DDP, and a single process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

#: Shapes of rows.
ROWS = {"MLP": (784,), "LeNet": (1, 28, 28), "ResNet-8": (3, 32, 32)}


def make_net(name: str) -> Any:
    """Return a network of a local class, so that workers do not need the benchmarks."""
    return {"MLP": _mlp, "LeNet": _lenet, "ResNet-8": _resnet}[name]()


def _mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def _lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def _resnet() -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.way = nn.Sequential(
                nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
            )  # fmt: skip
            self.short: Any = nn.Identity()
            if before != after:
                self.short = nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return (self.way(x) + self.short(x)).relu()

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def some_rows(name: str, n_rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Return random rows and labels for a network."""
    rng = np.random.default_rng(seed)
    return rng.random((n_rows, *ROWS[name]), dtype=np.float32), rng.integers(10, size=n_rows)


def _step(model: Any, rows: tuple[Any, Any], batch: int, seed: int) -> Callable[[], None]:
    """Return a training step, written as a user of torch would for rows in memory."""
    import torch

    X, y = map(torch.from_numpy, rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss, rng = torch.nn.CrossEntropyLoss(), np.random.default_rng(seed)

    def step() -> None:
        at = torch.from_numpy(rng.integers(0, len(X), batch))
        optimizer.zero_grad()
        loss(model(X.index_select(0, at)), y.index_select(0, at)).backward()
        optimizer.step()

    return step


def _rate(step: Callable[[], None], steps: int) -> float:
    for _ in range(max(3, steps // 10)):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return steps / (time.perf_counter() - start)


def one_process(
    cases: list[tuple[str, int, int]], n_rows: int, threads: int, compiled: bool = False
) -> list[float]:
    """Return steps/s of one process for each (network, batch, steps), compiled or not."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    found = context.SimpleQueue()
    mp.spawn(_alone, (cases, n_rows, threads, compiled, found), nprocs=1)
    rates: list[float] = found.get()
    return rates


def _alone(
    rank: int, cases: list[tuple[str, int, int]], n_rows: int, threads: int, compiled: bool,
    found: Any,
) -> None:  # fmt: skip
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    rates = []
    for name, batch, steps in cases:
        model = torch.compile(make_net(name)) if compiled else make_net(name)
        rates.append(_rate(_step(model, some_rows(name, n_rows), batch, 0), steps))
    found.put(rates)


def ddp(cases: list[tuple[str, int, int]], n_rows: int) -> list[float]:
    """Return steps/s of DistributedDataParallel with gloo, in two processes of one thread."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        found = context.SimpleQueue()
        mp.spawn(_replica, (f"{folder}/meeting", cases, n_rows, found), nprocs=2)
        rates: list[float] = found.get()
    return rates


def _replica(
    rank: int, meeting: str, cases: list[tuple[str, int, int]], n_rows: int, found: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    # Otherwise denormal moments of dead units take most of the time; new threads inherit this.
    torch.set_flush_denormal(True)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    rates = []
    for name, batch, steps in cases:
        model = torch.nn.parallel.DistributedDataParallel(
            make_net(name), gradient_as_bucket_view=True
        )
        rows = some_rows(name, n_rows // 2, rank)
        rates.append(_rate(_step(model, rows, batch // 2, rank), steps))
        torch.distributed.barrier()
    if rank == 0:
        found.put(rates)
    torch.distributed.destroy_process_group()
