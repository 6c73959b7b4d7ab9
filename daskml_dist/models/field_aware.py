"""Field-aware factorisation machines: each id has a vector for each field of other ids.

The raw prediction is that of a factorisation machine's weights, plus for each pair of ids i and j
of a row ``v_i[field of j] @ v_j[field of i] * x_i * x_j`` (Juan et al. 2016, equation 4). The
vectors of an id are stored one after the other in one row of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.models.base import N_TABLE_IDS, BatchRows, Parameters, Part
from daskml_dist.models.embeddings import EmbeddingModel, PlacedRows


@dataclass(frozen=True)
class FieldAwareModel(EmbeddingModel):
    """Model of rows over ids that have a vector of length `rank` for each of `n_fields` fields.

    Parameters
    ----------
    loss, rank, alpha, table, offset, n_fields, touches
        As in :class:`EmbeddingModel`; the table has a column of weights, followed by those of all
        vectors.
    pairs, hidden, activation
        Not used.
    """

    @property
    def needs_fields(self) -> bool:
        """Return True: gradients need the field of each id."""
        return True

    def __post_init__(self) -> None:
        width = 1 + self.rank * self.n_fields
        parts = (Part("table", (N_TABLE_IDS, width)),)
        object.__setattr__(self, "parameters", Parameters(parts, width))
        object.__setattr__(self, "network", None)

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of some rows to `out`; return the summed loss without the penalty."""
        from daskml_dist.backends.embedding_kernels import add_field_pair_gradients

        X, weight = rows.X, rows.weight
        losses, slope = self.loss.value_and_gradient(rows.y, self.predict(w, X, backend))
        if weight is not None:
            losses, slope = losses * weight, slope * weight
        row_weights = np.empty(0, w.dtype) if weight is None else weight.astype(w.dtype, copy=False)
        add_field_pair_gradients(
            X.indptr, X.positions, X.field, X.data, w, self.rank, slope.astype(w.dtype, copy=False),
            row_weights, self.alpha, out,
        )  # fmt: skip
        return float(losses.sum(dtype=np.float64))

    def predict(self, w: NDArray[Any], X: PlacedRows, backend: Backend) -> NDArray[Any]:
        """Return raw predictions, of shape (n,)."""
        from daskml_dist.backends.embedding_kernels import predict_field_pairs

        raw = np.empty(X.shape[0], w.dtype)
        predict_field_pairs(X.indptr, X.positions, X.field, X.data, w, self.rank, raw)
        raw += w.dtype.type(self.offset)
        return raw

    def identity(self) -> dict[str, Any]:
        """Return loss, rank, penalty and the number of fields."""
        return super().identity() | {"model": "field-aware", "n_fields": self.n_fields}


def make_field_aware(model: EmbeddingModel, n_fields: int) -> FieldAwareModel:
    """Return the field-aware form of a model, with the table's columns of vectors repeated."""
    weights, vectors = model.table.scales[:1], model.table.scales[1:]
    table = replace(model.table, scales=(*weights, *(vectors * n_fields)))
    return FieldAwareModel(
        model.loss, model.rank, model.alpha, table, model.offset, n_fields=n_fields,
        touches=model.touches,
    )  # fmt: skip
