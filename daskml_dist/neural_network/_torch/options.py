"""Options of a fit in torch's terms: schedules by name, parameter groups as dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers import get_optimizer
from daskml_dist.optimizers.base import GroupOptions
from daskml_dist.schedules import SCHEDULES, Schedule, get_schedule


def resolve_schedule(params: Mapping[str, Any]) -> Any:
    """Return `learning_rate` and `schedule` as the one parameter that the base class accepts."""
    rate, schedule = params["learning_rate"], params["schedule"]
    if schedule is None:
        return rate
    if isinstance(schedule, Schedule):
        if rate != "auto":
            raise InvalidParameterError(
                f"schedule={schedule!r} has its own learning rate, but learning_rate={rate!r} is "
                "given too. Leave one out."
            )
        return schedule
    if schedule not in SCHEDULES:
        raise InvalidParameterError(
            f"schedule={schedule!r}: use one of {list(SCHEDULES)}, an object of "
            "daskml_dist.schedules, or None for a constant rate."
        )
    # The named schedule starts at the rate, for which a constant schedule resolves "auto".
    default = get_optimizer(params["optimizer"]).default_learning_rate
    first = get_schedule(rate, default=default, alpha=0.0, max_iter=1)(1, 0.0)
    return SCHEDULES[schedule].from_defaults(first, params["alpha"], params["max_iter"])


def resolve_groups(groups: Any, optimizer: Any) -> dict[str, GroupOptions] | None:
    """Return the options of groups; a dict lists how a group differs from the fit.

    An example is ``{"*.bias": dict(weight_decay=0, rate=2.0)}``.
    """
    if groups is None:
        return None
    if not isinstance(groups, Mapping):
        raise InvalidParameterError(
            f"groups={groups!r}: use a dict from patterns of parameters' names to dicts, such as "
            '{"*.bias": dict(weight_decay=0)}, or to GroupOptions.'
        )
    return {name: _resolve_group(name, options, optimizer) for name, options in groups.items()}


def _resolve_group(name: str, user_options: Any, optimizer: Any) -> GroupOptions:
    """Return the options of one group, given as an object or as a dict."""
    if isinstance(user_options, GroupOptions):
        return user_options
    # Keys of a dict are options of the group, its optimizer, or parameters of that optimizer.
    changes = dict(user_options)
    group_options = {key: changes.pop(key) for key in ("rate", "penalty") if key in changes}
    base: Any = get_optimizer(changes.pop("optimizer", optimizer))
    field_names = [field.name for field in dataclasses.fields(base)]
    if unknown := [key for key in changes if key not in field_names]:
        raise InvalidParameterError(
            f"groups[{name!r}] sets {unknown}, which {type(base).__name__} does not have: it has "
            f"{field_names}; of any group, rate (a factor on the learning rate) and optimizer."
        )
    return GroupOptions(dataclasses.replace(base, **changes), **group_options)
