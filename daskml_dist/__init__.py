"""Distributed machine learning on Dask, behind scikit-learn's interface."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from daskml_dist._version import __version__
from daskml_dist.parameters.run import Run

if TYPE_CHECKING:
    from daskml_dist.inference import load, save
    from daskml_dist.planning import advise
    from daskml_dist.privacy import DP
    from daskml_dist.training.asynchronous import run_async

__all__ = ["DP", "Run", "__version__", "advise", "load", "run_async", "save"]

#: Names that are imported at first access: few fits need them, and their modules import Dask, which
#: the numerical code does not need.
_LATE = {
    "DP": "privacy",
    "advise": "planning",
    "load": "inference",
    "run_async": "training.asynchronous",
    "save": "inference",
}


def __getattr__(name: str) -> Any:
    """Import a name at first access (PEP 562)."""
    if name in _LATE:
        return getattr(import_module(f"daskml_dist.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
