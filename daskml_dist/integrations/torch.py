"""A process group of PyTorch on the ranks of `run_together`, for existing scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from daskml_dist.collective import RankGroup
from daskml_dist.integrations._connections import break_connections
from daskml_dist.models.torch_modules.library import load_torch

__all__ = ["open_process_group"]

#: Seconds to connect to a listening store: much longer than a busy machine takes to accept.
_CONNECT_SECONDS = 10.0


@contextmanager
def open_process_group(
    group: RankGroup, backend: str = "gloo", timeout: float = 300.0
) -> Iterator[Any]:
    """Open PyTorch's default process group on the ranks of a group, and close it again.

    Rank 0 hosts PyTorch's store at a free port. Inside the context, ``torch.distributed`` and
    ``DistributedDataParallel`` work as in scripts started by ``torchrun``. A process can have only
    one such group at a time.

    Parameters
    ----------
    group : RankGroup
    backend : {"gloo", "nccl"}, default="gloo"
        Use "nccl" only if each rank has its own GPU.
    timeout : float, default=300.0
        Seconds that PyTorch waits in one collective.

    Yields
    ------
    module
        ``torch.distributed``.

    Raises
    ------
    InvalidParameterError
        PyTorch is not installed.

    Examples
    --------
    >>> from daskml_dist.collective import run_together
    >>> from daskml_dist.integrations.torch import open_process_group
    >>> def train(group, blocks, state):
    ...     with open_process_group(group) as distributed:
    ...         return distributed.get_world_size()
    >>> run_together(None, train)  # doctest: +SKIP
    [1]
    """
    torch = load_torch()
    distributed = torch.distributed
    limit = timedelta(seconds=timeout)
    try:
        with break_connections(group):
            store = _open_store(group, distributed.TCPStore)
            store.set_timeout(limit)
            distributed.init_process_group(
                backend, store=store, rank=group.rank, world_size=group.size,
                timeout=limit,
            )  # fmt: skip
            yield distributed
    finally:
        _close_process_group(distributed)


def _open_store(group: RankGroup, make_store: Callable[..., Any]) -> Any:
    """Return PyTorch's store; rank 0 hosts the server."""
    limit = timedelta(seconds=_CONNECT_SECONDS)
    hosted = None
    if group.rank == 0:
        hosted = make_store(
            group.own_host, 0, group.size, True, timeout=limit, wait_for_workers=False
        )
    # Broadcast only once the server listens: PyTorch would retry for a long time to reach a server
    # that is not there.
    host, port = group.broadcast(None if hosted is None else (group.own_host, hosted.port))
    return hosted or make_store(host, port, group.size, False, timeout=limit)


def _close_process_group(distributed: Any) -> None:
    """Close PyTorch's default process group, even if it was never complete."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
    else:
        # Ranks find each other by the group's name, which is a counter. PyTorch also counts a
        # failed group, and a restarted process would then wait for another name than this process.
        distributed.distributed_c10d._world.group_count = 0
