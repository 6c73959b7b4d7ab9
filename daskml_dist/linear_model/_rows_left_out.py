"""Predictions of each row by ridge that was fitted without it: lazily where rows are lazy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from daskml_dist.backends import get_backend
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import Collection
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.penalty_paths import LeaveOneOutErrors
from daskml_dist.training.dataset_info import DatasetInfo

__all__ = ["Values", "values_left_out"]


@dataclass(frozen=True, eq=False)
class Values:
    """Values of each row under each penalty.

    Parameters
    ----------
    array : ndarray or dask Array of shape (n_rows, n_targets, n_alphas)
    flat : bool
        Whether targets have one dimension.
    """

    array: Any
    flat: bool

    def of_penalty(self, i: int) -> Any:
        """Values of shape (n_rows,) or (n_rows, n_targets)."""
        found = self.array[:, :, i]
        return found[:, 0] if self.flat else found

    def gathered(self) -> NDArray[np.float64]:
        """All of them, of shape (n_rows, n_alphas) or (n_rows, n_targets, n_alphas)."""
        array = self.array.compute() if isinstance(self.array, da.Array) else self.array
        return np.asarray(array[:, 0] if self.flat else array)


def values_left_out(
    collection: Collection,
    left_out: LeaveOneOutErrors,
    model: LinearModel,
    rows: DatasetInfo,
    *,
    squares: bool,
) -> Values:
    """Predictions of rows, or their squared errors times their weights."""
    one = partial(_of_block, left_out, model, rows.classes, _weigher(rows), squares)
    flat = model.n_targets is None and rows.classes is None
    if collection.kind == "memory":
        block = collection.block_maker(0, *collection.parts[0])
        return Values(one(block), flat)
    shape = model.width, len(left_out.w)
    counts: list[Any] = collection.row_counts or [np.nan] * len(collection.parts)
    lazily = delayed(one, pure=False)
    pieces = [
        da.from_delayed(lazily(block), (n, *shape), dtype=np.float64)
        for n, block in zip(counts, collection.delayed_blocks(), strict=True)
    ]
    return Values(da.concatenate(pieces), flat)


def _weigher(rows: DatasetInfo) -> Any:
    if rows.weight_scale is None:
        return None
    return partial(_weights, rows.weight_scale, rows.class_weight, rows.classes)


def _weights(scale: float, of_class: Any, classes: Any, block: Block) -> NDArray[np.float64]:
    """Weights as the fit has them."""
    weight = np.full(block.n_rows, scale)
    if block.sample_weight is not None:
        weight *= block.sample_weight
    if of_class is not None and block.y is not None:
        weight *= of_class[np.searchsorted(classes, block.y)]
    return weight


def _of_block(
    left_out: LeaveOneOutErrors,
    model: LinearModel,
    classes: Any,
    weigh: Any,
    squares: bool,
    block: Block,
) -> NDArray[np.float64]:
    assert block.y is not None
    backend = get_backend("cpu")
    y = model.encode(block.y, classes, np.float64)
    weight = None if weigh is None else weigh(block)
    X = backend.rows(block.rows, slice(0, block.n_rows))
    errors = left_out.errors(X, y, weight, backend)
    if squares:
        scale = 1.0 if weigh is None else weigh.args[0]
        found = errors**2 if weight is None else errors**2 * (weight / scale)[:, None, None]
    else:
        shift = np.array(model.target_shift) if model.target_shift else 0.0
        found = (y.reshape(len(y), -1) + shift)[:, None, :] - errors
    return np.ascontiguousarray(found.transpose(0, 2, 1))
