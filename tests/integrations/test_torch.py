"""A process group of PyTorch on the ranks of `run_together`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist.collective import RankGroup, run_together
from daskml_dist.errors import FunctionError
from daskml_dist.integrations.torch import open_process_group
from tests.collective.functions import obey
from tests.lost_workers import wait_for_three

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def _descend(group: RankGroup, blocks: Any, state: Any) -> Any:
    """Descend by gradients that PyTorch's own collectives average."""
    import torch

    with open_process_group(group, timeout=60) as distributed:
        w = torch.zeros(2, dtype=torch.float64)
        for _ in range(50):
            X = torch.from_numpy(np.concatenate([x for x, _ in blocks]))
            y = torch.from_numpy(np.concatenate([y for _, y in blocks]))
            gradient = X.T @ (X @ w - y)
            distributed.all_reduce(gradient)
            w = w - 0.01 * gradient
        return w.numpy(), distributed.get_world_size()


def _fail(group: RankGroup, blocks: Any, state: Any) -> None:
    """Fail on a rank while the other waits in PyTorch."""
    import torch

    with open_process_group(group, timeout=60) as distributed:
        if group.rank:
            raise ValueError("of rank 1")
        distributed.all_reduce(torch.zeros(1))


def _descend_and_save(group: RankGroup, blocks: Any, state: Any) -> Any:
    """Descend as above; the last rank obeys orders to end, also one before it joins the others."""
    import torch

    folder, step, w = state
    if group.rank == group.size - 1:
        obey(folder, -1)
    with open_process_group(group, timeout=60) as distributed:
        while step < 50:
            total = torch.tensor([sum(float(np.sum(b)) for b in blocks), w], dtype=torch.float64)
            distributed.all_reduce(total)
            if group.rank == group.size - 1:
                obey(folder, step)
            w = 0.5 * w + float(total[0])
            step += 1
            group.save((folder, step, w))
    return w


@pytest.mark.slow
@pytest.mark.parametrize("step", [-1, 20])
def test_a_kill_costs_no_saved_step(
    step: int, tmp_path: Path, crew: LocalCluster, assert_clean: Callable[..., None]
) -> None:
    """Ranks are killed between PyTorch's collectives, and while the others open the group."""
    (tmp_path / f"end-{step}").touch()
    with Client(crew) as client:
        wait_for_three(client)
        x = da.arange(12.0, chunks=1).persist()
        found = run_together(client, _descend_and_save, x, state=(str(tmp_path), 0, 0.0))
        assert found == pytest.approx([132.0] * len(found))
        assert len(found) >= 2
        del x
        assert_clean(client)


def test_gradients_by_pytorchs_own_collectives(client: Client) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    found = run_together(client, _descend, [X, X @ [1.0, 2.0]])
    for w, size in found:
        np.testing.assert_allclose(w, [1, 2], rtol=1e-6)
        assert size == 2


def test_a_rank_that_fails_ends_the_other(client: Client) -> None:
    with pytest.raises(FunctionError, match=r"ValueError on rank 1 of 2.*of rank 1\n"):
        run_together(client, _fail, timeout=30)
