"""Options of a fit as users of torch say them: schedules by name, groups as dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers import GroupOptions, get_optimizer
from daskml_dist.schedules import SCHEDULES, Schedule, get_schedule


def schedule_of(params: Mapping[str, Any]) -> Any:
    """Learning rate as the base class takes it, of `learning_rate` and `schedule`."""
    rate, schedule = params["learning_rate"], params["schedule"]
    if schedule is None:
        return rate
    if isinstance(schedule, Schedule):
        if rate != "auto":
            raise InvalidParameterError(
                f"schedule={schedule!r} has a learning rate of its own, and learning_rate={rate!r} "
                "is given too. Leave that out."
            )
        return schedule
    if schedule not in SCHEDULES:
        raise InvalidParameterError(
            f"schedule={schedule!r}: use one of {list(SCHEDULES)}, an object of "
            "daskml_dist.schedules, or None for a constant rate."
        )
    default = get_optimizer(params["optimizer"]).default_learning_rate
    first = get_schedule(rate, default=default, alpha=0.0, max_iter=1)(1, 0.0)
    return SCHEDULES[schedule].from_defaults(first, params["alpha"], params["max_iter"])


def group_options(groups: Any, optimizer: Any) -> dict[str, GroupOptions] | None:
    """Options of groups, of which those that are dicts change the fit's optimizer.

    ``{"*.bias": dict(weight_decay=0, rate=2.0)}``
    """
    if groups is None:
        return None
    if not isinstance(groups, Mapping):
        raise InvalidParameterError(
            f"groups={groups!r}: use a dict from patterns of parameters' names to dicts, such as "
            '{"*.bias": dict(weight_decay=0)}, or to GroupOptions.'
        )
    return {name: _options(name, given, optimizer) for name, given in groups.items()}


def _options(name: str, given: Any, optimizer: Any) -> GroupOptions:
    if isinstance(given, GroupOptions):
        return given
    changes = dict(given)
    own = {key: changes.pop(key) for key in ("rate", "penalty") if key in changes}
    base: Any = get_optimizer(changes.pop("optimizer", optimizer))
    known = [field.name for field in dataclasses.fields(base)]
    if unknown := [key for key in changes if key not in known]:
        raise InvalidParameterError(
            f"groups[{name!r}] sets {unknown}, which {type(base).__name__} does not have: it has "
            f"{known}; of any group, rate (a factor on the learning rate) and optimizer."
        )
    return GroupOptions(dataclasses.replace(base, **changes), **own)
