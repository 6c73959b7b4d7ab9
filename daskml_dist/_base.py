"""What all supervised estimators share: rows and labels in, predictions and scores out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar, Self

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from daskml_dist._checks import check_run
from daskml_dist._run import Run
from daskml_dist.data.blocks import make_block
from daskml_dist.data.collection import Collection, as_collection, take_columns
from daskml_dist.data.conversion import plain_objects, to_host
from daskml_dist.data.feature_names import check_feature_names
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.missing import check_no_missing
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.progress import Progress
from daskml_dist.errors import InvalidDataError, NotFittedError
from daskml_dist.inference.predict import map_rows, results_of_rows
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.survey import Survey

__all__ = ["BaseSupervised"]

#: Labels from which on blocks alone are checked.
_MANY = 1 << 16


class BaseSupervised(BaseEstimator):
    """Validation of rows and labels, and functions of raw predictions mapped over rows.

    A fit ends with setting ``n_features_in_``.
    """

    _classification: ClassVar[bool]
    #: Classes that the labels must hold at least.
    _min_classes: ClassVar[int] = 2
    #: Whether y may have several columns.
    _multi_output: ClassVar[bool] = False
    #: Parameters of a `Run` that are used; another that is set is an error.
    _run_used: ClassVar[tuple[str, ...]]
    run: Run | None
    device: str

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; those of `run` as ``run__n_lanes``, also where that is None."""
        if any(name.startswith("run__") for name in params) and params.get("run", self.run) is None:
            params["run"] = Run()
        super().set_params(**params)
        return self

    # -- fitting -------------------------------------------------------------------------------

    def _run_settings(self) -> RunSettings:
        """What the user asked of the run, checked."""
        return check_run(self.run, self.device, name=type(self).__name__, used=self._run_used)

    def _callbacks(self, max_iter: int | None) -> CallbackList:
        params = self.get_params(deep=False)
        given = params["callbacks"]
        callbacks = list(given) if isinstance(given, list | tuple) else [given]
        if params["verbose"]:
            callbacks.append(Progress(max_iter=max_iter))
        return CallbackList([callback for callback in callbacks if callback is not None])

    def _collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        if y is None:
            raise InvalidDataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. "
                "Pass fit(X, y)."
            )
        X, y, sample_weight = take_columns(X, y, sample_weight)
        if not is_dask(y) and not self._multi_output:
            y = _as_column(y)
            if self._classification:
                _check_labels(y)
        collection = as_collection(
            X,
            y,
            sample_weight,
            classification=self._classification,
            multi_output=self._multi_output,
        )
        check_feature_names(self, X, reset=reset)
        if not reset:
            self._check_width(collection)
        return collection

    def _survey(self, engine: Engine, n_lanes: int | None) -> Survey:
        """Look at the rows."""
        survey = Survey(engine.survey(n_lanes))
        survey.check_devices()
        if survey.n_rows == 0:
            raise InvalidDataError(
                "X holds 0 sample(s) in all its blocks, while a minimum of 1 is required. "
                "Check the filter or the path that made the collection."
            )
        return survey

    def _labels(self, survey: Survey, classes: Any) -> NDArray[Any]:
        found = survey.classes
        if classes is not None:
            classes = np.unique(classes)
            strange = np.setdiff1d(found, classes)
            if len(strange):
                raise InvalidDataError(
                    f"y holds labels {strange.tolist()[:5]} that `classes` does not. Name every "
                    "class in the first call to partial_fit."
                )
            found = classes
        if found.dtype.kind == "f" and (found % 1).any():
            raise InvalidDataError(
                "Unknown label type: continuous. Use SGDRegressor for a continuous target."
            )
        if len(found) < self._min_classes:
            raise InvalidDataError(
                f"y holds one class only: {found.tolist()}. A classifier needs at least two "
                "classes; check how the rows were filtered."
            )
        return found

    # -- prediction ----------------------------------------------------------------------------

    def _check_fitted(self, X: Any = None) -> None:
        if not hasattr(self, "n_features_in_"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with "
                "appropriate arguments before using this estimator."
            )
        if X is not None:
            check_feature_names(self, X, reset=False)

    def _check_width(self, collection: Collection) -> None:
        found = collection.n_features
        if found is not None and found != self.n_features_in_:
            raise InvalidDataError(
                f"X has {found} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input. Select the columns that it was fitted "
                "on."
            )

    @abstractmethod
    def _raw(self) -> Callable[[Any], NDArray[Any]]:
        """A picklable function from rows to raw predictions."""

    def _map(
        self, then: Callable[..., Any] | None, X: Any, dtype: Any, n_outputs: int | None
    ) -> Any:
        """Map `then(raw_prediction, out)` over the rows of X; None: the raw predictions."""
        self._check_fitted(X)
        return map_rows(
            self._raw(),
            X,
            dtype=dtype,
            n_outputs=n_outputs,
            n_features=self.n_features_in_,
            then=then,
        )

    def _score_sums(self, statistic: Callable[..., Any], X: Any, y: Any, sample_weight: Any) -> Any:
        """``statistic(y, raw, weight)`` of all blocks, added; one pass, nothing gathered."""
        X, y, sample_weight = take_columns(X, y, sample_weight)
        self._check_fitted(X)
        if not is_dask(y) and not self._multi_output:
            y = _as_column(y)
        collection = as_collection(X, y, sample_weight, multi_output=self._multi_output)
        self._check_width(collection)
        kind = self._classification, self._multi_output
        one = partial(_score_block, statistic, self._raw(), *kind)
        total = reduce_parts(collection, one, _total)
        if total is None:
            raise InvalidDataError(
                "X holds 0 sample(s) in all its blocks: there is nothing to score. Check the "
                "filter or the path that made the collection."
            )
        return total


def _total(parts: Sequence[Any]) -> Any:
    filled = [part for part in parts if part is not None]
    return reduce(add, filled) if filled else None


def _score_block(
    statistic: Callable[..., Any],
    raw: Callable[[Any], NDArray[Any]],
    classification: bool,
    multi_output: bool,
    index: int,
    X: Any,
    y: Any,
    sample_weight: Any,
) -> Any:
    """The statistic of a block; None where it has no rows."""
    block = make_block(
        index,
        X,
        y,
        sample_weight,
        classification=classification,
        multi_output=multi_output,
        on_device=hasattr(raw, "on_device"),
    )
    assert block.y is not None
    given, ones = block.sample_weight, np.empty(0)
    pieces: list[Any] = []
    if block.n_rows == 0:
        return None
    for at, found in results_of_rows(raw, block.rows, index):
        if len(ones) < len(found):
            ones = np.ones(len(found))
        weight = ones[: len(found)] if given is None else given[at].astype(np.float64)
        pieces.append(statistic(block.y[at], found, weight))
    return _total(pieces)


def _as_column(y: Any) -> Any:
    """Targets in memory as one column, with scikit-learn's warning for a matrix of one."""
    y = to_host(y)
    if is_dataframe_like(y) and len(y.columns) == 1:
        column_or_1d(np.empty((1, 1)), warn=True)
        return y.iloc[:, 0]  # with its dtype, which may be one of pandas alone
    if len(getattr(y, "shape", ())) == 2:
        try:
            return column_or_1d(y, warn=True)
        except ValueError as error:
            raise InvalidDataError(f"{error} Pass one column, for example y[:, 0].") from error
    return y


def _check_labels(y: Any) -> None:
    labels = plain_objects(np.asarray(y))
    # Blocks are checked too; scikit-learn sorts all labels, which takes longer than many a fit.
    if len(labels) > _MANY and labels.ndim == 1 and labels.dtype.kind in "biuf":
        return
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
    check_no_missing(labels, "y")
    try:
        check_classification_targets(labels)
    except ValueError as error:
        raise InvalidDataError(f"{error} Use SGDRegressor for a continuous target.") from error
