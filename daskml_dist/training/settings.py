"""Checked settings of a fit, as the user asked for them; nothing in them depends on the data.

`RunSettings` are those of every fit (device, lanes, servers), `Settings` those of a fit by gradient
steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from daskml_dist.compression import Compressor
from daskml_dist.optimizers import GroupOptions, Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Pipeline, Policy
from daskml_dist.schedules import Schedule
from daskml_dist.training.data_summary import DataSummary

__all__ = ["RunSettings", "Settings"]


@dataclass(frozen=True)
class Settings:
    """Checked settings of a fit by gradient steps."""

    penalty: Penalty
    optimizer: Optimizer
    schedule: Schedule
    policy: Policy
    max_iter: int
    tol: float | None
    n_iter_no_change: int
    shuffle: bool
    batch_size: int | Literal["auto"] | None
    validation_fraction: float
    average: int | None
    class_weight: Any
    seed: int
    run: RunSettings
    auto_rate: bool = False
    #: Whether a pilot may tell the start and the rate.
    calibrates: bool = False
    #: Automatic rate in place of the optimizer's own; in units of the targets as that is.
    own_rate: float | None = None
    clip: float | None = None
    micro_batch: int | None = None
    groups: Mapping[str, GroupOptions] | None = None
    dtype: str | None = None
    pipeline: Pipeline | None = None

    @property
    def state_names(self) -> set[str]:
        """Return the names of the optimizers' state arrays."""
        own = [o.optimizer for o in (self.groups or {}).values() if o.optimizer is not None]
        return {name for optimizer in (self.optimizer, *own) for name in optimizer.state_names}

    def dtype_of(self, survey: DataSummary) -> str:
        """Return the dtype of the parameters of a fit to the rows of a summary."""
        return "float32" if self.run.compute_dtype else self.dtype or survey.dtype


@dataclass(frozen=True)
class RunSettings:
    """Checked settings of how a fit runs.

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
