"""Devices by name: their backends, memory errors, and arrays that are moved only once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from daskml_dist.backends.base import Backend
from daskml_dist.errors import DeviceMemoryError, DeviceUnavailableError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest


@contextmanager
def device_memory(data_name: str, remedy: str) -> Iterator[None]:
    """Turn an out-of-memory error of a GPU into one that names the data and the remedy."""
    try:
        yield
    except Exception as error:
        # CuPy's error is a MemoryError, as is RMM's; torch's is a RuntimeError.
        full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not full or isinstance(error, DeviceMemoryError):
            raise
        raise DeviceMemoryError(
            f"{data_name} did not fit in the memory of the GPU ({error}). {remedy}"
        ) from error


class MovedOnce:
    """Backend that remembers which arrays it has moved; valid while no array changes.

    Parameters
    ----------
    backend : Backend
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # Keyed by `id`, and holding the arrays: the id of a collected array could be reused.
        self._moved: dict[int, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def to_device(self, array: Any) -> Any:
        """Move an array of the host, or return its earlier copy; the result must not be changed."""
        if not isinstance(array, np.ndarray):
            return self._backend.to_device(array)
        if id(array) not in self._moved:
            self._moved[id(array)] = array, self._backend.to_device(array)
        return self._moved[id(array)][1]


#: Values of an estimator's ``device``.
DEVICES = ("auto", "cpu", "gpu")
#: Dtypes in which a GPU may store features; None: their own.
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
            f"Unknown device {device!r}. Use one of {list(DEVICES)}."
            f"{suggest_nearest(device, DEVICES)}"
        )
    if device == "gpu" and (problem := gpu_problem()):
        raise DeviceUnavailableError(
            f'device="gpu": {problem} Or use device="auto", which takes the CPU on such a worker.'
        )
    if device == "auto":
        device = "cpu" if gpu_problem() else "gpu"
    backend: Backend = _import_class(*BACKENDS[device])()
    return backend


def open_on_device(device: str, host: tuple[str, str], gpu: tuple[str, str]) -> Any:
    """Return an object of the CPU's class, or of the GPU's class around its backend.

    Classes are given by module and name, so that only the class that is used is imported; called on
    the worker.
    """
    backend = get_backend(device)
    return _import_class(*host)() if backend.device == "cpu" else _import_class(*gpu)(backend)


def gpu_problem() -> str | None:
    """Return the reason why this process cannot use a GPU, with the remedy, or None."""
    problem: str | None = _import_class(*BACKENDS["gpu"]).problem()
    return problem


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype for features that are stored as one of `STORED`."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        # NumPy has no bfloat16; this one is CuPy's too.
        ml_dtypes = import_module("ml_dtypes")
    except ImportError as error:
        raise DeviceUnavailableError(
            f'compute_dtype="bfloat16": ml_dtypes cannot be imported here ({error}). Install it: '
            'pip install "daskml-dist[gpu]". Or use compute_dtype="float16".'
        ) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


@functools.cache
def _import_class(module: str, name: str) -> Any:
    """Import a module now, and return one of its classes."""
    return getattr(import_module(module), name)
