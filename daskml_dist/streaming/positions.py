"""Positions of batches in a source: what comes after what, as JSON can hold it.

A position is a number, a text, a list of positions (compared from the first to the last, as
tuples are), or a dict of positions by the name of a partition, of which each goes on by itself.
"""

from __future__ import annotations

import math
from typing import Any

from daskml_dist.errors import InvalidParameterError

__all__ = ["check_position", "is_past", "later"]


def check_position(position: Any) -> Any:
    """A position with lists for tuples, as JSON gives it back."""
    if isinstance(position, list | tuple):
        return [check_position(part) for part in position]
    if isinstance(position, dict) and all(isinstance(name, str) for name in position):
        return {name: check_position(part) for name, part in position.items()}
    if hasattr(position, "item") and getattr(position, "ndim", None) == 0:
        position = position.item()
    finite = not isinstance(position, float) or math.isfinite(position)
    if isinstance(position, str | int | float) and finite:
        return position
    raise InvalidParameterError(
        f"position={position!r}: give a finite number, a text, a list of these, or a dict of "
        "positions by the text that names a partition."
    )


def is_past(position: Any, reached: Any) -> bool:
    """Return whether a position is at or before another one; of a dict, in all its partitions."""
    if reached is None:
        return False
    if isinstance(position, dict) != isinstance(reached, dict):
        raise _apart(position, reached)
    if isinstance(position, dict):
        past = [is_past(part, reached.get(name)) for name, part in position.items()]
        if any(past) and not all(past):
            raise InvalidParameterError(
                f"A batch of position {position} holds rows that were learned and others that "
                f"were not: the stream is at {reached}. Give each partition's rows in a call of "
                "their own, or begin where the stream stands."
            )
        return all(past) and bool(past)
    try:
        return bool(position <= reached)
    except TypeError:
        raise _apart(position, reached) from None


def later(position: Any, reached: Any) -> Any:
    """The position of a stream that has learned a batch of another one."""
    if position is None:
        return reached
    if isinstance(position, dict) and isinstance(reached, dict):
        parts = {name: later(part, reached.get(name)) for name, part in position.items()}
        return {**reached, **parts}
    return position


def _apart(position: Any, reached: Any) -> InvalidParameterError:
    return InvalidParameterError(
        f"The position {position!r} cannot be compared with {reached!r}, where the stream is. Give "
        "positions of one kind."
    )
