"""Array libraries: where a block lies and the few operations that the models need on it."""

from __future__ import annotations

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import get_backend

__all__ = ["Backend", "get_backend"]
