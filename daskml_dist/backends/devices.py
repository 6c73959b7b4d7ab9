"""From a device's name to its backend, in the process that uses it."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import numpy as np

from daskml_dist.backends.base import Backend
from daskml_dist.errors import DeviceUnavailableError, InvalidParameterError
from daskml_dist.errors.suggestions import nearest

__all__ = ["BACKENDS", "DEVICES", "STORED", "get_backend", "gpu_problem", "stored_dtype"]

DEVICES = ("auto", "cpu", "gpu")
#: How a GPU may store features; None: as they are.
STORED = (None, "float16", "bfloat16")

#: Module and class of each device's backend.
BACKENDS = {
    "cpu": ("daskml_dist.backends.numpy_backend", "NumpyBackend"),
    "gpu": ("daskml_dist.backends.cupy_backend", "CupyBackend"),
}


def get_backend(device: str) -> Backend:
    """Return the backend of a device; called on the worker, never on the client."""
    if device not in DEVICES:
        raise InvalidParameterError(
            f"Unknown device {device!r}. Use one of {list(DEVICES)}.{nearest(device, DEVICES)}"
        )
    if device == "gpu" and (problem := gpu_problem()):
        raise DeviceUnavailableError(
            f'device="gpu": {problem} Or use device="auto", which takes the CPU on such a worker.'
        )
    if device == "auto":
        device = "cpu" if gpu_problem() else "gpu"
    return _class(*BACKENDS[device])()


def gpu_problem() -> str | None:
    """Reason that this process cannot use a GPU, with the remedy, or None."""
    return _class(*BACKENDS["gpu"]).problem()


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of features that are stored as one of `STORED`."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        # NumPy has none; this one is CuPy's too.
        ml_dtypes = import_module("ml_dtypes")
    except ImportError as error:
        raise DeviceUnavailableError(
            f'compute_dtype="bfloat16": ml_dtypes cannot be imported here ({error}). Install it: '
            'pip install "daskml-dist[gpu]". Or use compute_dtype="float16".'
        ) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


@functools.cache
def _class(module: str, name: str) -> type[Backend]:
    found: type[Backend] = getattr(import_module(module), name)
    return found
