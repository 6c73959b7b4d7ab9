"""From arrays on a device to launches of the kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends import kernels
from daskml_dist.backends.base import Step

__all__ = ["Call", "Calls", "Rows"]


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel with all that its launch takes; it can be launched again."""

    function: Any
    at: kernels.Launch
    arguments: tuple[Any, ...]

    def __call__(self) -> None:
        """Launch it on the current stream."""
        self.function((self.at.grid,), self.at.block, self.arguments, shared_mem=self.at.shared)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a gradient, for a linear model with one output.

    Parameters
    ----------
    n, d : int
        Rows and features; of `n` only the first are used where a call is given their number.
    dtype : dtype
        Of the features.
    alignment : int
        Power of two that divides each row's address.
    X : array of shape (n, d), or None
    addresses : array of uint64 of shape (n,), or None
        Of the rows, where they do not lie one after the other.
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


class Calls:
    """Makes the calls of one device.

    Parameters
    ----------
    cupy : module
    address : callable
        Of the first entry of an array.
    """

    def __init__(self, cupy: Any, address: Callable[[Any], int]) -> None:
        self._cp = cupy
        self._address = address

    @functools.cached_property
    def _device(self) -> int:
        return int(self._cp.cuda.Device().id)

    @functools.cached_property
    def _n_sms(self) -> int:
        return int(self._cp.cuda.Device().attributes["MultiProcessorCount"])

    def alignment(self, *arrays: Any) -> int:
        """Power of two, at most 16, that divides the addresses of all arrays."""
        bits = functools.reduce(int.__or__, map(self._address, arrays), 16)
        return bits & -bits

    def rows(self, X: Any, y: Any, weight: Any | None) -> Rows:
        """All rows of an array."""
        n, d = X.shape
        return Rows(n, d, X.dtype, self.alignment(X), X, None, y, weight)

    def has_gradient(self, rows: Rows) -> bool:
        """Whether rows so wide have a kernel."""
        return self._launch("linear_gradient", rows) is not None

    def _launch(self, function: str, rows: Rows) -> kernels.Launch | None:
        n, d, alignment = rows.n, rows.d, rows.alignment
        return kernels.launch(function, n, d, rows.dtype, self._n_sms, alignment=alignment)

    def gradient(
        self,
        kernel: str,
        parameter: float,
        rows: Rows,
        w: Any,
        out: Any,
        loss: Any,
        *,
        add: bool = True,
        count: Any = None,
        partials: Any = None,
    ) -> list[Call]:
        """The gradient of the summed loss, and the loss.

        Parameters
        ----------
        kernel : str
            One of `kernels.LOSSES`.
        parameter : float
            The loss's own, or 0.
        rows : Rows
            Of a width that has a kernel.
        w : array of shape (d, 1) or (d + 1, 1)
        out : array of the shape of `w`
        loss : array of float64 of one entry
            Set, not added to.
        add : bool
            Whether to add to `out` rather than set it.
        count : array of float64, or None
            Its first entry is the number of rows.
        partials : array, or None
            As :meth:`partials` makes it.
        """
        at = self._launch("linear_gradient", rows)
        assert at is not None
        chosen = {"loss": kernel, "result": out.dtype, "alignment": rows.alignment}

        def make(function: str, at: kernels.Launch | None, *arguments: Any) -> Call:
            source = "linear_gradient"
            return self._call(source, rows.dtype, function, at, *arguments, d=rows.d, **chosen)

        partials = self.partials(rows) if partials is None else partials
        intercept = w.shape[0] - rows.d
        arrays = rows.X, rows.addresses, rows.y, rows.weight, w, partials
        numbers = rows.n, rows.d, intercept, parameter, count
        total = kernels.launch("sum_partials", at.grid, rows.d, rows.dtype, self._n_sms)
        sums = partials, out, loss, at.grid, rows.d, intercept, int(add)
        return [
            make("linear_gradient", at, *arrays, *numbers),
            make("sum_partials", total, *sums),
        ]

    def partials(self, rows: Rows) -> Any:
        """Where the parts of a gradient are written before they are summed."""
        at = self._launch("linear_gradient", rows)
        assert at is not None
        return self._cp.empty((at.grid, rows.d + 2), np.float64)

    def csr_gradient(
        self,
        kernel: str,
        parameter: float,
        X: Any,
        y: Any,
        weight: Any,
        w: Any,
        out: Any,
        loss: Any,
    ) -> Call:
        """The gradient of sparse rows, added to `out`, and their loss, added to `loss`."""
        n, d = X.shape
        at = kernels.launch("csr_gradient", n, d, X.dtype, self._n_sms)
        csr = X.data, X.indices, X.indptr
        numbers = n, d, w.shape[0] - d, parameter
        return self._call(
            "csr_gradient", X.dtype, "csr_gradient", at, *csr, y, weight, None, w, out, loss,
            *numbers, loss=kernel, result=out.dtype, index=X.indices.dtype,
        )  # fmt: skip

    def softmax_gradient(self, raw: Any, y: Any, weight: Any | None, losses: Any) -> Call:
        """Raw predictions of shape (n, k) become gradients, and each row's loss is set."""
        n, k = raw.shape
        at = kernels.launch("softmax_gradient", n, 1, raw.dtype, self._n_sms, k=k)
        arrays = raw, y, weight, losses
        return self._call("softmax_gradient", raw.dtype, "softmax_gradient", at, *arrays, n, k, k=k)

    def update(self, optimizer: Any, step: Step, slots: list[Any], numbers: Any = None) -> Call:
        """A step of an optimizer.

        Parameters
        ----------
        optimizer : daskml_dist.optimizers.Optimizer
        step : Step
        slots : list of arrays
            In the order of the optimizer's.
        numbers : array of float64 of shape (kernels.NUMBERS,), or None
            On the device; what differs from step to step is read from there.
        """
        n, width = step.w.size, step.w.shape[1]
        at = kernels.launch("optimizer_update", n, 1, step.w.dtype, self._n_sms)
        given = kernels.optimizer_numbers(optimizer, step.rows, step.lr, step.number)
        arrays = step.w, step.grad, *slots, *[None] * (3 - len(slots))
        return self._call(
            "optimizer_updates", step.w.dtype, "optimizer_update", at, *arrays, n,
            step.n_penalised * width, step.l1, step.l2, *given, numbers,
            optimizer=optimizer.name, result=step.grad.dtype,
        )  # fmt: skip

    def choose_rows(self, blocks: Any, runs: Any, row_bytes: int, *chosen: Any) -> Call:
        """Runs of rows of blocks become their addresses, targets and weights (or None)."""
        n, dtype = runs.shape[0], chosen[1].dtype
        at = kernels.launch("choose_rows", n, 1, dtype, self._n_sms)
        return self._call(
            "choose_rows", dtype, "choose_rows", at, blocks, runs, *chosen, n, row_bytes
        )

    def _call(
        self,
        source: str,
        dtype: Any,
        function: str,
        at: kernels.Launch | None,
        *arguments: Any,
        **chosen: Any,
    ) -> Call:
        assert at is not None
        options = kernels.options(source, dtype, **chosen)
        # None is a null pointer.
        given = tuple(0 if argument is None else argument for argument in arguments)
        return Call(_function(self._cp, self._device, source, options, function), at, given)


@functools.cache
def _function(cupy: Any, device: int, source: str, options: tuple[str, ...], name: str) -> Any:
    return _module(cupy, source, options).get_function(name)


@functools.cache
def _module(cupy: Any, source: str, options: tuple[str, ...]) -> Any:
    return cupy.RawModule(code=kernels.source(source), options=options)
