"""Rows of one call of a stream: checked, encoded, and converted to the model's format.

A call may hold a single row, and its steps take microseconds, so the checks of a fit (of names,
dtypes and kinds of containers) would take most of the time. Plain NumPy arrays with the first
call's shape and dtype skip them (`CallRowsMaker._needs_no_conversion`); all other inputs are
converted as a fit's blocks are. Values are always checked: a NaN or an unknown label must not reach
the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.base import Backend
from daskml_dist.data.blocks import Block, check_finite_rows
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.row_checks import check_row_shape
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.training.dataset_info import DataSummary
from daskml_dist.training.spec import FitSpec

#: NumPy kinds of labels that can be compared with the classes directly: bool and integers.
_COMPARABLE_KINDS = "biu"


class CallRowsMaker:
    """Function from the inputs of a call to its rows, checked, encoded, in the first call's dtype.

    Weights are not scaled: a stream has no mean weight over all rows to scale them by.

    Parameters
    ----------
    fit : FitSpec
        Fit that was planned from the first call.
    summary : DataSummary
        Facts of the first call's rows.
    make_block : callable
        As :func:`daskml_dist.data.blocks.make_block`, for targets of the estimator's kind.
    batch_rows : int or None
        Most rows of a step; None: all rows of a call.
    backend : Backend
    name : str
        Name of the estimator, for errors.
    """

    def __init__(
        self,
        fit: FitSpec,
        summary: DataSummary,
        make_block: Callable[..., Block],
        batch_rows: int | None,
        backend: Backend,
        name: str,
    ) -> None:
        self._spec, self._model = fit.rows, fit.steps.model
        self._dtype, self._rows_dtype = np.dtype(fit.rows.dtype), np.dtype(fit.rows.rows_dtype)
        self._make_block, self._shape, self._name = make_block, summary.row_shape, name
        self._is_sparse = summary.any_sparse
        self._has_target = any(i.targets is not None or i.labels is not None for i in summary.infos)
        self._n_targets = summary.n_targets
        self._batch_rows, self._fewest = batch_rows, getattr(self._model, "fewest_rows", 1)
        self._backend = backend

    def __call__(self, X: Any, y: Any, sample_weight: Any) -> tuple[BatchRows, Block]:
        """Return the rows of a call in the model's format, and as a block."""
        spec = self._spec
        if sample_weight is None and self._needs_no_conversion(X, y):
            block = Block(0, X, y if self._has_target else None)
        else:
            block = self._make_block(0, X, y, sample_weight, dtype=spec.rows_dtype)
            check_row_shape(block.rows.shape[1:], self._shape, self._name)
            self._check_targets(block.y)
        self._check_enough(block.n_rows)
        rows = block.X
        # A plan for sparse rows has sparse steps, which need CSR rows; dense steps can read both
        # kinds.
        if self._is_sparse and not sparse.issparse(rows):
            rows = sparse.csr_matrix(rows)
        rows = self._model.prepare(self._backend.to_device(rows), self._dtype)
        if not self._model.takes_missing:
            check_finite_rows(rows)
        weight = self._compute_weights(block)
        target = None if block.y is None else self._encode_targets(block.y)
        return BatchRows(self._backend.to_device(rows), target, weight), block

    def _needs_no_conversion(self, X: Any, y: Any) -> bool:
        """Return whether arrays can be used as a block directly, without checks or copies."""
        # `type` rather than `isinstance`, to exclude masked arrays and matrices.
        if type(X) is not np.ndarray or X.dtype != self._rows_dtype:
            return False
        if X.shape[1:] != self._shape or not X.flags.c_contiguous:
            return False
        if not self._has_target:
            return True
        if type(y) is not np.ndarray or y.shape != X.shape[:1] or self._n_targets is not None:
            return False
        # Targets of regression are converted and checked for NaN; integer labels need neither.
        return self._spec.classes is not None and y.dtype.kind in _COMPARABLE_KINDS

    def _check_targets(self, y: NDArray[Any] | None) -> None:
        """Raise if targets have other columns than those of the first call."""
        if not self._has_target:
            return
        n = None if y is None or y.ndim == 1 else y.shape[1]
        if y is None or n != self._n_targets:
            text = "None" if y is None else f"of {_count_columns(n)}"
            raise InvalidDataError(
                f"y is {text}, and the first call's was of {_count_columns(self._n_targets)}. "
                "Pass targets as in the first call."
            )

    def _check_enough(self, n_rows: int) -> None:
        """Raise if a step has fewer rows than the model needs."""
        n_steps = 1 if self._batch_rows is None else -(-n_rows // self._batch_rows)
        if n_rows and n_rows // n_steps < self._fewest:
            raise InvalidDataError(
                f"A step of this call has {n_rows // n_steps} rows, but batch normalisation "
                f"needs {self._fewest}. Pass more rows per call, or raise batch_size."
            )

    def _encode_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return targets or labels in the model's format; raise for unknown labels."""
        classes = self._spec.classes
        if classes is not None and y.ndim == 1:
            _check_known_labels(y, classes)
        elif classes is not None and not np.isin(y, (0, 1)).all():
            raise InvalidDataError(
                f"y holds {np.setdiff1d(y, (0, 1)).tolist()[:5]}. For several labels per row, "
                "give one column of 0 and 1 for each."
            )
        encoded: NDArray[Any] = self._model.encode(y, classes, self._dtype)
        return encoded

    def _compute_weights(self, block: Block) -> NDArray[Any] | None:
        """Return the weights of the rows times those of their classes; None where all are 1."""
        class_weight, classes = self._spec.class_weight, self._spec.classes
        user_weights = block.sample_weight
        if class_weight is None or classes is None or block.y is None:
            return None if user_weights is None else user_weights.astype(self._dtype, copy=False)
        # Clipped, since labels above all classes are reported only when the targets are encoded.
        codes = np.minimum(np.searchsorted(classes, block.y), len(classes) - 1)
        weight = class_weight[codes] if user_weights is None else class_weight[codes] * user_weights
        return weight.astype(self._dtype)


def are_arrays(X: Any, y: Any) -> bool:
    """Return whether inputs are plain arrays, which have no names or dtypes to check."""
    return type(X) is np.ndarray and (y is None or (type(y) is np.ndarray and y.ndim == 1))


def check_in_memory(X: Any, y: Any) -> None:
    """Raise if the rows of a call are a Dask collection."""
    if is_dask(X) or is_dask(y):
        raise InvalidDataError(
            "A stream needs rows in memory, but these are a Dask collection, or a lazy table or a "
            "path that is read as one. Compute each batch first: X, y = dask.compute(X, y); of a "
            "query of Polars, X = query.collect()."
        )


def has_no_rows(X: Any, y: Any) -> bool:
    """Return whether a call has neither rows nor targets, for any kind of input."""
    shape = getattr(X, "shape", None)
    n_rows = shape[0] if shape else len(X) if isinstance(X, list | tuple) else 1
    return n_rows == 0 and (y is None or isinstance(y, str) or np.shape(y)[:1] == (0,))


def _count_columns(n_targets: int | None) -> str:
    """Return the number of target columns in words."""
    return "one column" if n_targets is None else f"{n_targets} columns"


def _check_known_labels(y: NDArray[Any], classes: NDArray[Any]) -> None:
    """Raise if labels are not among the classes."""
    # Classes are sorted: a label is known if the class at its position is equal to it. For two
    # classes, two comparisons are faster than the search.
    if len(classes) == 2:
        is_known = (y == classes[1]) | (y == classes[0])
    else:
        is_known = classes[np.minimum(np.searchsorted(classes, y), len(classes) - 1)] == y
    if np.all(is_known):
        return
    # Broadcast, since NumPy may return a single False when it compares different kinds.
    unknown = np.unique(y[~np.broadcast_to(is_known, y.shape)]).tolist()
    raise InvalidDataError(
        f"y holds {unknown[:5]}, and the classes of the stream are {classes.tolist()}. Name every "
        "label that will come: stream(classes=[...])."
    )
