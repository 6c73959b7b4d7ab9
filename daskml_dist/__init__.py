"""Distributed machine learning on Dask, behind scikit-learn's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daskml_dist._run import Run
from daskml_dist._version import __version__

if TYPE_CHECKING:
    from daskml_dist.planning import advise

__all__ = ["Run", "__version__", "advise"]


def __getattr__(name: str) -> Any:
    # What plans fits loads Dask, which the maths does without.
    if name == "advise":
        from daskml_dist.planning import advise

        return advise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
