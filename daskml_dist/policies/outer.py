"""Outer optimizers: the step at each averaging of lanes that train independently.

The gradient is the starting point of the lanes minus their mean, that is, their negative mean
progress since the last averaging. SGD at rate 1 would move to the mean itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.optimizers import (
    SGD,
    Adagrad,
    Adam,
    DelayedNesterov,
    Momentum,
    Muon,
    Nesterov,
    Optimizer,
)


@dataclass(frozen=True)
class OuterOptimizer:
    """Optimizer of the outer steps, and its learning rate."""

    optimizer: Optimizer
    rate: float


#: Optimizers of outer steps by name, with the rate of each. The settings of Nesterov are those of
#: DiLoCo (Douillard et al. 2023). Adam's second moment and epsilon are those of FedAdam, and
#: Adagrad's are those of FedAdagrad (Reddi et al. 2021): progress that is small compared to 1e-3 is
#: noise, and makes short steps.
OUTER_OPTIMIZERS: dict[str, OuterOptimizer] = {
    "sgd": OuterOptimizer(SGD(), 1.0),
    "momentum": OuterOptimizer(Momentum(0.9), 0.7),
    "nesterov": OuterOptimizer(Nesterov(0.9), 0.7),
    "delayed_nesterov": OuterOptimizer(DelayedNesterov(0.9), 0.7),
    "adagrad": OuterOptimizer(Adagrad(epsilon=1e-3), 0.03),
    "adam": OuterOptimizer(Adam(0.9, 0.99, 1e-3), 0.01),
    "muon": OuterOptimizer(Muon(0.9), 0.01),
}

#: Field of each optimizer that `outer_momentum` sets.
_MOMENTUM_FIELDS = ("momentum", "beta1")


def resolve_outer(
    policy: str, outer: Any, rate: float | None, momentum: float | None
) -> OuterOptimizer | None:
    """Return the optimizer of a policy's outer steps; None if lanes take their mean.

    Parameters
    ----------
    policy : str
        The name of its class, for errors.
    outer : str, Optimizer or None
    rate, momentum : float or None
        None: the default of `outer`.
    """
    if outer is None:
        # Rate 1 without momentum gives the mean; computing it as a step would only add rounding
        # errors.
        rate, momentum = 1.0 if rate is None else rate, momentum or 0.0
        is_mean = rate == 1 and momentum == 0
        return None if is_mean else OuterOptimizer(Nesterov(float(momentum)), float(rate))
    if isinstance(outer, str) and outer in OUTER_OPTIMIZERS:
        outer_optimizer = OUTER_OPTIMIZERS[outer]
    elif isinstance(outer, Optimizer) and not outer.uses_scales:
        usual = OUTER_OPTIMIZERS.get(outer.name)
        outer_optimizer = OuterOptimizer(
            outer, usual.rate if usual else 0.01 if outer.adaptive else 1.0
        )
    else:
        raise InvalidParameterError(
            f"{policy}(outer={outer!r}): give one of {sorted(OUTER_OPTIMIZERS)}, an optimizer of "
            "daskml_dist.optimizers that needs no feature scales, or None for the "
            f"mean.{suggest_nearest(outer, OUTER_OPTIMIZERS)}"
        )
    if momentum is not None:
        outer_optimizer = replace(
            outer_optimizer,
            optimizer=_with_momentum(policy, outer, outer_optimizer.optimizer, momentum),
        )
    return outer_optimizer if rate is None else replace(outer_optimizer, rate=float(rate))


def _with_momentum(policy: str, outer: Any, optimizer: Optimizer, momentum: float) -> Optimizer:
    """Return an optimizer that was given by name, with another momentum."""
    field_names = {f.name for f in fields(optimizer)} if isinstance(outer, str) else set()  # type: ignore[arg-type]
    name = next((name for name in _MOMENTUM_FIELDS if name in field_names), None)
    if name is None:
        raise InvalidParameterError(
            f"{policy}(outer={outer!r}, outer_momentum={momentum!r}): outer_momentum is for "
            "momentum optimizers given by name. Leave it out, or set it in the optimizer."
        )
    return replace(optimizer, **{name: float(momentum)})  # type: ignore[type-var]
