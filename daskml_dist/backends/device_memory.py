"""Message where a device's memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from daskml_dist.errors import DeviceMemoryError

__all__ = ["device_memory"]


@contextmanager
def device_memory(what: str, remedy: str) -> Iterator[None]:
    """Name what did not fit in the memory of a GPU, and the remedy."""
    try:
        yield
    except Exception as error:
        # CuPy's error is a MemoryError, and so is RMM's; torch's is a RuntimeError.
        full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not full or isinstance(error, DeviceMemoryError):
            raise
        raise DeviceMemoryError(
            f"{what} did not fit in the memory of the GPU ({error}). {remedy}"
        ) from error
