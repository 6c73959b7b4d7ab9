"""`RunSettings`: what the user asked of a run, checked."""

from __future__ import annotations

from dataclasses import dataclass

from daskml_dist.compression import Compressor

__all__ = ["RunSettings"]


@dataclass(frozen=True)
class RunSettings:
    """Layout of a fit as the user asked for it, checked; nothing in it depends on the data.

    Parameters
    ----------
    device : {"auto", "cpu", "gpu"}
    n_lanes : int or None
        None: one a worker thread.
    n_servers : int
    deterministic : bool
    compute_dtype : {"float16", "bfloat16"} or None
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory.
    on_lost_data : {"raise", "skip"}
    shard : {"rows", "features"}
    compression : Compressor or None
    name : str
        Of the estimator.
    """

    device: str = "auto"
    n_lanes: int | None = None
    n_servers: int = 1
    deterministic: bool = False
    compute_dtype: str | None = None
    memory_budget: int | None = None
    on_lost_data: str = "raise"
    shard: str = "rows"
    compression: Compressor | None = None
    name: str = "fit"
