"""Settings of a fit by gradient steps, of an estimator's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.compression import Compressor
from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers import Optimizer, get_optimizer
from daskml_dist.parameters.checks import check_class_weight, seed_of
from daskml_dist.penalties import Penalty, get_penalty
from daskml_dist.policies import POLICIES, Pipeline, Policy, get_policy
from daskml_dist.schedules import Schedule, get_schedule
from daskml_dist.training.plan import check_column_settings
from daskml_dist.training.settings import RunSettings, Settings

__all__ = ["step_settings"]


def step_settings(
    params: dict[str, Any], policy: str | Policy | None, run: RunSettings
) -> Settings:
    """Settings of parameters that are each checked; `policy` is that of this fit alone.

    Raises
    ------
    InvalidParameterError
        Parameters that do not go together.
    """
    early, average, rate = (params[name] for name in ("early_stopping", "average", "learning_rate"))
    policy = get_policy(params["policy"] if policy is None else policy)
    penalty, optimizer = _descent(params, policy)
    _check_pushes(run.compression, policy)
    settings = Settings(
        penalty=penalty,
        optimizer=optimizer,
        schedule=_schedule(params, optimizer),
        policy=policy,
        max_iter=int(params["max_iter"]),
        tol=params["tol"],
        n_iter_no_change=int(params["n_iter_no_change"]),
        shuffle=bool(params["shuffle"]),
        batch_size=params["batch_size"],
        validation_fraction=float(params["validation_fraction"]) if early else 0.0,
        average=int(average) if average else None,
        class_weight=check_class_weight(params["class_weight"]),
        seed=seed_of(params["random_state"]),
        auto_rate=isinstance(rate, str) and rate == "auto",
        calibrates=True,
        run=run,
        clip=params["clip"],
        micro_batch=params["micro_batch_size"],
        groups=params["groups"],
        pipeline=_pipeline(params["pipeline"]),
        dtype=None if params["dtype"] is None else str(np.dtype(params["dtype"])),
    )
    if run.shard == "features":
        check_column_settings(settings)
    return settings


def _descent(params: dict[str, Any], policy: Policy) -> tuple[Penalty, Optimizer]:
    """The penalty, and the optimizer that goes with it."""
    penalty = get_penalty(params["penalty"], params["alpha"], params["l1_ratio"])
    optimizer = get_optimizer(params["optimizer"])
    # Threads that race would lose the account that is kept of the penalty.
    if penalty.l1 and not policy.uses_threads:
        optimizer = optimizer.under_l1()
    return penalty, optimizer


def _schedule(params: dict[str, Any], optimizer: Optimizer) -> Schedule:
    return get_schedule(
        params["learning_rate"],
        default=optimizer.default_learning_rate,
        alpha=params["alpha"],
        max_iter=params["max_iter"],
    )


def _pipeline(pipeline: Any) -> Pipeline | None:
    if pipeline is None or isinstance(pipeline, Pipeline):
        return pipeline
    raise InvalidParameterError(
        f"pipeline={pipeline!r}: give a Pipeline, such as Pipeline(stages=2), or None."
    )


def _check_pushes(compressor: Compressor | None, policy: Policy) -> None:
    if compressor is None or policy.pushes_gradients:
        return
    names = [name for name, kind in POLICIES.items() if kind().pushes_gradients]
    raise InvalidParameterError(
        f"compression={compressor.name!r} is for pushes of gradients to servers, and the policy "
        f"{policy.name!r} makes none. Use one of the policies {names}, or compression=None."
    )
