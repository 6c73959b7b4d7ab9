"""Preparation of a block for steps and sums: checked, encoded, and moved to the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend, get_backend
from daskml_dist.backends.devices import device_memory, stored_dtype
from daskml_dist.backends.namespace import is_host
from daskml_dist.data.blocks import Block, check_finite_rows
from daskml_dist.data.keyed import KeyedBlock
from daskml_dist.errors import InvalidDataError
from daskml_dist.solvers import Statistic
from daskml_dist.training.spec import FitSpec

__all__ = [
    "ReadyBlock",
    "explain_memory_errors",
    "get_fit_backend",
    "prepare_block",
    "sums_backend_of",
]


@dataclass
class ReadyBlock:
    """Block as the maths reads it: on the device, targets encoded, weights scaled.

    For sums over all rows, dense features stay on the host as they lie until a statistic asks for
    more: a copy of a block costs more than many a sum.

    Attributes
    ----------
    unchecked : int or None
        Number of the block while X has not been checked for NaN and infinity; None afterwards.
    """

    X: Any
    y: Any
    weight: Any | None
    unchecked: int | None = None

    def prepare_for_statistic(self, statistic: Statistic) -> None:
        """Convert X to what a statistic reads, before its first sum.

        Features on a GPU were made ready as they were moved.
        """
        if not statistic.in_parts and is_host(self.X):
            self.X = get_backend("cpu").to_device(self.X)

    def check(self) -> None:
        """Raise where X holds NaN or infinity, unless that was checked."""
        if self.unchecked is not None:
            check_finite_rows(self.X, self.unchecked)
            self.unchecked = None


def get_fit_backend(fit: FitSpec) -> Backend:
    """Return the backend of a fit in this process."""
    # Few parameters of many are touched, at indices that the host draws.
    # Steps that touch few of many parameters use indices drawn by the host; a GPU would wait for
    # each.
    on_host = fit.work.on_host or (fit.run.device == "auto" and fit.work.coordinates)
    return get_backend("cpu" if on_host else fit.run.device)


def sums_backend_of(fit: FitSpec) -> Backend:
    """Return the backend on which sums over the rows of a fit may lie.

    It is that of its rows; but a solver that reads these in host memory, and keeps what it makes
    of them where it likes, may have them on the GPU.
    """
    on_device = fit.work.loop == "own_rows"
    return get_backend(fit.run.device) if on_device else get_fit_backend(fit)


def prepare_block(block: Block, fit: FitSpec) -> ReadyBlock:
    """Check a block for NaN and infinity, encode its targets, compute its weights, and move it.

    Of dense features of a round solver's fit that are kept on the host, the first sum tells whether
    they are to be checked.
    """
    if isinstance(block, KeyedBlock):
        return ReadyBlock(block.aligned(), None, None)
    backend = get_fit_backend(fit)
    rows = fit.rows
    lies = _stays_in_place(block, fit, backend)
    X = _prepare_features(block, fit, backend, lies)
    # Labels become indices, signs or one-hot rows, as the model says.
    y: Any = None
    if block.y is not None:
        y = fit.work.model.encode(block.y, rows.classes, rows.dtype)
    weight: Any = rows.weights(block)
    # On a GPU the error names the block that did not fit.
    with explain_memory_errors(backend, f"Block {block.index} of {block.nbytes / 2**20:,.0f} MiB"):
        X, y, weight = (
            array if array is None or (lies and array is X) else backend.to_device(array)
            for array in (X, y, weight)
        )
    return ReadyBlock(X, y, weight, block.index if lies else None)


def _stays_in_place(block: Block, fit: FitSpec, backend: Backend) -> bool:
    """Return whether features may stay unconverted until a sum is asked for."""
    if backend.device != "cpu" or fit.work.loop != "solver" or fit.rows.streaming is not None:
        return False
    X = block.X
    return isinstance(X, np.ndarray) and X.dtype.kind == "f" and X.flags.c_contiguous


def _prepare_features(block: Block, fit: FitSpec, backend: Backend, lies: bool) -> Any:
    """Return the checked features of a block, where they are to be or on the host.

    `lies`: as they lie, and to be checked.
    """
    # Rows that lie on the GPU already are used there if their dtype is the fit's.
    lying = block.on_device if backend.device == "gpu" and not fit.rows.compute_dtype else None
    if lying is not None and lying.dtype == fit.rows.rows_dtype:
        X = fit.work.model.prepare(lying, fit.rows.dtype)
        if not fit.work.model.takes_missing:
            check_finite_rows(X, block.index)
        return X
    # Aligned before anything reads it: NumPy is several times slower on unaligned arrays.
    X = block.X.astype(fit.rows.rows_dtype, copy=False)
    # Converted to a layout that kernels read: contiguous, sorted CSR.
    X = X if lies else get_backend("cpu").to_device(X)
    with np.errstate(over="ignore"):  # the check below finds infinite values
        X = fit.work.model.prepare(X, fit.rows.dtype)
    if lies:
        return X
    if not fit.work.model.takes_missing:
        check_finite_rows(X, block.index)
    floats = isinstance(X, np.ndarray) and X.dtype.kind == "f"
    if fit.rows.compute_dtype and backend.device == "gpu" and floats:
        X = _to_compute_dtype(X, fit.rows.compute_dtype, block.index)
    return X


def _to_compute_dtype(X: NDArray[Any], dtype: str, index: int) -> NDArray[Any]:
    """Return features in a GPU's smaller storage dtype; raise where they overflow it."""
    with np.errstate(over="ignore"):
        # Overflow to infinity is looked for, and told with the largest value.
        smaller = X.astype(stored_dtype(dtype))
    if not np.isfinite(smaller).all():
        number = smaller.dtype.type
        largest = float(np.nextafter(number(np.inf), number(0)))
        raise InvalidDataError(
            f"Block {index}: X holds {np.abs(X).max():g}, and compute_dtype={dtype!r} holds "
            f"{largest:g} at most. Scale the features first (StandardScaler), or use "
            "compute_dtype=None."
        )
    return smaller


def explain_memory_errors(backend: Backend, what: str) -> AbstractContextManager[None]:
    """Translate a device's out-of-memory error into one that names what did not fit."""
    if backend.device == "cpu":
        return nullcontext()
    return device_memory(
        what,
        'Let blocks be streamed: memory_budget="8GiB", or less than the GPU has; or use smaller '
        'chunks, X of float32, or device="cpu".',
    )
