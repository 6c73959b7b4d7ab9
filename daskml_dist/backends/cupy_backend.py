"""Backend for one NVIDIA GPU: CuPy arrays, and CUDA kernels of this package.

The kernels read the rows once where CuPy's operations would read them several times. CuPy is
imported only where it is used, so that this module can be imported without it.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse as host_sparse

from daskml_dist.backends import kernels
from daskml_dist.backends.base import Backend, SparseRows, Step
from daskml_dist.backends.cupy_calls import CsrRows, DenseRows, KernelCalls
from daskml_dist.backends.device_gather import CsrGather, DeviceGather, RecordedSteps
from daskml_dist.backends.namespace import arithmetic_dtype, cast, one_hot
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.errors import DeviceUnavailableError, InvalidDataError

#: Bytes of each of the two pinned buffers of a thread.
_PINNED_BUFFER_BYTES = 1 << 24

_THREAD_STATE = threading.local()


def thread_pinned_copy(cupy: Any) -> PinnedCopy:
    """Return the calling thread's copier, whose pinned memory is allocated once."""
    if not hasattr(_THREAD_STATE, "copy"):
        _THREAD_STATE.copy = PinnedCopy(cupy, import_module("cupyx").empty_pinned)
    pinned_copy: PinnedCopy = _THREAD_STATE.copy
    return pinned_copy


class PinnedCopy:
    """Copier of large arrays to the device through two pinned buffers (double buffering).

    While one buffer is transferred the other is filled. Transfers have their own stream, so that
    the device computes meanwhile. For use by one thread.
    """

    def __init__(self, cupy: Any, empty_pinned: Any) -> None:
        self._cp = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._buffers = [empty_pinned(_PINNED_BUFFER_BYTES, np.uint8) for _ in range(2)]
        self._sent_events = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def __call__(self, array: NDArray[Any]) -> Any:
        """Return a copy of a C-ordered array on the device; wait until it is complete."""
        cp, stream = self._cp, self._stream
        out = cp.empty(array.shape, array.dtype)
        # CuPy's pool may reuse memory that queued work still reads: the transfer waits for it.
        stream.wait_event(cp.cuda.get_current_stream().record())
        source = array.reshape(-1).view(np.uint8)
        for turn, start in enumerate(range(0, source.nbytes, _PINNED_BUFFER_BYTES)):
            buffer, sent_event = self._buffers[turn % 2], self._sent_events[turn % 2]
            chunk = source[start : start + _PINNED_BUFFER_BYTES]
            sent_event.synchronize()  # until the buffer's previous transfer is done
            buffer[: chunk.nbytes] = chunk
            cp.cuda.runtime.memcpyAsync(
                out.data.ptr + start,
                buffer.ctypes.data,
                chunk.nbytes,
                cp.cuda.runtime.memcpyHostToDevice,
                stream.ptr,
            )
            sent_event.record(stream)
        stream.synchronize()
        return out


class PinnedRing:
    """Sender of small arrays, whose bytes are stored one after the other in pinned memory.

    A transfer reads its part of the memory when its turn comes in the current stream, without
    synchronisation. Parts are reused once all queued work is done. For use by any thread.

    Parameters
    ----------
    cupy : module
    address : callable
        Returns the address of the first entry of an array on the device.
    buffer : ndarray of uint8
        Pinned memory.
    """

    def __init__(self, cupy: Any, address: Callable[[Any], int], buffer: NDArray[np.uint8]) -> None:
        self._cp, self._address, self._buffer = cupy, address, buffer
        self._base, self._next = int(buffer.ctypes.data), 0
        self._lock = threading.Lock()

    def __call__(self, arrays: Sequence[NDArray[np.uint8]]) -> Any:
        """Return the bytes of some arrays, concatenated, in one array on the device."""
        cp, n_bytes = self._cp, sum(part.nbytes for part in arrays)
        if n_bytes > len(self._buffer):
            return cp.asarray(np.concatenate(arrays))
        out, stream = cp.empty(n_bytes, np.uint8), cp.cuda.get_current_stream()
        with self._lock:
            if self._next + n_bytes > len(self._buffer):
                stream.synchronize()  # until no transfer reads the memory any more
                self._next = 0
            offset = first = self._next
            for part in arrays:
                self._buffer[offset : offset + part.nbytes] = part
                offset += part.nbytes
            self._next = offset
            cp.cuda.runtime.memcpyAsync(
                self._address(out), self._base + first, n_bytes,
                cp.cuda.runtime.memcpyHostToDevice, stream.ptr,
            )  # fmt: skip
        return out


#: Bytes of pinned memory for small arrays: the uploads of some hundred rounds of a tree.
_RING_BYTES = 1 << 20


@functools.cache
def _get_pinned_ring(cupy: Any, address: Any, empty_pinned: Any) -> PinnedRing:
    """Return the ring of the process: one owned by a fit could be reused before it was read."""
    return PinnedRing(cupy, address, empty_pinned(_RING_BYTES, np.uint8))


#: Copies to the device of at least this many bytes use pinned memory (1 MiB).
_MIN_PINNED_BYTES = 1 << 20
#: Most rows that are summed in float32 before the sum is added to a float64 total.
_FLOAT32_SUM_ROWS = 1 << 16
#: Environment variable that gives each thread a stream: work of different threads is then
#: unordered.
_STREAMS_VARIABLE = "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
#: Most rows, columns and entries of a sparse block: cupyx indexes them with int32.
_MAX_INT32 = 2**31 - 1


class CupyRows(SparseRows):
    """Chosen rows of a CSR block on a device.

    Parameters
    ----------
    X : cupyx CSR matrix of shape (n_rows, n_features)
    """

    __slots__ = ("X", "shape")

    def __init__(self, X: Any) -> None:
        #: Replaced by :meth:`CupyBackend.columns`, which renumbers the columns.
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
        """Return the same rows with other entries in the same positions."""
        return CupyRows(_replace_entries(self.X, values))

    def toarray(self) -> Any:
        """Return the rows as a dense array."""
        return self.X.toarray()

    def __getitem__(self, row_slice: slice) -> CupyRows:
        """Return the rows of a slice."""
        # Slicing in CuPy copies and waits for the device: not for a slice of all rows.
        is_whole = row_slice.indices(self.shape[0]) == (0, self.shape[0], 1)
        return self if is_whole else CupyRows(self.X[row_slice])


class CupyBackend(Backend):
    """CuPy on the device that is current in the calling thread.

    All work is queued on the default stream, where it runs in the order of the calls.

    Parameters
    ----------
    cupy, sparse : module, optional
        CuPy and ``cupyx.scipy.sparse``; tests pass substitutes that run on the host.
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
        """Return a copy of a host array on the device; arrays already there are returned as is."""
        if host_sparse.issparse(array):
            return self._csr_to_device(array)
        if isinstance(array, np.ndarray) and array.nbytes >= _MIN_PINNED_BYTES:
            return thread_pinned_copy(self._cp)(np.ascontiguousarray(array))
        return self._cp.asarray(array, order="C")

    def _csr_to_device(self, X: Any) -> Any:
        """Return a copy of a scipy CSR matrix on the device, with int32 indices."""
        if max(X.nnz, *X.shape) > _MAX_INT32:
            n_rows, n_columns = X.shape
            raise InvalidDataError(
                f"A sparse block has {n_rows:,} rows, {n_columns:,} columns and {X.nnz:,} entries; "
                f"a GPU takes {_MAX_INT32:,} of each at most. Use smaller chunks of rows; of "
                'columns, hash them into fewer, or use device="cpu".'
            )
        indices, indptr = (a.astype(np.int32, copy=False) for a in (X.indices, X.indptr))
        parts = tuple(map(self.to_device, (X.data, indices, indptr)))
        on_device = self._sparse.csr_matrix(parts, shape=X.shape)
        # Copied, since CuPy would compute it at each product and wait for the device.
        on_device.has_canonical_format = X.has_canonical_format
        return on_device

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """Return a copy of an array on the host; wait for queued work on it."""
        host_array: NDArray[Any] = self._cp.asnumpy(array)
        return host_array

    def rows(self, X: Any, rows: NDArray[np.intp] | slice) -> Any:
        """Return chosen rows; for a slice of dense rows this is a view."""
        rows = self.row_numbers(rows)
        if self._sparse.issparse(X):
            return CupyRows(X)[rows] if isinstance(rows, slice) else CupyRows(X[rows])
        return X[rows] if isinstance(rows, slice) else self._cp.take(X, rows, axis=0)

    def row_numbers(self, rows: Any) -> Any:
        """Return row numbers on the device; do not wait for work queued there."""
        # `to_device` could wait, in every step.
        return rows if isinstance(rows, slice) else self._cp.asarray(rows)

    def columns(self, row_views: list[CupyRows]) -> NDArray[np.int64]:
        """Return the sorted unique columns of the pieces, and renumber the pieces to them."""
        cp = self._cp
        columns = cp.unique(cp.concatenate([piece.X.indices for piece in row_views]))
        for piece in row_views:
            X = piece.X
            new_indices = cp.searchsorted(columns, X.indices).astype(np.int32)
            shape = X.shape[0], columns.shape[0]
            piece.X = self._sparse.csr_matrix((X.data, new_indices, X.indptr), shape=shape)
            piece.X.has_canonical_format = X.has_canonical_format  # renumbering keeps the order
        return self.to_numpy(columns).astype(np.int64)

    def dot(self, X: Any, w: Any) -> Any:
        """Return the product ``X @ w``; 1-d if the weights have one column."""
        factor = w[:, 0] if w.shape[1] == 1 else w
        if X.dtype == w.dtype or not X.shape[0]:
            return _matrix_of_rows(X).dot(factor)
        # X is cast to the dtype of w slice by slice, to bound the memory of the copy.
        slices = row_slices(X.shape[0], _FLOAT32_SUM_ROWS)
        return self._cp.concatenate(
            [_matrix_of_rows(X[rows]).astype(w.dtype).dot(factor) for rows in slices]
        )

    def add_tdot(self, X: Any, g: Any, out: Any) -> None:
        """Add ``X.T @ g`` to `out` in place."""
        for rows in self._accumulation_slices(X, out):
            product = _matrix_of_rows(X[rows]).astype(g.dtype, copy=False).T.dot(g[rows])
            out += product[:, None] if product.ndim == 1 else product

    def _accumulation_slices(self, X: Any, out: Any) -> Iterable[slice]:
        """Return slices of rows that are summed in the dtype of X before being added to `out`."""
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
        """Add the gradient to `out` in one reading of the rows; return the loss, or None.

        Returns None if there is no kernel for this loss, shape or dtype. The softmax of several
        classes may take more than one reading (:meth:`_add_fused_softmax`). Sums of dense rows are
        deterministic. Those of sparse rows can differ in the last bits, since threads add to the
        same columns atomically, in any order.
        """
        if kernel == "log_loss" and w.shape[1] > 1 and y.ndim == 1:
            return self._add_fused_softmax(w, X, y, weight, out)
        if kernel not in kernels.LOSSES or w.shape[1] > 1:
            return None
        # Kernels are compiled for one arithmetic dtype; other dtypes use the general way.
        arrays = [array for array in (y, weight, w) if array is not None]
        if any(array.dtype != arithmetic_dtype(X) for array in arrays):
            return None
        if not all(array.flags.c_contiguous for array in (*arrays, out)):
            return None
        loss = self._cp.zeros((), np.float64)
        rows = self._kernel_rows(X, y, weight)
        if not self.calls.has_gradient(rows):
            return None
        for call in self.calls.gradient(kernel, _kernel_parameter(parameters), rows, w, out, loss):
            call()
        return loss

    def _kernel_rows(self, X: Any, y: Any, weight: Any) -> DenseRows | CsrRows:
        """Return rows as the kernels need them: addresses and shapes of dense or CSR arrays."""
        if isinstance(X, CupyRows):
            return self.calls.csr_rows(X.X, y, weight)
        return self.calls.rows(X, y, weight)

    def _add_fused_softmax(self, w: Any, X: Any, y: Any, weight: Any, out: Any) -> Any:
        """Add the softmax gradient to `out`; return the loss, or None if no kernel fits.

        Rows with few features and classes are read once, by one kernel. Others take two matrix
        products, with one kernel in between that turns raw predictions into their gradients.
        """
        d = _matrix_of_rows(X).shape[1]
        if y.dtype != np.int32 or (weight is not None and weight.dtype != w.dtype):
            return None
        # The kernels expect contiguous targets and weights.
        y, weight = (None if a is None else self._cp.ascontiguousarray(a) for a in (y, weight))
        if not isinstance(X, CupyRows) and w.dtype == arithmetic_dtype(X):
            loss = self._cp.zeros((), np.float64)
            rows = self.calls.rows(X, y, weight)
            is_contiguous = w.flags.c_contiguous and out.flags.c_contiguous
            calls = self.calls.softmax_rows(rows, w, out, loss) if is_contiguous else None
            if calls is not None:
                for call in calls:
                    call()
                return loss
        # Row d of w, if there is one, holds the intercepts.
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
        """Take an optimizer's step in one kernel launch; False if the arrays do not allow it."""
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
        coordinates: bool = False,
        clips: bool = False,
    ) -> DeviceGather | None:
        """Return a gather whose kernels read batch rows in place from the blocks, or None."""
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
        """Return a recorder that captures steps as a CUDA graph and replays them."""
        return RecordedSteps(gather, optimizer, step)

    @property
    def send_small(self) -> PinnedRing:
        """Return the sender of small arrays: `to_device` takes several times as long for them."""
        return _get_pinned_ring(self._cp, self._address, self._empty_pinned)

    @staticmethod
    def _empty_pinned(n_bytes: int, dtype: Any) -> Any:
        """Return an array in pinned host memory."""
        return import_module("cupyx").empty_pinned(n_bytes, dtype)

    @functools.cached_property
    def calls(self) -> KernelCalls:
        """Return the object that prepares launches of the kernels."""
        return KernelCalls(self._cp, self._address)

    @staticmethod
    def _address(array: Any) -> int:
        """Return the device address of an array's first element."""
        return int(array.data.ptr)

    def add_gram(self, X: Any, weight: Any | None, out: Any) -> None:
        """Add ``X.T @ diag(weight) @ X`` to `out` in place."""
        for slice_ in self._accumulation_slices(X, out):
            rows, factor = X[slice_], None if weight is None else weight[slice_]
            if isinstance(rows, CupyRows):
                scaled = rows.X if factor is None else self._scale_csr_rows(rows.X, factor)
                out += rows.X.T.dot(scaled).toarray()
            else:
                rows = cast(rows, arithmetic_dtype(rows))
                scaled = rows if factor is None else rows * cast(factor, rows.dtype)[:, None]
                out += rows.T.dot(scaled)

    def _scale_csr_rows(self, X: Any, weight: Any) -> Any:
        """Return a CSR matrix whose rows are multiplied by weights."""
        # Row of each entry: the number of rows that begin at or before it, minus one.
        row_of_entry = self._cp.searchsorted(X.indptr, self._cp.arange(X.nnz), side="right") - 1
        return _replace_entries(X, X.data * cast(weight[row_of_entry], X.dtype))

    def add_rows(self, X: Any, target_rows: Any, weight: Any | None, out: Any) -> None:
        """Add each row, times its weight, to row ``at[i]`` of `out`, in place."""
        if not isinstance(X, CupyRows):
            scaled = X if weight is None else X * weight[:, None]
            self._cp.add.at(out, target_rows, scaled.astype(out.dtype, copy=False))
            return
        # For sparse rows the sums by group are a product: one-hot groups' transpose times the rows.
        groups = one_hot(target_rows, out.shape[0], X.dtype)
        if weight is not None:
            groups *= cast(weight, X.dtype)[:, None]
        sums = self._cp.zeros(out.shape[::-1], out.dtype)
        self.add_tdot(X, groups, sums)
        out += sums.T

    def assign(
        self, X: Any, shift: Any | None, centroids: Any, weight: Any | None, out: Any,
        bounds: Any = None, previous_centroids: Any = None,
    ) -> Any:  # fmt: skip
        """Add dense rows to the sums of their nearest centroids; return the inertia.

        One kernel launch if the tile kernel supports shape and dtype, else one launch per slice of
        rows that are copied and centred first. The last bits vary between calls (atomic adds).
        """
        if shift is None or isinstance(X, CupyRows):
            return super().assign(X, shift, centroids, weight, out)
        k, d = centroids.shape
        sums, counts, inertia = (self._cp.zeros(shape) for shape in ((k, d), k, ()))
        totals = sums, counts, inertia
        if self.calls.has_kmeans_tiles(X, centroids):
            self.calls.kmeans(X, shift, centroids, weight, *totals)()
        else:
            for rows in row_slices(X.shape[0], self.entries_at_once // max(d, 1)):
                shifted = cast(X[rows], centroids.dtype) - shift
                slice_weight = None if weight is None else weight[rows]
                self.calls.kmeans(shifted, None, centroids, slice_weight, *totals)()
        out += self._cp.hstack([counts[:, None], sums])
        return inertia


def _kernel_parameter(parameters: tuple[float, ...]) -> float:
    """Return the one parameter that a loss's kernel takes; 0.0 if the loss has none."""
    return float(parameters[0]) if parameters else 0.0


def _matrix_of_rows(X: Any) -> Any:
    """Return the CuPy array or the cupyx CSR matrix of rows."""
    return X.X if isinstance(X, CupyRows) else X


def _replace_entries(X: Any, data: Any) -> Any:
    """Return a CSR matrix with other entries in the same positions."""
    # A shallow copy: the constructor would validate the indices, wait for the device, and lose the
    # flag of the canonical format.
    changed = copy.copy(X)
    changed.data = data
    return changed


@functools.cache
def _find_problem() -> str | None:
    """Return why this process cannot use a GPU, with a remedy; None if it can."""
    if importlib.util.find_spec("cupy") is None:
        return 'CuPy is not installed here. Install it: pip install "daskml-dist[gpu]".'
    if os.environ.get(_STREAMS_VARIABLE, "0") not in ("", "0"):
        return f"threads of this process have streams of their own. Unset {_STREAMS_VARIABLE}."
    try:
        # Checked before the import of CuPy, which takes half a second.
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here (libcuda.so.1). Install one, or use a GPU machine."
    # From here on, CuPy's own checks, each with its remedy.
    import cupy

    try:
        if not cupy.cuda.runtime.getDeviceCount():
            return "there is no CUDA device here. Check nvidia-smi."
        _check_libraries(cupy)
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        return f"{_suggest_remedy(cupy, error)} (CUDA says: {error})"
    except (ImportError, RuntimeError) as error:
        version = cupy.cuda.runtime.runtimeGetVersion() // 1000
        return (
            "CuPy finds no libraries or headers of CUDA here. Install them: pip install "
            f'"cupy-cuda{version}x[ctk]". (CuPy says: {str(error).partition(chr(10))[0]})'
        )
    return None


def _check_libraries(cupy: Any) -> None:
    """Load the CUDA libraries that CuPy loads lazily; raise if one that a fit needs is missing."""
    for library in ("cublas", "cusparse"):
        # The access loads it; `hasattr`, since later versions of CuPy may not have the name.
        hasattr(cupy.cuda, library)
    # Needs NVRTC, the CUDA headers, and a device that supports the result.
    cupy.RawModule(code='extern "C" __global__ void nothing() {}').compile()


def _suggest_remedy(cupy: Any, error: Exception) -> str:
    """Return what an error of the CUDA runtime means, and its remedy."""
    if "InsufficientDriver" in str(error):
        needed = cupy.cuda.runtime.runtimeGetVersion() // 1000
        return (
            f"the NVIDIA driver is too old for CUDA {needed}. Update it, or install the CuPy of an "
            "older CUDA (cupy-cuda12x)"
        )
    return "no CUDA device can be used. Check nvidia-smi and CUDA_VISIBLE_DEVICES"
