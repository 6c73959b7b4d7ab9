"""A process group of PyTorch on the ranks of `run_together`, for scripts that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from daskml_dist.collective import RankGroup
from daskml_dist.integrations._connections import break_connections
from daskml_dist.models.torch_modules.library import load_torch

__all__ = ["open_process_group"]

#: Seconds to reach a store that listens: far more than a busy machine takes to accept.
_CONNECT_SECONDS = 10.0


@contextmanager
def open_process_group(
    group: RankGroup, backend: str = "gloo", timeout: float = 300.0
) -> Iterator[Any]:
    """Open PyTorch's default process group on the ranks of a group, and close it again.

    Rank 0 hosts PyTorch's store at a free port. Inside, ``torch.distributed`` and
    ``DistributedDataParallel`` work as in scripts that ``torchrun`` starts. A process can have one
    such group at a time.

    Parameters
    ----------
    group : RankGroup
    backend : {"gloo", "nccl"}, default="gloo"
        "nccl" where each rank has a GPU of its own.
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


def _open_store(group: RankGroup, make: Callable[..., Any]) -> Any:
    """Return PyTorch's store, whose server is with rank 0."""
    limit = timedelta(seconds=_CONNECT_SECONDS)
    own = None
    if group.rank == 0:
        own = make(group.own_host, 0, group.size, True, timeout=limit, wait_for_workers=False)
    # It listens by now: PyTorch would try for long to reach one that does not yet, or no more.
    host, port = group.broadcast(None if own is None else (group.own_host, own.port))
    return own or make(host, port, group.size, False, timeout=limit)


def _close_process_group(distributed: Any) -> None:
    """Close PyTorch's default process group, also one that was never complete."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
    else:
        # Ranks find each other by the group's name, which is a count. PyTorch counts a group that
        # failed, too; a process that begins anew would wait for another name than this one.
        distributed.distributed_c10d._world.group_count = 0
