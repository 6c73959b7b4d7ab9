"""Cross-validation of penalties: splits of the rows, fits to all of them at once, and scores.

`RidgeCV`, `ElasticNetCV`, `LogisticRegressionCV` and similar estimators have parameters `cv` and
`scoring`, and call these functions in order: `cut_into_splits` assigns rows to splits,
`open_batched_splits` holds the rows for fits to the training rows of all splits at once (and to all
rows, the last split), and `score_test_rows` computes scores that are no sums over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.utils import Bunch
from sklearn.utils.metadata_routing import process_routing

from daskml_dist.data.computing import use_client
from daskml_dist.data.conversion import convert_object_values
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.row_checks import check_feature_names
from daskml_dist.errors import InvalidParameterError, InvalidTypeError
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels, open_batched_models
from daskml_dist.models.batched import TEST, AssignmentWithAllRows
from daskml_dist.sklearn_internals import is_metadata_routing_enabled, raise_for_params


def fit_by_splits(
    self: Any, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None,
    client: Any = None,
) -> Any:  # fmt: skip
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
        When the fit cannot continue.
    """
    # The method `fit` of the estimators whose `_fit_splits` does the work.
    self._check_params()
    with use_client(client):
        self._fit_splits(X, y, sample_weight, groups, client)
    return self


def cut_into_splits(estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any) -> Any:
    """Return the rows of a fit with the splits of `estimator.cv`, each row cut once."""
    # Imported here: importing a linear model should not load all of model selection.
    from daskml_dist.model_selection._validation import Splits, prepare_inputs

    X, y, weight = estimator._prepare_inputs(*map(_ensure_shape, (X, y, sample_weight)))
    estimator._check_target(y)
    y = convert_object_values(y) if isinstance(y, np.ndarray) and y.dtype.kind == "O" else y
    check_feature_names(estimator, X, reset=True)
    fit_params = {} if weight is None else {"sample_weight": weight}
    X, y, groups, fit_params = prepare_inputs(X, y, groups, fit_params)
    # An integer `cv` stratifies by the labels if the estimator is a classifier.
    return Splits(estimator, X, y, groups, fit_params, estimator.cv)


def open_batched_splits(
    estimator: Any,
    splits: Any,
    client: Any,
    class_weight: Any = None,
    name_classes: Callable[[NDArray[Any], int | None], NDArray[Any]] | None = None,
) -> AbstractContextManager[BatchedModels]:
    """Open the fits to all splits, and to all rows, as one batch of models.

    `name_classes` returns the class labels, given the values of y and its number of columns.
    """
    from daskml_dist.model_selection._batched_fits import align_targets

    n_targets = _count_targets(splits.inputs[1])
    # Several columns mean several labels for a row, which have no class weights.
    collection, classes = align_targets(
        splits, estimator._classification,
        multi_output=estimator._multi_output,
        class_weight=class_weight if n_targets is None else None,
    )  # fmt: skip
    if name_classes is not None and estimator._classification:
        classes = name_classes(classes, n_targets)
    return open_batched_models(
        estimator, collection, AssignmentWithAllRows(splits.roles), classes,
        n_targets=n_targets, client=client, callbacks=estimator._make_callbacks(None),
    )  # fmt: skip


def resolve_scorer(scoring: Any) -> Any:
    """Return the scorer of the parameter `scoring`; None for the estimator's own score."""
    from daskml_dist.metrics.scorers import get_scorer

    if scoring is not None and not (isinstance(scoring, str) or callable(scoring)):
        raise InvalidParameterError(
            f"scoring={scoring!r}: use a name of a score, a callable (estimator, X, y), or None."
        )
    # A function of (y_true, y_pred) is a common mistake: it fails before the fit, not after it.
    if callable(scoring) and not _takes_three_arguments(scoring):
        raise InvalidParameterError(
            f"scoring={scoring!r}: it cannot be called with (estimator, X, y). Give a callable "
            "that accepts them, or the name of a score."
        )
    return None if scoring is None else get_scorer(scoring)


def score_test_rows(
    splits: Any, estimators: Mapping[int, Sequence[Any]], scorer: Any, is_weighted: bool = True
) -> NDArray[np.float64]:
    """Return the scores of fitted estimators on their splits' test rows, one row per split."""
    from daskml_dist.model_selection._validation import score_sides

    # Splits in the outer loop: the test rows of a split are selected once for all its estimators.
    scores = []
    for split, of_split in estimators.items():
        test_rows = splits.select_side(split, TEST)
        scores.append(
            [
                score_sides({"": scorer}, e, *test_rows, is_weighted=is_weighted)[""]
                for e in of_split
            ]
        )
    return np.array(scores)


def set_history_of_splits(estimator: Any, batch: BatchedModels) -> None:
    """Set `history_`, which holds the passes of all fits of a batch."""
    # A history is made from one fit: here from the last one, with the records of all.
    fit, result = batch.last
    result.records = batch.records
    estimator.history_ = batch.job.make_history(fit, result)


def route_metadata(
    estimator: Any, method: str, metadata: Mapping[str, Any], extra_params: Mapping[str, Any]
) -> Bunch:
    """Return metadata for ``splitter.split`` and for ``scorer.score``, by scikit-learn's rules."""
    metadata = {name: value for name, value in metadata.items() if value is not None}
    try:
        raise_for_params(extra_params, estimator, method)
        if is_metadata_routing_enabled():
            routed = process_routing(estimator, method, **metadata, **extra_params)
            if unsupported := sorted(set(routed.scorer.get("score", {})) - {"sample_weight"}):
                raise InvalidParameterError(
                    f"The scorer requests {unsupported}: scores here only support sample_weight. "
                    "Request only that, and bind anything else in your own scorer."
                )
            return routed
    except (UnsetMetadataPassedError, InvalidParameterError):
        raise  # both are ValueErrors, and name the remedy already
    except ValueError as error:
        raise InvalidParameterError(str(error)) from error
    except TypeError as error:
        raise InvalidTypeError(str(error)) from error
    # Without routing, as in scikit-learn: groups go to the splitter, and weights to the scorer.
    groups = {name: metadata[name] for name in ("groups",) if name in metadata}
    weight = {name: metadata[name] for name in ("sample_weight",) if name in metadata}
    return Bunch(splitter=Bunch(split=groups), scorer=Bunch(score=weight))


def _ensure_shape(values: Any) -> Any:
    """Return values as an array, unless they have a shape or are converted later."""
    if values is None or is_dask(values) or isinstance(values, str | list | tuple | Real):
        return values
    return values if hasattr(values, "shape") else np.asarray(values)


def _takes_three_arguments(score: Any) -> bool:
    """Return whether a callable accepts three positional arguments; True if it has no signature."""
    # Arguments are bound, without a call: (estimator, X, y).
    try:
        signature(score).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # a function in C may have no signature
        return True
    return True


def _count_targets(y: Any) -> int | None:
    """Return the number of columns of `y`; None if it has one dimension."""
    ndim = getattr(y, "ndim", None)
    y = np.asarray(y) if ndim is None else y
    return None if y.ndim == 1 else int(y.shape[1])
