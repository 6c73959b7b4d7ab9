"""Families of estimators, each with its cost model; modules here are loaded automatically."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from inspect import isabstract
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.planning.families.base import Family, Probe

__all__ = ["Family", "Probe", "find_family", "load_families"]


@cache
def load_families() -> dict[str, Family]:
    """Return the families by the names of their estimator classes."""
    families: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            # Classes that the module defines, not those that it imports as bases.
            if _is_family(value) and value.__module__ == module.name:
                family = value()
                families.update((name, family) for name in family.estimators)
    return families


def _is_family(value: Any) -> bool:
    """Return True for a concrete subclass of `Family`."""
    return isinstance(value, type) and issubclass(value, Family) and not isabstract(value)


def find_family(estimator: Any) -> Family:
    """Return the family of an estimator, or of its nearest base class that has one."""
    by_name = load_families()
    # By name, so that planning imports no estimator; the nearest base class is used.
    for cls in type(estimator).__mro__:
        if cls.__name__ in by_name:
            return by_name[cls.__name__]
    if isinstance(estimator, type):
        raise InvalidParameterError(
            f"estimator={estimator.__name__}:{suggest_nearest(estimator, ())}"
        )
    raise InvalidParameterError(
        f"There are no plans for {type(estimator).__name__}: it has no cost model. There are "
        f"plans for {', '.join(dict.fromkeys(f.kind for f in by_name.values()))}. Measure a fit of "
        'a part of the rows instead, or add a family of plans (see "Writing your own" in the '
        "documentation)."
    )
