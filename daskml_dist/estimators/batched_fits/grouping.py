"""Fits by gradient steps that can be columns of one fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskml_dist.errors import DaskMLDistError
from daskml_dist.estimators.linear.sgd import BaseSGD
from daskml_dist.schedules import Constant, InverseScaling, Optimal, StepDecay
from daskml_dist.training.spec import Settings

__all__ = ["step_stacks"]

#: Schedules whose rates are never 0, at which accounts of l1 are not kept.
_POSITIVE = (Constant, InverseScaling, Optimal, StepDecay)
#: Parameters that a stack has no part for, and their only values in one.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "callbacks": (None,), "class_weight": (None,), "warm_start": (False,), "average": (False, 0),
    "early_stopping": (False,), "checkpoint": (None,), "groups": (None,), "pipeline": (None,),
    "clip": (None,), "micro_batch_size": (None,),
}  # fmt: skip


def step_stacks(estimators: Sequence[Any]) -> list[list[int]] | None:
    """Estimators whose fits can be one, by their numbers; None where any cannot be part of one."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, estimator in enumerate(estimators):
        if type(estimator) is not type(estimators[0]) or (key := _key(estimator)) is None:
            return None
        found.setdefault(key, []).append(number)
    return list(found.values())


def _key(estimator: Any) -> tuple[str, ...] | None:
    """Key of what must be alike in a stack; None of an estimator that is part of none."""
    if not isinstance(estimator, BaseSGD):
        return None
    params = estimator._params()
    if any(params.get(name) not in plain for name, plain in _PLAIN.items()):
        return None
    if isinstance(params["random_state"], np.random.RandomState):
        return None
    try:
        settings, loss = estimator._check_settings(None), estimator._loss()
    except DaskMLDistError:
        return None  # its own fit says so
    return _alike(params, settings, loss) if _steps_stack(settings) else None


def _steps_stack(settings: Settings) -> bool:
    policy, optimizer, run = settings.policy, settings.optimizer, settings.run
    if policy.uses_threads or (policy.averages and settings.tol is not None):
        return False
    if run.shard != "rows" or run.compression is not None or run.compute_dtype is not None:
        return False
    if type(optimizer).elementwise_update is None or optimizer.uses_scales:
        return False
    if settings.schedule.scales_with_staleness:
        return False
    return not settings.penalty.l1 or isinstance(settings.schedule, _POSITIVE)


def _alike(params: dict[str, Any], settings: Settings, loss: Any) -> tuple[str, ...]:
    names = ("fit_intercept", "batch_size", "shuffle", "random_state", "run", "device", "dtype")
    own = (
        str(type(loss)),
        repr(settings.policy),
        repr(settings.optimizer),
        str(settings.penalty.l1 > 0),
        str(settings.auto_rate),
    )
    return (loss.name, repr(loss.parameters), *own, *(repr(params.get(name)) for name in names))
