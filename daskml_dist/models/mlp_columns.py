"""Columns of the first layer of a multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.base import SparseRows
from daskml_dist.backends.namespace import cast, namespace, total
from daskml_dist.models.activations import Activation
from daskml_dist.models.base import BatchRows, Parameters, Part, StepModel
from daskml_dist.models.columned import ColumnPart

__all__ = ["MLPColumns"]

#: Numbers of a random stream that are drawn at once to be passed over.
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class MLPColumns(StepModel, ColumnPart):
    """Some columns of the first layer of a perceptron: as many rows of its weights.

    With the last columns go the intercepts of that layer and all later layers.

    Parameters
    ----------
    model : MLP
    sizes : tuple of int
        Of its layers.
    activation : Activation
    start, stop : int
        The columns.
    """

    model: Any
    sizes: tuple[int, ...]
    activation: Activation
    start: int
    stop: int

    starts_threads: ClassVar[bool] = False
    parameters: Parameters = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        first, *others = self.model.parameters.parts
        parts = [Part(first.name, (self.stop - self.start, self.sizes[1]))]
        object.__setattr__(self, "parameters", Parameters((*parts, *others[: self._n_others])))

    @property
    def _is_last(self) -> bool:
        return self.stop == self.sizes[0]

    @property
    def _n_others(self) -> int | None:
        """Parts of the parameters behind the weights; None: all."""
        return None if self._is_last else 0

    @property
    def has_head(self) -> bool:  # type: ignore[override]
        """Whether there are later layers."""
        return len(self.sizes) > 2

    @property
    def _later(self) -> range:
        return range(1, len(self.sizes) - 1)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """As the whole model does."""
        encoded: NDArray[Any] = self.model.encode(y, classes, dtype)
        return encoded

    def identity(self) -> dict[str, Any]:
        """Facts of the whole model, and the columns."""
        return {**self.model.identity(), "columns": [self.start, self.stop]}

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """The same numbers as the whole model begins with, of which few are in memory at a time."""
        rng, width = np.random.RandomState(seed), self.sizes[1]
        bound = self.activation.bound_of(*self.sizes[:2])
        w = np.zeros(self.parameters.shape, dtype)
        for first in range(0, self.start * width, _AT_ONCE):
            rng.uniform(size=min(_AT_ONCE, self.start * width - first))
        own = self._n_weights
        for first in range(0, own, _AT_ONCE):
            at = slice(first, min(first + _AT_ONCE, own))
            w[at, 0] = rng.uniform(-bound, bound, at.stop - first)
        if self._is_last:
            w[own : own + width, 0] = rng.uniform(-bound, bound, width)
            w[own + width :] = self.model.init_some(rng, self._later, dtype)
        return w

    @property
    def _n_weights(self) -> int:
        return (self.stop - self.start) * self.sizes[1]

    def _layer(self, w: Any) -> tuple[Any, Any]:
        """Weights of the columns, and the intercepts, which the last ones have: views."""
        shape, own = (self.stop - self.start, self.sizes[1]), self._n_weights
        weights = namespace(w).reshape(w[:own, 0], shape)
        return weights, w[own : own + shape[1], 0] if self._is_last else None

    def products(self, w: Any, X: Any, backend: Backend) -> Any:
        """As in :class:`ColumnPart`."""
        weights, shift = self._layer(w)
        if isinstance(X, SparseRows) or hasattr(X, "tocsr"):
            product = backend.dot(X, weights)
            z = product[:, None] if product.ndim == 1 else product
        else:
            z = backend.matmul(cast(X, weights.dtype), weights, None)
        if shift is not None:
            z += shift
        return z

    def add_products(self, X: Any, slope: Any, out: Any, backend: Backend) -> None:
        """As in :class:`ColumnPart`."""
        to_weights, to_shift = self._layer(out)
        if isinstance(X, SparseRows) or hasattr(X, "tocsr"):
            backend.add_tdot(X, slope, to_weights)
        else:
            backend.add_matmul(cast(X, slope.dtype).T, slope, to_weights)
        if to_shift is not None:
            to_shift += cast(total(slope, axis=0), to_shift.dtype)

    def _behind(self, w: Any) -> Any:
        """Parameters of the later layers."""
        return w[self._n_weights + self.sizes[1] :, ...]

    def head(self, w: Any, total: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """As in :class:`ColumnPart`: the activation, and all later layers."""
        if not self.has_head:
            return self.model.loss_gradient(total, rows, backend)
        self.activation.apply(total)
        later, layers = self._behind(w), self._later
        output, memory = self.model.forward(later, total, layers, rows, backend)
        loss, slope = self.model.loss_gradient(output, rows, backend)
        slope = self.model.backward(
            later, memory, slope, self._behind(out), layers, rows, backend, wants_input=True
        )
        self.activation.pull_back(slope, total)
        return loss, slope

    def head_sums(
        self, w: Any, total: Any, rows: BatchRows, backend: Backend
    ) -> NDArray[np.float64]:
        """As in :class:`ColumnPart`."""
        raw = total
        if self.has_head:
            self.activation.apply(total)
            raw, _ = self.model.forward(self._behind(w), total, self._later, rows, backend)
        sums: NDArray[np.float64] = self.model.scored(
            raw[:, 0] if raw.shape[1] == 1 else raw, rows, backend
        )
        return sums

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """A part alone has no loss."""
        raise NotImplementedError
