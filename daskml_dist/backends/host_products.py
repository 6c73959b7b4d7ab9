"""Matrix products on the host: those added to what is there by one call of BLAS, and their sizes.

NumPy makes a product in an array of its own; another pass over memory then adds it, which takes a
tenth of the time of a network's gradient. SciPy's BLAS adds as it multiplies. It is a library
beside NumPy's: imported here, before a trainer limits the threads of all that are loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

__all__ = ["add_matmul", "curved_rows", "whole_vectors"]

#: Bytes of scaled rows of which the symmetric product is made at once.
_SCALED = 1 << 19

_GEMM = {np.dtype(np.float32): blas.sgemm, np.dtype(np.float64): blas.dgemm}


def add_matmul(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """Add ``a @ b`` to `out`, in place.

    Parameters
    ----------
    a : ndarray of shape (n, k)
    b : ndarray of shape (k, m)
    out : ndarray of shape (n, m)
        C-contiguous and of the dtype of both, or NumPy makes the product: BLAS would write to a
        copy.
    """
    gemm = _GEMM.get(out.dtype)
    left, right = _columns_first(a, out.dtype), _columns_first(b, out.dtype)
    if gemm is None or left is None or right is None or not out.flags.c_contiguous or not a.size:
        out += a @ b
        return
    # BLAS counts along columns, so what it sees are transposes: out.T = b.T @ a.T.
    (a, a_turned), (b, b_turned) = left, right
    gemm(1.0, b, a, 1.0, out.T, b_turned, a_turned, 1)


def _columns_first(array: NDArray[Any], dtype: Any) -> tuple[NDArray[Any], bool] | None:
    """The transpose of an array as BLAS takes it: in columns, and whether to be turned."""
    if array.dtype != dtype:
        return None
    if array.flags.c_contiguous:
        return array.T, False
    return (array, True) if array.flags.f_contiguous else None


def whole_vectors(n_columns: int) -> int:
    """Columns with which BLAS is fastest: so many, or a few more."""
    return -(-n_columns // 8) * 8


def curved_rows(X: NDArray[Any]) -> int:
    """Rows whose scaled copy a core's cache holds, and the sum of products costs little beside."""
    n, n_features = X.shape
    cached = _SCALED // (n_features * X.itemsize)
    return int(min(n, max(64, cached, min(4 * n_features, 2**14))))
