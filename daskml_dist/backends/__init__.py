"""Array libraries: the device of a block, and the few operations that models need there."""

from __future__ import annotations

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import get_backend

__all__ = ["Backend", "get_backend"]
