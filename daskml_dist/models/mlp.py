"""Multi-layer perceptrons: fully connected layers, and the loss of the last one's outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.base import SparseRows
from daskml_dist.backends.namespace import cast, namespace, ones, scalar, total, zeros
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.losses import Loss
from daskml_dist.models.activations import ACTIVATIONS
from daskml_dist.models.base import BatchRows, Parameters, Part, StepModel
from daskml_dist.models.labels import label_codes

__all__ = ["MLP"]

#: Rows that go through the layers together: what is made of them stays in a cache.
_ROWS = 512

_Layers = list[tuple[Any, Any]]


@dataclass(frozen=True)
class MLP(StepModel):
    """A multi-layer perceptron: products, intercepts and an activation, layer after layer.

    The parameters are the weights and the intercepts of each layer, one after the other:
    ``coefs.0`` of shape (n_features, n_hidden), ``intercepts.0``, ``coefs.1`` and so on. The
    weights alone are penalised.

    Parameters
    ----------
    loss : Loss
        Of the raw outputs: those of the last layer, which has no activation.
    sizes : tuple of int
        Of the layers: features, hidden ones, outputs.
    activation : {"identity", "logistic", "relu", "tanh"}
        Of the hidden layers.
    n_classes : int
        0 for regression.
    several : bool, default=False
        Whether targets have columns: several numbers, or yes and no of several labels.
    """

    loss: Loss
    sizes: tuple[int, ...]
    activation: str
    n_classes: int
    several: bool = False

    parameters: Parameters = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts: list[Part] = []
        for i, pair in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            parts.append(Part(f"coefs.{i}", pair))
            parts.append(Part(f"intercepts.{i}", pair[1:], penalised=False))
        object.__setattr__(self, "parameters", Parameters(tuple(parts)))

    @property
    def n_outputs(self) -> int:
        """Outputs of the last layer."""
        return self.sizes[-1]

    def layers(self, w: Any) -> _Layers:
        """Weights and intercepts of each layer: views of the parameters."""
        parts = list(self.parameters.views(w).values())
        return list(zip(parts[::2], parts[1::2], strict=True))

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Weights and intercepts by Glorot and Bengio (2010), drawn as scikit-learn draws them."""
        w = np.zeros(self.parameters.shape, dtype)
        rng, factor = np.random.RandomState(seed), ACTIVATIONS[self.activation].bound
        for weights, shift in self.layers(w):
            bound = (factor / sum(weights.shape)) ** 0.5
            weights[...] = rng.uniform(-bound, bound, weights.shape)
            shift[...] = rng.uniform(-bound, bound, shift.shape)
        return w

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Turn labels into what the loss reads: codes, or -1/+1 for two classes and for labels."""
        if classes is None:
            column = y[:, 0] if y.ndim > self.n_outputs == 1 else y
            return column.astype(dtype, copy=False)
        if not self.several and self.n_outputs > 1:
            return label_codes(y, classes, np.int32)
        signs = np.asarray(y == (1 if self.several else classes[-1])).astype(dtype)
        signs *= 2
        signs -= 1
        return signs

    def raw(self, w: Any, X: Any, backend: Backend) -> Any:
        """Outputs of the last layer, (n,) where there is one, else (n, n_outputs)."""
        layers, n = self.layers(w), X.shape[0]
        out = zeros((n, self.n_outputs), w.dtype, w)
        for at in row_slices(n, self._rows_at_once(backend)):
            out[at, ...] = self._forward(layers, backend.part(X, at), backend)[-1]
        return out[:, 0] if self.n_outputs == 1 else out

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of the summed loss of some rows to `out`; return the summed loss."""
        layers, gradients = self.layers(w), self.layers(out)
        loss: Any = 0.0
        for part in self._parts(rows, backend):
            outputs = self._forward(layers, part.X, backend)
            losses, slope = self._losses(part.y, outputs[-1])
            if part.weight is not None:
                losses = losses * part.weight
                slope *= part.weight[:, None]
            loss = loss + scalar(total(losses, dtype=namespace(losses).float64))
            self._add_backward(layers, gradients, [part.X, *outputs[:-1]], slope, backend)
        return loss

    def _rows_at_once(self, backend: Backend) -> int:
        return max(_ROWS, backend.entries_at_once // max(self.sizes))

    def _parts(self, rows: BatchRows, backend: Backend) -> Iterator[BatchRows]:
        for at in row_slices(rows.X.shape[0], self._rows_at_once(backend)):
            yield rows.part(at, backend)

    def _forward(self, layers: _Layers, X: Any, backend: Backend) -> list[Any]:
        """Outputs of each layer; good until the next rows."""
        outputs: list[Any] = []
        for i, (weights, shift) in enumerate(layers):
            z = _product(outputs[-1] if i else X, weights, f"layer {i}", backend)
            z += shift
            if i < len(layers) - 1:
                ACTIVATIONS[self.activation].apply(z)
            outputs.append(z)
        return outputs

    def _losses(self, y: Any, raw: Any) -> tuple[Any, Any]:
        """Loss of each row, and its gradient by the raw outputs."""
        if self.n_outputs == 1:
            values, slope = self.loss.value_and_gradient(y, raw[:, 0])
            return values, slope[:, None]
        if not (self.several and self.n_classes):
            return self.loss.value_and_gradient(y, raw)
        # Each label is a problem of two classes.
        xp, flat = namespace(raw), (raw.shape[0] * raw.shape[1],)
        values, slope = self.loss.value_and_gradient(xp.reshape(y, flat), xp.reshape(raw, flat))
        return total(xp.reshape(values, raw.shape), axis=1), xp.reshape(slope, raw.shape)

    def _add_backward(
        self, layers: _Layers, gradients: _Layers, inputs: list[Any], slope: Any, backend: Backend
    ) -> None:
        """Add each layer's gradient, from the gradient by the raw outputs."""
        for i in range(len(layers) - 1, -1, -1):
            to_weights, to_shift = gradients[i]
            to_shift += cast(total(slope, axis=0), to_shift.dtype)
            if i == 0 and not _is_dense(inputs[0]):
                backend.add_tdot(inputs[0], slope, to_weights)
                return
            backend.add_matmul(cast(inputs[i], slope.dtype).T, slope, to_weights)
            if i:
                below = backend.matmul(slope, layers[i][0].T, f"below {i}")
                ACTIVATIONS[self.activation].pull_back(below, inputs[i])
                slope = below

    def validation_sums(self, w: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Weights, and those of rows that are right, or the spread and errors of each target."""
        xp, y = namespace(w), rows.y
        raw = self.raw(w, rows.X, backend)
        weight = ones((y.shape[0],), np.float64, y) if rows.weight is None else rows.weight
        weight = cast(weight, xp.float64)
        if self.n_classes:
            sums = [total(weight), weight @ cast(self._right(y, raw), xp.float64)]
            return np.array([float(value) for value in sums])
        y64 = cast(y, xp.float64)
        residual = y64 - cast(self.loss.inverse_link(raw), xp.float64)
        columns = [weight @ residual**2, weight @ y64, weight @ y64**2]
        found = [np.atleast_1d(backend.to_numpy(column)) for column in columns]
        return np.concatenate([np.full(len(found[0]), float(total(weight))), *found])

    def _right(self, y: Any, raw: Any) -> Any:
        """Truth value of each row: its prediction is right, in all labels."""
        if raw.ndim == 1:
            return (raw > 0) == (y > 0)
        xp = namespace(raw)
        if self.several:
            return xp.all((raw > 0) == (y > 0), axis=1)
        return xp.argmax(raw, axis=1) == y

    def validation_score(self, sums: NDArray[np.float64]) -> float:
        """Accuracy (classification), or the mean of R^2 over the targets."""
        if self.n_classes:
            weight, right = sums
            return float(right / weight) if weight else float("nan")
        weight, errors, first, second = np.reshape(sums, (4, -1))
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = second - first**2 / weight
            return float(np.where(spread > 0, 1 - errors / spread, np.nan).mean())

    def identity(self) -> dict[str, Any]:
        """Loss, layers and activation."""
        plain_repr = type(self.loss).__repr__ is object.__repr__  # holds an address
        return {
            "loss": self.loss.name if plain_repr else repr(self.loss),
            "layers": list(self.sizes),
            "activation": self.activation,
            "several": self.several,
        }


def _is_dense(X: Any) -> bool:
    return not isinstance(X, SparseRows) and not hasattr(X, "tocsr")


def _product(X: Any, weights: Any, use: str, backend: Backend) -> Any:
    """``X @ weights``, of rows that may be sparse."""
    if _is_dense(X):
        return backend.matmul(cast(X, weights.dtype), weights, use)
    product = backend.dot(X, weights)
    return product[:, None] if product.ndim == 1 else product
