"""The GPU backend: CuPy arrays, and kernels of our own where CuPy reads rows more than once.

CuPy is imported where it is used, so that this module loads where there is none.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse as host_sparse

from daskml_dist.backends.base import Backend
from daskml_dist.errors import InvalidDataError

__all__ = ["CupyBackend", "CupyRows"]


#: Bytes from which a copy to the device goes through pinned memory.
_PINNED_FROM = 1 << 20
#: Bytes of each of the two pinned buffers of a thread.
_BUFFER = 1 << 24
#: Entries of a sparse block at most; cuSPARSE counts them with 32 bits.
_MOST_ENTRIES = 2**31 - 1


class CupyRows:
    """Chosen rows of a CSR block on a device.

    Parameters
    ----------
    X : cupyx CSR matrix of shape (n_rows, n_features)
    """

    __slots__ = ("X", "shape")

    def __init__(self, X: Any) -> None:
        #: Its columns are numbered anew by :meth:`CupyBackend.columns`.
        self.X = X
        self.shape = X.shape

    @property
    def dtype(self) -> Any:
        """Of the entries."""
        return self.X.dtype

    def __getitem__(self, at: slice) -> CupyRows:
        """Some of the rows."""
        return CupyRows(self.X[at])


class CupyBackend(Backend):
    """CuPy on the device that is current in the calling thread.

    All work is queued on the default stream, where it runs in the order of the calls.

    Parameters
    ----------
    cupy, sparse : module, optional
        CuPy and ``cupyx.scipy.sparse``; others stand for them where their use is tested.
    """

    name = "cupy"
    device = "gpu"

    def __init__(self, cupy: Any = None, sparse: Any = None) -> None:
        self._cp = import_module("cupy") if cupy is None else cupy
        self._sparse = import_module("cupyx.scipy.sparse") if sparse is None else sparse
        self._pinned: _PinnedCopy | None = None

    @classmethod
    def problem(cls) -> str | None:
        """Why this process cannot use a GPU, with the remedy, or None."""
        return _problem()

    def to_device(self, array: Any) -> Any:
        """Copy a host array; return the array itself where it is there already.

        Raises
        ------
        InvalidDataError
            For a sparse block of 2**31 entries or more.
        """
        if host_sparse.issparse(array):
            return self._csr_to_device(array)
        if isinstance(array, np.ndarray) and array.nbytes >= _PINNED_FROM:
            if self._pinned is None:
                self._pinned = _PinnedCopy(self._cp)
            return self._pinned(np.ascontiguousarray(array))
        return self._cp.asarray(array, order="C")

    def _csr_to_device(self, X: Any) -> Any:
        if X.nnz > _MOST_ENTRIES:
            raise InvalidDataError(
                f"A sparse block has {X.nnz:,} entries; a GPU takes {_MOST_ENTRIES:,} at most. Use "
                "smaller chunks of rows."
            )
        parts = X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)
        return self._sparse.csr_matrix(tuple(map(self.to_device, parts)), shape=X.shape)

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """Copy an array to the host, once all work on it is done."""
        copy: NDArray[Any] = self._cp.asnumpy(array)
        return copy

    def rows(self, X: Any, rows: NDArray[np.intp] | slice) -> Any:
        """Gather rows; a view of dense ones for a slice."""
        if not isinstance(rows, slice):
            rows = self._cp.asarray(rows)
        if self._sparse.issparse(X):
            return CupyRows(X[rows])
        return X[rows] if isinstance(rows, slice) else self._cp.take(X, rows, axis=0)

    def columns(self, pieces: list[CupyRows]) -> NDArray[np.int64]:
        """Sorted unique columns of the pieces; the pieces are renumbered to them."""
        cp = self._cp
        columns = cp.unique(cp.concatenate([piece.X.indices for piece in pieces]))
        for piece in pieces:
            X = piece.X
            at = cp.searchsorted(columns, X.indices).astype(np.int32)
            shape = X.shape[0], columns.shape[0]
            piece.X = self._sparse.csr_matrix((X.data, at, X.indptr), shape=shape)
        return self.to_numpy(columns).astype(np.int64)

    def dot(self, X: Any, w: Any) -> Any:
        """Product ``X @ w``; 1-d where the weights have one column."""
        X = X.X if isinstance(X, CupyRows) else X
        return X.dot(w[:, 0] if w.shape[1] == 1 else w)

    def add_tdot(self, X: Any, g: Any, out: Any) -> None:
        """Add ``X.T @ g`` to `out` in place."""
        X = X.X if isinstance(X, CupyRows) else X
        product = X.T.dot(g)
        out += product[:, None] if product.ndim == 1 else product

    def add_gram(self, X: Any, weight: Any | None, out: Any) -> None:
        """Add ``X.T @ diag(weight) @ X`` to `out` in place."""
        if not isinstance(X, CupyRows):
            out += X.T.dot(X if weight is None else X * weight[:, None].astype(X.dtype, copy=False))
            return
        X = X.X
        scaled = X if weight is None else self._weighted(X, weight)
        out += X.T.dot(scaled).toarray()

    def _weighted(self, X: Any, weight: Any) -> Any:
        """CSR rows times their weights."""
        # The row of each entry: how many rows begin at or before it.
        row = self._cp.searchsorted(X.indptr, self._cp.arange(X.nnz), side="right") - 1
        data = X.data * weight[row].astype(X.dtype, copy=False)
        return self._sparse.csr_matrix((data, X.indices, X.indptr), shape=X.shape)

    def add_rows(self, X: Any, at: Any, weight: Any | None, out: Any) -> None:
        """Add each row, times its weight, to row ``at[i]`` of `out`, in place."""
        cp, n_rows = self._cp, X.shape[0]
        if not isinstance(X, CupyRows):
            scaled = X if weight is None else X * weight[:, None]
            cp.add.at(out, at, scaled.astype(out.dtype, copy=False))
            return
        factor = cp.ones(n_rows, X.dtype) if weight is None else weight.astype(X.dtype, copy=False)
        starts = cp.arange(n_rows + 1, dtype=np.int32)
        groups = self._sparse.csr_matrix(
            (factor, at.astype(np.int32), starts), shape=(n_rows, out.shape[0])
        )
        out += groups.T.dot(X.X).toarray()


class _PinnedCopy:
    """Copies large arrays to the device through two pinned buffers, filled in turns.

    While one is on its way the next is filled, and the device computes meanwhile, since the
    copies have a stream of their own. Used by one thread.
    """

    def __init__(self, cupy: Any) -> None:
        import cupyx

        self._cp = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._buffers = [cupyx.empty_pinned(_BUFFER, np.uint8) for _ in range(2)]
        self._sent = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def __call__(self, array: NDArray[Any]) -> Any:
        """The array, of C order, on the device; whole when this returns."""
        cp, stream = self._cp, self._stream
        out = cp.empty(array.shape, array.dtype)
        # The memory may have been freed by work that is queued and not done yet.
        stream.wait_event(cp.cuda.get_current_stream().record())
        source = array.reshape(-1).view(np.uint8)
        for turn, start in enumerate(range(0, source.nbytes, _BUFFER)):
            buffer, sent = self._buffers[turn % 2], self._sent[turn % 2]
            part = source[start : start + _BUFFER]
            sent.synchronize()
            buffer[: part.nbytes] = part
            cp.cuda.runtime.memcpyAsync(
                out.data.ptr + start,
                buffer.ctypes.data,
                part.nbytes,
                cp.cuda.runtime.memcpyHostToDevice,
                stream.ptr,
            )
            sent.record(stream)
        stream.synchronize()
        return out


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
