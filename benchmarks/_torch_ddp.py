"""PyTorch DistributedDataParallel with gloo: the peer of a synchronous step."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any


def step_milliseconds(n_features: int, batch: int, steps: int, dtype: str = "float64") -> float:
    """Median milliseconds of a logistic step in two processes."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        context = mp.get_context("spawn")
        times = context.SimpleQueue()
        mp.spawn(_train, (meeting, n_features, batch, steps, dtype, times), nprocs=2)
        return float(times.get())


def _train(
    rank: int, meeting: str, n_features: int, batch: int, steps: int, dtype: str, times: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    kind = getattr(torch, dtype)
    layer = torch.nn.Linear(n_features, 1, dtype=kind)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
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
    if rank == 0:
        times.put(statistics.median(taken) * 1e3)
    torch.distributed.destroy_process_group()
