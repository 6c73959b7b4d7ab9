"""Replacements: parts of an estimator that model files hold otherwise, or not."""

from __future__ import annotations

from typing import Any

__all__ = ["replacements"]

#: Parameters that belong to a fit, and may hold anything.
_OF_FITS = ("callbacks", "checkpoint")
#: Values of which others may be the same object.
_SHARED = (type(None), str, int, float, tuple)


def replacements(estimator: Any) -> dict[int, Any]:
    """Values that stand in a file for parts of an estimator, and of those that it holds.

    Callbacks and checkpoints are left out. An estimator may have a method ``_in_files()``, which
    tells the values of attributes that it wants otherwise there.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    left = [estimator]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) in (list, tuple):
            left.extend(one)
        elif isinstance(one, dict):
            left.extend(one.values())
        elif hasattr(one, "get_params") and hasattr(one, "__dict__"):
            parts = vars(one)
            told = {n: None for n in _OF_FITS if not isinstance(parts.get(n), _SHARED)}
            if hasattr(one, "_in_files"):
                told |= one._in_files()
            found |= {id(parts[name]): value for name, value in told.items() if name in parts}
            left.extend(value for name, value in parts.items() if name not in told)
    return found
