"""Two towers: users and items become vectors whose product is an item's logit among all items.

A row is a user and an item that belong together, each with further columns. The vector of a side
(its *tower*) is the sum of the vectors of its ids, or the output of a perceptron on the
concatenated vectors of its fields. Vectors are rows of a `GrowingTable`, as in
`models/embeddings.py`, whose field numbers identify the side of an id.

The loss is the softmax of the correct item among all; the items of the batch's other rows are a
sample of these (Yi et al. 2019). They occur with their frequency Q, so log Q is subtracted from
their logits: their exponentials then estimate the sum over all other items (Bengio and Senecal
2008). The correct item is not sampled, and keeps its logit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.id_hashing import find_fields
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.errors import InvalidDataError
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import (
    N_TABLE_IDS,
    BatchRows,
    GrowingTable,
    Parameters,
    Part,
    StepModel,
)
from daskml_dist.models.embeddings import (
    draw_layers,
    list_own_ids,
    number_ids,
    take_rows,
    to_id_rows,
)
from daskml_dist.models.mlp import MLP

#: Maximum rows of a batch that are each other's negatives: their logits take 64 MiB in float32.
MAX_GROUP_ROWS = 4096
#: Added to the squared lengths of vectors, which may all be 0.
_TINY = 1e-12
#: Stands for a batch if layers get their input as an array.
_NO_ROWS: Any = None


@dataclass(frozen=True)
class TwoTowerModel(StepModel):
    """Model of pairs of a user and an item, trained to find the item among others.

    Fields below ``n_fields[0]`` are the user's; the first of the other fields is the item's id.

    Parameters
    ----------
    loss : Loss
        Required by the networks' interface; not computed.
    rank : int
        Length of an id's vector, and of a tower's.
    n_fields : tuple of int
        Fields of the user, and of the item.
    alpha : float
        Each row adds ``alpha / 2`` times the squares of the weights and vectors that it touches.
    table : GrowingTable
    temperature : float, default=0.1
        Logits are divided by it.
    normalize : bool, default=True
        Whether the towers' vectors have length 1.
    hidden : tuple of int, default=()
        Units of each tower's hidden layers; empty: the vectors of its ids are added.
    activation : str, default="relu"
    touches : float
        Mean number of ids of a row.
    own_last : bool, default=False
        Whether the model's own rows follow the sorted ids that a batch uses.
    """

    loss: Loss
    rank: int
    n_fields: tuple[int, int]
    alpha: float
    table: GrowingTable
    temperature: float = 0.1
    normalize: bool = True
    hidden: tuple[int, ...] = ()
    activation: str = "relu"
    touches: float | None = field(default=1.0, compare=False)
    own_last: bool = field(default=False, compare=False)

    starts_threads: ClassVar[bool] = False
    parameters: Parameters = field(init=False, repr=False, compare=False)
    #: The perceptron of each side, if any.
    networks: tuple[MLP, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        width = 1 + self.rank
        parts = (Part("table", (N_TABLE_IDS, width)),)
        object.__setattr__(self, "parameters", Parameters(parts, width))
        sizes = [(n * self.rank, *self.hidden, self.rank) for n in self.n_fields]
        networks = [MLP(self.loss, size, self.activation, 0) for size in sizes]
        object.__setattr__(self, "networks", tuple(networks) if self.hidden else ())

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the logarithms of the frequencies of the rows' items."""
        return y.astype(dtype, copy=False)

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return rows over ids."""
        return to_id_rows(X, dtype)

    @property
    def own_ids(self) -> NDArray[np.int64]:
        """Return the ids of the layers' weights, and the intercept's, which stays 0."""
        return list_own_ids(sum(self._layer_rows))

    def with_own_rows_last(self) -> TwoTowerModel:
        """Return the model with its own rows after those of the ids that a batch uses."""
        return replace(self, own_last=True)

    @property
    def _layer_rows(self) -> list[int]:
        """Return the number of table rows used by the weights of each network."""
        width = self.parameters.width
        return [-(-network.parameters.shape[0] // width) for network in self.networks]

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the ids of a batch and of the layers; the first piece gets the rows of all.

        Rows of a batch are each other's negatives, whatever their blocks.
        """
        rows = [take_rows(piece.X) for piece in pieces]
        index, places, own_places = number_ids(
            [X.indices for X in rows], self.own_ids, self.own_last
        )
        lengths = np.concatenate([np.diff(X.indptr) for X in rows])
        joined = self._place_pairs(
            np.concatenate([[0], np.cumsum(lengths)]),
            np.concatenate(places),
            np.concatenate([X.indices for X in rows]),
            np.concatenate([X.data for X in rows]),
            own_places[:-1],
        )
        first_piece, *other_pieces = pieces
        weights = [np.empty(0) if piece.weight is None else piece.weight for piece in pieces]
        first_piece.X, first_piece.y = joined, np.concatenate([piece.y for piece in pieces])
        first_piece.weight = None if first_piece.weight is None else np.concatenate(weights)
        for piece in other_pieces:
            piece.X, piece.y, piece.weight = joined.part(slice(0)), piece.y[:0], None
        return index

    def _place_pairs(
        self, indptr: NDArray[Any], positions: NDArray[Any], ids: NDArray[np.int64],
        data: NDArray[Any], of_layers: NDArray[Any],
    ) -> PlacedPairs:  # fmt: skip
        """Return rows whose columns are positions among the used parameters."""
        fields = find_fields(ids)
        n_users, n_items = self.n_fields
        # Compiled loops write to the position of a field without bounds checks.
        if len(fields) and int(fields.max()) >= n_users + n_items:
            raise InvalidDataError(
                f"Rows have ids of {int(fields.max()) + 1} fields, but the model has "
                f"{n_users + n_items}. Give the columns of the fit."
            )
        item_data = np.where(fields >= n_users, data, data.dtype.type(0))
        # Each row of a pair has one id of its item; rows with only a user have none.
        item = ids[fields == n_users]
        return PlacedPairs(indptr, positions, data, item_data, fields, item, of_layers)

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of some rows to `out`; return the summed loss without the penalty."""
        loss = 0.0
        for row_slice in row_slices(rows.X.shape[0], MAX_GROUP_ROWS):
            weight = None if rows.weight is None else rows.weight[row_slice]
            loss += self._add_group(
                w, rows.X.part(row_slice), rows.y[row_slice], weight, out, backend
            )
        return loss

    def _add_group(
        self, w: Any, X: PlacedPairs, log_q: Any, weight: Any, out: Any, backend: Backend
    ) -> float:
        """Add the gradient of rows that are each other's negatives; return their summed loss."""
        from daskml_dist.backends.embedding_kernels import add_pooled_gradients, add_row_gradients

        pooled, biases = self._pool(w, X)
        users, items = (self._pass_tower(side, w, X, pooled, backend) for side in (0, 1))
        logits = users.vectors @ items.vectors.T
        logits /= w.dtype.type(self.temperature)
        logits += biases
        loss, slope = compute_softmax(logits, log_q, X.item, weight)
        scaled = slope / w.dtype.type(self.temperature)
        pooled_gradient = np.empty_like(pooled)
        for side, tower, vector_gradient in (
            (0, users, scaled @ items.vectors),
            (1, items, scaled.T @ users.vectors),
        ):
            pooled_gradient[:, self._field_slice(side)] = self._pull_back(
                side, tower, vector_gradient, X, out, backend
            )
        add_pooled_gradients(X.indptr, X.positions, X.field, X.data, pooled_gradient, out)
        # Biases of the items' ids, and the penalty of all; a softmax does not depend on the
        # intercept.
        row_weights = np.empty(0, w.dtype) if weight is None else weight.astype(w.dtype, copy=False)
        intercept, no_vectors = out[-1, 0], np.empty((len(log_q), self.rank), w.dtype)
        add_row_gradients(
            X.indptr, X.positions, X.of_items, w, False, no_vectors, slope.sum(axis=0), row_weights,
            self.alpha, self.alpha, out,
        )  # fmt: skip
        out[-1, 0] = intercept
        return loss

    def encode_side(
        self, side: int, w: NDArray[Any], X: PlacedPairs, backend: Backend
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the vectors of one side's tower, and the biases of items."""
        pooled, biases = self._pool(w, X)
        return self._pass_tower(side, w, X, pooled, backend).vectors, biases

    def place_rows(self, X: Any, dtype: Any) -> tuple[NDArray[np.int64], PlacedPairs]:
        """Return the ids that rows use, and the rows with positions among these."""
        rows = to_id_rows(X, dtype)
        index, (place,), own_places = number_ids([rows.indices], self.own_ids, False)
        return index, self._place_pairs(
            rows.indptr, place, rows.indices, rows.data, own_places[:-1]
        )

    def _field_slice(self, side: int) -> slice:
        """Return the fields of one side."""
        first = self.n_fields[0]
        return slice(first, sum(self.n_fields)) if side else slice(first)

    def _pool(self, w: NDArray[Any], X: PlacedPairs) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the vectors of the fields of each row, and the biases of its item."""
        from daskml_dist.backends.embedding_kernels import pool_fields, predict_rows

        n = X.shape[0]
        pooled = np.zeros((n, sum(self.n_fields), self.rank), w.dtype)
        pool_fields(X.indptr, X.positions, X.field, X.data, w, pooled)
        biases, no_vectors = np.empty(n, w.dtype), np.zeros((n, self.rank), w.dtype)
        predict_rows(X.indptr, X.positions, X.of_items, w, False, biases, no_vectors)
        return pooled, biases

    def _pass_tower(
        self, side: int, w: NDArray[Any], X: PlacedPairs, pooled: NDArray[Any], backend: Backend
    ) -> _PassedTower:
        """Return a tower's vectors, and the data that its gradient needs."""
        inputs, weights, memory = pooled[:, self._field_slice(side)], None, None
        if self.networks:
            network = self.networks[side]
            flat = w[self._find_layer_places(side, X)].reshape(-1, 1)
            weights = flat[: network.parameters.shape[0]] + draw_layers(
                network, self.table.seed + side, w.dtype.str
            )
            output, memory = network.forward(
                weights, inputs.reshape(len(inputs), -1), range(len(network.layers)), _NO_ROWS,
                backend,
            )  # fmt: skip
        else:
            output = inputs.sum(axis=1)
        if not self.normalize:
            return _PassedTower(output, None, weights, memory)
        lengths = np.sqrt(np.einsum("ij,ij->i", output, output) + w.dtype.type(_TINY))[:, None]
        return _PassedTower(output / lengths, lengths, weights, memory)

    def _pull_back(
        self, side: int, tower: _PassedTower, slope: Any, X: PlacedPairs, out: Any, backend: Backend
    ) -> NDArray[Any]:
        """Add the gradient of a tower's layers, given its vectors' gradient; return its fields'."""
        if tower.lengths is not None:
            # For a vector of length 1, only the component orthogonal to it counts.
            parallel = np.einsum("ij,ij->i", slope, tower.vectors)[:, None]
            slope = (slope - tower.vectors * parallel) / tower.lengths
        n_fields = self.n_fields[side]
        if not self.networks:
            field_slopes: NDArray[Any] = np.broadcast_to(
                slope[:, None], (len(slope), n_fields, self.rank)
            )
            return field_slopes
        network, places = self.networks[side], self._find_layer_places(side, X)
        assert tower.weights is not None
        gradient = np.zeros((len(places) * out.shape[1], 1), out.dtype)
        input_gradients = network.backward(
            tower.weights, tower.memory, slope, gradient[: len(tower.weights)],
            range(len(network.layers)), _NO_ROWS, backend, wants_input=True,
        )  # fmt: skip
        out[places] += gradient.reshape(-1, out.shape[1])
        field_gradients: NDArray[Any] = input_gradients.reshape(len(slope), n_fields, self.rank)
        return field_gradients

    def _find_layer_places(self, side: int, X: PlacedPairs) -> NDArray[Any]:
        """Return the positions of the weights of one side's layers."""
        first = self._layer_rows[0]
        return X.of_layers[first:] if side else X.of_layers[:first]

    def identity(self) -> dict[str, Any]:
        """Return sizes, penalty, temperature and layers, with the seed of the initial weights."""
        facts: dict[str, Any] = {
            "model": "two towers", "rank": self.rank, "n_fields": list(self.n_fields),
            "alpha": self.alpha, "temperature": self.temperature, "normalize": self.normalize,
            "hidden": list(self.hidden),
        }  # fmt: skip
        if self.hidden:
            facts |= {"activation": self.activation, "seed": self.table.seed}
        return facts


@dataclass(frozen=True, eq=False)
class _PassedTower:
    """Vectors of a tower, their lengths before normalisation, and data for its gradient."""

    vectors: NDArray[Any]
    lengths: NDArray[Any] | None
    weights: NDArray[Any] | None
    memory: Any


@dataclass(frozen=True, eq=False)
class PlacedPairs:
    """Rows of users and items whose columns are positions among the pulled parameters.

    Parameters
    ----------
    indptr : ndarray of int of shape (n + 1,)
    positions : ndarray of int of shape (n_entries,)
    data : ndarray of float of shape (n_entries,)
    of_items : ndarray of float of shape (n_entries,)
        `data`, with zeros for the users' entries.
    field : ndarray of uint8 of shape (n_entries,)
    item : ndarray of int64 of shape (n,)
        Id of each row's item.
    of_layers : ndarray of int
        Places of the layers' weights.
    """

    indptr: NDArray[Any]
    positions: NDArray[Any]
    data: NDArray[Any]
    of_items: NDArray[Any]
    field: NDArray[np.uint8]
    item: NDArray[np.int64]
    of_layers: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of rows."""
        return (len(self.indptr) - 1,)

    def part(self, row_slice: slice) -> PlacedPairs:
        """Return a slice of the rows."""
        start, stop, _ = row_slice.indices(self.shape[0])
        if (start, stop) == (0, self.shape[0]):
            return self
        entries = slice(int(self.indptr[start]), int(self.indptr[stop]))
        return PlacedPairs(
            self.indptr[start : stop + 1] - self.indptr[start], self.positions[entries],
            self.data[entries], self.of_items[entries], self.field[entries],
            self.item[start:stop], self.of_layers,
        )  # fmt: skip


def compute_softmax(
    logits: NDArray[Any], log_q: NDArray[Any], item: NDArray[np.int64], weight: Any
) -> tuple[float, NDArray[Any]]:
    """Return the loss of each row's own item among all items, and its gradient by the logits.

    Parameters
    ----------
    logits : ndarray of float of shape (n, n)
        Logits of each row's user and each row's item; overwritten.
    log_q : ndarray of float of shape (n,)
        Logarithm of the frequency of each row's item.
    item : ndarray of int of shape (n,)
        The same item of another row is no negative.
    weight : ndarray of float of shape (n,), or None

    Returns
    -------
    float
        Sum of the weighted losses.
    ndarray of shape (n, n)
        In the memory of `logits`.
    """
    n = len(logits)
    diagonal = np.arange(n)
    own_logits = logits[diagonal, diagonal].copy()
    # The other rows are draws of items with probability Q: the mean of exp(logit) / Q over them
    # estimates the sum over all other items. The correct item is not drawn, and is not adjusted.
    logits -= (log_q + np.log(max(n - 1, 1))).astype(logits.dtype)
    logits[item[:, None] == item] = -np.inf
    logits[diagonal, diagonal] = own_logits
    # The largest logit of each row becomes 0, so that no exponential overflows.
    row_max = logits.max(axis=1)
    logits -= row_max[:, None]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1)
    losses = np.log(total) + row_max - own_logits
    logits /= total[:, None]
    logits[diagonal, diagonal] -= 1
    if weight is not None:
        losses = losses * weight
        logits *= weight[:, None].astype(logits.dtype, copy=False)
    return float(losses.sum(dtype=np.float64)), logits
