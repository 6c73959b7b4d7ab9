"""Facts of a block that the client must know: sizes, labels and sums of targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.blocks import Block
from daskml_dist.data.spread import Spread
from daskml_dist.errors import InvalidDataError

__all__ = ["BlockInfo", "inspect_block", "joined_columns"]

#: Labels, rows of each, and sums of their weights.
_Counts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
#: Labels in so small a range are counted one by one rather than sorted.
_FEW = 16
#: Targets of a sample, which tells roughly where most of them lie.
_SAMPLE = 128
#: Labels that every type here holds exactly.
_LARGEST = 1 << 20


@dataclass(frozen=True, eq=False)
class BlockInfo:
    """Facts of a block that the client must know before the fit.

    Parameters
    ----------
    index, n_rows : int
    row_shape : tuple of int
        Of a row of `X`.
    nnz : int or None
        Stored entries of a sparse block, None for a dense one.
    dtype : str
        Of `X`: "float32" or "float64", of tensors any real one.
    sparse : bool
    weight_sum : float
        Sum of the sample weights; the number of rows where there are none.
    labels : ndarray or None
        Sorted unique labels (classification only).
    label_weights : ndarray of float64, or None
        Sum of the sample weights of each label; its rows where there are none.
    label_rows : ndarray of int64, or None
        Rows of each label.
    columns : tuple of (ndarray, ndarray), or None
        The labels of each column, where there are several, and the sums of their weights.
    y_min, y_max : float or None
        Of the targets (regression only); None in an empty block.
    targets : Spread or None
        Weighted mean and variance of each column of the targets.
    y_sample : ndarray of float64 of shape (n_targets + 1, n), or None
        Some rows' targets, evenly spaced, and last the rows' weights.
    n_targets : int or None
        Columns of the targets; None for targets of one dimension.
    device : str
        Where the arrays lie.
    nbytes : int
        Bytes of the block's arrays.
    """

    index: int
    n_rows: int
    row_shape: tuple[int, ...]
    nnz: int | None
    dtype: str
    sparse: bool
    weight_sum: float
    labels: NDArray[Any] | None = None
    label_weights: NDArray[np.float64] | None = None
    label_rows: NDArray[np.int64] | None = None
    columns: tuple[tuple[NDArray[Any], NDArray[np.float64]], ...] | None = None
    y_min: float | None = None
    y_max: float | None = None
    targets: Spread | None = None
    y_sample: NDArray[np.float64] | None = None
    n_targets: int | None = None
    device: str = "cpu"
    nbytes: int = 0

    @property
    def n_features(self) -> int:
        """Columns of `X`."""
        return self.row_shape[0]

    def of_target(self, target: int) -> BlockInfo:
        """Facts where one of several columns of the targets is the only one."""
        targets, sample = self.targets, self.y_sample
        return replace(
            self,
            n_targets=None,
            targets=None if targets is None else targets.of_column(target),
            y_sample=None if sample is None else sample[[target, -1]],
        )


def inspect_block(block: Block) -> BlockInfo:
    """Collect what the client must know of a block.

    Parameters
    ----------
    block : Block

    Returns
    -------
    BlockInfo

    Raises
    ------
    InvalidDataError
        The labels cannot be sorted, being of different types.
    """
    X, weights = block.rows, block.sample_weight
    is_sparse = sparse.issparse(X)
    facts: dict[str, Any] = {}
    if block.y is not None:
        labels = block.classification
        facts = _label_facts(block.y, block) if labels else _target_facts(block.y, weights)
    return BlockInfo(
        index=block.index,
        n_rows=block.n_rows,
        row_shape=tuple(map(int, X.shape[1:])),
        nnz=int(X.nnz) if is_sparse else None,
        dtype=X.dtype.name,
        sparse=is_sparse,
        weight_sum=float(block.n_rows if weights is None else weights.sum(dtype=np.float64)),
        device=block.device,
        nbytes=block.nbytes,
        **facts,
    )


def joined_columns(infos: Sequence[BlockInfo], n_parts: int) -> list[BlockInfo]:
    """Facts of blocks of whole rows, of those that hold parts of their columns.

    Parameters
    ----------
    infos : sequence of BlockInfo
        Of all blocks of the first part, then of the next, and so on.
    n_parts : int

    Raises
    ------
    InvalidDataError
        Parts of the same rows have different numbers of them.
    """
    n_blocks = len(infos) // n_parts
    return [_joined(infos[at::n_blocks]) for at in range(n_blocks)]


def _joined(parts: Sequence[BlockInfo]) -> BlockInfo:
    first = parts[0]
    if len({part.n_rows for part in parts}) > 1:
        raise InvalidDataError(
            f"Chunks of X beside each other have {[part.n_rows for part in parts]} rows. Make X "
            "anew so that all columns of a row are in the same row of chunks, and persist() it."
        )
    is_sparse = all(part.sparse for part in parts)
    return replace(
        first,
        row_shape=(sum(part.n_features for part in parts),),
        nnz=sum(part.nnz or 0 for part in parts) if is_sparse else None,
        sparse=is_sparse,
        dtype=str(np.result_type(*{part.dtype for part in parts})),
        nbytes=sum(part.nbytes for part in parts),
    )


def _label_facts(y: NDArray[Any], block: Block) -> dict[str, Any]:
    weights = block.sample_weight
    several = y.ndim == 2
    try:
        columns = [
            _count_numbers(of, weights) or _count_any(of, weights)
            for of in (y.T if several else [y])
        ]
        labels = columns[0][0]
        if several:
            labels = np.unique(np.concatenate([found for found, _, _ in columns]))
    except TypeError as error:
        raise InvalidDataError(
            f"Block {block.index}: the labels in y are of different types ({error}). Make them "
            "one type, for example y.astype(str)."
        ) from error
    if several:
        found = tuple((labels, sums.astype(np.float64)) for labels, _, sums in columns)
        return {"labels": labels, "n_targets": y.shape[1], "columns": found}
    _, counts, sums = columns[0]
    return {
        "labels": labels,
        "label_weights": sums.astype(np.float64),
        "label_rows": counts.astype(np.int64),
    }


def _count_any(y: NDArray[Any], weights: NDArray[Any] | None) -> _Counts:
    """Labels, rows and sums of weights of each, by sorting."""
    if weights is None:
        labels, counts = np.unique(y, return_counts=True)
        return labels, counts, counts
    labels, inverse, counts = np.unique(y, return_inverse=True, return_counts=True)
    return labels, counts, np.bincount(inverse, weights, minlength=len(labels))


def _count_numbers(y: NDArray[Any], weights: NDArray[Any] | None) -> _Counts | None:
    """As `_count_any`, without sorting; None unless labels are few whole numbers in a row."""
    if y.dtype.kind not in "biuf" or not len(y):
        return None
    low, high = y.min().item(), y.max().item()
    if high - low >= _FEW or low != round(low) or abs(low) > _LARGEST:
        return None
    labels = np.arange(int(low), int(high) + 1)
    masks = (y == label for label in labels)
    facts = [
        (np.count_nonzero(at), np.nan if weights is None else weights[at].sum(dtype=np.float64))
        for at in masks
    ]
    counts, sums = np.array([c for c, _ in facts]), np.array([s for _, s in facts])
    if counts.sum() != len(y):
        return None
    there = counts > 0
    sums = counts if weights is None else sums
    return labels[there].astype(y.dtype), counts[there], sums[there]


def _target_facts(y: NDArray[Any], weights: NDArray[Any] | None) -> dict[str, Any]:
    return {
        "y_min": float(y.min()) if len(y) else None,
        "y_max": float(y.max()) if len(y) else None,
        "targets": Spread.of(y, weights),
        "y_sample": _sample(y, weights),
        "n_targets": y.shape[1] if y.ndim == 2 else None,
    }


def _sample(y: NDArray[Any], weights: NDArray[Any] | None) -> NDArray[np.float64]:
    columns = y if y.ndim == 2 else y[:, None]
    n = min(len(y), _SAMPLE, max(_SAMPLE * _FEW // max(columns.shape[1], 1), 1))
    at = np.linspace(0, len(y) - 1, n).round().astype(int)
    weight = np.ones(len(at)) if weights is None else weights[at]
    return np.vstack([columns[at].T, weight]).astype(float)
