"""Base class of linear models that choose their penalty by cross-validation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.computing import use_client
from daskml_dist.data.conversion import convert_object_values
from daskml_dist.data.feature_names import check_feature_names
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels, open_stack
from daskml_dist.estimators.linear.base import BaseLinear
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.models.stacked import TEST, WithAll

__all__ = ["CrossValidated"]


class CrossValidated(BaseLinear):
    """Splits of the rows, and one stack for all fits to them.

    An estimator has the parameters `cv` and `scoring`, and those of a fit.
    """

    cv: Any
    scoring: Any = None
    #: Parameters of a `Run` that are used.
    _run_used = BaseRounds._run_used

    @abstractmethod
    def _check_params(self) -> None:
        """Check every parameter, before any work is started."""

    @abstractmethod
    def _fit_splits(self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any) -> None:
        """Choose the penalty by the fits to all splits, and set the fitted attributes."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        client: Any = None,
    ) -> Self:
        """Choose the penalty, and fit all rows with it.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`.
        groups : like `y`, optional
            For splitters that need them.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        TrainingError
            When the fit cannot go on.
        """
        self._check_params()
        with use_client(client):
            self._fit_splits(X, y, sample_weight, groups, client)
        return self

    def _splits(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> Any:
        """The rows, cut once."""
        from daskml_dist.model_selection._validation import Splits, beside

        X, y, weight = self._prepare_inputs(*map(_with_shape, (X, y, sample_weight)))
        self._check_target(y)
        y = convert_object_values(y) if isinstance(y, np.ndarray) and y.dtype.kind == "O" else y
        check_feature_names(self, X, reset=True)
        given = {} if weight is None else {"sample_weight": weight}
        X, y, groups, given = beside(X, y, groups, given)
        return Splits(self, X, y, groups, given, self.cv)

    def _stack(
        self, splits: Any, client: Any, class_weight: Any = None
    ) -> AbstractContextManager[BatchedModels]:
        """Rows of all splits, and of one more that trains on all rows."""
        from daskml_dist.model_selection._stacking import targets_of

        n_targets = _n_targets(splits.inputs[1])
        collection, classes = targets_of(
            splits, self._classification,
            multi_output=self._multi_output,
            class_weight=class_weight if n_targets is None else None,
        )  # fmt: skip
        if self._classification:
            classes = self._classes_of(classes, n_targets)
        return open_stack(
            self, collection, WithAll(splits.roles), classes, collection.parts[0][2] is not None,
            n_targets=n_targets,
            client=client, callbacks=self._make_callbacks(None),
        )  # fmt: skip

    def _classes_of(self, values: NDArray[Any], n_columns: int | None) -> NDArray[Any]:
        """Labels, of the values in columns of y."""
        return values

    def _scorer(self) -> Any:
        """Scorer of rows in memory and of Dask collections; None for the estimator's own score."""
        from daskml_dist.metrics.scorers import get_scorer

        if self.scoring is not None and not (
            isinstance(self.scoring, str) or callable(self.scoring)
        ):
            raise InvalidParameterError(
                f"scoring={self.scoring!r}: use a name of a score, a callable "
                "(estimator, X, y), or None."
            )
        if callable(self.scoring) and not _takes_three(self.scoring):
            raise InvalidParameterError(
                f"scoring={self.scoring!r}: it cannot be called with (estimator, X, y). Give a "
                "callable that takes these, or the name of a score."
            )
        return None if self.scoring is None else get_scorer(self.scoring)

    def _scored(
        self, splits: Any, estimators: Mapping[int, Sequence[Any]], scorer: Any, weigh: bool = True
    ) -> NDArray[np.float64]:
        """Scores of fitted estimators on the test rows of their splits, a split a row."""
        from daskml_dist.model_selection._validation import score_sides

        found = []
        for split, of_split in estimators.items():
            side = splits.side(split, TEST)
            scores = [score_sides({"": scorer}, e, *side, weigh=weigh)[""] for e in of_split]
            found.append(scores)
        return np.array(found)

    def _set_stack_history(self, stack: BatchedModels) -> None:
        fit, result = stack.last
        result.records = stack.records
        self.history_ = stack.job.make_history(fit, result)


def _with_shape(values: Any) -> Any:
    """Values as something that has a shape, or a name, or tells nothing."""
    if values is None or is_dask(values) or isinstance(values, str | list | tuple | Real):
        return values
    return values if hasattr(values, "shape") else np.asarray(values)


def _takes_three(score: Any) -> bool:
    """Return whether a callable takes three arguments by place, as far as it tells."""
    try:
        signature(score).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _n_targets(y: Any) -> int | None:
    """Columns of targets; None for one dimension."""
    ndim = getattr(y, "ndim", None)
    y = np.asarray(y) if ndim is None else y
    return None if y.ndim == 1 else int(y.shape[1])
