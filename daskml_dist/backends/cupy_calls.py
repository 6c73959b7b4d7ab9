"""Kernel launches for arrays on a device.

A launch is made in two steps. `kernels.launch` chooses grid, block and shared memory from the shape
only, and `kernels.options` chooses the compiler's definitions for a dtype, a width and a loss; both
are tested without a GPU. `KernelCalls` adds the device's part: the addresses of the arrays and the
module compiled by NVRTC. A `KernelCall` is kept and launched again in each step of a fit, since
making one takes longer than launching it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends import kernels
from daskml_dist.backends.base import Step


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Launch of a kernel with all its arguments; it can be repeated."""

    function: Any
    launch: kernels.Launch
    arguments: tuple[Any, ...]

    def __call__(self) -> None:
        """Launch it on the current stream."""
        self.function(
            (self.launch.grid,), self.launch.block, self.arguments, shared_mem=self.launch.shared
        )


@dataclass(frozen=True, slots=True)
class DenseRows:
    """Rows of a gradient, for a linear model with one output.

    Parameters
    ----------
    n, d : int
        Rows and features; if a call is given a number of rows, it uses only the first of the `n`.
    dtype : dtype
        Dtype of the features.
    alignment : int
        Power of two that divides each row's address.
    X : array of shape (n, d), or None
    addresses : array of uint64 of shape (n,), or None
        Addresses of the rows, if they are not contiguous.
    y, weight : arrays of shape (n,); weight or None
    """

    n: int
    d: int
    dtype: Any
    alignment: int
    X: Any
    addresses: Any
    y: Any
    weight: Any | None


@dataclass(frozen=True, slots=True)
class CsrRows:
    """Sparse rows of a gradient, for a linear model with one output.

    Parameters
    ----------
    n, d, dtype
        As in `DenseRows`.
    X : CSR matrix of shape (n, d), or None
    row_descriptors : array of uint64 of shape (n, 3), or None
        Description of each row, as kernels need it, if the rows are not contiguous; columns are
        int32.
    y, weight : arrays of shape (n,); weight or None
    """

    n: int
    d: int
    dtype: Any
    X: Any
    row_descriptors: Any
    y: Any
    weight: Any | None

    @property
    def index(self) -> Any:
        """Return the dtype of the column indices."""
        return np.dtype(np.int32) if self.X is None else self.X.indices.dtype


class KernelCalls:
    """Calls of the kernels on one device.

    Parameters
    ----------
    cupy : module
    address : callable
        Returns the address of the first entry of an array.
    """

    def __init__(self, cupy: Any, address: Callable[[Any], int]) -> None:
        self.cupy = cupy
        self.address = address

    # Facts about the current device, cached: each query takes microseconds.

    @functools.cached_property
    def _device(self) -> int:
        """Return the number of the current device."""
        return int(self.cupy.cuda.Device().id)

    @functools.cached_property
    def _n_sms(self) -> int:
        """Return the number of multiprocessors of the device."""
        return int(self.cupy.cuda.Device().attributes["MultiProcessorCount"])

    @functools.cached_property
    def _capability(self) -> int:
        """Return the compute capability of the device, times ten."""
        return int(self.cupy.cuda.Device().compute_capability)

    def alignment(self, *arrays: Any) -> int:
        """Return the largest power of two, at most 16, that divides the addresses of all arrays."""
        # The lowest set bit of all addresses together; 16 bytes is the widest load.
        bits = functools.reduce(int.__or__, map(self.address, arrays), 16)
        return bits & -bits

    def rows(self, X: Any, y: Any, weight: Any | None) -> DenseRows:
        """Return the description of all rows of an array."""
        n, d = X.shape
        return DenseRows(n, d, X.dtype, self.alignment(X), X, None, y, weight)

    def csr_rows(self, X: Any, y: Any, weight: Any | None) -> CsrRows:
        """Return the description of all rows of a CSR matrix."""
        n, d = X.shape
        return CsrRows(n, d, X.dtype, X, None, y, weight)

    def has_gradient(self, rows: DenseRows | CsrRows) -> bool:
        """Return whether there is a kernel for rows of this width and layout."""
        if isinstance(rows, CsrRows):
            return True
        contiguous = rows.X is None or rows.X.flags.c_contiguous
        return contiguous and self._launch("linear_gradient", rows) is not None

    def _launch(self, function: str, rows: DenseRows | CsrRows) -> kernels.Launch | None:
        """Return the launch of a kernel over rows; None if it has no version for their width."""
        alignment = rows.alignment if isinstance(rows, DenseRows) else 1
        n, d = rows.n, rows.d
        return kernels.launch(
            function, n, d, rows.dtype, self._n_sms,
            alignment=alignment, capability=self._capability,
        )  # fmt: skip

    def gradient(
        self,
        kernel: str,
        parameter: float,
        rows: DenseRows | CsrRows,
        w: Any,
        out: Any,
        loss: Any,
        *,
        add: bool = True,
        count: Any = None,
        partials: Any = None,
    ) -> list[KernelCall]:
        """Return the launches that compute the gradient of the summed loss, and the loss."""
        if isinstance(rows, CsrRows):
            return self._csr_gradient(kernel, parameter, rows, w, out, loss, add, count)
        launch = self._launch("linear_gradient", rows)
        assert launch is not None
        chosen = {
            "loss": kernel,
            "result": out.dtype,
            "alignment": rows.alignment,
            "capability": self._capability,
        }

        def make(function: str, launch: kernels.Launch | None, *arguments: Any) -> KernelCall:
            source = "linear_gradient"
            return self._call(source, rows.dtype, function, launch, *arguments, d=rows.d, **chosen)

        partials = self.partials(rows) if partials is None else partials
        intercept = w.shape[0] - rows.d  # 1 if there is an intercept, else 0
        arrays = rows.X, rows.addresses, rows.y, rows.weight, w, partials
        numbers = rows.n, rows.d, intercept, parameter, count
        # Two launches: blocks write partial gradients, then one kernel adds them up in a fixed
        # order. Atomic additions would need one launch, but give different bits in each run.
        total = kernels.launch("sum_partials", launch.grid, rows.d, rows.dtype, self._n_sms)
        sums = partials, out, loss, launch.grid, rows.d, intercept, int(add)
        return [
            make("linear_gradient", launch, *arrays, *numbers),
            make("sum_partials", total, *sums),
        ]

    def _csr_gradient(
        self,
        kernel: str,
        parameter: float,
        rows: CsrRows,
        w: Any,
        out: Any,
        loss: Any,
        add: bool,
        count: Any,
    ) -> list[KernelCall]:
        """Return the launches of :meth:`gradient` for sparse rows."""
        chosen = {"loss": kernel, "result": out.dtype, "index": rows.index}

        def make(function: str, launch: kernels.Launch | None, *arguments: Any) -> KernelCall:
            return self._call("csr_gradient", rows.dtype, function, launch, *arguments, **chosen)

        X = rows.X
        csr = (None, None, None) if X is None else (X.data, X.indices, X.indptr)
        arrays = *csr, rows.row_descriptors, rows.y, rows.weight, w, out, loss
        numbers = rows.n, rows.d, w.shape[0] - rows.d, parameter, count
        sums = make("csr_gradient", self._launch("csr_gradient", rows), *arrays, *numbers)
        # Additions are atomic: `out` must be initialised, with zeros unless `add`.
        if add:
            return [sums]
        launch = kernels.launch("csr_clear", out.size, 1, out.dtype, self._n_sms)
        return [make("csr_clear", launch, out, out.size), sums]

    def partials(self, rows: DenseRows | CsrRows) -> Any | None:
        """Return memory for the blocks' partial gradients, or None if the kernel needs none."""
        if isinstance(rows, CsrRows):
            return None
        launch = self._launch("linear_gradient", rows)
        assert launch is not None
        # One row per block: the gradient of the features, of the intercept, and the loss.
        return self.cupy.empty((launch.grid, rows.d + 2), np.float64)

    def softmax_rows(self, rows: DenseRows, w: Any, out: Any, loss: Any) -> list[KernelCall] | None:
        """Return the launches that add the gradient of softmax regression to `out`, or None."""
        k, intercept = w.shape[1], w.shape[0] - rows.d
        chosen = {"k": k, "alignment": rows.alignment, "capability": self._capability}
        launch = kernels.launch("softmax_rows", rows.n, rows.d, rows.dtype, self._n_sms, **chosen)
        if launch is None or not rows.X.flags.c_contiguous:
            return None
        # `sum_partials` takes one row of sums, with an intercept last: here the last class's
        # intercept, or a number that is dropped.
        width = w.size - intercept
        partials = self.cupy.empty((launch.grid, width + 2), np.float64)
        arrays = rows.X, rows.y, rows.weight, w, partials
        numbers = rows.n, rows.d, intercept
        total = kernels.launch("sum_partials", launch.grid, width, rows.dtype, self._n_sms)
        sums = partials, out, loss, launch.grid, width, intercept, 1
        names = {"d": rows.d, "result": out.dtype, "alignment": rows.alignment}
        return [
            self._call("softmax_rows", rows.dtype, "softmax_rows", launch, *arrays, *numbers,
                       d=rows.d, **chosen),
            self._call("linear_gradient", rows.dtype, "sum_partials", total, *sums,
                       capability=self._capability, **names),
        ]  # fmt: skip

    def softmax_gradient(self, raw: Any, y: Any, weight: Any | None, losses: Any) -> KernelCall:
        """Return the launch that turns raw predictions (n, k) into gradients and writes losses."""
        n, k = raw.shape
        launch = kernels.launch("softmax_gradient", n, 1, raw.dtype, self._n_sms, k=k)
        arrays = raw, y, weight, losses
        return self._call(
            "softmax_gradient", raw.dtype, "softmax_gradient", launch, *arrays, n, k, k=k
        )

    def has_kmeans_tiles(self, X: Any, centroids: Any) -> bool:
        """Return whether tensor cores can find the nearest centroids of these rows."""
        k, d = centroids.shape
        return bool(
            X.flags.c_contiguous and X.dtype == centroids.dtype
        ) and kernels.has_kmeans_tiles(
            d, k, X.dtype, alignment=self.alignment(X), capability=self._capability
        )

    def kmeans(
        self,
        X: Any,
        shift: Any | None,
        centroids: Any,
        weight: Any | None,
        sums: Any,
        counts: Any,
        inertia: Any,
    ) -> KernelCall:
        """Return the launch that adds rows, weights and squared distances to the nearest centroids.

        With a shift, which is subtracted from each row first, tensor cores are used: see
        :meth:`has_kmeans_tiles`.
        """
        (n, d), k = X.shape, centroids.shape[0]
        # The kernel for tensor cores subtracts the shift itself; the other one supports none.
        source = "kmeans" if shift is None else "kmeans_tiles"
        launch = kernels.launch(source, n, d, X.dtype, self._n_sms, k=k)
        # Scratch memory of the kernel, kept alive by the call.
        labels = self.cupy.empty(n, np.int32)
        rows = (X,) if shift is None else (X, shift)
        arrays = *rows, centroids, weight, labels, sums, counts, inertia
        return self._call(source, X.dtype, source, launch, *arrays, n, d, k, d=d, k=k)

    def update(
        self, optimizer: Any, step: Step, opt_state: list[Any], step_values: Any = None
    ) -> KernelCall:
        """Return the launch of an optimizer's step."""
        n, width = step.w.size, step.w.shape[1]
        launch = kernels.launch("optimizer_update", n, 1, step.w.dtype, self._n_sms)
        hyperparameters = kernels.optimizer_numbers(optimizer, step.rows, step.lr, step.number)
        # The kernel has three arguments for state; an optimizer may use fewer. `numbers` on the
        # device replace `hyperparameters` if many steps are recorded together.
        arrays = step.w, step.grad, *opt_state, *[None] * (3 - len(opt_state))
        return self._call(
            "optimizer_updates", step.w.dtype, "optimizer_update", launch, *arrays, n,
            step.n_penalised * width, step.l1, step.l2, *hyperparameters, step_values,
            optimizer=optimizer.name, result=step.grad.dtype,
        )  # fmt: skip

    def adagrad_at(self, rows: CsrRows, step: Step, step_values: Any) -> KernelCall:
        """Return the launch of an Adagrad step without penalty, in the columns of chosen rows."""
        # Adagrad does not change entries with gradient 0, nor their sums of squares: so a step in
        # the used columns is the whole step.
        w, grad, accumulator = step.w, step.grad, step.opt_state["accumulator"]
        arrays = rows.row_descriptors, w, accumulator, grad
        return self._call(
            "csr_adagrad", rows.dtype, "csr_adagrad", self._launch("csr_adagrad", rows), *arrays,
            rows.d, w.shape[0] - rows.d, step_values, result=grad.dtype, index=rows.index,
        )  # fmt: skip

    def gather_rows(
        self, blocks: Any, runs: Any, row_bytes: int | None, *outputs: Any
    ) -> KernelCall:
        """Return the launch that writes addresses, targets and weights of runs of rows.

        Parameters
        ----------
        blocks : array of uint64 of shape (n_blocks, .)
            Addresses of the blocks' arrays.
        runs : array of int32 of shape (n_runs, 4)
        row_bytes : int or None
            Bytes of a dense row; None: blocks are CSR.
        outputs : arrays
        """
        n, dtype = runs.shape[0], outputs[1].dtype
        function = "gather_csr_rows" if row_bytes is None else "gather_rows"
        launch = kernels.launch(function, n, 1, dtype, self._n_sms)
        numbers = (n,) if row_bytes is None else (n, row_bytes)
        return self._call("gather_rows", dtype, function, launch, blocks, runs, *outputs, *numbers)

    def _call(
        self,
        source: str,
        dtype: Any,
        function: str,
        launch: kernels.Launch | None,
        *arguments: Any,
        **compile_options: Any,
    ) -> KernelCall:
        """Return the launch of a function in a source, compiled for the chosen options."""
        assert launch is not None
        options = kernels.options(source, dtype, **compile_options)
        # None is a null pointer.
        pointers = tuple(0 if argument is None else argument for argument in arguments)
        return KernelCall(
            _load_function(self.cupy, self._device, source, options, function), launch, pointers
        )


@functools.cache
def _load_function(cupy: Any, device: int, source: str, options: tuple[str, ...], name: str) -> Any:
    """Return a function of a compiled source, cached per device: each loads its own."""
    function = _compile_module(cupy, source, options).get_function(name)
    if name == "kmeans_tiles":  # by default a block has 48 KiB
        function.max_dynamic_shared_size_bytes = kernels.LARGEST_SHARED
    return function


@functools.cache
def _compile_module(cupy: Any, source: str, options: tuple[str, ...]) -> Any:
    """Return the module of a source, compiled by NVRTC, or read from CuPy's cache on disk."""
    return cupy.RawModule(code=kernels.source(source), options=options)
