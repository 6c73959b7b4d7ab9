"""From a device's name to what forests grow on, in the process that uses it."""

from __future__ import annotations

from typing import Any

from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.forests import ForestDevice

__all__ = ["forests_on"]


def forests_on(device: str) -> ForestDevice:
    """Return what the trees of forests grow on; called on the worker."""
    backend: Any = get_backend(device)
    if backend.device == "cpu":
        from daskml_dist.backends.host_forests import HostForests

        return HostForests()
    from daskml_dist.backends.cupy_forests import CupyForests

    return CupyForests(backend)
