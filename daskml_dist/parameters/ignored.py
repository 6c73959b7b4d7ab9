"""Parameters accepted for scikit-learn's interface: valid values, and no effect.

scikit-learn's constructors have parameters that only its ways of computing need: how many threads,
whether rows may be overwritten. An estimator that has them lists them in `_accepted`, beside the
line of its docstring; their values are checked as scikit-learn checks them, in its words.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError

__all__ = ["ACCEPTED", "check_accepted", "check_value"]


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_count(value: Any) -> bool:
    return value is None or (
        isinstance(value, Integral) and not _is_flag(value) and int(value) >= 1
    )


def _is_threads(value: Any) -> bool:
    return value is None or isinstance(value, Integral)


def _is_seed(value: Any) -> bool:
    if isinstance(value, Integral) and not _is_flag(value):
        return 0 <= int(value) < 1 << 32
    return value is None or isinstance(value, np.random.RandomState) or value is np.random


def _is_gram(value: Any) -> bool:
    return _is_flag(value) or getattr(value, "ndim", 2 if isinstance(value, list) else 0) == 2


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not _is_flag(value) and float(value) >= 0


#: Whether a value is valid, and the words for those that are, by parameter.
ACCEPTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "copy_X": (_is_flag, "an instance of 'bool'"),
    "dual": (_is_flag, "an instance of 'bool'"),
    "intercept_scaling": (_is_number, "a float in the range [0.0, inf)"),
    "max_iter": (_is_count, "an int in the range [1, inf) or None"),
    "n_jobs": (_is_threads, "an instance of 'int' or None"),
    "precompute": (_is_gram, "an array-like or an instance of 'bool'"),
    "random_state": (_is_seed, "an int in the range [0, 4294967295], a RandomState or None"),
    "tol": (_is_number, "a float in the range [0.0, inf)"),
}


def check_accepted(estimator: Any) -> None:
    """Check the parameters that an estimator lists in `_accepted`."""
    for name in estimator._accepted:
        check_value(type(estimator).__name__, name, getattr(estimator, name))


def check_value(owner: str, name: str, value: Any) -> None:
    """Check a parameter of an estimator or function, which goes by the name `owner`."""
    is_valid, words = ACCEPTED[name]
    if not is_valid(value):
        raise InvalidParameterError(
            f"The {name!r} parameter of {owner} must be {words}. Got {value!r} instead."
        )
