"""A process group of PyTorch on the ranks of `run_together`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

from daskml_dist.collective import RankGroup, run_together
from daskml_dist.integrations.torch import open_process_group

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


def test_gradients_by_pytorchs_own_collectives(client: Client) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    found = run_together(client, _descend, [X, X @ [1.0, 2.0]])
    for w, size in found:
        np.testing.assert_allclose(w, [1, 2], rtol=1e-6)
        assert size == 2


def test_a_rank_that_fails_ends_the_other(client: Client) -> None:
    with pytest.raises(Exception, match=r"of rank 1|different calls|rank 1"):
        run_together(client, _fail, timeout=30)
