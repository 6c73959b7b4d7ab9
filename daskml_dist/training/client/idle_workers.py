"""A word on rows that lie in fewer blocks than the cluster has workers."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from distributed import Client

from daskml_dist.data.blocks import BlockInfo
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.errors.outside import outside
from daskml_dist.training.client.early import is_actor

__all__ = ["warn_of_few_blocks"]

#: Bytes of a block from which another worker is worth it.
_WORTH = 1 << 22


def warn_of_few_blocks(
    client: Client, X: Any, infos: Sequence[BlockInfo], workers: Sequence[str], own: Collection[Any]
) -> None:
    """Warn where some workers have no block, and nothing else to do, and blocks are not small.

    Parameters
    ----------
    client : distributed.Client
    X : dask collection, or list of Delayed
        What the user gave.
    infos : sequence of BlockInfo
        Of the blocks that were cut from it.
    workers : sequence of str
        Those that take work.
    own : collection of keys
        Of the fit's own tasks.
    """
    filled = [info for info in infos if info.n_rows]
    n_blocks, n_rows = len(filled), sum(info.n_rows for info in filled)
    if X is None or not 0 < n_blocks < len(workers):
        return
    if sum(info.nbytes for info in filled) < _WORTH * n_blocks:
        return
    if (n_workers := _n_free(client, workers, own)) <= n_blocks:
        return
    if is_dask_frame(X):
        remedy = (
            f"df.repartition(npartitions={n_workers}), or dd.read_parquet(..., "
            "split_row_groups=True)"
        )
    elif hasattr(X, "rechunk"):
        remedy = f"X.rechunk({{0: {-(-n_rows // n_workers)}}})"
    else:
        remedy = f"pass at least {n_workers} of them in the list"
    warnings.warn(
        f"X has {n_blocks} block{'s'[: n_blocks > 1]} of rows for {n_workers} workers: those "
        "without one wait while rows are read, and then copy whole blocks or stay idle. Give each "
        f"worker its own: {remedy}.",
        UserWarning,
        stacklevel=outside(),
    )


def _n_free(client: Client, workers: Sequence[str], own: Collection[Any]) -> int:
    """Number of workers that nobody else has work for."""
    with suppress(OSError):  # the scheduler is gone: the next roll call says so
        tasks: dict[str, Any] = client.processing(list(workers))
        return sum(all(is_actor(k) or k in own for k in tasks.get(w, ())) for w in workers)
    return 0
