"""The GPU backend: CuPy arrays, and kernels of our own where CuPy reads rows more than once.

CuPy is imported where it is used, so that this module loads where there is none.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from typing import Any

from daskml_dist.backends.base import Backend

__all__ = ["CupyBackend"]


class CupyBackend(Backend):
    """CuPy on the device that is current in the calling thread."""

    name = "cupy"
    device = "gpu"

    @classmethod
    def problem(cls) -> str | None:
        """Why this process cannot use a GPU, with the remedy, or None."""
        return _problem()


@functools.cache
def _problem() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return 'CuPy is not installed here. Install it: pip install "daskml-dist[gpu]".'
    try:
        # Before CuPy, whose import takes half a second.
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here (libcuda.so.1). Install one, or use a GPU machine."
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"{_remedy(cupy, error)} (CUDA says: {error})"
    return None if count else "there is no CUDA device here. Check nvidia-smi."


def _remedy(cupy: Any, error: Exception) -> str:
    if "InsufficientDriver" in str(error):
        needed = cupy.cuda.runtime.runtimeGetVersion() // 1000
        return (
            f"the NVIDIA driver is too old for CUDA {needed}. Update it, or install the CuPy of an "
            "older CUDA (cupy-cuda12x)"
        )
    return "no CUDA device can be used. Check nvidia-smi and CUDA_VISIBLE_DEVICES"
