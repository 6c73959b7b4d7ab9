"""PyTorch's logistic step: DistributedDataParallel with gloo, and a single process."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any


def step_milliseconds(n_features: int, batch: int, steps: int, dtype: str = "float64") -> float:
    """Return the median milliseconds of a DDP step in two processes, with `batch` rows each."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        context = mp.get_context("spawn")
        times = context.SimpleQueue()
        mp.spawn(train_rank, (meeting, n_features, batch, steps, dtype, times), nprocs=2)
        return float(times.get())


def alone_milliseconds(n_features: int, batch: int, steps: int, dtype: str, threads: int) -> float:
    """Return the median milliseconds of a step in one process, without communication."""
    import torch.multiprocessing as mp

    times = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_train_alone, (n_features, batch, steps, dtype, threads, times), nprocs=1)
    return float(times.get())


def train_rank(
    rank: int, meeting: str, n_features: int, batch: int, steps: int, dtype: str, times: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    layer = torch.nn.Linear(n_features, 1, dtype=getattr(torch, dtype))
    model = torch.nn.parallel.DistributedDataParallel(layer)
    taken = _steps(model, n_features, batch, steps, dtype)
    if rank == 0:
        times.put(taken)
    torch.distributed.destroy_process_group()


def _train_alone(
    rank: int, n_features: int, batch: int, steps: int, dtype: str, threads: int, times: Any
) -> None:
    import torch

    torch.set_num_threads(threads)
    model = torch.nn.Linear(n_features, 1, dtype=getattr(torch, dtype))
    times.put(_steps(model, n_features, batch, steps, dtype))


def _steps(model: Any, n_features: int, batch: int, steps: int, dtype: str) -> float:
    """Return the median milliseconds of steps of Adagrad on the same rows."""
    import torch

    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    kind = getattr(torch, dtype)
    rows = torch.randn(batch, n_features, dtype=kind)
    labels = (rows[:, :1] > 0).to(kind)
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(rows), labels)
        loss.backward()
        optimizer.step()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3
