"""From a device's name to what trees grow on, in the process that uses it."""

from __future__ import annotations

from typing import Any

from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.trees import TreeDevice

__all__ = ["trees_on"]


def trees_on(device: str) -> TreeDevice:
    """Return what trees grow on; called on the worker."""
    backend: Any = get_backend(device)
    if backend.device == "cpu":
        from daskml_dist.backends.host_trees import HostTrees

        return HostTrees()
    from daskml_dist.backends.cupy_trees import CupyTrees

    return CupyTrees(backend)
