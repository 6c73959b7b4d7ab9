"""The CPU backend: NumPy and BLAS for dense blocks, compiled loops if they are worth it.

NumPy computes a product in a new array, and adding it takes another pass over memory; SciPy's BLAS
adds as it multiplies. Loading numba takes half a second, and compiling a loop for the first time
takes longer: constants here give the sizes from which that is worth it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas

from daskml_dist.backends.base import Backend, Step
from daskml_dist.backends.csr_rows import CSRRows, TouchedColumns, add_csr_gradient
from daskml_dist.backends.host_memory import Scratch
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.shared_buffer import SharedBuffer

#: Losses with a kernel in `dense_kernels`; looking there would load numba.
FUSED_LOSSES = ("log_loss",)
#: Number of entries of X from which a fused kernel is worth loading numba.
MIN_FUSED_ENTRIES = 1 << 13
#: Entries of all rows of a fit up to which NumPy computes the log loss: the kernel saves a tenth of
#: a millisecond per pass over these, but compiling it takes seconds.
_MAX_FEW_ENTRIES = 1 << 17
#: Number of products of rows and centroids from which compiled loops are worth it.
_MIN_CENTRE_PRODUCTS = 1 << 20


def has_few_entries(n_rows: int, n_features: int) -> bool:
    """Return whether all rows of a fit are too few for a compiled kernel of their loss."""
    return n_rows * n_features <= _MAX_FEW_ENTRIES


def has_kernel(
    kernel: str | None, w: NDArray[Any], X: Any, y: NDArray[Any], weight: NDArray[Any]
) -> bool:
    """Return whether the kernels for dense rows support these arrays."""
    if (
        kernel not in FUSED_LOSSES
        or w.shape[1] > 1
        or isinstance(X, CSRRows)
        or X.size < MIN_FUSED_ENTRIES
    ):
        return False
    if sparse.issparse(X) or not all(a.flags.c_contiguous for a in (X, y, weight)):
        return False
    return bool(X.dtype == y.dtype == w.dtype == weight.dtype)


def load_centroid_loops(X: Any, shift: Any | None, k: int) -> Any | None:
    """Return the compiled loops over centroids; None if not worth it, or not applicable."""
    if shift is None or not isinstance(X, np.ndarray) or not X.flags.c_contiguous:
        return None
    if X.size * k < _MIN_CENTRE_PRODUCTS:
        return None
    from daskml_dist.backends import centroid_kernels

    return centroid_kernels


def can_compile_steps(dtype: Any, optimizer: Any, step: Step) -> bool:
    """Return whether steps on rows of a dtype can be made in one loop."""
    state = step.state(optimizer)
    if not all(array.dtype == dtype and array.flags.c_contiguous for array in state):
        return False
    if optimizer.elementwise_update is None:
        return False
    from daskml_dist.backends import host_update

    return host_update.can_compile_update(optimizer, step)


#: Bytes of scaled rows whose symmetric product is computed together (512 KiB): they are still in
#: the L2 cache when BLAS reads them.
_SCALED_BYTES = 1 << 19

#: BLAS's matrix product of each dtype.
_GEMM = {np.dtype(np.float32): blas.sgemm, np.dtype(np.float64): blas.dgemm}


def add_matmul(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """Add ``a @ b`` to `out`, in place.

    Parameters
    ----------
    a : ndarray of shape (n, k)
    b : ndarray of shape (k, m)
    out : ndarray of shape (n, m)
        If it is not C-contiguous or the dtypes differ, NumPy computes the product: BLAS would write
        to a copy.
    """
    # Use NumPy if BLAS would have to copy an argument.
    gemm = _GEMM.get(out.dtype)
    blas_a, blas_b = _fortran_order(a, out.dtype), _fortran_order(b, out.dtype)
    if gemm is None or blas_a is None or blas_b is None or not out.flags.c_contiguous or not a.size:
        out += a @ b
        return
    # BLAS uses column order, so it is given the transposes: out.T = b.T @ a.T.
    (a, a_turned), (b, b_turned) = blas_a, blas_b
    gemm(1.0, b, a, 1.0, out.T, b_turned, a_turned, 1)


def _fortran_order(array: NDArray[Any], dtype: Any) -> tuple[NDArray[Any], bool] | None:
    """Return an array's transpose in Fortran order, and whether BLAS must transpose it, or None."""
    if array.dtype != dtype:
        return None
    if array.flags.c_contiguous:
        return array.T, False
    return (array, True) if array.flags.f_contiguous else None


def round_up_columns(n_columns: int) -> int:
    """Round a number of columns up to whole vectors, with which BLAS is fastest."""
    return -(-n_columns // 8) * 8


def rows_per_hessian(X: NDArray[Any]) -> int:
    """Return how many rows to scale together: they fit in a cache, and adding products is cheap."""
    n, n_features = X.shape
    # At least 64 rows, so that the product is efficient, and 4 rows per feature (up to 2**14),
    # since adding the product to the Hessian costs features squared.
    cached = _SCALED_BYTES // (n_features * X.itemsize)
    return int(min(n, max(64, cached, min(4 * n_features, 2**14))))


#: Bytes of dense rows that go through NumPy's operations together (1 MiB), in a cache.
_BLOCK_BYTES = 1 << 20
#: Maximum steps of a fit that copy their rows, and entries of these rows; later steps read rows in
#: place by compiled loops, which are worth loading by then.
_MAX_COPIED_STEPS, _MAX_COPIED_ENTRIES = 1 << 10, 1 << 26
#: Number of entries updated by steps, from which a compiled pass is worth loading numba.
_MIN_MOVED_ENTRIES = 1 << 26
#: The module of compiled loops; if it is already loaded: number of steps, or of entries updated by
#: them, from which one more loop is worth it.
_LOOPS_MODULE = "daskml_dist.backends.compiled"
_MIN_LOADED_UPDATES, _MIN_LOADED_ENTRIES = 1 << 12, 1 << 23


class NumpyBackend(Backend):
    """NumPy and numba on the CPU. One instance serves one thread: it holds scratch arrays."""

    name = "numpy"
    device = "cpu"
    entries_at_once = 0

    @classmethod
    def problem(cls) -> str | None:
        """Return None: it runs everywhere."""
        return None

    @cached_property
    def _touched(self) -> TouchedColumns:
        """Return the reused memory for the columns that batches of sparse rows use."""
        return TouchedColumns()

    @cached_property
    def _scratch(self) -> Scratch:
        """Return the reused memory for products and tiles."""
        return Scratch()

    def to_device(self, array: Any) -> Any:
        """Return the array itself, or an aligned copy.

        Arrays received over a network may be unaligned; NumPy would then copy the whole block for
        each batch taken from it.
        """
        if not sparse.issparse(array):
            return np.require(array, requirements=["C", "A"])
        parts = array.data, array.indices, array.indptr
        if all(part.flags.aligned for part in parts):
            return array
        aligned = tuple(np.require(part, requirements="A") for part in parts)
        return type(array)(aligned, shape=array.shape)

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """Return the array itself."""
        return np.asarray(array)

    def rows(self, X: Any, rows: NDArray[np.intp] | slice) -> Any:
        """Return copies of dense rows (for a slice a view), or a wrapper of CSR rows."""
        if sparse.issparse(X):
            if isinstance(rows, slice):
                rows = np.arange(rows.start, rows.stop)
            return CSRRows(X, rows)
        if isinstance(rows, slice):
            return X[rows]
        return X.take(rows, axis=0, mode="clip")

    def borrow_rows(self, X: Any, row_slice: slice) -> Any:
        """Return a view of rows, or an aligned copy in reused memory."""
        rows = self.rows(X, row_slice)
        if not isinstance(rows, np.ndarray) or rows.flags.aligned:
            return rows
        buffer = self._scratch.empty("tile", rows.shape, rows.dtype)
        buffer[...] = rows
        return buffer

    def columns(self, row_views: list[CSRRows]) -> NDArray[np.int64]:
        """Return the sorted unique columns of the pieces, and renumber the pieces to them."""
        return self._touched.find(row_views)

    def dot(self, X: Any, w: NDArray[Any]) -> NDArray[Any]:
        """Return the product ``X @ w``; 1-d if the weights have one column."""
        if isinstance(X, CSRRows):
            from daskml_dist.backends import csr_kernels

            out = np.zeros((X.shape[0], w.shape[1]), dtype=w.dtype)
            csr = X.X.indptr, X.X.indices, X.X.data, X.rows
            if X.columns is None:
                csr_kernels.multiply_rows(*csr, w, out)
            else:
                csr_kernels.multiply_rows_at(*csr, self._touched.positions(X.columns), w, out)
            return out[:, 0] if w.shape[1] == 1 else out
        if sparse.issparse(X):
            product = X @ w
            return np.asarray(product[:, 0] if w.shape[1] == 1 else product)
        return np.asarray(X @ w[:, 0] if w.shape[1] == 1 else X @ w)

    def add_tdot(self, X: Any, g: NDArray[Any], out: NDArray[Any]) -> None:
        """Add ``X.T @ g`` to `out` in place."""
        if not isinstance(X, CSRRows):
            # g @ X reads X row by row, in memory order.
            out += (g @ X)[:, None] if g.ndim == 1 else X.T @ g
            return
        from daskml_dist.backends import csr_kernels

        # The loops are compiled for rows of `g` in memory order.
        g = g[:, None] if g.ndim == 1 else np.ascontiguousarray(g)
        csr = X.X.indptr, X.X.indices, X.X.data, X.rows
        if X.columns is None:
            csr_kernels.add_transposed_product(*csr, g, out)
        else:
            csr_kernels.add_transposed_product_at(*csr, self._touched.positions(X.columns), g, out)

    def add_matmul(self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
        """Add ``a @ b`` to `out` in one pass over it."""
        add_matmul(a, b, out)

    def matmul(self, a: NDArray[Any], b: NDArray[Any], use: str | None) -> NDArray[Any]:
        """Return ``a @ b``, in the same memory for each product of a `use`."""
        shape = a.shape[0], b.shape[1]
        out = np.empty(shape, b.dtype) if use is None else self._scratch.empty(use, shape, b.dtype)
        return np.matmul(a, b, out=out)

    def add_fused(
        self,
        kernel: str | None,
        w: NDArray[Any],
        X: Any,
        y: NDArray[Any],
        weight: NDArray[Any] | None,
        out: NDArray[Any],
        parameters: tuple[float, ...] = (),
    ) -> float | None:
        """Add the gradient in one reading of the rows, for losses with a kernel and one output."""
        if isinstance(X, CSRRows):
            return add_csr_gradient(kernel, X, self._touched, y, weight, w, out, parameters)
        dtype, sums = X.dtype, out[:, 0]
        weight = np.empty(0, dtype) if weight is None else weight
        if not has_kernel(kernel, w, X, y, weight) or not sums.flags.c_contiguous:
            return None
        from daskml_dist.backends import dense_kernels

        run = dense_kernels.compile_kernel(kernel, dtype.char)
        # The kernel sums in float64; another dtype gets the rounded sum.
        total = sums if sums.dtype == np.float64 else np.zeros(len(sums))
        loss: float = run(X, y, weight, w.reshape(-1), total)[0]
        if total is not sums:
            sums += total
        return loss

    def add_curved(
        self,
        kernel: str | None,
        w: NDArray[Any],
        X: Any,
        y: NDArray[Any],
        weight: NDArray[Any] | None,
        gradient: NDArray[np.float64],
        hessian: NDArray[np.float64],
    ) -> tuple[float, float] | None:
        """Add gradient and Hessian: rows times the root of their curvature, and BLAS's syrk."""
        sums, n, width = gradient[:, 0], X.shape[0], len(w)
        weight = np.empty(0, X.dtype) if weight is None else weight
        if not has_kernel(kernel, w, X, y, weight) or not sums.flags.c_contiguous:
            return None
        from daskml_dist.backends import dense_kernels

        run = dense_kernels.compile_kernel(kernel, X.dtype.char, curved=True)
        n_features = X.shape[1]
        scaled = self._scratch.empty(
            "scaled", (rows_per_hessian(X), round_up_columns(n_features + 1)), X.dtype
        )
        scaled[:, n_features:] = 0
        loss = flat = 0.0
        for row_slice in row_slices(n, len(scaled)):
            rows = scaled[: row_slice.stop - row_slice.start]
            slice_losses = run(
                X[row_slice], y[row_slice], weight[row_slice], w.reshape(-1), sums, rows
            )
            loss, flat = loss + slice_losses[0], flat + slice_losses[1]
            # BLAS's symmetric product (syrk) computes half of it; the column after the features is
            # the intercept.
            hessian += self._square(rows)[:width, :width]
        return loss, flat

    def updates_at(self, step_number: int, n_entries: int, any_way: bool) -> bool:
        """Return True once steps have taken about a third of the time of loading numba."""
        if step_number * n_entries > _MIN_MOVED_ENTRIES:
            return True
        # If numba is already loaded, a loop is worth it sooner; it may be used only if the bits are
        # equal.
        is_large = (
            step_number > _MIN_LOADED_UPDATES or step_number * n_entries > _MIN_LOADED_ENTRIES
        )
        return is_large and any_way and _LOOPS_MODULE in sys.modules

    def update(self, optimizer: Any, step: Step) -> bool:
        """Take a step in one compiled pass, for optimizers with an `elementwise_update`."""
        return self.updater(optimizer, step)(step.grad, step.rows, step.lr, step.number)

    def updater(self, optimizer: Any, step: Step) -> Callable[[Any, float, float, int], bool]:
        """Return an updater of one compiled pass, for optimizers with an `elementwise_update`."""
        state, dtype = step.state(optimizer), step.w.dtype
        is_uniform = all(array.dtype == dtype and array.flags.c_contiguous for array in state)
        if optimizer.elementwise_update is None or dtype.kind != "f" or not is_uniform:
            return lambda *given: False
        from daskml_dist.backends.host_update import Updates

        return Updates(optimizer, step)

    def coordinate_updater(self, optimizer: Any, step: Step, row_rate_sums: Any) -> Any | None:
        """Return an updater by a compiled loop for few rows, or None."""
        if not can_compile_steps(step.w.dtype, optimizer, step):
            return None
        from daskml_dist.backends import host_update

        return host_update.CoordinateUpdates(optimizer, step, row_rate_sums)

    def steps_copied(self, kernel: str | None, n_entries: int) -> int:
        """Return the number of steps that take about a third of the time of loading numba."""
        if kernel == "wide" or (kernel in FUSED_LOSSES and n_entries >= MIN_FUSED_ENTRIES):
            return 0  # the gradient of the first step loads it
        return min(_MAX_COPIED_STEPS, _MAX_COPIED_ENTRIES // max(n_entries, 1))

    def gather(
        self,
        loss: Any,
        shape: tuple[int, int],
        blocks: Mapping[int, tuple[Any, Any, Any | None]],
        n_rows: int,
        coordinates: bool = False,
        clips: bool = False,
    ) -> Any | None:
        """Return a compiled gather, for losses that numba compiles and one output, or None."""
        # Many models on the same rows.
        if loss.kernel == "wide":
            from daskml_dist.backends import wide_gather

            return wide_gather.make_wide_gather(loss, shape, blocks, n_rows)
        if shape[1] > 1 or loss.evaluate_row is None:
            return None
        # Batches that use few of the parameters: CSR rows.
        if coordinates:
            from daskml_dist.backends import csr_team

            return csr_team.make_csr_gather(loss, shape, blocks, n_rows)
        other = (sparse.issparse(X) or y.dtype != X.dtype for X, y, _ in blocks.values())
        if any(other):
            return None
        from daskml_dist.backends.host_gather import HostGather

        return HostGather(loss, blocks, n_rows, clips)

    def stream_gather(
        self,
        loss: Any,
        n_features: int,
        dtype: Any,
        find: Callable[[int], tuple[Any, Any, Any | None]],
        n_rows: int,
        most_steps: int,
    ) -> Any | None:
        """Return a compiled loop over streamed blocks, or None."""
        if loss.evaluate_row is None:
            return None
        from daskml_dist.backends.host_gather import StreamGather

        return StreamGather(loss, n_features, dtype, find, n_rows, most_steps)

    def recorder(self, gather: Any, optimizer: Any, step: Step) -> Any | None:
        """Return a compiled loop of steps, for optimizers with an `elementwise_update`, or None."""
        if not can_compile_steps(gather.dtype, optimizer, step):
            return gather.recorder(optimizer, step) if hasattr(gather, "recorder") else None
        if step.coordinates:
            from daskml_dist.backends import csr_team

            return csr_team.CSRSteps(gather, optimizer, step)
        from daskml_dist.backends import host_gather

        return host_gather.BatchSteps(gather, optimizer, step)

    def team_recorder(
        self, gathers: Sequence[Any | None], optimizer: Any, step: Step, board: SharedBuffer
    ) -> Any | None:
        """Return one compiled loop of a team's steps, or None."""
        # Team members wait for each other by C functions that Windows lacks: there, lanes step
        # separately.
        if sys.platform == "win32":
            return None
        kinds = {gather.dtype for gather in gathers if gather is not None}
        if len(kinds) != 1 or not can_compile_steps(kinds.pop(), optimizer, step):
            return None
        if step.coordinates:
            from daskml_dist.backends import csr_team

            return csr_team.CSRTeam(gathers, optimizer, step, board)
        from daskml_dist.backends import team_steps

        return team_steps.TeamSteps(gathers, optimizer, step, board)

    def row_blocks(self, X: Any) -> Iterable[slice]:
        """Return slices of dense rows of a megabyte each; sparse rows as a whole."""
        n = X.shape[0]
        if not isinstance(X, np.ndarray) or X.nbytes < 2 * _BLOCK_BYTES:
            return (slice(0, n),)
        # At least 64 rows: with fewer, products are slow.
        return row_slices(n, max(64, _BLOCK_BYTES * n // X.nbytes))

    def add_gram(self, X: Any, weight: NDArray[Any] | None, out: NDArray[Any]) -> None:
        """Add ``X.T @ diag(weight) @ X`` to `out` in place; dense rows multiply in their dtype."""
        if isinstance(X, CSRRows):
            from daskml_dist.backends import csr_kernels

            weight = np.ones(len(X.rows), dtype=X.dtype) if weight is None else weight
            csr_kernels.add_weighted_gram(X.X.indptr, X.X.indices, X.X.data, X.rows, weight, out)
            return
        if weight is not None:
            # Rows times the square root of their weights: one symmetric product.
            scaled = self._scratch.empty("scaled", X.shape, X.dtype)
            X = np.multiply(X, np.sqrt(weight)[:, None], out=scaled)
        out += self._square(X)

    def add_products(
        self,
        X: Any,
        extra_columns: NDArray[Any],
        weight: NDArray[Any] | None,
        out: NDArray[Any],
        shift: NDArray[Any] | None = None,
    ) -> None:
        """Add all products together, of dense rows copied beside `extra_columns`."""
        if not isinstance(X, np.ndarray):
            super().add_products(X, extra_columns, weight, out)
            return
        (n, d), n_side = X.shape, extra_columns.shape[1]
        # One array [X - shift, side, zeros], times the square root of the weights: its symmetric
        # product contains all blocks.
        packed = self._scratch.empty("scaled", (n, round_up_columns(d + n_side)), X.dtype)
        if shift is None:
            packed[:, :d] = X
        else:
            np.subtract(X, shift, out=packed[:, :d])
        packed[:, d : d + n_side] = extra_columns
        packed[:, d + n_side :] = 0
        if weight is not None:
            packed *= np.sqrt(weight)[:, None]
        out += self._square(packed)[:d, : d + n_side]

    def _square(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return ``rows.T @ rows``, of which BLAS computes one half; valid until the next call."""
        product = self._scratch.empty("product", (rows.shape[1],) * 2, rows.dtype)
        return np.matmul(rows.T, rows, out=product)

    def add_rows(
        self, X: Any, target_rows: NDArray[Any], weight: NDArray[Any] | None, out: NDArray[Any]
    ) -> None:
        """Add each row, times its weight, to row ``target_rows[i]`` of `out`, in place."""
        from daskml_dist.backends import csr_kernels

        weight = np.empty(0) if weight is None else weight
        if isinstance(X, CSRRows):
            csr_kernels.add_sparse_rows(
                X.X.indptr, X.X.indices, X.X.data, X.rows, target_rows, weight, out
            )
        else:
            csr_kernels.add_dense_rows(X, target_rows, weight, out)

    def assign(
        self, X: Any, shift: Any | None, centroids: Any, weight: Any | None, out: Any,
        bounds: Any = None, previous_centroids: Any = None,
    ) -> float:  # fmt: skip
        """Add dense rows to their nearest centroids: a product, then a loop while it is cached."""
        if (loops := load_centroid_loops(X, shift, len(centroids))) is None:
            return float(super().assign(X, shift, centroids, weight, out))
        earlier = (bounds, previous_centroids) if bounds is not None and bounds.shape[1] else ()
        return float(
            loops.add_to_nearest(X, shift, centroids, weight, out, self._scratch, *earlier)
        )

    def row_bounds(self, X: Any, shift: Any | None, k: int) -> Any:
        """Return memory for a label and two distances of each dense row."""
        if (loops := load_centroid_loops(X, shift, k)) is None:
            return super().row_bounds(X, shift, k)
        return np.full((len(X), loops.N_BOUNDS), -1, X.dtype)

    def nearest(self, X: Any, shift: Any | None, centroids: Any) -> tuple[Any, Any]:
        """Return each dense row's nearest centroid by compiled loops, and squared distances."""
        if (loops := load_centroid_loops(X, shift, len(centroids))) is None:
            return super().nearest(X, shift, centroids)
        return tuple(loops.nearest(X, shift, centroids, self._scratch))

    def add_squares(
        self, X: Any, target_rows: NDArray[Any], weight: NDArray[Any] | None, mean: NDArray[Any],
        out: NDArray[Any],
    ) -> None:  # fmt: skip
        """Add weighted ``(X[i] - mean[r]) ** 2`` to ``out[r]``, where r is ``target_rows[i]``."""
        from daskml_dist.backends import csr_kernels

        row_weight = np.empty(0) if weight is None else weight
        if not isinstance(X, CSRRows):
            csr_kernels.add_dense_squares(X, target_rows, row_weight, mean, out)
            return
        stored = np.zeros(out.shape)
        csr_kernels.add_sparse_squares(
            X.X.indptr, X.X.indices, X.X.data, X.rows, target_rows, row_weight, mean, out, stored
        )
        # Each entry that is not stored, a zero, is as far from the mean as 0 is.
        total_weight = np.bincount(target_rows, weight, minlength=len(out))
        out += (total_weight[:, None] - stored) * mean**2
