"""Sources of streams: what a batch of any of them is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters

__all__ = ["Batch", "check_seconds", "in_columns", "two_of"]


@dataclass(frozen=True, eq=False)
class Batch(NamedParameters):
    """Rows of a source, and where in it they are.

    Parameters
    ----------
    X, y : as in :meth:`Session.learn`
    position : number, str, list or dict
        Of :meth:`Session.learn`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.streaming import Batch
    >>> Batch(np.zeros((2, 3)), np.zeros(2), position=0).X.shape
    (2, 3)
    """

    X: Any
    y: Any
    position: Any


def in_columns(target: str) -> Callable[[Any, str], tuple[Any, Any]]:
    """Function that takes a target from a dataframe, which is of a source of some name."""

    def cut(frame: Any, source: str) -> tuple[Any, Any]:
        if target not in frame.columns:
            raise InvalidDataError(
                f"{source} has no column {target!r}; its columns are {list(frame.columns)[:20]}. "
                "Name the target's: target=..."
            )
        return frame.drop(columns=target), frame[target]

    return cut


def two_of(made: Any, source: str) -> tuple[Any, Any]:
    """X and y, as a function of the user's has made them of a source of some name."""
    if isinstance(made, tuple | list) and len(made) == 2:
        return made[0], made[1]
    raise InvalidParameterError(
        f"read gave {type(made).__name__} for {source}. Let it return X and y: return X, y."
    )


def check_seconds(name: str, value: Any, *, may_be_none: bool = False) -> None:
    """Check a parameter that is a time."""
    if value is None and may_be_none:
        return
    if isinstance(value, int | float) and 0 <= value < math.inf:
        return
    none = ", or None" if may_be_none else ""
    raise InvalidParameterError(f"{name}={value!r}: give seconds, a finite number >= 0{none}.")
