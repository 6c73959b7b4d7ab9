"""Blocks: aligned rows of X, y and sample_weight as plain arrays, on the worker with the data.

`make_block` converts to a `Block` a chunk, partition or array that a worker holds; `inspect_block`
summarises it as a `BlockInfo`: sizes, labels and sums of targets, the only data about it that the
client receives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.devices import gpu_problem
from daskml_dist.backends.namespace import cast, is_host, namespace, total
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.data.conversion import (
    Rows,
    are_device_labels,
    as_column,
    as_rows,
    check_no_missing,
    check_not_complex,
    choose_float_dtype,
    choose_tensor_dtype,
    convert_to_numbers,
    copy_to_host,
    describe_block,
    find_device,
)
from daskml_dist.data.row_checks import check_declared_shape, make_bad_value_error
from daskml_dist.errors import InvalidDataError


@dataclass(frozen=True, eq=False)
class Block:
    """Aligned rows, ready for the maths.

    Parameters
    ----------
    index : int
        Position among the blocks of the fit.
    rows : ndarray, CSR matrix or CuPy array of shape (n_rows, n_features) or (n_rows, ...)
        float32 or float64, any real dtype for tensors; C-contiguous, or CSR with sorted indices and
        no duplicates. A CuPy array if the user's rows were in this form on a device; they stay
        there, in their process.
    target : ndarray or CuPy array of shape (n_rows,) or (n_rows, n_targets), or None
        Labels as the user gave them, or targets: float32 if they were float32, else float64. A CuPy
        array if labels are numbers on a device and `rows` are on it too.
    sample_weight : ndarray of shape (n_rows,), or None
        float32 if they were float32, else float64.
    device : {"cpu", "gpu"}
        Where the user's rows were.
    classification : bool
        Whether `y` holds labels.
    """

    index: int
    rows: Rows
    target: Any = None
    sample_weight: NDArray[Any] | None = None
    device: str = "cpu"
    classification: bool = False

    def __getstate__(self) -> dict[str, Any]:
        # Pickles contain the host copy only, and only once: `X` may be cached beside the rows.
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **state, "rows": copy_to_host(self.rows), "target": copy_to_host(self.target)
        }  # fmt: skip

    @functools.cached_property
    def X(self) -> Rows:
        """Return the rows in host memory; the first call copies them from a device."""
        return copy_to_host(self.rows)

    @functools.cached_property
    def y(self) -> NDArray[Any] | None:
        """Return labels or targets in host memory; the first call copies them from a device."""
        target: NDArray[Any] | None = copy_to_host(self.target)
        return target

    @property
    def on_device(self) -> Any | None:
        """Return the rows if they are on a device, else None."""
        return None if find_device(self.rows) == "cpu" else self.rows

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.rows.shape[0])

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of all arrays."""
        X = self.rows
        arrays = [X.data, X.indices, X.indptr] if sparse.issparse(X) else [X]
        arrays += [a for a in (self.target, self.sample_weight) if a is not None]
        return sum(int(a.nbytes) for a in arrays)

    def __sizeof__(self) -> int:
        # Dask calls this to budget a worker's memory.
        return object.__sizeof__(self) + self.nbytes


def make_block(
    index: int,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    dtype: str | None = None,
    classification: bool = False,
    multi_output: bool = False,
    tensors: bool = False,
    row_shape: tuple[int, ...] | None = None,
    on_device: bool = False,
) -> Block:
    """Make a block from data that a worker holds; copy only if a conversion is needed."""
    # Rows that already have the form the fit needs stay on the GPU; others are copied to the host.
    on_device = on_device or _may_stay_on_device(X, dtype, tensors)
    # Features: a float array or CSR matrix. NaN and infinity are allowed here, since imputers
    # accept them; a fit that does not calls `check_finite`.
    rows = as_rows(X, dtype=dtype, index=index, on_device=on_device, tensors=tensors)
    check_declared_shape(rows.shape[1:], row_shape, index)
    n_rows, dtype = rows.shape[0], choose_float_dtype(rows.dtype)
    if y is not None:
        # If rows stay on the GPU, their labels do too.
        stays_on_device = classification and not multi_output and find_device(rows) == "gpu"
        if not (stays_on_device and are_device_labels(y)):
            y = as_column(y, name="y", index=index, multi_output=multi_output)
        check_length(n_rows, y, "y", index)
        # Labels keep their dtype, which `classes_` needs; targets become floats.
        y = _check_labels(y, index) if classification else _convert_target(y, dtype, index)
    # A single number as weight is the weight of all rows.
    if sample_weight is not None:
        if isinstance(sample_weight, Real):
            sample_weight = np.full(n_rows, sample_weight)
        sample_weight = as_column(sample_weight, name="sample_weight", index=index)
        check_length(n_rows, sample_weight, "sample_weight", index)
        # A fit scales weights to a mean of 1 before it rounds them to the dtype of the rows: those
        # below 1e-45, such as products of probabilities, would be 0 in float32.
        own_dtype = choose_float_dtype(sample_weight.dtype)
        sample_weight = convert_weights(sample_weight, own_dtype, index)
    return Block(index, rows, y, sample_weight, find_device(X), classification)


def _may_stay_on_device(X: Any, dtype: str | None, tensors: bool) -> bool:
    """Return whether rows are on a device, in the layout and dtype of the fit."""
    if find_device(X) == "cpu" or hasattr(X, "tocsr") or gpu_problem():
        return False
    fit_dtype = choose_tensor_dtype(X.dtype) if tensors else choose_float_dtype(X.dtype)
    return bool(X.dtype == (dtype or fit_dtype) and X.flags.c_contiguous)


def check_finite(block: Block) -> None:
    """Check that the features of a block are finite."""
    check_finite_rows(block.rows, block.index)


def check_finite_rows(X: Rows, index: int | None = None, first: int = 0) -> None:
    """Check that rows are finite, as `check_finite` does; integers always are."""
    values = X.data if sparse.issparse(X) else X
    position = find_first_nonfinite(values) if values.dtype.kind == "f" else None
    if position is None:
        return
    if sparse.issparse(X):
        # `indptr[r]` is where the values of row r begin: the last row that begins at or before it.
        row = int(np.searchsorted(X.indptr, position, side="right")) - 1
        column, place = int(X.indices[position]), "{column}"
    else:
        row, place_in_row = divmod(position, math.prod(X.shape[1:]))
        entry = tuple(map(int, np.unravel_index(place_in_row, X.shape[1:])))
        column, place = place_in_row, "{column}" if len(entry) == 1 else f"entry {entry}"
    raise make_bad_value_error(
        f"{describe_block(index)}Input X contains "
        f"{_describe_nonfinite(_get_flat_entry(values, position), values.dtype)} "
        f"(row {first + row} of the block, {place}, both counted from 0). Drop such rows "
        "(`dropna()` of a dataframe) or fill them first, for example with "
        "daskml_dist.impute.SimpleImputer.",
        column,
    )


# --- checks ----------------------------------------------------------------------------------


def check_length(n_rows: int, values: Any, name: str, index: int) -> None:
    """Check that a block has as many values as rows."""
    if len(values) != n_rows:
        raise InvalidDataError(
            f"Block {index}: X has {n_rows} rows but {name} has {len(values)}. Pass the same "
            "rows in both; if chunk sizes are unknown, call X.compute_chunk_sizes() and "
            f"{name}.compute_chunk_sizes(), so that the chunks can be matched."
        )


def find_first_nonfinite(values: Any) -> int | None:
    """Return the position of the first NaN or infinity, on any device; None if there is none."""
    xp = namespace(values)
    with np.errstate(all="ignore"):
        # The sum decides the usual case: it is not finite if any value is NaN or infinite. A sum of
        # finite values may overflow too; then the check of each value below finds none.
        if xp.isfinite(total(values)):
            return None
    is_nonfinite = ~xp.isfinite(xp.reshape(values, (-1,)))
    return int(xp.argmax(is_nonfinite)) if xp.any(is_nonfinite) else None


def _get_flat_entry(values: Any, position: int) -> float:
    """Return an entry of an array of any shape, on any device."""
    return float(namespace(values).reshape(values, (-1,))[position])


def _describe_nonfinite(value: Any, dtype: Any) -> str:
    """Return the description of a non-finite value that scikit-learn uses."""
    return "NaN" if np.isnan(value) else f"infinity or a value too large for dtype('{dtype}')"


def _check_finite_values(values: Any, name: str, index: int | None) -> None:
    """Raise `InvalidDataError` for NaN or infinity in a target or in weights; it names the row."""
    position = find_first_nonfinite(values)
    if position is not None:
        row = position // (values.shape[1] if values.ndim == 2 else 1)
        raise InvalidDataError(
            f"{describe_block(index)}Input {name} contains "
            f"{_describe_nonfinite(_get_flat_entry(values, position), values.dtype)} "
            f"(row {row} of the block). Drop such rows from X, y and sample_weight."
        )


def _check_labels(y: Any, index: int) -> Any:
    """Return labels unchanged; raise for complex, missing or infinite ones."""
    if y.dtype.kind in "fc":
        check_not_complex(y.dtype, "y", index)
        _check_finite_values(y, "y", index)
    if is_host(y):
        check_no_missing(y, "y", index)
    return y


def _convert_target(y: NDArray[Any], dtype: Any, index: int) -> NDArray[Any]:
    """Return targets of a regression as float32 or float64; raise for missing or infinite ones."""
    check_no_missing(y, "y", index)
    # The fit computes in the dtype of X; until then, targets keep their precision.
    _check_finite_values(convert_to_numbers(y, dtype, "y", index), "y", index)
    return convert_to_numbers(y, choose_float_dtype(y.dtype), "y", index)


def convert_weights(weights: NDArray[Any], dtype: Any, index: int | None) -> NDArray[Any]:
    """Return weights of rows as an array of `dtype`; raise for negative or non-finite ones."""
    check_no_missing(weights, "sample_weight", index)
    weights = convert_to_numbers(weights, dtype, "sample_weight", index)
    _check_finite_values(weights, "sample_weight", index)
    if (weights < 0).any():
        row = int((weights < 0).argmax())
        raise InvalidDataError(
            f"{describe_block(index)}Negative values in sample_weight (row {row} of the block: "
            f"{weights[row]}). Weights count rows: make them zero or more."
        )
    return weights


#: Labels, the number of rows of each, and the sums of their weights.
_LabelCounts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
#: Labels in a range of at most this width are counted by comparison instead of sorting.
_MAX_COUNTED_LABELS = 16
#: Bytes of the labels that are counted and encoded in one step (256 KiB, which fits in a core's
#: cache).
_TILE_BYTES = 1 << 18
#: Rows of a sample of targets, which shows roughly where most of them are.
_SAMPLE_ROWS = 128
#: Labels up to here are exact in every dtype used.
_LARGEST_EXACT_LABEL = 1 << 20


@dataclass(frozen=True, eq=False)
class BlockInfo:
    """Facts about a block that the client must know before the fit.

    Parameters
    ----------
    index, n_rows : int
    row_shape : tuple of int
        Shape of a row of `X`.
    nnz : int or None
        Stored entries of a sparse block, None for a dense one.
    dtype : str
        Of `X`: "float32" or "float64"; for tensors, any real dtype.
    sparse : bool
    weight_sum : float
        Sum of the sample weights; the number of rows without weights.
    labels : ndarray or None
        Sorted unique labels (classification only).
    label_weights : ndarray of float64, or None
        Sum of the sample weights of each label; its number of rows without weights.
    label_rows : ndarray of int64, or None
        Number of rows of each label.
    columns : tuple of (ndarray, ndarray), or None
        Labels of each column, if there are several, and the sums of their weights.
    y_min, y_max : float or None
        Of the targets (regression only); None in an empty block.
    targets : WeightedMoments or None
        Weighted mean and variance of each column of the targets.
    y_sample : ndarray of float64 of shape (n_targets + 1, n), or None
        Targets of some evenly spaced rows; the last row of the array has their weights.
    n_targets : int or None
        Number of target columns; None for one-dimensional targets.
    device : str
        Where the arrays are.
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
    targets: WeightedMoments | None = None
    y_sample: NDArray[np.float64] | None = None
    n_targets: int | None = None
    device: str = "cpu"
    nbytes: int = 0

    @property
    def n_features(self) -> int:
        """Return the number of columns of `X`."""
        return self.row_shape[0]

    def of_target(self, target: int) -> BlockInfo:
        """Return the facts for a fit to one of several target columns."""
        targets, sample = self.targets, self.y_sample
        return replace(
            self,
            n_targets=None,
            targets=None if targets is None else targets.of_column(target),
            y_sample=None if sample is None else sample[[target, -1]],
        )


def inspect_block(block: Block) -> BlockInfo:
    """Collect the facts about a block that the client needs."""
    X, weights = block.rows, block.sample_weight
    is_sparse = sparse.issparse(X)
    facts: dict[str, Any] = {}
    if block.target is not None:
        if block.classification:
            facts = _summarize_labels(block)
        else:
            facts = _summarize_targets(block.target, weights)
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


def join_column_infos(infos: Sequence[BlockInfo], n_parts: int) -> list[BlockInfo]:
    """Return the facts of blocks of whole rows, joined from blocks of parts of their columns."""
    # Infos are ordered by column part: infos of the same rows are n_blocks apart.
    n_blocks = len(infos) // n_parts
    return [_join_infos(infos[block::n_blocks]) for block in range(n_blocks)]


def _join_infos(part_infos: Sequence[BlockInfo]) -> BlockInfo:
    """Return the facts of one block of whole rows; raise if its parts differ in rows."""
    first = part_infos[0]
    if len({part.n_rows for part in part_infos}) > 1:
        raise InvalidDataError(
            f"Neighbouring chunks of X have {[part.n_rows for part in part_infos]} rows. Recreate "
            "X so that all columns of a row are in the same row of chunks, and persist() it."
        )
    is_sparse = all(part.sparse for part in part_infos)
    return replace(
        first,
        row_shape=(sum(part.n_features for part in part_infos),),
        nnz=sum(part.nnz or 0 for part in part_infos) if is_sparse else None,
        sparse=is_sparse,
        dtype=str(np.result_type(*{part.dtype for part in part_infos})),
        nbytes=sum(part.nbytes for part in part_infos),
    )


def _summarize_labels(block: Block) -> dict[str, Any]:
    """Return the labels of a block, with the number of rows and the sum of weights of each."""
    weights = block.sample_weight
    if not is_host(block.target) and weights is None:
        # A few consecutive integers are counted on the device that holds them.
        if (labels_and_rows := _count_device_labels(block.target)) is not None:
            labels, rows = labels_and_rows
            return {"labels": labels, "label_weights": rows.astype(np.float64), "label_rows": rows}
    y = block.y
    assert y is not None
    is_multi_output = y.ndim == 2
    try:
        columns = [
            _count_small_integers(target, weights) or _count_labels_by_sorting(target, weights)
            for target in (y.T if is_multi_output else [y])
        ]
        labels = columns[0][0]
        if is_multi_output:
            # Several targets share one list of labels, but have separate counts.
            labels = np.unique(np.concatenate([label_counts for label_counts, _, _ in columns]))
    except TypeError as error:
        raise InvalidDataError(
            f"Block {block.index}: the labels in y are of different types ({error}). Make them "
            "one type, for example y.astype(str)."
        ) from error
    if is_multi_output:
        label_counts = tuple((labels, sums.astype(np.float64)) for labels, _, sums in columns)
        return {"labels": labels, "n_targets": y.shape[1], "columns": label_counts}
    _, counts, sums = columns[0]
    return {
        "labels": labels,
        "label_weights": sums.astype(np.float64),
        "label_rows": counts.astype(np.int64),
    }


def _count_labels_by_sorting(y: NDArray[Any], weights: NDArray[Any] | None) -> _LabelCounts:
    """Return the labels, with the number of rows and sum of weights of each, by sorting."""
    if weights is None:
        labels, counts = np.unique(y, return_counts=True)
        return labels, counts, counts
    labels, inverse, counts = np.unique(y, return_inverse=True, return_counts=True)
    return labels, counts, np.bincount(inverse, weights, minlength=len(labels))


def _count_small_integers(y: NDArray[Any], weights: NDArray[Any] | None) -> _LabelCounts | None:
    """Return the same by counting; None unless the labels are a few consecutive integers."""
    if y.dtype.kind not in "biuf" or not len(y):
        return None
    if weights is None:
        return _count_by_tiles(y)
    labels = _list_neighbours(y.min().item(), y.max().item())
    if labels is None:
        return None
    masks = (y == label for label in labels)
    facts = [(np.count_nonzero(mask), weights[mask].sum(dtype=np.float64)) for mask in masks]
    counts, sums = np.array([c for c, _ in facts]), np.array([s for _, s in facts])
    # Some values are not among the counted integers.
    if counts.sum() != len(y):
        return None
    # Labels in the range that do not occur are left out.
    occurs = counts > 0
    return labels[occurs].astype(y.dtype), counts[occurs], sums[occurs]


def _list_neighbours(low: float, high: float) -> NDArray[np.int64] | None:
    """Return the integers in a range of labels; None if it is too wide to be counted."""
    # A comparison per label is faster than a sort if labels are few and close together, as classes
    # usually are.
    if high - low >= _MAX_COUNTED_LABELS or low != round(low) or abs(low) > _LARGEST_EXACT_LABEL:
        return None
    return np.arange(int(low), int(high) + 1)


def _count_by_tiles(y: NDArray[Any]) -> _LabelCounts | None:
    """Count labels without weights, in tiles that fit in the cache, so that y is read once."""
    counts: dict[int, int] = {}
    for rows in row_slices(len(y), _TILE_BYTES // y.itemsize):
        tile = y[rows]
        labels = _list_neighbours(tile.min().item(), tile.max().item())
        if labels is None:
            return None
        for label in labels.tolist():
            counts[label] = counts.get(label, 0) + int(np.count_nonzero(tile == label))
    occurring = sorted(label for label, count in counts.items() if count)
    if occurring and occurring[-1] - occurring[0] >= _MAX_COUNTED_LABELS:
        return None
    return _list_counts(occurring, counts, y)


def _count_device_labels(y: Any) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Count labels on their device; None unless they are a few consecutive integers."""
    if not len(y):
        return None
    xp = namespace(y)
    is_bool = y.dtype.kind == "b"
    ends = (
        [0, 1] if is_bool else [copy_to_host(reduction(y)).item() for reduction in (xp.min, xp.max)]
    )
    labels = _list_neighbours(*ends)
    if labels is None:
        return None
    # All counts are copied together: each copy synchronises with the device.
    sums = xp.stack([xp.count_nonzero(y == label) for label in labels.tolist()])
    counts = dict(zip(labels.tolist(), copy_to_host(sums).tolist(), strict=True))
    listed_counts = _list_counts([label for label in counts if counts[label]], counts, y)
    return None if listed_counts is None else listed_counts[:2]


def _list_counts(labels: list[int], counts: dict[int, int], y: Any) -> _LabelCounts | None:
    """Return labels in the dtype of y, and their counts; None if y has other values."""
    rows = np.array([counts[label] for label in labels], np.int64)
    if rows.sum() != len(y):
        return None
    return np.array(labels).astype(y.dtype), rows, rows


def encode_small(block: Block, classes: NDArray[Any] | None) -> Any | None:
    """Return a block's labels as positions among the classes, one byte each, on their device.

    None if labels are not numbers of the dtype of the classes, or if there are too many classes.
    """
    y = block.target
    is_suited = (
        classes is not None
        and block.classification
        and y.ndim == 1
        and y.dtype == classes.dtype
        and y.dtype.kind in "biuf"
        and 1 < len(classes) <= _MAX_COUNTED_LABELS
    )
    if not is_suited:
        return None
    assert classes is not None
    if not is_host(y):
        return _count_classes_reached(y, classes)
    codes = np.empty(len(y), np.uint8)
    for rows in row_slices(len(y), _TILE_BYTES // y.itemsize):
        codes[rows] = _count_classes_reached(y[rows], classes)
    return codes


def _count_classes_reached(y: Any, classes: NDArray[Any]) -> Any:
    """Return the class position of each label: how many classes after the first it reaches."""
    codes: Any = None
    for label in classes[1:].tolist():
        reached = cast(y >= label, namespace(y).uint8)
        codes = reached if codes is None else codes + reached
    return codes


def _summarize_targets(y: NDArray[Any], weights: NDArray[Any] | None) -> dict[str, Any]:
    """Return range, moments and a sample of the targets of a regression."""
    return {
        "y_min": float(y.min()) if len(y) else None,
        "y_max": float(y.max()) if len(y) else None,
        "targets": WeightedMoments.from_values(y, weights),
        "y_sample": _sample_targets(y, weights),
        "n_targets": y.shape[1] if y.ndim == 2 else None,
    }


def _sample_targets(y: NDArray[Any], weights: NDArray[Any] | None) -> NDArray[np.float64]:
    """Return the targets of evenly spaced rows, one array row per target, and last the weights."""
    columns = y if y.ndim == 2 else y[:, None]
    n = min(
        len(y), _SAMPLE_ROWS, max(_SAMPLE_ROWS * _MAX_COUNTED_LABELS // max(columns.shape[1], 1), 1)
    )
    row_numbers = np.linspace(0, len(y) - 1, n).round().astype(int)
    weight = np.ones(len(row_numbers)) if weights is None else weights[row_numbers]
    return np.vstack([columns[row_numbers].T, weight]).astype(float)
