"""Place of the user's call, which a warning is to name."""

from __future__ import annotations

import sys

__all__ = ["user_stack_level"]

#: Packages whose frames lie between a user's call and a warning.
_INSIDE = {"contextlib", "daskml_dist", "joblib", "sklearn"}


def user_stack_level() -> int:
    """Return the `stacklevel` of ``warnings.warn`` that names the innermost call from outside.

    To be called in the arguments of ``warnings.warn``.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package_of(frame) in _INSIDE:
        level, frame = level + 1, frame.f_back
    return level


def _package_of(frame: object) -> str:
    name: str = getattr(frame, "f_globals", {}).get("__name__", "")
    return name.partition(".")[0]
