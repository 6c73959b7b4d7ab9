"""Base class of classifying trees and forests: labels and probabilities of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.supervised import as_columns
from daskml_dist.inference.each_row import rows_apart
from daskml_dist.models.trees import Trees
from daskml_dist.solvers import Solution
from daskml_dist.training.plan import DatasetInfo

__all__ = ["TreesClassifier"]

Array = NDArray[Any]


class TreesClassifier(BaseClassifier):
    """Base class of classifying trees and forests: probabilities of the classes.

    Of several outputs `classes_`, `n_classes_` and probabilities are lists, of one each.
    """

    _min_classes = 1
    _multi_output = True
    _trees: Trees
    n_outputs_: int
    n_classes_: Any

    def _prepare_inputs(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        X, y, sample_weight = super()._prepare_inputs(X, y, sample_weight)
        return X, as_columns(y), sample_weight

    def _set_fitted(self, solution: Solution, model: Any, rows: DatasetInfo) -> None:
        assert rows.classes is not None
        several: tuple[Array, ...] = model.columns
        self.classes_: Any = list(several) if several else rows.classes
        self.n_classes_ = [len(of) for of in several] if several else len(rows.classes)
        super()._set_fitted(solution, model, rows)

    @property
    def _ends(self) -> list[int]:
        """Columns at which the probabilities of each output begin, and their number."""
        return [0, *np.cumsum(self.n_classes_).tolist()]

    def _labels_written(self) -> tuple[Callable[..., None], np.dtype[Any], int | None]:
        if self.n_outputs_ == 1:
            return super()._labels_written()
        write = partial(_write_several, self.classes_, self._ends)
        return write, np.result_type(*self.classes_), self.n_outputs_

    def _hits_counted(self) -> Callable[..., NDArray[np.float64]]:
        if self.n_outputs_ == 1:
            return super()._hits_counted()
        return partial(_all_hits, self.classes_, self._ends)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes: means of their shares in the trees' leaves.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_classes)
            Of several outputs a list of them.
        """
        return self._shares(None, X)

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of :meth:`predict_proba`."""
        return self._shares(_write_logs, X)

    def _shares(self, then: Any, X: Any) -> Any:
        self._check_fitted(X)
        ends = self._ends
        found = self._map_raw_predictions(then, X, np.float64, ends[-1])
        if self.n_outputs_ == 1:
            return found
        return [found[:, a:b] for a, b in pairwise(ends)]


def _write_logs(raw: Array, out: Array) -> None:
    with np.errstate(divide="ignore"):
        np.log(raw, out=out)


@rows_apart
def _write_several(classes: list[Array], ends: list[int], raw: Array, out: Array) -> None:
    for k, (a, b) in enumerate(pairwise(ends)):
        out[:, k] = classes[k][raw[:, a:b].argmax(axis=1)]


def _all_hits(
    classes: list[Array], ends: list[int], y: Array, raw: Array, weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    found = np.empty(y.shape, np.result_type(*classes))
    _write_several(classes, ends, raw, found)
    return np.array([weight.sum(), weight @ (found == y).all(axis=1)])
