"""The GPU backend: CuPy arrays, and kernels of our own where CuPy reads rows more than once.

CuPy is imported where it is used, so that this module loads where there is none.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse as host_sparse

from daskml_dist.backends import kernels
from daskml_dist.backends.base import Backend, SparseRows, Step
from daskml_dist.backends.cupy_calls import Calls, CsrRows, DenseRows
from daskml_dist.backends.device_gather import CsrGather, DeviceGather, RecordedSteps
from daskml_dist.backends.namespace import arithmetic_dtype, cast, one_hot
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.errors import DeviceUnavailableError, InvalidDataError

__all__ = ["CupyBackend", "CupyRows", "PinnedCopy", "thread_pinned_copy"]

#: Bytes of each of the two pinned buffers of a thread.
_PINNED_BUFFER_BYTES = 1 << 24

_THREAD_STATE = threading.local()


def thread_pinned_copy(cupy: Any) -> PinnedCopy:
    """Return the calling thread's copier, whose pinned memory is allocated once."""
    if not hasattr(_THREAD_STATE, "copy"):
        _THREAD_STATE.copy = PinnedCopy(cupy, import_module("cupyx").empty_pinned)
    copy: PinnedCopy = _THREAD_STATE.copy
    return copy


class PinnedCopy:
    """Copies large arrays to the device through two pinned buffers, filled in turns.

    While one is on its way the next is filled, and the device computes meanwhile, since the
    copies have a stream of their own. Used by one thread.
    """

    def __init__(self, cupy: Any, empty_pinned: Any) -> None:
        self._cp = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._buffers = [empty_pinned(_PINNED_BUFFER_BYTES, np.uint8) for _ in range(2)]
        self._sent = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def __call__(self, array: NDArray[Any]) -> Any:
        """Return a C-ordered array's copy on the device, complete when this returns."""
        cp, stream = self._cp, self._stream
        out = cp.empty(array.shape, array.dtype)
        # The memory may have been freed by work that is queued and not done yet.
        stream.wait_event(cp.cuda.get_current_stream().record())
        source = array.reshape(-1).view(np.uint8)
        for turn, start in enumerate(range(0, source.nbytes, _PINNED_BUFFER_BYTES)):
            buffer, sent = self._buffers[turn % 2], self._sent[turn % 2]
            part = source[start : start + _PINNED_BUFFER_BYTES]
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


#: Bytes from which a copy to the device goes through pinned memory.
_MIN_PINNED_BYTES = 1 << 20
#: Rows whose products are added up in float32, where sums are float64.
_FLOAT32_SUM_ROWS = 1 << 16
#: Where it is set, work of several threads is in no order.
_STREAMS_VARIABLE = "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
#: Rows, columns and entries of a sparse block at most; here they are counted with 32 bits.
_MAX_INT32 = 2**31 - 1


class CupyRows(SparseRows):
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
        """Return the dtype of the entries."""
        return self.X.dtype

    @property
    def values(self) -> Any:
        """Return the entries."""
        return self.X.data

    def with_values(self, values: Any) -> CupyRows:
        """Return the same rows with other entries in the same places."""
        return CupyRows(_replace_entries(self.X, values))

    def toarray(self) -> Any:
        """Return the rows as a dense array."""
        return self.X.toarray()

    def __getitem__(self, at: slice) -> CupyRows:
        """Return the rows of a slice."""
        # CuPy copies them, and waits for the device.
        every = at.indices(self.shape[0]) == (0, self.shape[0], 1)
        return self if every else CupyRows(self.X[at])


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

    @classmethod
    def problem(cls) -> str | None:
        """Return the reason that this process cannot use a GPU, with the remedy, or None."""
        return _find_problem()

    def check_current_device(self) -> None:
        """Check that the current device is the first one, which CUDA gives to new threads."""
        if number := int(self._cp.cuda.Device().id):
            raise DeviceUnavailableError(
                f"GPU {number} is the current device of this thread, and a fit's other threads use "
                "GPU 0. Show this process the one GPU that it is to use: set "
                f"CUDA_VISIBLE_DEVICES={number} before CUDA is used, or start one worker a GPU "
                "(LocalCUDACluster)."
            )

    def to_device(self, array: Any) -> Any:
        """Copy a host array; return the array itself where it is there already."""
        if host_sparse.issparse(array):
            return self._csr_to_device(array)
        if isinstance(array, np.ndarray) and array.nbytes >= _MIN_PINNED_BYTES:
            return thread_pinned_copy(self._cp)(np.ascontiguousarray(array))
        return self._cp.asarray(array, order="C")

    def _csr_to_device(self, X: Any) -> Any:
        if max(X.nnz, *X.shape) > _MAX_INT32:
            n_rows, n_columns = X.shape
            raise InvalidDataError(
                f"A sparse block has {n_rows:,} rows, {n_columns:,} columns and {X.nnz:,} entries; "
                f"a GPU takes {_MAX_INT32:,} of each at most. Use smaller chunks of rows; of "
                'columns, hash them into fewer, or use device="cpu".'
            )
        indices, indptr = (a.astype(np.int32, copy=False) for a in (X.indices, X.indptr))
        parts = tuple(map(self.to_device, (X.data, indices, indptr)))
        moved = self._sparse.csr_matrix(parts, shape=X.shape)
        # Known here; CuPy would find out, and wait, at each product.
        moved.has_canonical_format = X.has_canonical_format
        return moved

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """Copy an array to the host, once all work on it is done."""
        copy: NDArray[Any] = self._cp.asnumpy(array)
        return copy

    def rows(self, X: Any, rows: NDArray[np.intp] | slice) -> Any:
        """Return chosen rows; a view of dense ones for a slice."""
        rows = self.row_numbers(rows)
        if self._sparse.issparse(X):
            return CupyRows(X)[rows] if isinstance(rows, slice) else CupyRows(X[rows])
        return X[rows] if isinstance(rows, slice) else self._cp.take(X, rows, axis=0)

    def row_numbers(self, rows: Any) -> Any:
        """Return row numbers on the device, copied behind the work that is queued there."""
        # `to_device` would wait for it in every step.
        return rows if isinstance(rows, slice) else self._cp.asarray(rows)

    def columns(self, pieces: list[CupyRows]) -> NDArray[np.int64]:
        """Return the sorted unique columns of the pieces, and renumber the pieces to them."""
        cp = self._cp
        columns = cp.unique(cp.concatenate([piece.X.indices for piece in pieces]))
        for piece in pieces:
            X = piece.X
            at = cp.searchsorted(columns, X.indices).astype(np.int32)
            shape = X.shape[0], columns.shape[0]
            piece.X = self._sparse.csr_matrix((X.data, at, X.indptr), shape=shape)
            piece.X.has_canonical_format = X.has_canonical_format  # their order is the same
        return self.to_numpy(columns).astype(np.int64)

    def dot(self, X: Any, w: Any) -> Any:
        """Return the product ``X @ w``; 1-d where the weights have one column."""
        factor = w[:, 0] if w.shape[1] == 1 else w
        if X.dtype == w.dtype or not X.shape[0]:
            return _matrix_of_rows(X).dot(factor)
        at = row_slices(X.shape[0], _FLOAT32_SUM_ROWS)
        return self._cp.concatenate([_matrix_of_rows(X[a]).astype(w.dtype).dot(factor) for a in at])

    def add_tdot(self, X: Any, g: Any, out: Any) -> None:
        """Add ``X.T @ g`` to `out` in place."""
        for at in self._pieces(X, out):
            product = _matrix_of_rows(X[at]).astype(g.dtype, copy=False).T.dot(g[at])
            out += product[:, None] if product.ndim == 1 else product

    def _pieces(self, X: Any, out: Any) -> Iterable[slice]:
        """Return slices whose products may be summed in the dtype of X before the sum
        is `out`'s.
        """
        n_rows = X.shape[0]
        return row_slices(n_rows, n_rows if X.dtype == out.dtype else _FLOAT32_SUM_ROWS)

    def add_fused(
        self,
        kernel: str | None,
        w: Any,
        X: Any,
        y: Any,
        weight: Any | None,
        out: Any,
        parameters: tuple[float, ...] = (),
    ) -> Any | None:
        """Add the gradient in one reading of the rows, for losses with a kernel and one output.

        Sums of dense rows have the same digits each time; of sparse rows not the last ones, as
        threads add to the same columns in any order.
        """
        if kernel == "log_loss" and w.shape[1] > 1 and y.ndim == 1:
            return self._fused_softmax(w, X, y, weight, out)
        if kernel not in kernels.LOSSES or w.shape[1] > 1:
            return None
        # Kernels are compiled for one arithmetic dtype; anything else goes the general way.
        arrays = [array for array in (y, weight, w) if array is not None]
        if any(array.dtype != arithmetic_dtype(X) for array in arrays):
            return None
        if not all(array.flags.c_contiguous for array in (*arrays, out)):
            return None
        loss = self._cp.zeros((), np.float64)
        rows = self._described(X, y, weight)
        if not self.calls.has_gradient(rows):
            return None
        for call in self.calls.gradient(kernel, _kernel_parameter(parameters), rows, w, out, loss):
            call()
        return loss

    def _described(self, X: Any, y: Any, weight: Any) -> DenseRows | CsrRows:
        """Return rows in the form that kernel calls take."""
        if isinstance(X, CupyRows):
            return self.calls.csr_rows(X.X, y, weight)
        return self.calls.rows(X, y, weight)

    def _fused_softmax(self, w: Any, X: Any, y: Any, weight: Any, out: Any) -> Any:
        """Add the softmax gradient, in one reading of narrow rows and few classes.

        Else two products, and one launch between them. The kernels read `y` and `weight` as
        neighbours.
        """
        d = _matrix_of_rows(X).shape[1]
        if y.dtype != np.int32 or (weight is not None and weight.dtype != w.dtype):
            return None
        y, weight = (None if a is None else self._cp.ascontiguousarray(a) for a in (y, weight))
        if not isinstance(X, CupyRows) and w.dtype == arithmetic_dtype(X):
            loss = self._cp.zeros((), np.float64)
            rows = self.calls.rows(X, y, weight)
            contiguous = w.flags.c_contiguous and out.flags.c_contiguous
            calls = self.calls.softmax_rows(rows, w, out, loss) if contiguous else None
            if calls is not None:
                for call in calls:
                    call()
                return loss
        # Two products around one kernel: raw predictions, then gradients in their place.
        raw = self._cp.ascontiguousarray(self.dot(X, w[:d]))
        if w.shape[0] > d:
            raw += w[d]
        losses = self._cp.empty(raw.shape[0], raw.dtype)
        self.calls.softmax_gradient(raw, y, weight, losses)()
        self.add_tdot(X, raw, out[:d])
        if w.shape[0] > d:
            out[d] += raw.sum(axis=0, dtype=out.dtype)
        return losses.sum(dtype=np.float64)

    def update(self, optimizer: Any, step: Step) -> bool:
        """Take an optimizer's step in one launch over the flat parameters."""
        _, *opt_state = step.state(optimizer)
        arrays = [step.w, step.grad, *opt_state]
        if not all(array.flags.c_contiguous for array in arrays) or step.w.dtype.kind != "f":
            return False
        self.calls.update(optimizer, step, opt_state)()
        return True

    def gather(
        self,
        loss: Any,
        shape: tuple[int, int],
        blocks: Mapping[int, tuple[Any, Any, Any | None]],
        n_rows: int,
        few: bool = False,
    ) -> DeviceGather | None:
        """Return a gather for kernels that read rows by their addresses, or None."""
        (X, y, _), *_ = blocks.values()
        is_sparse = self._sparse.issparse(X)
        if loss.kernel not in kernels.LOSSES or shape[1] > 1 or y.dtype != arithmetic_dtype(X):
            return None
        if any(self._sparse.issparse(block[0]) != is_sparse for block in blocks.values()):
            return None
        if not all(
            array is None or array.flags.c_contiguous
            for block in blocks.values()
            for array in (block[1:] if is_sparse else block)
        ):
            return None
        make = CsrGather if is_sparse else DeviceGather
        gather = make(self.calls, (loss.kernel, _kernel_parameter(loss.parameters)), blocks, n_rows)
        return gather if self.calls.has_gradient(gather.rows(0)) else None

    def recorder(self, gather: Any, optimizer: Any, step: Step) -> RecordedSteps:
        """Return steps that are captured as a CUDA graph and replayed."""
        return RecordedSteps(gather, optimizer, step)

    @functools.cached_property
    def calls(self) -> Calls:
        """Return the launches of this backend's kernels."""
        return Calls(self._cp, self._address)

    @staticmethod
    def _address(array: Any) -> int:
        return int(array.data.ptr)

    def add_gram(self, X: Any, weight: Any | None, out: Any) -> None:
        """Add ``X.T @ diag(weight) @ X`` to `out` in place."""
        for at in self._pieces(X, out):
            rows, factor = X[at], None if weight is None else weight[at]
            if isinstance(rows, CupyRows):
                scaled = rows.X if factor is None else self._weighted(rows.X, factor)
                out += rows.X.T.dot(scaled).toarray()
            else:
                rows = cast(rows, arithmetic_dtype(rows))
                scaled = rows if factor is None else rows * cast(factor, rows.dtype)[:, None]
                out += rows.T.dot(scaled)

    def _weighted(self, X: Any, weight: Any) -> Any:
        """Return CSR rows times their weights."""
        # The row of each entry: how many rows begin at or before it.
        row = self._cp.searchsorted(X.indptr, self._cp.arange(X.nnz), side="right") - 1
        return _replace_entries(X, X.data * cast(weight[row], X.dtype))

    def add_rows(self, X: Any, at: Any, weight: Any | None, out: Any) -> None:
        """Add each row, times its weight, to row ``at[i]`` of `out`, in place."""
        if not isinstance(X, CupyRows):
            scaled = X if weight is None else X * weight[:, None]
            self._cp.add.at(out, at, scaled.astype(out.dtype, copy=False))
            return
        # Of sparse rows the sums by group are a product: one-hot groups' transpose times the rows.
        groups = one_hot(at, out.shape[0], X.dtype)
        if weight is not None:
            groups *= cast(weight, X.dtype)[:, None]
        sums = self._cp.zeros(out.shape[::-1], out.dtype)
        self.add_tdot(X, groups, sums)
        out += sums.T

    def assign(
        self, X: Any, shift: Any | None, centres: Any, weight: Any | None, out: Any,
        bounds: Any = None, before: Any = None,
    ) -> Any:  # fmt: skip
        """Add dense rows to their nearest centres' sums in one launch; last digits vary between
        calls.
        """
        if shift is None or isinstance(X, CupyRows):
            return super().assign(X, shift, centres, weight, out)
        k, d = centres.shape
        sums, counts, inertia = (self._cp.zeros(shape) for shape in ((k, d), k, ()))
        found = sums, counts, inertia
        # Tensor cores shift rows themselves; the plain kernel wants rows near the origin, a slice
        # at a time.
        if self.calls.has_kmeans_tiles(X, centres):
            self.calls.kmeans(X, shift, centres, weight, *found)()
        else:
            for at in row_slices(X.shape[0], self.entries_at_once // max(d, 1)):
                near = cast(X[at], centres.dtype) - shift
                some = None if weight is None else weight[at]
                self.calls.kmeans(near, None, centres, some, *found)()
        out += self._cp.hstack([counts[:, None], sums])
        return inertia


def _kernel_parameter(parameters: tuple[float, ...]) -> float:
    """Return a loss's parameter as a kernel takes it: a float, 0 where it has none."""
    return float(parameters[0]) if parameters else 0.0


def _matrix_of_rows(X: Any) -> Any:
    """Return the matrix of rows, dense or sparse, that has `dot`."""
    return X.X if isinstance(X, CupyRows) else X


def _replace_entries(X: Any, data: Any) -> Any:
    """Return a CSR matrix with other entries in the same places."""
    # A new one would wait for the device, which checks it, and not know that it is canonical.
    changed = copy.copy(X)
    changed.data = data
    return changed


@functools.cache
def _find_problem() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return 'CuPy is not installed here. Install it: pip install "daskml-dist[gpu]".'
    if os.environ.get(_STREAMS_VARIABLE, "0") not in ("", "0"):
        return f"threads of this process have streams of their own. Unset {_STREAMS_VARIABLE}."
    try:
        # Before CuPy, whose import takes half a second.
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here (libcuda.so.1). Install one, or use a GPU machine."
    # From here on CuPy's own checks, each with its remedy.
    import cupy

    try:
        if not cupy.cuda.runtime.getDeviceCount():
            return "there is no CUDA device here. Check nvidia-smi."
        _try_libraries(cupy)
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        return f"{_suggest_remedy(cupy, error)} (CUDA says: {error})"
    except (ImportError, RuntimeError) as error:
        version = cupy.cuda.runtime.runtimeGetVersion() // 1000
        return (
            "CuPy finds no libraries or headers of CUDA here. Install them: pip install "
            f'"cupy-cuda{version}x[ctk]". (CuPy says: {str(error).partition(chr(10))[0]})'
        )
    return None


def _try_libraries(cupy: Any) -> None:
    """Use the parts of CUDA that CuPy loads late and a fit needs, so that a missing one
    shows now.
    """
    for library in ("cublas", "cusparse"):
        # Asking loads it. A later CuPy may have no such name.
        hasattr(cupy.cuda, library)
    # With the headers, by NVRTC; and the device has to take it.
    cupy.RawModule(code='extern "C" __global__ void nothing() {}').compile()


def _suggest_remedy(cupy: Any, error: Exception) -> str:
    if "InsufficientDriver" in str(error):
        needed = cupy.cuda.runtime.runtimeGetVersion() // 1000
        return (
            f"the NVIDIA driver is too old for CUDA {needed}. Update it, or install the CuPy of an "
            "older CUDA (cupy-cuda12x)"
        )
    return "no CUDA device can be used. Check nvidia-smi and CUDA_VISIBLE_DEVICES"
