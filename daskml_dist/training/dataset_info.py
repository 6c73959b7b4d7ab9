"""Facts about all rows of a fit: the summary of their blocks, their classes and their weights.

`DatasetInfo.from_summary` turns ``class_weight="balanced"`` or a dict into one weight per class;
`RowsSpec` carries these to the trainers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import isinf, prod
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.blocks import BlockInfo
from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.data.row_checks import merge_block_labels
from daskml_dist.errors import InvalidDataError, InvalidParameterError

#: Entries of all rows from which device="auto" chooses a GPU. A pass over fewer takes a CPU about a
#: millisecond, while a process needs a second or more for its first CUDA context and kernels.
DEVICE_ENTRIES = 1 << 20


@dataclass(frozen=True)
class DataSummary:
    """Facts about all blocks of a fit, combined.

    Parameters
    ----------
    infos : list of BlockInfo
    """

    infos: list[BlockInfo]

    @property
    def n_rows(self) -> int:
        """Return the number of rows of all blocks."""
        return sum(info.n_rows for info in self.infos)

    @property
    def n_entries(self) -> int:
        """Return the number of entries of all rows; of sparse rows, the stored ones."""
        return sum(
            info.n_rows * prod(info.row_shape) if info.nnz is None else info.nnz
            for info in self.infos
        )

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a row, which is the same in every block."""
        # Every block must have rows of the same shape.
        shapes = {info.row_shape for info in self.infos}
        if len(shapes) == 1:
            return shapes.pop()
        if all(len(shape) == 1 for shape in shapes):
            raise InvalidDataError(
                f"Blocks have different numbers of columns: {sorted(n for (n,) in shapes)}. Give "
                "every partition the same columns."
            )
        raise InvalidDataError(
            f"Blocks have rows of different shapes: {sorted(shapes)}. Give all rows the same "
            "shape: crop or pad them."
        )

    @property
    def n_features(self) -> int:
        """Return the number of columns; of tensors, the first dimension of a row."""
        return self.row_shape[0]

    @property
    def any_sparse(self) -> bool:
        """Return whether some block is sparse."""
        return any(info.sparse for info in self.infos)

    def check_devices(self) -> None:
        """Raise unless either all rows or no rows are on GPUs."""
        # Reversed, so that earlier blocks overwrite later ones: the error names the first block of
        # each kind.
        first = {info.device: info.index for info in reversed(self.infos) if info.n_rows}
        if len(first) > 1:
            raise InvalidDataError(
                f"Block {first['gpu']} of X holds CuPy arrays and block {first['cpu']} does not. "
                "Convert all chunks to one kind: X.map_blocks(cupy.asarray) or "
                "X.map_blocks(cupy.asnumpy)."
            )

    def device(self, requested: str, deterministic: bool) -> str:
        """Choose the device of a fit from the one that the user requested.

        "auto" is the CPU for few rows in host memory, and for sparse rows whose sums are to be
        deterministic.
        """
        # A GPU is faster from about a million entries, or if the rows are already on one.
        is_small = self.n_entries < DEVICE_ENTRIES and all(
            info.device == "cpu" for info in self.infos
        )
        if requested == "auto" and is_small:
            return "cpu"
        if requested == "cpu" or not deterministic or not self.any_sparse:
            return requested
        if requested == "gpu":
            raise InvalidParameterError(
                'deterministic=True with sparse rows and device="gpu": a GPU sums their '
                'gradients in no fixed order. Use device="cpu", or dense rows.'
            )
        return "cpu"

    @property
    def rows_dtype(self) -> str:
        """Return the dtype that holds the rows of every block."""
        # An empty partition often has another dtype; it counts only if all partitions are empty.
        filled = [info for info in self.infos if info.n_rows] or self.infos
        return str(np.result_type(*{info.dtype for info in filled}))

    @property
    def dtype(self) -> str:
        """Return the dtype of the parameters: float64 where the rows are float64, else float32."""
        return "float64" if self.rows_dtype == "float64" else "float32"

    @property
    def classes(self) -> NDArray[Any]:
        """Return the sorted labels of all blocks."""
        labels = [i.labels for i in self.infos if i.labels is not None and len(i.labels)]
        if not labels:
            raise InvalidDataError("y holds no labels. Give at least two classes.")
        return merge_block_labels(labels, "y")[0]

    def label_weights(self, classes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum of the weights of each class; without weights, its number of rows."""
        sums = np.zeros(len(classes))
        for info in self.infos:
            if info.labels is not None and info.label_weights is not None:
                # A block has few of the labels: add its weights at their positions.
                np.add.at(sums, np.searchsorted(classes, info.labels), info.label_weights)
        return sums

    @property
    def label_columns(self) -> list[tuple[NDArray[Any], NDArray[np.float64]]]:
        """Return for each column of y its sorted labels and the sums of their weights."""
        parts = [info.columns for info in self.infos if info.columns is not None and info.n_rows]
        label_columns = []
        for column in zip(*parts, strict=True):
            labels, inverse = np.unique(
                np.concatenate([part for part, _ in column]), return_inverse=True
            )
            weights = np.concatenate([part for _, part in column])
            label_columns.append((labels, np.bincount(inverse, weights).astype(np.float64)))
        return label_columns

    @property
    def target_range(self) -> NDArray[np.float64]:
        """Return the smallest and largest target of each block that has rows."""
        ends = [end for i in self.infos for end in (i.y_min, i.y_max) if end is not None]
        return np.array(ends, dtype=np.float64)

    @cached_property
    def targets(self) -> WeightedMoments:
        """Return the weighted mean and spread of each column of the targets."""
        return reduce(add, [info.targets for info in self.infos if info.targets is not None])

    @property
    def target_mean(self) -> np.float64:
        """Return the weighted mean of one-dimensional targets."""
        return np.float64(self.targets.mean[0])

    @property
    def target_spread(self) -> float:
        """Return the standard deviation of the targets; where all are the same, a guess.

        That is their size, which targets in a large unit have, but at least 1.
        """
        return float(self.targets.deviation[0]) or max(1.0, abs(float(self.targets.mean[0])))

    @property
    def targets_differ(self) -> bool:
        """Return whether each column of the targets has a spread, unlike the targets of one row."""
        return bool((self.targets.deviation > 0).all())

    @cached_property
    def target_quartiles(self) -> NDArray[np.float64]:
        """Return approximate quartiles of the first target, from a sample of each block."""
        # The weights of a block's sample are scaled to the weight of the whole block; the quartiles
        # are then read from the cumulative weights.
        parts = [
            (info.y_sample[0], info.y_sample[-1] * (info.weight_sum / info.y_sample[-1].sum()))
            for info in self.infos
            if info.y_sample is not None and info.y_sample[-1].any()
        ]
        if not parts:
            return np.zeros(3)
        values, weights = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(values, kind="stable")
        weight = weights[order].cumsum()
        positions = np.searchsorted(weight, np.array([0.25, 0.5, 0.75]) * weight[-1])
        return np.asarray(values[order][np.minimum(positions, len(values) - 1)])

    @property
    def n_targets(self) -> int | None:
        """Return the number of columns of the targets; None for one-dimensional targets."""
        numbers = {info.n_targets for info in self.infos}
        if len(numbers) > 1:
            raise InvalidDataError(
                f"Blocks of y have different numbers of columns: {sorted(map(str, numbers))}. Give "
                "every partition the same targets."
            )
        return numbers.pop()

    def of_target(self, target: int) -> DataSummary:
        """Return the summary for one of several targets; its range is that of all."""
        return DataSummary([info.of_target(target) for info in self.infos])

    @property
    def of_each_target(self) -> list[DataSummary]:
        """Return one summary per target; for one-dimensional targets only this one."""
        n_targets = self.n_targets
        return [self] if n_targets is None else [self.of_target(k) for k in range(n_targets)]

    @property
    def nonzeros_per_row(self) -> float | None:
        """Return the mean number of stored entries of a row; None where a block is dense."""
        if not all(info.sparse for info in self.infos):
            return None
        return sum(info.nnz or 0 for info in self.infos) / max(self.n_rows, 1)


@dataclass(frozen=True)
class TargetSummary(DataSummary):
    """Summary of the targets only, without the codes of rows that are in the columns after them.

    Parameters
    ----------
    weight : float or None
        Rows of a split, counted by their weights; None: all rows.
    n_columns : int or None
        Number of columns of the targets; None: they have one dimension.
    """

    weight: float | None = None
    n_columns: int | None = None

    @property
    def n_rows(self) -> Any:
        """Return the number of rows, or their total weight in a split."""
        return sum(i.n_rows for i in self.infos) if self.weight is None else self.weight

    @property
    def n_targets(self) -> int | None:
        """Return the number of columns of the targets; None for one-dimensional targets."""
        return self.n_columns

    @property
    def targets(self) -> WeightedMoments:
        """Return the spread of all columns except the codes."""
        targets, n = DataSummary(self.infos).targets, self.n_columns or 1
        return replace(
            targets,
            origin=targets.origin[:n],
            offset=targets.offset[:n],
            squares=targets.squares[:n],
        )


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about the rows of a fit that models and objectives need.

    Parameters
    ----------
    summary : DataSummary
    classes : ndarray or None
        Sorted labels; None for regression.
    class_weight : ndarray of float64 of shape (n_classes,) or None
    weight_scale : float or None
        Factor that makes the mean weight 1; None where rows have no weights.
    """

    summary: DataSummary
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None
    weight_scale: float | None

    @classmethod
    def from_summary(
        cls,
        summary: DataSummary,
        classes: NDArray[Any] | None,
        class_weight: Any,
        weighted: bool,
    ) -> DatasetInfo:
        """Combine a summary with the classes and the `class_weight` that the user gave."""
        of_class = resolve_class_weights(class_weight, summary, classes)
        scale = compute_weight_scale(summary, classes, of_class, weighted)
        # Weights are scaled to mean 1, so that penalties and learning rates keep their meaning.
        return cls(summary, classes, of_class, scale)

    @property
    def weight_sum(self) -> float:
        """Return the sum of the weights of all rows, class weights included."""
        n_rows = self.summary.n_rows
        return float(n_rows) if self.weight_scale is None else n_rows / self.weight_scale


def resolve_class_weights(
    class_weight: Any, summary: DataSummary, classes: NDArray[Any] | None
) -> NDArray[np.float64] | None:
    """Return one weight per class from "balanced", a dict of labels, or None."""
    if class_weight is None or classes is None:
        return None
    if isinstance(class_weight, str):
        # Classes are counted by the weights of their rows, so that a weight of 2 equals a repeated
        # row.
        return balanced_weights(summary.label_weights(classes))
    return named_weights(class_weight, classes)


def balanced_weights(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return class weights ``total / (n_classes * weight of the class)``; 0 for no rows."""
    balanced = np.zeros(sums.shape)
    total = sums.sum(axis=-1, keepdims=True)
    np.divide(total, sums.shape[-1] * sums, out=balanced, where=sums > 0)
    return balanced


def named_weights(class_weight: dict[Any, float], classes: NDArray[Any]) -> NDArray[np.float64]:
    """Return one weight per class from a dict of labels; 1 for classes that it omits.

    The dict may have labels that no row has, for example in a fold without that class. This is an
    error only if other classes are missing in the dict, since then a name is probably misspelled.
    """
    labels = classes.tolist()
    unknown = [label for label in class_weight if label not in labels]
    missing = [label for label in labels if label not in class_weight]
    if unknown and missing:
        raise InvalidParameterError(
            f"The classes, {missing}, are not in class_weight, which has labels that are not in "
            f"y: {unknown}. Use labels among {labels}, or name all of these."
        )
    return np.array([float(class_weight.get(label, 1.0)) for label in labels])


def compute_weight_scale(
    summary: DataSummary,
    classes: NDArray[Any] | None,
    class_weight: NDArray[np.float64] | None,
    weighted: bool,
) -> float | None:
    """Return the factor that makes the mean weight of all rows 1; None without weights."""
    if class_weight is None and not weighted:
        return None
    # The sums of the weights by class suffice, so the rows need not be read again.
    if class_weight is not None and classes is not None:
        total = float(class_weight @ summary.label_weights(classes))
    else:
        total = sum(info.weight_sum for info in summary.infos)
    if not total > 0:
        raise InvalidDataError("All weights are zero. Give some rows a positive weight.")
    scale = summary.n_rows / total
    if isinf(scale):
        raise InvalidDataError(
            f"The weights sum to {total:g}, which float64 cannot scale to a mean of 1. Only the "
            "ratios of weights count: pass sample_weight / sample_weight.max()."
        )
    return scale
