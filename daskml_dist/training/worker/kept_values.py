"""Values that trainers of a run keep in their process after they have ended."""

from __future__ import annotations

from typing import Any

_kept: dict[str, dict[str, Any]] = {}


def kept_values(run_id: str) -> dict[str, Any]:
    """Return the dictionary of values that trainers of a run keep in this process."""
    return _kept.setdefault(run_id, {})


def forget_kept_values(run_id: str) -> None:
    """Forget the values that trainers of a run keep in this process."""
    _kept.pop(run_id, None)


def find_largest(name: str) -> int:
    """Return the largest value of a name that any run keeps here; 0 if there is none."""
    return max((int(run_values.get(name, 0)) for run_values in list(_kept.values())), default=0)
