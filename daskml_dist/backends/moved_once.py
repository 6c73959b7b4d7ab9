"""Arrays that the sums over many blocks share are moved to a device once."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.base import Backend

__all__ = ["MovedOnce"]


class MovedOnce:
    """A backend that remembers what it has moved, for as long as nobody changes it on the host.

    Parameters
    ----------
    backend : Backend
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # With the arrays themselves: another must not get the same id.
        self._moved: dict[int, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def to_device(self, array: Any) -> Any:
        """Move an array of the host, or return what it was moved to before; not to be changed."""
        if not isinstance(array, np.ndarray):
            return self._backend.to_device(array)
        if id(array) not in self._moved:
            self._moved[id(array)] = array, self._backend.to_device(array)
        return self._moved[id(array)][1]
