"""Stack level of the user's call, for warnings that point at it."""

from __future__ import annotations

import sys

#: Packages whose frames are between a user's call and a warning.
_PACKAGES_INSIDE = {"contextlib", "daskml_dist", "joblib", "sklearn"}


def user_stack_level() -> int:
    """Return the `stacklevel` that makes a warning point at the innermost call from outside.

    It is called in the arguments of ``warnings.warn``.
    """
    # `stacklevel=1` is the frame that calls `warnings.warn`, which called this function.
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _find_package(frame) in _PACKAGES_INSIDE:
        level, frame = level + 1, frame.f_back
    return level


def _find_package(frame: object) -> str:
    """Return the name of the package that contains a frame's code."""
    name: str = getattr(frame, "f_globals", {}).get("__name__", "")
    return name.partition(".")[0]
