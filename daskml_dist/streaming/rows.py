"""Rows of a call, as a model reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend
from daskml_dist.data.blocks import Block, check_finite_rows
from daskml_dist.data.row_checks import check_row_shape
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.training.spec import FitSpec

__all__ = ["RowsOfCalls"]

#: Kinds of labels that are compared with the classes as they are.
_PLAIN = "biu"


class RowsOfCalls:
    """Rows of calls, checked, encoded, and in the dtype of the first call's.

    Weights are taken as they are: in a stream there is no mean over all rows to scale them by.

    Parameters
    ----------
    fit : FitSpec
        Of the first call.
    make_block : callable
        As :func:`daskml_dist.data.blocks.make_block`, for targets of the estimator's kind.
    row_shape : tuple of int
    is_sparse : bool
        Whether the first call's rows were sparse.
    backend : Backend
    name : str
        Of the estimator, for errors.
    """

    def __init__(
        self,
        fit: FitSpec,
        make_block: Callable[..., Block],
        row_shape: tuple[int, ...],
        is_sparse: bool,
        backend: Backend,
        name: str,
    ) -> None:
        self._spec, self._model = fit.rows, fit.steps.model
        self._dtype = np.dtype(fit.rows.dtype)
        self._make, self._shape, self._name = make_block, row_shape, name
        self._is_sparse = is_sparse
        self._backend = backend

    def __call__(self, X: Any, y: Any, sample_weight: Any) -> tuple[BatchRows, Block]:
        """Make rows of a call.

        Raises
        ------
        InvalidDataError
            They are not as the first call's, or hold NaN, infinity or an unknown label.
        """
        spec = self._spec
        plain = sample_weight is None and self._is_plain(X, y)
        if plain:
            block = Block(0, X, y)
        else:
            block = self._make(0, X, y, sample_weight, dtype=spec.rows_dtype)
            check_row_shape(block.rows.shape[1:], self._shape, self._name)
        rows = block.X
        if self._is_sparse and not sparse.issparse(rows):
            rows = sparse.csr_matrix(rows)
        rows = self._model.prepare(self._backend.to_device(rows), self._dtype)
        if not self._model.takes_missing:
            check_finite_rows(rows)
        weight = self._weights(block)
        target = None if block.y is None else self._encoded(block.y)
        return BatchRows(self._backend.to_device(rows), target, weight), block

    def _is_plain(self, X: Any, y: Any) -> bool:
        """Whether arrays are what a block of them would hold."""
        if type(X) is not np.ndarray or type(y) is not np.ndarray or y.ndim != 1:
            return False
        same = X.dtype == self._dtype and X.shape[1:] == self._shape and X.flags.c_contiguous
        is_labels = self._spec.classes is not None
        return same and len(X) == len(y) and is_labels and y.dtype.kind in _PLAIN

    def _encoded(self, y: NDArray[Any]) -> NDArray[Any]:
        classes = self._spec.classes
        if classes is not None and y.ndim == 1:
            _check_known(y, classes)
        found: NDArray[Any] = self._model.encode(y, classes, self._dtype)
        return found

    def _weights(self, block: Block) -> NDArray[Any] | None:
        """Weights of the rows times those of their classes; None where all are 1."""
        of_class, classes, given = (
            self._spec.class_weight, self._spec.classes, block.sample_weight,
        )  # fmt: skip
        if of_class is None or classes is None or block.y is None:
            return None if given is None else given.astype(self._dtype, copy=False)
        at = np.minimum(np.searchsorted(classes, block.y), len(classes) - 1)
        weight = of_class[at] if given is None else of_class[at] * given
        return weight.astype(self._dtype)


def _check_known(y: NDArray[Any], classes: NDArray[Any]) -> None:
    """Check that labels are among the classes."""
    if len(classes) == 2:
        known = (y == classes[1]) | (y == classes[0])
    else:
        known = classes[np.minimum(np.searchsorted(classes, y), len(classes) - 1)] == y
    if np.all(known):
        return
    strange = np.unique(y[~np.broadcast_to(known, y.shape)]).tolist()
    raise InvalidDataError(
        f"y holds {strange[:5]}, and the classes of the stream are {classes.tolist()}. Name every "
        "label that will come: stream(classes=[...])."
    )
