"""Settings of a fit by gradient steps, as the user asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from daskml_dist.optimizers import GroupOptions, Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Pipeline, Policy
from daskml_dist.schedules import Schedule
from daskml_dist.training.data_summary import DataSummary
from daskml_dist.training.run_settings import RunSettings

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Settings that the user asked for, checked; nothing in them depends on the data."""

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
        """Names of the optimizers' state."""
        own = [o.optimizer for o in (self.groups or {}).values() if o.optimizer is not None]
        return {name for optimizer in (self.optimizer, *own) for name in optimizer.state_names}

    def dtype_of(self, survey: DataSummary) -> str:
        """The dtype of the parameters of a fit to some rows."""
        return "float32" if self.run.compute_dtype else self.dtype or survey.dtype
