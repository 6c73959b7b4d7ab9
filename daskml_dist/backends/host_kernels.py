"""Compiled kernels of the host: which of them take some rows, and are worth loading numba for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.backends.step import Step

__all__ = ["FUSED", "FUSED_FROM", "centre_loops", "compiles", "few_entries", "has_kernel"]

#: Losses that `dense_kernels` has kernels of; to look there would load numba.
FUSED = ("log_loss",)
#: Entries of X from which a fused kernel is worth loading numba for.
FUSED_FROM = 1 << 13
#: Entries of all rows of a fit up to which NumPy computes the log loss: the kernel saves a tenth of
#: a millisecond a pass over these, and compiling it takes seconds.
_FEW_ENTRIES = 1 << 17
#: Products of rows and centres from which compiled loops over them are worth it, likewise.
_CENTRES_FROM = 1 << 20


def few_entries(n_rows: int, n_features: int) -> bool:
    """Return whether all rows of a fit are too few for a compiled kernel of their loss."""
    return n_rows * n_features <= _FEW_ENTRIES


def has_kernel(
    kernel: str | None, w: NDArray[Any], X: Any, y: NDArray[Any], weight: NDArray[Any]
) -> bool:
    """Return whether the kernels of dense rows take these."""
    if kernel not in FUSED or w.shape[1] > 1 or isinstance(X, CSRRows) or X.size < FUSED_FROM:
        return False
    if sparse.issparse(X) or not all(a.flags.c_contiguous for a in (X, y, weight)):
        return False
    return bool(X.dtype == y.dtype == w.dtype == weight.dtype)


def centre_loops(X: Any, shift: Any | None, k: int) -> Any | None:
    """Compiled loops over centres, where they take these rows and are worth loading numba for."""
    if shift is None or not isinstance(X, np.ndarray) or not X.flags.c_contiguous:
        return None
    if X.size * k < _CENTRES_FROM:
        return None
    from daskml_dist.backends import centre_kernels

    return centre_kernels


def compiles(dtype: Any, optimizer: Any, step: Step) -> bool:
    """Return whether steps along rows of a dtype can be made in one loop."""
    state = step.state(optimizer)
    if not all(array.dtype == dtype and array.flags.c_contiguous for array in state):
        return False
    if optimizer.elementwise_update is None:
        return False
    from daskml_dist.backends import host_update

    return host_update.compiles(optimizer, step)
