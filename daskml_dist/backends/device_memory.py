"""Message where a device's memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from daskml_dist.errors import DeviceMemoryError

__all__ = ["device_memory"]


@contextmanager
def device_memory(what: str, remedy: str) -> Iterator[None]:
    """Name what did not fit in the memory of a GPU, and the remedy.

    Raises
    ------
    DeviceMemoryError
    """
    try:
        yield
    except MemoryError as error:
        raise DeviceMemoryError(
            f"{what} did not fit in the memory of the GPU ({error}). {remedy}"
        ) from error
