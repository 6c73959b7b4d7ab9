"""Multi-layer perceptrons: forward pass and backpropagation through fully connected layers.

`MLP` is the whole network. Its layers can be cut into stages of a pipeline (`forward` and
`backward` of some layers), its first layer into shards of features (`MLPColumns`): there the
products of the shards are summed before the first activation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from daskml_dist.backends.base import Backend, SparseRows
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.backends.host_memory import keep_freed_memory
from daskml_dist.backends.namespace import cast, is_host, namespace, ones, scalar, total, zeros
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import (
    BatchRows,
    ColumnModel,
    ColumnPart,
    Parameters,
    Part,
    StagedModel,
    StepModel,
    encode_labels,
    encode_signs,
    r2_of_sums,
)


@dataclass(frozen=True)
class Activation:
    """Elementwise activation function.

    Parameters
    ----------
    apply : callable
        ``apply(z)`` replaces z by its activations, in place.
    pull_back : callable
        ``pull_back(gradient, a)`` multiplies the gradient with respect to the activations `a` by
        the derivative, in place. The derivative is computed from `a`, so z need not be stored.
    factor : float
        Initial weights are drawn from (-bound, bound), where
        ``bound = sqrt(factor / (n_inputs + n_outputs))``.
    """

    apply: Callable[[Any], None]
    pull_back: Callable[[Any, Any], None]
    factor: float = 6.0

    def bound_of(self, n_inputs: int, n_outputs: int) -> float:
        """Return the bound of the initial weights and intercepts of a layer.

        X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural
        networks", AISTATS 2010.
        """
        return float((self.factor / (n_inputs + n_outputs)) ** 0.5)


def _apply_identity(*arrays: Any) -> None:
    """Leave the arrays unchanged: the identity activation."""


# On the CPU the functions write to their argument; other array libraries have no `out`.


def _apply_relu(z: Any) -> None:
    if is_host(z):
        np.maximum(z, 0, out=z)
    else:
        z[...] = namespace(z).maximum(z, 0)


def _pull_back_relu(gradient: Any, a: Any) -> None:
    # The subgradient at 0 is 0.
    gradient *= a > 0 if is_host(a) else cast(a > 0, a.dtype)


def _apply_tanh(z: Any) -> None:
    if is_host(z):
        np.tanh(z, out=z)
    else:
        z[...] = namespace(z).tanh(z)


def _pull_back_tanh(gradient: Any, a: Any) -> None:
    # tanh' = 1 - tanh**2
    gradient *= 1 - a * a


def _apply_logistic(z: Any) -> None:
    if is_host(z):
        expit(z, out=z)
    else:
        z[...] = 1 / (1 + namespace(z).exp(-z))


def _pull_back_logistic(gradient: Any, a: Any) -> None:
    # s' = s (1 - s)
    gradient *= a * (1 - a)


#: Activations by scikit-learn's names, with its factors of the initial weights.
ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation(_apply_identity, _apply_identity),
    "logistic": Activation(_apply_logistic, _pull_back_logistic, factor=2.0),
    "relu": Activation(_apply_relu, _pull_back_relu),
    "tanh": Activation(_apply_tanh, _pull_back_tanh),
}


#: Rows that go through the layers together on a CPU, so that their activations stay in its cache:
#: 512 rows of 100 units in float32 are 200 kB a layer.
_MIN_ROWS_AT_ONCE = 512

#: Weights and intercepts of each layer.
_Arrays = list[tuple[Any, Any]]


@dataclass(frozen=True)
class MLP(StagedModel, ColumnModel):
    """Multi-layer perceptron: ``activation(X @ coefs + intercepts)``, layer after layer.

    The parameters are the weights and the intercepts of each layer, concatenated: ``coefs.0`` of
    shape (n_features, n_hidden), ``intercepts.0``, ``coefs.1`` and so on. Only the weights are
    penalised.

    Parameters
    ----------
    loss : Loss
        Loss of the raw outputs: the last layer has no activation.
    sizes : tuple of int
        Number of features, units of each hidden layer, and number of outputs.
    activation : {"identity", "logistic", "relu", "tanh"}
        Activation of the hidden layers.
    n_classes : int
        0 for regression.
    is_multi_output : bool, default=False
        Whether targets are two-dimensional: multi-output regression, or multilabel indicators.
    row_clip : float or None, default=None
        Largest norm of the gradient of a row, over all layers.
    """

    loss: Loss
    sizes: tuple[int, ...]
    activation: str
    n_classes: int
    is_multi_output: bool = False
    row_clip: float | None = None

    #: Its only threads are those of BLAS, which trainers limit.
    starts_threads: ClassVar[bool] = False
    flushes: ClassVar[bool] = True
    parameters: Parameters = field(init=False, repr=False, compare=False)
    layers: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts: list[Part] = []
        # pair is (inputs, outputs) of layer i.
        for i, pair in enumerate(pairwise(self.sizes)):
            parts.append(Part(f"coefs.{i}", pair))
            parts.append(Part(f"intercepts.{i}", pair[1:], penalised=False))
        layers = tuple((f"coefs.{i}", f"intercepts.{i}") for i in range(len(parts) // 2))
        object.__setattr__(self, "parameters", Parameters(tuple(parts)))
        object.__setattr__(self, "layers", layers)

    def computing(self, n_threads: int) -> AbstractContextManager[Any]:
        """Return a context manager in which the allocator keeps freed memory for the next step."""
        return keep_freed_memory()

    def of_columns(self, start: int, stop: int) -> MLPColumns:
        """Return the part that has the first layer's weights of some adjacent columns.

        That of the last columns also has all further parameters.
        """
        return MLPColumns(self, start, stop)

    def rows_of_columns(self, start: int, stop: int) -> slice:
        """Return the slice of the parameters' rows that belongs to some adjacent columns."""
        n_features, width = self.sizes[:2]
        is_last = stop == n_features
        return slice(start * width, self.parameters.shape[0] if is_last else stop * width)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of the last layer."""
        return self.sizes[-1]

    def arrays(self, w: Any, layers: range | None = None) -> _Arrays:
        """Return weights and intercepts of the layers (None: all), as views of their rows `w`."""
        layers = range(len(self.layers)) if layers is None else layers
        xp, start, arrays = namespace(w), 0, []
        # Positions count from the first row of `w`, which has the rows of these layers only.
        for pair in pairwise(self.sizes[layers.start : layers.stop + 1]):
            middle = start + pair[0] * pair[1]
            stop = middle + pair[1]
            arrays.append(
                (xp.reshape(w[start:middle, 0], pair), xp.reshape(w[middle:stop, 0], pair[1:]))
            )
            start = stop
        return arrays

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return weights and intercepts by Glorot and Bengio (2010), drawn as in scikit-learn."""
        return self.init_some(np.random.RandomState(seed), range(len(self.layers)), dtype)

    def init_some(self, rng: np.random.RandomState, layers: range, dtype: Any) -> NDArray[Any]:
        """Return initial parameters of some layers.

        `rng` must have drawn all layers before them.
        """
        w = np.zeros((self.rows_of(layers).stop - self.rows_of(layers).start, 1), dtype)
        # In scikit-learn's order of draws, in float64 whatever the dtype.
        for weights, shift in self.arrays(w, layers):
            bound = ACTIVATIONS[self.activation].bound_of(*weights.shape)
            weights[...] = rng.uniform(-bound, bound, weights.shape)
            shift[...] = rng.uniform(-bound, bound, shift.shape)
        return w

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return targets, class indices, or -1/+1 for two classes and for multilabel indicators."""
        if classes is None:
            # A column of one target becomes a vector: losses are elementwise.
            column = y[:, 0] if y.ndim > self.n_outputs == 1 else y
            return column.astype(dtype, copy=False)
        if not self.is_multi_output and self.n_outputs > 1:
            return encode_labels(y, classes, np.int32)
        # One output for each label, or one for two classes: log odds, whose targets are signs.
        return encode_signs(y == (1 if self.is_multi_output else classes[-1]), dtype)

    def raw(self, w: Any, X: Any, backend: Backend) -> Any:
        """Return the raw outputs of rows, of shape (n,) for one output, else (n, n_outputs)."""
        arrays, layers, n = self.arrays(w), range(len(self.layers)), X.shape[0]
        out = zeros((n, self.n_outputs), w.dtype, w)
        for row_slice in row_slices(n, self._rows_at_once(backend)):
            rows = backend.borrow_rows(X, row_slice)
            out[row_slice, ...] = self._forward(arrays, rows, layers, backend, "layer")[-1]
        return out[:, 0] if self.n_outputs == 1 else out

    def raw_of_few(
        self, w: Any, backend: Backend, product: Callable[..., Any] | None = None
    ) -> Callable[[Any], Any]:
        """Return a function that computes :meth:`raw` of few dense rows, with little overhead.

        ``product(X, weights)``, of arrays of one dtype, replaces the backend's matrix product.
        """
        arrays, layers, is_single = self.arrays(w), range(len(self.layers)), self.n_outputs == 1

        def raw(X: Any) -> Any:
            z = self._forward(arrays, X, layers, backend, None, product)[-1]
            return z[:, 0] if is_single else z

        return raw

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of the summed loss of some rows to `out`; return the summed loss.

        Computes the same as :meth:`forward` and :meth:`backward`, but in buffers that the backend
        keeps, a few rows at a time.
        """
        arrays, gradients, layers = self.arrays(w), self.arrays(out), range(len(self.layers))
        loss: Any = 0.0
        for row_slice in row_slices(rows.X.shape[0], self._rows_at_once(backend)):
            part = rows.part(row_slice, backend)
            # "layer" and "below" name buffers: activations live until the backward pass is done.
            outputs = self._forward(arrays, part.X, layers, backend, "layer")
            part_loss, slope = self.loss_gradient(outputs[-1], part, backend)
            memory = [part.X, *outputs]
            if self.row_clip is not None:
                self._add_clipped(arrays, gradients, memory, slope, backend)
                continue
            self._backward(arrays, gradients, memory, slope, layers, backend, "below")
            loss = loss + part_loss
        return loss

    def _rows_at_once(self, backend: Backend) -> int:
        """Return the number of rows that go through the layers together; more on a GPU."""
        # As many as keep the widest layer's outputs within the backend's number of entries.
        return max(_MIN_ROWS_AT_ONCE, backend.entries_at_once // max(self.sizes))

    def forward(
        self, w: Any, x: Any, layers: range, rows: BatchRows, backend: Backend
    ) -> tuple[Any, Any]:
        """Return the output of some layers, and the input and the output of each of them."""
        outputs = self._forward(self.arrays(w, layers), x, layers, backend, None)
        return outputs[-1], [x, *outputs]

    def backward(
        self,
        w: Any,
        memory: Any,
        gradient: Any,
        out: Any,
        layers: range,
        rows: BatchRows,
        backend: Backend,
        *,
        wants_input: bool,
    ) -> Any:
        """Add the gradient of some layers' parameters to `out`.

        Return the gradient with respect to their input, if `wants_input`.
        """
        # New arrays, not the backend's buffers: other micro-batches pass between the two calls.
        arrays, gradients = self.arrays(w, layers), self.arrays(out, layers)
        slope = self._backward(arrays, gradients, memory, gradient, layers, backend, None)
        return backend.matmul(slope, arrays[0][0].T, None) if wants_input else None

    def loss_gradient(self, output: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """Return the sum of the weighted losses, and its gradient with respect to the output."""
        losses, slope = self._compute_losses(rows.y, output)
        if rows.weight is not None:
            losses = losses * rows.weight
            slope *= rows.weight[:, None]
        return scalar(total(losses, dtype=namespace(losses).float64)), slope

    def _forward(
        self,
        arrays: _Arrays,
        X: Any,
        layers: range,
        backend: Backend,
        use: str | None,
        product: Callable[..., Any] | None = None,
    ) -> list[Any]:
        """Return the outputs of each layer, in the backend's buffers named `use` (None: new ones).

        The next call with the same name overwrites them.
        """
        outputs: list[Any] = []
        for layer, (weights, shift) in zip(layers, arrays, strict=True):
            if product is None:
                z = _multiply_rows(X, weights, use and f"{use} {layer}", backend)
            else:
                z = product(cast(X, weights.dtype), weights)
            z += shift
            if layer < len(self.layers) - 1:
                ACTIVATIONS[self.activation].apply(z)
            outputs.append(z)
            X = z
        return outputs

    def _backward(
        self,
        arrays: _Arrays,
        gradients: _Arrays,
        memory: list[Any],
        slope: Any,
        layers: range,
        backend: Backend,
        use: str | None,
    ) -> Any:
        """Add each layer's gradient to `gradients`, given the loss's with respect to the output.

        Return the loss's gradient with respect to the first layer's ``X @ coefs + intercepts``.
        `memory` is the input and the output of each layer; `slope` is changed.
        """
        # Backpropagation: from the last layer to the first.
        for i in range(len(layers) - 1, -1, -1):
            # The last layer of the network has no activation.
            if layers[i] < len(self.layers) - 1:
                ACTIVATIONS[self.activation].pull_back(slope, memory[i + 1])
            # `slope` is now the gradient by X @ W + b: dW = X.T @ slope, db = sum of its rows, and
            # the gradient by X, the output of the layer below, is slope @ W.T.
            to_weights, to_shift = gradients[i]
            to_shift += cast(total(slope, axis=0), to_shift.dtype)
            _add_transposed_product(memory[i], slope, to_weights, backend)
            if i:
                slope = backend.matmul(slope, arrays[i][0].T, use and f"{use} {layers[i]}")
        return slope

    def _add_clipped(
        self, arrays: _Arrays, gradients: _Arrays, memory: list[Any], slope: Any, backend: Backend
    ) -> None:
        """Add the gradients of rows, each clipped to the norm `row_clip`, to `gradients`.

        A row's gradient of a layer is the outer product of the layer's input, with a 1 for the
        intercepts, and of the slope by its output: its norm is the product of both norms, and no
        row's gradient is ever made (Goodfellow, "Efficient per-example gradient computations",
        2015).
        """
        xp, slopes, squares = namespace(slope), [slope], 0.0
        for i in range(len(arrays) - 1, -1, -1):
            if i < len(arrays) - 1:
                ACTIVATIONS[self.activation].pull_back(slopes[0], memory[i + 1])
            input_squares = _sum_squares(memory[i]) + 1
            squares = squares + input_squares * _sum_squares(slopes[0])
            if i:
                slopes.insert(0, backend.matmul(slopes[0], arrays[i][0].T, f"below {i}"))
        norms = xp.sqrt(squares)
        is_long = norms > self.row_clip
        factors = xp.where(is_long, self.row_clip / xp.where(is_long, norms, 1.0), 1.0)
        factors = cast(factors, slope.dtype)[:, None]
        for (to_weights, to_shift), x, layer_slope in zip(
            gradients, memory[:-1], slopes, strict=True
        ):
            layer_slope *= factors
            to_shift += cast(total(layer_slope, axis=0), to_shift.dtype)
            _add_transposed_product(x, layer_slope, to_weights, backend)

    def _compute_losses(self, y: Any, raw: Any) -> tuple[Any, Any]:
        """Return the loss of each row, and its gradient with respect to the raw outputs."""
        if self.n_outputs == 1:
            values, slope = self.loss.value_and_gradient(y, raw[:, 0])
            return values, slope[:, None]
        if not (self.is_multi_output and self.n_classes):
            return self.loss.value_and_gradient(y, raw)
        # Multilabel: each label is a binary problem, and the loss of a row is their sum.
        xp, flat = namespace(raw), (raw.shape[0] * raw.shape[1],)
        values, slope = self.loss.value_and_gradient(xp.reshape(y, flat), xp.reshape(raw, flat))
        return total(xp.reshape(values, raw.shape), axis=1), xp.reshape(slope, raw.shape)

    def validation_sums(self, w: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Return weighted sums from which :meth:`validation_score` computes accuracy or R^2.

        Classification: the weight, and the weight of correct rows, of shape (2,). Regression: the
        weight, squared errors, targets and squared targets of each output, of shape
        (4 * n_outputs,).
        """
        return self.scored(self.raw(w, rows.X, backend), rows, backend)

    def scored(self, raw: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Return the sums of :meth:`validation_sums`, given raw outputs."""
        xp, y = namespace(raw), rows.y
        # In float64: sums over all held-out rows.
        weight = ones((y.shape[0],), np.float64, y) if rows.weight is None else rows.weight
        weight = cast(weight, xp.float64)
        if self.n_classes:
            sums = [total(weight), weight @ cast(self._find_correct(y, raw), xp.float64)]
            return np.array([float(value) for value in sums])
        y64 = cast(y, xp.float64)
        residual = y64 - cast(self.loss.inverse_link(raw), xp.float64)
        columns = [weight @ residual**2, weight @ y64, weight @ y64**2]
        target_sums = [np.atleast_1d(backend.to_numpy(column)) for column in columns]
        # The weight is repeated for each output, so that the sums reshape to (4, n_outputs).
        return np.concatenate([np.full(len(target_sums[0]), float(total(weight))), *target_sums])

    def _find_correct(self, y: Any, raw: Any) -> Any:
        """Return a mask of the rows whose class, or all of whose labels, are predicted."""
        if raw.ndim == 1:
            return (raw > 0) == (y > 0)
        xp = namespace(raw)
        if self.is_multi_output:
            return xp.all((raw > 0) == (y > 0), axis=1)
        return xp.argmax(raw, axis=1) == y

    def validation_score(self, sums: NDArray[np.float64]) -> float:
        """Return accuracy (classification), or the mean of R^2 over the targets."""
        if self.n_classes:
            weight, correct = sums
            return float(correct / weight) if weight else float("nan")
        return float(r2_of_sums(*np.reshape(sums, (4, -1))).mean())

    def identity(self) -> dict[str, Any]:
        """Return the loss, the sizes of the layers, the activation and `is_multi_output`."""
        plain_repr = type(self.loss).__repr__ is object.__repr__  # holds an address
        return {
            "loss": self.loss.name if plain_repr else repr(self.loss),
            "layers": list(self.sizes),
            "activation": self.activation,
            "several": self.is_multi_output,
        } | ({} if self.row_clip is None else {"row_clip": self.row_clip})


def _is_dense(X: Any) -> bool:
    """Return whether X is neither the backend's sparse rows nor a matrix of SciPy or CuPy."""
    return not isinstance(X, SparseRows) and not hasattr(X, "tocsr")


def _sum_squares(X: Any) -> Any:
    """Return the sum of squares of each row, of rows that may be sparse."""
    if _is_dense(X):
        # Without an array of squares on the CPU: it would take longer than the products.
        return np.einsum("ij,ij->i", X, X) if is_host(X) else total(X * X, axis=1)
    rows = X.X[X.rows] if isinstance(X, CSRRows) else X
    return np.asarray(rows.multiply(rows).sum(axis=1), np.float64).ravel()


def _multiply_rows(X: Any, weights: Any, use: str | None, backend: Backend) -> Any:
    """Return ``X @ weights`` of rows that may be sparse; in a buffer named `use` if dense."""
    if _is_dense(X):
        return backend.matmul(cast(X, weights.dtype), weights, use)
    product = backend.dot(X, weights)
    return product[:, None] if product.ndim == 1 else product


def _add_transposed_product(X: Any, slope: Any, out: Any, backend: Backend) -> None:
    """Add ``X.T @ slope`` to `out`, in place, for rows that may be sparse."""
    if _is_dense(X):
        backend.add_matmul(cast(X, slope.dtype).T, slope, out)
    else:
        backend.add_tdot(X, slope, out)


#: Random numbers drawn at once (8 MiB): a shard draws the numbers of all shards before it.
_DRAWS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class MLPColumns(StepModel, ColumnPart):
    """Shard of a perceptron: the first layer's weights of some adjacent columns of X.

    The shard of the last columns also has the intercepts of that layer and all further layers.

    Parameters
    ----------
    model : MLP
        The whole model.
    start, stop : int
        Range of the columns.
    """

    model: MLP
    start: int
    stop: int

    starts_threads: ClassVar[bool] = False
    parameters: Parameters = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        first, *other_parts = self.model.parameters.parts
        parts = [Part(first.name, (self.stop - self.start, self.model.sizes[1]))]
        parts += other_parts if self._is_last else []
        object.__setattr__(self, "parameters", Parameters(tuple(parts)))

    @property
    def _activation(self) -> Activation:
        return ACTIVATIONS[self.model.activation]

    @property
    def _is_last(self) -> bool:
        """Return whether the shard has the last columns."""
        return self.stop == self.model.sizes[0]

    @property
    def has_head(self) -> bool:  # type: ignore[override]
        """Return whether there are hidden layers, so that further layers follow the first."""
        return len(self.model.sizes) > 2

    @property
    def _later_layers(self) -> range:
        """All layers but the first."""
        return range(1, len(self.model.sizes) - 1)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets encoded as by the whole model."""
        return self.model.encode(y, classes, dtype)

    def identity(self) -> dict[str, Any]:
        """Return the facts of the whole model, and the columns."""
        return {**self.model.identity(), "columns": [self.start, self.stop]}

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the part's rows of the whole model's initial parameters."""
        rng, width = np.random.RandomState(seed), self.model.sizes[1]
        bound = self._activation.bound_of(*self.model.sizes[:2])
        w = np.zeros(self.parameters.shape, dtype)
        # Draw and discard the weights of the columns before, to advance the stream.
        for first in range(0, self.start * width, _DRAWS_AT_ONCE):
            rng.uniform(size=min(_DRAWS_AT_ONCE, self.start * width - first))
        n_weights = self._n_weights
        for first in range(0, n_weights, _DRAWS_AT_ONCE):
            draws = slice(first, min(first + _DRAWS_AT_ONCE, n_weights))
            w[draws, 0] = rng.uniform(-bound, bound, draws.stop - first)
        if self._is_last:
            # The stream continues as in the whole model: intercepts, then the further layers.
            w[n_weights : n_weights + width, 0] = rng.uniform(-bound, bound, width)
            w[n_weights + width :] = self.model.init_some(rng, self._later_layers, dtype)
        return w

    @property
    def _n_weights(self) -> int:
        """Number of the shard's weights, which are the first of its parameters."""
        return (self.stop - self.start) * self.model.sizes[1]

    def _first_layer(self, w: Any) -> tuple[Any, Any]:
        """Return views of the first layer's weights, and of its intercepts in the last part."""
        shape, n_weights = (self.stop - self.start, self.model.sizes[1]), self._n_weights
        weights = namespace(w).reshape(w[:n_weights, 0], shape)
        return weights, w[n_weights : n_weights + shape[1], 0] if self._is_last else None

    def products(self, w: Any, X: Any, backend: Backend) -> Any:
        """Return the product of columns and weights, plus the intercepts in the last part."""
        weights, shift = self._first_layer(w)
        z = _multiply_rows(X, weights, None, backend)
        if shift is not None:
            z += shift
        return z

    def add_products(self, X: Any, slope: Any, out: Any, backend: Backend) -> None:
        """Add the gradient of the first layer's weights and intercepts to `out`, in place."""
        to_weights, to_shift = self._first_layer(out)
        _add_transposed_product(X, slope, to_weights, backend)
        if to_shift is not None:
            to_shift += cast(total(slope, axis=0), to_shift.dtype)

    def _later_parameters(self, w: Any) -> Any:
        """Return the parameters of the further layers."""
        return w[self._n_weights + self.model.sizes[1] :, ...]

    def head(self, w: Any, total: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Return the summed loss and its gradient with respect to `total`.

        Applies the first layer's activation and all further layers.
        """
        # Without hidden layers the products are the raw outputs.
        if not self.has_head:
            return self.model.loss_gradient(total, rows, backend)
        self._activation.apply(total)
        later_parameters, layers = self._later_parameters(w), self._later_layers
        output, memory = self.model.forward(later_parameters, total, layers, rows, backend)
        loss, slope = self.model.loss_gradient(output, rows, backend)
        later_gradient = self._later_parameters(out)
        slope = self.model.backward(
            later_parameters, memory, slope, later_gradient, layers, rows, backend, wants_input=True
        )
        self._activation.pull_back(slope, total)
        return loss, slope

    def head_sums(
        self, w: Any, total: Any, rows: BatchRows, backend: Backend
    ) -> NDArray[np.float64]:
        """Return the whole model's `validation_sums`, given the sum of all parts' products."""
        raw = total
        if self.has_head:
            self._activation.apply(total)
            raw, _ = self.model.forward(
                self._later_parameters(w), total, self._later_layers, rows, backend
            )
        return self.model.scored(raw[:, 0] if raw.shape[1] == 1 else raw, rows, backend)

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Raise NotImplementedError: a single part has no loss."""
        raise NotImplementedError
