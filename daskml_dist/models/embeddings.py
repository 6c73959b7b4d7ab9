"""Models of rows over ids: each id has a weight and a vector, created when the id first occurs.

A row is a sparse vector x over ids, each of a field (`backends/id_hashing.py`). Its raw prediction
is an intercept and the sum of up to three terms:

- ``sum_i w_i x_i``, the weights of its ids (the wide part);
- ``v_i @ v_j * x_i * x_j`` for each pair of its ids (factorisation machines, Rendle 2010);
- a perceptron of the vectors of all fields, side by side (the deep part: Cheng et al. 2016, and
  with pairs Guo et al. 2017).

Weights and vectors are rows of a `GrowingTable`: a column of weights, then the vectors. Weights of
the perceptron's layers are rows of the same table, in a separate field. The table stores their
difference from the initial weights, so that it needs no special initial values for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.base import Backend
from daskml_dist.backends.id_hashing import MODEL_FIELD, field_ids, find_fields
from daskml_dist.errors import InvalidDataError
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import (
    N_TABLE_IDS,
    BatchRows,
    GrowingTable,
    Parameters,
    Part,
    StepModel,
    distinct,
    encode_signs,
)
from daskml_dist.models.mlp import MLP

#: Id of the intercept, the largest possible: the last of the sorted ids that a batch uses.
INTERCEPT_ID = N_TABLE_IDS - 1
#: Maximum fields of a row: numbers below the model's own field.
MAX_FIELDS = MODEL_FIELD


@dataclass(frozen=True)
class EmbeddingModel(StepModel):
    """Model of rows over ids, of one output.

    The table holds weights divided by `unit`, and vectors divided by its root, so that initial
    values and steps suit targets in any unit.

    Parameters
    ----------
    loss : Loss
    rank : int
        Length of an id's vector.
    alpha : float
        Each row adds ``alpha / 2`` times the squares of the weights and vectors that it touches.
    table : GrowingTable
    offset : float, default=0.0
        Number near the best prediction by one number, to which the intercept is added.
    pairs : bool, default=True
        Whether products of pairs of vectors are added.
    hidden : tuple of int, default=()
        Units of the perceptron's hidden layers; empty: there is none.
    n_fields : int, default=0
        Fields of the perceptron's input.
    activation : str, default="relu"
    touches : float
        Mean number of ids of a row.
    own_last : bool, default=False
        Whether the model's own rows follow the sorted ids that a batch uses.
    target_unit : float or None
        Spread of the first targets, for automatic learning rates; None: not measured.
    """

    loss: Loss
    rank: int
    alpha: float
    table: GrowingTable
    offset: float = 0.0
    pairs: bool = True
    hidden: tuple[int, ...] = ()
    n_fields: int = 0
    activation: str = "relu"
    touches: float | None = field(default=1.0, compare=False)
    own_last: bool = field(default=False, compare=False)
    target_unit: float | None = field(default=None, compare=False)

    starts_threads: ClassVar[bool] = False
    parameters: Parameters = field(init=False, repr=False, compare=False)
    #: The perceptron, if there is one.
    network: MLP | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        width = 1 + self.rank
        parts = (Part("table", (N_TABLE_IDS, width)),)
        object.__setattr__(self, "parameters", Parameters(parts, width))
        sizes = (self.n_fields * self.rank, *self.hidden, 1)
        network = MLP(self.loss, sizes, self.activation, 0) if self.hidden else None
        object.__setattr__(self, "network", network)

    @property
    def unit(self) -> float:
        """Return the unit of the predictions' differences from the offset."""
        return self.target_unit or 1.0

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return targets; for two classes, +1 for the second and -1 for the first."""
        if classes is None:
            return y.astype(dtype, copy=False)
        return encode_signs(y == classes[1], dtype)

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return rows over ids: columns of rows that no hasher made become ids."""
        return to_id_rows(X, dtype)

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the ids of a batch and of the model's own rows, and renumber the pieces."""
        rows = [take_rows(piece.X) for piece in pieces]
        index, places, own_places = number_ids(
            [X.indices for X in rows], self.own_ids, self.own_last
        )
        for piece, X, place in zip(pieces, rows, places, strict=True):
            fields = self._find_fields(X.indices)
            piece.X = PlacedRows(X.indptr, place, X.data, fields, own_places[:-1])
        return index

    @property
    def needs_fields(self) -> bool:
        """Return whether gradients need the field of each id."""
        return bool(self.hidden)

    def _find_fields(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the field of each entry, if the model needs it."""
        if not self.needs_fields:
            return _NO_FIELDS
        fields = find_fields(ids)
        # Compiled loops write to the position of a field without bounds checks.
        if len(fields) and (last_field := int(fields.max())) >= self.n_fields:
            raise InvalidDataError(
                f"Rows have an id of field {last_field}, counted from 0, but the model has "
                f"{self.n_fields} fields. Set n_fields={last_field + 1} or more, before a new fit."
            )
        return fields

    @property
    def own_ids(self) -> NDArray[np.int64]:
        """Return the ids of the layers' weights, and the intercept's."""
        return list_own_ids(self._n_layer_rows)

    def with_own_rows_last(self) -> EmbeddingModel:
        """Return the model with its own rows after those of the ids that a batch uses."""
        return replace(self, own_last=True)

    @property
    def _n_layer_rows(self) -> int:
        """Return the number of table rows used by the layers' weights."""
        network, width = self.network, self.parameters.width
        return 0 if network is None else -(-network.parameters.shape[0] // width)

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of some rows to `out`; return the summed loss without the penalty."""
        from daskml_dist.backends.embedding_kernels import add_row_gradients

        X, weight = rows.X, rows.weight
        raw, sums = self._predict_without_layers(w, X)
        passed = self._pass_layers(w, X, backend)
        if passed is not None:
            raw += passed.output[:, 0]
        losses, slope = self.loss.value_and_gradient(rows.y, raw)
        if weight is not None:
            losses, slope = losses * weight, slope * weight
        # Gradients are divided by `unit**2`, so that they are of one size in any unit.
        slope = (slope / self.unit).astype(w.dtype, copy=False)
        row_weights = np.empty(0, w.dtype) if weight is None else weight.astype(w.dtype, copy=False)
        add_row_gradients(
            X.indptr, X.positions, X.data, w, self.pairs, sums, slope, row_weights, self.alpha,
            self.alpha / self.unit, out,
        )  # fmt: skip
        if passed is not None:
            self._add_layer_gradients(passed, X, slope, out, backend)
        return float(losses.sum(dtype=np.float64))

    def predict(self, w: NDArray[Any], X: PlacedRows, backend: Backend) -> NDArray[Any]:
        """Return raw predictions, of shape (n,)."""
        raw, _ = self._predict_without_layers(w, X)
        passed = self._pass_layers(w, X, backend)
        if passed is not None:
            raw += passed.output[:, 0]
        return raw

    def _predict_without_layers(
        self, w: NDArray[Any], X: PlacedRows
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return offset, weights and pairs of each row, and the sums of its vectors."""
        from daskml_dist.backends.embedding_kernels import predict_rows

        raw = np.empty(X.shape[0], w.dtype)
        sums = np.zeros((len(raw), self.rank), w.dtype)
        predict_rows(X.indptr, X.positions, X.data, w, self.pairs, raw, sums)
        raw *= w.dtype.type(self.unit)
        raw += w.dtype.type(self.offset)
        return raw, sums

    def _pass_layers(
        self, w: NDArray[Any], X: PlacedRows, backend: Backend
    ) -> _PassedLayers | None:
        """Return the perceptron's output for each row's vectors, and data for its gradient."""
        network = self.network
        if network is None:
            return None
        from daskml_dist.backends.embedding_kernels import pool_fields

        pooled = np.zeros((X.shape[0], self.n_fields, self.rank), w.dtype)
        pool_fields(X.indptr, X.positions, X.field, X.data, w, pooled)
        flat = w[X.of_layers].reshape(-1, 1)[: network.parameters.shape[0]]
        weights = flat + draw_layers(network, self.table.seed, w.dtype.str)
        inputs = pooled.reshape(len(pooled), -1)
        layers = range(len(network.layers))
        output, memory = network.forward(weights, inputs, layers, _NO_ROWS, backend)
        return _PassedLayers(network, weights, output, memory)

    def _add_layer_gradients(
        self,
        passed: _PassedLayers,
        X: PlacedRows,
        slope: NDArray[Any],
        out: NDArray[Any],
        backend: Backend,
    ) -> None:
        """Add the gradient of the layers' weights, and of the vectors through them."""
        from daskml_dist.backends.embedding_kernels import add_pooled_gradients

        network, weights = passed.network, passed.weights
        gradient = np.zeros((len(X.of_layers) * out.shape[1], 1), out.dtype)
        input_gradients = network.backward(
            weights, passed.memory, slope[:, None].copy(), gradient[: len(weights)],
            range(len(network.layers)), _NO_ROWS, backend, wants_input=True,
        )  # fmt: skip
        out[X.of_layers] += gradient.reshape(-1, out.shape[1])
        field_gradients = input_gradients.reshape(len(input_gradients), self.n_fields, self.rank)
        add_pooled_gradients(X.indptr, X.positions, X.field, X.data, field_gradients, out)

    def origin(self) -> dict[str, float]:
        """Return the number to which the intercept is added, and the unit of the rows."""
        return {"offset": float(self.offset), "unit": self.unit}

    def moved(self, w: NDArray[Any], origin: Any) -> NDArray[Any]:
        """Return the rows of the table, converted to this model's offset and unit."""
        match origin:
            case {"offset": float(offset), "unit": float(unit)} if unit > 0:
                rescaled = w * math.sqrt(unit / self.unit)
                rescaled[:, 0] = w[:, 0] * (unit / self.unit)
                # Every step uses the intercept, whose id is the last.
                rescaled[-1:, 0] += (offset - self.offset) / self.unit
                return rescaled
        raise ValueError("its intercept is added to nothing")

    def identity(self) -> dict[str, Any]:
        """Return loss, rank, penalty and layers, with the seed of the initial weights."""
        facts: dict[str, Any] = {
            "model": "embeddings", "loss": repr(self.loss), "rank": self.rank,
            "alpha": self.alpha, "pairs": self.pairs, "hidden": list(self.hidden),
        }  # fmt: skip
        if self.hidden:
            facts |= {
                "n_fields": self.n_fields, "activation": self.activation, "seed": self.table.seed,
            }  # fmt: skip
        return facts


@dataclass(frozen=True, eq=False)
class _PassedLayers:
    """Perceptron, its weights, its output of shape (n, 1), and the data for its backward pass."""

    network: MLP
    weights: NDArray[Any]
    output: NDArray[Any]
    memory: Any


_NO_FIELDS = np.empty(0, np.uint8)
#: Stands for a batch if layers get their input as an array.
_NO_ROWS: Any = None


class PlacedRows:
    """Sparse rows whose columns are positions among the parameters that a batch has pulled.

    Parameters
    ----------
    indptr : ndarray of int of shape (n + 1,)
    positions : ndarray of int of shape (n_entries,)
    data : ndarray of float of shape (n_entries,)
    field : ndarray of uint8 of shape (n_entries,)
        Field of each entry's id; empty without layers.
    of_layers : ndarray of int
        Places of the layers' weights.
    """

    __slots__ = ("data", "field", "indptr", "of_layers", "positions")

    def __init__(
        self,
        indptr: NDArray[Any],
        positions: NDArray[Any],
        data: NDArray[Any],
        field: NDArray[np.uint8],
        of_layers: NDArray[Any],
    ) -> None:
        self.indptr, self.positions, self.data = indptr, positions, data
        self.field, self.of_layers = field, of_layers

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of rows."""
        return (len(self.indptr) - 1,)


def to_id_rows(X: Any, dtype: Any) -> sparse.csr_array:
    """Return rows as a CSR array over ids, with indices of int64."""
    if not sparse.issparse(X):
        X = sparse.csr_array(X)
    indices = X.indices
    if X.shape[1] <= MAX_FIELDS:
        # Each column is a field of one id.
        indices = _list_column_ids(X.shape[1])[indices]
    elif X.shape[1] != N_TABLE_IDS:
        # Columns by number: ids of one field.
        indices = field_ids(indices, 0)
    id_rows = sparse.csr_array((X.shape[0], N_TABLE_IDS), dtype=dtype)
    # Without the checks of the constructor, which read all entries.
    id_rows.data = X.data.astype(dtype, copy=False)
    id_rows.indices = indices.astype(np.int64, copy=False)
    id_rows.indptr = X.indptr.astype(np.int64, copy=False)
    return id_rows


def number_ids(
    ids: list[NDArray[np.int64]], own_ids: NDArray[np.int64], own_last: bool
) -> tuple[NDArray[np.int64], list[NDArray[Any]], NDArray[Any]]:
    """Return the ids that a batch uses, and the positions of its entries' and the model's own ids.

    `own_last`: the model's own ids follow those of the entries; otherwise all are sorted together.
    """
    if own_last:
        index, places = distinct(ids)
        own_places = np.arange(len(index), len(index) + len(own_ids))
        return np.concatenate([index, own_ids]), places, own_places
    index, (*places, own_places) = distinct([*ids, own_ids])
    return index, places, own_places


def take_rows(X: Any) -> Any:
    """Return chosen rows of a block as a new CSR matrix."""
    rows = getattr(X, "rows", None)
    return X if rows is None else X.X[rows]


@lru_cache(maxsize=8)
def _list_column_ids(n_columns: int) -> NDArray[np.int64]:
    """Return the ids of columns that are fields of one id each."""
    return np.concatenate([field_ids(np.zeros(1, np.int64), field) for field in range(n_columns)])


@lru_cache(maxsize=8)
def list_own_ids(n_layer_rows: int) -> NDArray[np.int64]:
    """Return the ids of the given number of layer rows, in order, and the intercept's."""
    layer_ids = field_ids(np.arange(n_layer_rows), MODEL_FIELD)
    return np.append(layer_ids, INTERCEPT_ID)


@lru_cache(maxsize=4)
def draw_layers(network: MLP, seed: int, dtype: str) -> NDArray[Any]:
    """Return the initial weights of the layers; not to be changed."""
    return network.init(seed, np.dtype(dtype))
