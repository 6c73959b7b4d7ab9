"""Update rules with one group of parameters, as in linear models."""

from __future__ import annotations

from typing import Any

from daskml_dist.optimizers import Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.ps.rule import ParameterGroup, UpdateRule
from daskml_dist.schedules import Schedule


def one_group(
    optimizer: Optimizer,
    schedule: Schedule,
    penalty: Penalty,
    n_penalised: int,
    steps_per_pass: float,
    average_after: int | None = None,
    **others: Any,
) -> UpdateRule:
    """Return the rule for parameters with any number of rows, the first of which are penalised."""
    group = ParameterGroup(0, 1 << 40, optimizer, penalty, n_penalised)
    return UpdateRule((group,), schedule, steps_per_pass, average_after, **others)
