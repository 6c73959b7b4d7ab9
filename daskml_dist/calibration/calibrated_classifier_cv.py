"""Classifier whose probabilities are calibrated by cross-validation.

The classifier of each split predicts its test rows, one block at a time. Calibrators (functions
from scores to probabilities) are fitted to these held-out predictions without gathering them:

* isotonic regression (Zadrozny and Elkan 2002) and Platt's sigmoid (Platt 1999) depend only on the
distinct scores and the weight of either label at each. Blocks count these, the counts are merged
(`fit_label_calibrators`, one pass), and scikit-learn's code fits the result.
* a temperature (Guo et al. 2017) minimises the log loss of all classes together, whose first two
derivatives are sums over rows (`_minimize_log_losses`, one pass for each Newton step).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from dask.base import persist
from dask.delayed import delayed
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn import calibration
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import LeaveOneOut
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import has_fit_parameter

from daskml_dist.data.collection import Collection, as_collection, count_rows_of_block
from daskml_dist.data.conversion import (
    as_column,
    convert_named_columns,
    convert_to_host,
    expand_weights,
    take_rows,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import add_arrays, reduce_parts
from daskml_dist.diagnostics.operation_progress import (
    report_operation,
    report_phase,
    report_reading,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted, translate_parameter_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.members import (
    copy_feature_attributes,
    count_labels,
    encode_labels,
    fit_folds,
    fit_members,
    has_few_entries,
    prepare_in_memory,
    prepare_lazy_inputs,
)
from daskml_dist.metrics._runs import ScoreRun, make_score_run, merge_score_runs
from daskml_dist.model_selection._out_of_fold import predict_all_classes
from daskml_dist.model_selection._validation import Splits
from daskml_dist.models.batched import TEST, FoldAssignment
from daskml_dist.parameters.checks import taking_client
from daskml_dist.sklearn_internals import (
    CalibratedClassifier,
    SigmoidCalibration,
    is_metadata_routing_enabled,
)
from daskml_dist.svm import LinearSVC

#: Largest number of distinct scores kept for a column, 32 bytes each (8 MiB); beyond that,
#: neighbouring scores share a bin.
MAX_SCORES = 2**18
#: Bound on the absolute logarithm of an inverse temperature, as in scikit-learn.
_MAX_LOG_BETA = 10.0
#: Largest number of steps: bisection alone narrows the bracket of 20 below the tolerance in 45.
_MAX_NEWTON_STEPS = 60
#: Change of the logarithm of an inverse temperature below which the search ends.
_LOG_BETA_TOLERANCE = 1e-12


class CalibratedClassifierCV(OnBlocks, calibration.CalibratedClassifierCV):
    """Classifier whose probabilities are calibrated on held-out rows.

    For rows in memory scikit-learn does the work. On a Dask collection the classifier is fitted to
    the training rows of each split (all splits in one fit, if the classifier can train several
    models at once), and calibrators are fitted to sums over its predictions of the test rows.

    Parameters
    ----------
    estimator, method, cv, ensemble
        As in scikit-learn. `estimator` is this package's `LinearSVC` by default; any other may be
        given. An estimator of scikit-learn is fitted to rows that are gathered on a worker. A
        `FrozenEstimator` is not fitted again. `n_jobs` is for rows in memory.

    Attributes
    ----------
    classes_, calibrated_classifiers_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    The calibrator of a class is fitted to the distinct scores of all test rows, with the weight of
    either label at each. Isotonic regression (pool adjacent violators) and Platt's sigmoid need no
    more: scikit-learn's own code fits them, with the same result. Up to 2**18 distinct scores this
    is exact; beyond that, neighbouring scores are summed into bins of nearly equal weight, each
    represented by its middle. The temperature is found by Newton's method on sums over all rows, in
    about six passes over predictions that stay on the workers.

    References
    ----------
    J. Platt, "Probabilistic outputs for support vector machines" (1999). B. Zadrozny and C. Elkan,
    "Transforming classifier scores into accurate multiclass probability estimates", KDD (2002).
    C. Guo et al., "On calibration of modern neural networks", ICML (2017).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.calibration import CalibratedClassifierCV
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> clf = CalibratedClassifierCV(GaussianNB(), cv=3).fit(X, y)
    >>> clf.predict_proba(X).shape
    (60, 2)
    """

    classes_: NDArray[Any]
    calibrated_classifiers_: list[Any]

    estimator: Any
    method: str
    cv: Any
    ensemble: Any

    def _get_estimator(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        default = LinearSVC()
        if is_metadata_routing_enabled():
            # As in scikit-learn's default: routing passes weights to estimators that request them.
            default.set_fit_request(sample_weight=True)
        return default

    @taking_client
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit the classifier and its calibrators.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        sample_weight : like `y`, optional
        client : distributed.Client, optional
            Client to compute with; the current one by default.
        **fit_params
            Arguments of the ``fit`` of the classifier.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        X, y, sample_weight = convert_named_columns(*convert_to_host(X, y, sample_weight))
        if not is_dask(X):
            X, y, checked_params = prepare_in_memory(
                X, y, {**fit_params, "sample_weight": sample_weight}, labels=True
            )
            fitted: Self = super().fit(X, y, **checked_params)
            n_known = [len(c.estimator.classes_) for c in self.calibrated_classifiers_]
            if self.method == "temperature" and min(n_known) < len(self.classes_):
                # scikit-learn fits such a model, which then fails to predict.
                del self.calibrated_classifiers_
                raise _make_lacking_label_error("The training rows of a split lack a label")
            return fitted
        with translate_parameter_errors():
            self._validate_params()
        X, y, weighted = prepare_lazy_inputs(X, y, {"sample_weight": sample_weight})
        member = self._get_estimator()
        if isinstance(member, FrozenEstimator):
            check_fitted(member)
        member_params, groups = self._route_params(member, weighted, fit_params)
        self.classes_, counts = count_labels(y)
        self._check_folds(counts)
        # As in scikit-learn: for temperatures, text labels are encoded as integers first; not for a
        # fitted classifier, which knows the texts.
        is_fitted = isinstance(member, FrozenEstimator) or self.cv == "prefit"
        has_texts = self.classes_.dtype.kind in "OUST"
        if self.method == "temperature" and has_texts and not is_fitted:
            y, classes = encode_labels(y, self.classes_), np.arange(len(self.classes_))
        else:
            classes = self.classes_
        has_few = has_few_entries(X, int(counts.sum()))
        with report_operation(type(self).__name__, None):
            weight = weighted.get("sample_weight")
            self._fit_lazily(member, X, y, groups, member_params, weight, classes, has_few)
        return self

    def _fit_lazily(
        self, member: Any, X: Any, y: Any, groups: Any, member_params: dict[str, Any], weight: Any,
        classes: Any, has_few_rows: bool,
    ) -> None:  # fmt: skip
        """Fit the classifiers of the splits to a Dask collection, and the calibrators."""
        frozen = isinstance(member, FrozenEstimator) or self.cv == "prefit"
        # A frozen classifier is the same in all splits, so with "auto" their predictions are joined
        # to fit one set of calibrators.
        per_split = (not frozen) if self.ensemble == "auto" else bool(self.ensemble)
        rows = as_collection(X, y, weight, numeric=False, classification=True, any_shape=True)
        # 1. Classifiers, each of which predicts the test rows of its split.
        if frozen and not per_split:
            # A fitted classifier is assumed to have seen none of these rows: it predicts all of
            # them.
            folds, classifiers = None, [member]
            codes: list[Any] = [None] * len(rows.parts)
        else:
            splits = Splits(self, X, y, groups, member_params, self.cv)
            folds, codes = splits.roles, splits.rows.code_parts
            classifiers = (
                [member] * splits.n_splits if frozen else fit_folds(member, splits, has_few_rows)
            )
        if folds is not None:
            _check_known_classes(classifiers, classes, self.method, per_split)
        # With ensemble=False, one classifier fitted to all rows uses the calibrators of the splits.
        final = classifiers
        if not per_split and not frozen:
            final = fit_members([(member, X, y, member_params)], has_few_rows)
        elif not per_split:
            # All of them are the same frozen classifier.
            final = classifiers[:1]
        # 2. Held-out predictions, and 3. calibrators fitted to them.
        report_phase("calibrating")
        predictor = _HeldOutPredictor(classifiers, folds, classes, per_split)
        predictions = predictor.predict_blocks(rows, codes)
        with report_reading("calibrating"):
            if self.method == "temperature":
                are_decisions = _has_decision_function(final[0])
                calibrators_by_fit = _fit_temperatures(predictions, len(final), are_decisions)
            else:
                labels = [self._find_column_classes(classifier, classes) for classifier in final]
                calibrators_by_fit = fit_label_calibrators(predictions, labels, self.method)
        self.calibrated_classifiers_ = [
            CalibratedClassifier(fitted, calibrators, method=self.method, classes=self.classes_)
            for fitted, calibrators in zip(final, calibrators_by_fit, strict=True)
        ]
        copy_feature_attributes(self, final[0])

    @staticmethod
    def _find_column_classes(fitted: Any, classes: Any) -> list[int]:
        """Return the index of the class of each column of a classifier's scores."""
        codes = [int(k) for k in np.searchsorted(classes, fitted.classes_)]
        if len(codes) > 2:
            return codes
        # A single column belongs to the second of two classes. If there are more classes, but this
        # classifier was fitted to two, scikit-learn assigns the column to the first of these.
        return codes[-1:] if len(classes) == 2 else codes[:1]

    def _route_params(
        self, member: Any, weighted: dict[str, Any], fit_params: dict[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """Return arguments of the classifier's fit, and the groups of rows for the splitter."""
        if lazy := [
            name for name, value in fit_params.items() if is_dask(value) and name != "groups"
        ]:
            raise InvalidParameterError(
                f"{lazy} cannot be split into folds; of the arguments of fit, only sample_weight "
                "can. Leave them out."
            )
        if is_metadata_routing_enabled():
            with translate_parameter_errors():
                metadata = {"sample_weight": weighted.get("sample_weight"), **fit_params}
                routed = process_routing(self, "fit", **metadata)
            return dict(routed.estimator.fit), routed.splitter.split.get("groups")
        if weighted and not has_fit_parameter(member, "sample_weight"):
            warnings.warn(
                f"Since {type(member).__name__} does not appear to accept sample_weight, sample "
                "weights will only be used for the calibration itself. Be warned that the result "
                "of the calibration is likely to be incorrect.",
                stacklevel=user_stack_level(),
            )
            return dict(fit_params), None
        return {**fit_params, **weighted}, None

    def _check_folds(self, counts: Any) -> None:
        """Raise scikit-learn's errors if some fold cannot contain all classes."""
        cv = self.cv
        n_folds = int(cv) if isinstance(cv, Integral) else getattr(cv, "n_splits", None)
        if n_folds and (counts < n_folds).any():
            raise InvalidDataError(
                f"Requesting {n_folds}-fold cross-validation but provided less than {n_folds} "
                "examples for at least one class. Lower cv, or drop the class."
            )
        if isinstance(cv, LeaveOneOut):
            raise InvalidParameterError(
                "LeaveOneOut cross-validation does not allow all classes to be present in test "
                "splits. Please use a cross-validation generator that allows all classes to appear "
                "in every test and train split."
            )


# --- held-out predictions, the training data of calibrators -------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutPredictions:
    """Scores of rows that the classifier was not fitted to, with the rows' labels and weights.

    Parameters
    ----------
    scores : ndarray of shape (n, n_columns)
        Decision values or probabilities; for two classes one column, of the second class.
    labels : ndarray of int64 of shape (n,)
        Indices of the labels among the sorted classes.
    weights : ndarray of float64 of shape (n,)
    """

    scores: NDArray[Any]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _HeldOutPredictor:
    """Fitted classifiers, with the fold assignment: which rows each of them predicts.

    Instances are picklable, and callable because :func:`share_in_graph` shares functions.

    Parameters
    ----------
    classifiers : list of estimator
        One for each split, or a single classifier for all rows.
    folds : FoldAssignment or None
        None: the single classifier predicts every row.
    classes : ndarray
        All labels, sorted.
    per_split : bool
        Whether each split gets its own calibrators (``ensemble=True``).
    """

    classifiers: list[Any]
    folds: FoldAssignment | None
    classes: NDArray[Any]
    per_split: bool

    def __call__(self) -> _HeldOutPredictor:
        """Return self."""
        return self

    def predict(self, X: Any, codes: Any, y: Any, weight: Any) -> list[HeldOutPredictions | None]:
        """Return the predictions of a block's rows: one entry for each set of calibrators.

        An entry is None if the block holds no test row of the split.
        """
        n_rows = count_rows_of_block(X)
        if not n_rows:
            return [None] * (len(self.classifiers) if self.per_split else 1)
        labels = np.searchsorted(self.classes, as_column(y, name="y"))
        weights = _check_weights(weight, n_rows)
        if self.folds is None:
            all_rows = np.arange(n_rows)
            return [self._predict_rows(self.classifiers[0], X, labels, weights, all_rows)]
        by_split = []
        for k, classifier in enumerate(self.classifiers):
            tested = np.flatnonzero(self.folds.assign_roles(codes, k) == TEST)
            by_split.append(self._predict_rows(classifier, X, labels, weights, tested))
        if self.per_split:
            return by_split
        # The predictions of all splits are joined into one set, so each row must be tested exactly
        # once.
        filled = [held_out for held_out in by_split if held_out is not None]
        if sum(len(held_out.labels) for held_out in filled) != n_rows:
            raise InvalidDataError(
                "With ensemble=False every row must be in the test rows of one split. Use KFold or "
                "StratifiedKFold as cv."
            )
        columns = [(held_out.scores, held_out.labels, held_out.weights) for held_out in filled]
        return [HeldOutPredictions(*map(np.concatenate, zip(*columns, strict=True)))]

    def _predict_rows(
        self, classifier: Any, X: Any, labels: Any, weights: Any, row_numbers: NDArray[np.intp]
    ) -> HeldOutPredictions | None:
        """Return the predictions of the rows at some positions of a block."""
        if not len(row_numbers):
            return None
        # Rows of all splits are joined, so if a fold's model lacks some classes, their columns are
        # added: with the lowest decision value, or a probability of zero.
        joins_splits = self.folds is not None and not self.per_split
        classes = self.classes if joins_splits else None
        scores = _predict_scores(classifier, take_rows(X, row_numbers), classes)
        return HeldOutPredictions(scores, labels[row_numbers], weights[row_numbers])

    def predict_blocks(self, rows: Collection, codes: list[Any]) -> Collection:
        """Return a lazy collection whose blocks are the lists that :meth:`predict` returns."""
        predict = delayed(_predict_block, pure=False)
        shared = share_in_graph(self)
        parts = [
            (predict(shared, X, code, y, weight), None, None)
            for (X, y, weight), code in zip(rows.parts, codes, strict=True)
        ]
        return replace(rows, parts=parts, inputs=(None, None, None))  # the inputs are other rows


def _predict_block(shared: Any, X: Any, codes: Any, y: Any, weight: Any) -> Any:
    predictor: _HeldOutPredictor = shared()
    return predictor.predict(X, codes, y, weight)


def _has_decision_function(classifier: Any) -> bool:
    """Return whether decision values are calibrated: they are preferred to probabilities."""
    return hasattr(classifier, "decision_function")


def _predict_scores(classifier: Any, X: Any, classes: NDArray[Any] | None) -> NDArray[Any]:
    """Return decision values or probabilities, a column per class; for two classes one column.

    `classes` lists the classes of all columns; None: the classes of the classifier.
    """
    method = "decision_function" if _has_decision_function(classifier) else "predict_proba"
    scores: Any = predict_all_classes(classifier, method, X, classes)
    if method == "predict_proba" and scores.shape[1] == 2:
        # The two columns add up to 1, so the calibrator of the second class suffices.
        scores = scores[:, 1:]
    return np.asarray(scores[:, None] if scores.ndim == 1 else scores)


def _check_weights(weight: Any, n_rows: int) -> NDArray[np.float64]:
    """Return the weights of a block's rows; 1 if none are given."""
    weights = as_column(expand_weights(weight, n_rows), name="weight")
    if (weights < 0).any():
        raise InvalidDataError("Some weights are negative. Give weights of at least 0.")
    return weights.astype(np.float64)


def _check_known_classes(
    classifiers: list[Any], classes: NDArray[Any], method: str, per_split: bool
) -> None:
    """Raise an error if a fold's model lacks a class that its calibrator needs.

    A temperature scales the scores of all classes together. The decision values of a model of two
    classes are one column, which cannot be expanded to the columns of all classes.
    """
    for split, classifier in enumerate(classifiers):
        missing = np.setdiff1d(classes, classifier.classes_).tolist()
        is_decided = _has_decision_function(classifier)
        needs_all = method == "temperature" and (per_split or is_decided)
        needs_all |= not per_split and is_decided and len(classifier.classes_) <= 2
        if missing and needs_all:
            raise _make_lacking_label_error(
                f"The training rows of split {split} lack the label(s) {missing}"
            )


def _make_lacking_label_error(finding: str) -> InvalidDataError:
    """Return the error for folds that lack a class; `finding` is the first part of its text."""
    return InvalidDataError(
        f"{finding}, which calibration of this kind needs in each. Shuffle the rows that are "
        "split, for example cv=StratifiedKFold(5, shuffle=True), or use method='sigmoid' with "
        "ensemble=True, which gives such classes no probability in that fold."
    )


# --- sigmoid and isotonic calibrators: one for each class ---------------------------------------


def fit_label_calibrators(
    predictions: Collection, labels: list[list[int]], method: str, limit: int = MAX_SCORES
) -> list[list[Any]]:
    """Return a sigmoid or isotonic calibrator for each column of scores, fitted in one pass.

    `labels` holds the index of the class of each column, for each set of calibrators.
    """
    summaries = reduce_parts(
        predictions,
        partial(_summarize_scores, labels=labels, limit=limit),
        partial(_merge_summaries, limit=limit),
    )
    fit = _fit_isotonic if method == "isotonic" else _fit_sigmoid
    return [[fit(run, dtype) for run, dtype in of_columns] for of_columns in summaries]


def _summarize_scores(
    index: int, predictions: list[HeldOutPredictions | None], y: Any, w: Any, *, labels: Any,
    limit: int,
) -> list[list[tuple[ScoreRun, Any] | None]]:  # fmt: skip
    """Return a block's distinct scores with their weights, and their dtype, for each column."""
    summaries: list[list[tuple[ScoreRun, Any] | None]] = []
    for held_out, columns in zip(predictions, labels, strict=True):
        if held_out is None:
            summaries.append([None] * len(columns))
            continue
        of_columns: list[tuple[ScoreRun, Any] | None] = []
        for label, scores in zip(columns, held_out.scores.T, strict=True):
            is_label = (held_out.labels == label).astype(np.int64)
            run = make_score_run(is_label, scores, held_out.weights, limit)
            of_columns.append((run, scores.dtype))
        summaries.append(of_columns)
    return summaries


def _merge_summaries(block_summaries: list[Any], limit: int) -> list[list[Any]]:
    """Return the merged summaries of several blocks: for each set of calibrators and column."""
    return [
        [
            _merge_runs([part[i][k] for part in block_summaries], limit)
            for k in range(len(of_columns))
        ]
        for i, of_columns in enumerate(block_summaries[0])
    ]


def _merge_runs(runs: list[Any], limit: int) -> Any:
    """Return the merged scores and weights of several blocks: sorted, at most `limit` scores."""
    filled = [run for run in runs if run is not None]
    if len(filled) < 2:
        return filled[0] if filled else None
    return merge_score_runs([run for run, _ in filled], limit), filled[0][1]


def _read_run(run: ScoreRun, dtype: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return scores, and for each the total weights of (other labels, the class)."""
    weights = np.zeros((len(run.low), 2))
    weights[:, run.labels.astype(np.int64)] = run.weights
    is_weighted = weights.sum(axis=1) > 0
    _check_total_weight(float(weights.sum()))
    # A bin of several scores is represented by its middle; a distinct score has low == high.
    return ((run.low + run.high) / 2).astype(dtype)[is_weighted], weights[is_weighted]


def _check_total_weight(weight: float) -> None:
    """Raise `InvalidDataError` if no row that a calibrator is fitted to has a weight."""
    if not weight > 0:
        raise InvalidDataError(
            "All weights are zero in the test rows of a split, to which its calibrators are "
            "fitted. Shuffle the rows that are split, for example "
            "cv=StratifiedKFold(5, shuffle=True), or drop rows of weight zero."
        )


def _fit_isotonic(run: ScoreRun, dtype: Any) -> Any:
    """Fit scikit-learn's isotonic regression of the label (0 or 1) on the score."""
    scores, weights = _read_run(run, dtype)
    # Rows of equal score are pooled anyway, so their weighted mean can replace them.
    total = weights.sum(axis=1)
    calibrator = IsotonicRegression(out_of_bounds="clip")
    return calibrator.fit(scores, weights[:, 1] / total, sample_weight=total)


def _fit_sigmoid(run: ScoreRun, dtype: Any) -> Any:
    """Fit Platt's sigmoid of the score, using scikit-learn's code."""
    scores, weights = _read_run(run, np.float64)
    # Each score occurs twice, with label 0 and with label 1, weighted accordingly.
    labels = np.repeat([0.0, 1.0], len(scores))
    label_weights, label_scores = weights.T.ravel(), np.tile(scores, 2)
    has_weight = label_weights > 0
    return SigmoidCalibration().fit(
        label_scores[has_weight], labels[has_weight], label_weights[has_weight]
    )


# --- temperature: one calibrator for all classes ------------------------------------------------


def _fit_temperatures(
    predictions: Collection, n_temperatures: int, are_decisions: bool
) -> list[list[Any]]:
    """Return a calibrator for each set of held-out predictions, all fitted in the same passes."""
    calibrator_class = getattr(calibration, "_TemperatureScaling", None)
    if calibrator_class is None:
        raise InvalidParameterError(
            "method='temperature' needs scikit-learn 1.8 or newer. Update it, or use 'sigmoid'."
        )
    # Persist the predictions: every Newton step reads them again.
    blocks = persist(*[part[0] for part in predictions.parts])
    parts = [(block, None, None) for block in blocks]
    predictions = Collection(**{**vars(predictions), "parts": parts})
    calibrators = []
    for log_beta in _minimize_log_losses(predictions, n_temperatures, are_decisions):
        calibrator = calibrator_class()
        calibrator.beta_ = np.exp(log_beta)
        calibrators.append([calibrator])
    return calibrators


def _minimize_log_losses(
    predictions: Collection, n_temperatures: int, are_decisions: bool
) -> NDArray[np.float64]:
    """Return the logarithms of the inverse temperatures that minimise the log losses.

    Newton's method on the inverse temperature, in which the loss is convex, safeguarded by
    bisection of its logarithm: a step that leaves the bracket is replaced by the middle of the
    bracket.
    """
    low = np.full(n_temperatures, -_MAX_LOG_BETA)
    high = np.full(n_temperatures, _MAX_LOG_BETA)
    log_betas = np.zeros(n_temperatures)
    for _ in range(_MAX_NEWTON_STEPS):
        slopes, curvatures, weights = reduce_parts(
            predictions, partial(_sum_derivatives, np.exp(log_betas), are_decisions), add_arrays
        )
        _check_total_weight(float(weights.min()))
        # The loss is convex: a negative slope means that the minimum lies above.
        low, high = np.where(slopes < 0, log_betas, low), np.where(slopes < 0, high, log_betas)
        # Newton's step in beta, since the loss need not be convex in log(beta). The result is not
        # finite if there is no curvature or beta would be negative; then bisection is used.
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = np.log(np.exp(log_betas) - slopes / curvatures)
        is_inside = (newton > low) & (newton < high)
        next_log_betas = np.where(
            slopes == 0, log_betas, np.where(is_inside, newton, (low + high) / 2)
        )
        is_done = np.abs(next_log_betas - log_betas).max() < _LOG_BETA_TOLERANCE
        log_betas = next_log_betas
        if is_done:
            break
    return log_betas


def _sum_derivatives(
    betas: NDArray[np.float64], are_decisions: bool, index: int, predictions: Any, y: Any, w: Any
) -> NDArray[np.float64]:
    """Return a block's log loss derivatives by the inverse temperatures: slopes, curvatures.

    The third row holds the sums of the weights. For the softmax of ``beta * logits`` the slope is
    the mean logit minus that of the true class, and the curvature is the variance of the logits,
    both under the predicted probabilities.
    """
    out = np.zeros((3, len(betas)))
    for i, (held_out, beta) in enumerate(zip(predictions, betas, strict=True)):
        if held_out is None:
            continue
        logits = _convert_to_logits(held_out.scores.astype(np.float64), are_decisions)
        scaled = beta * logits
        probabilities = np.exp(scaled - logsumexp(scaled, axis=1, keepdims=True))
        means = (probabilities * logits).sum(axis=1)
        true_logits = logits[np.arange(len(logits)), held_out.labels]
        out[0, i] = held_out.weights @ (means - true_logits)
        variances = (probabilities * (logits - means[:, None]) ** 2).sum(axis=1)
        out[1, i] = held_out.weights @ variances
        out[2, i] = held_out.weights.sum()
    return out


def _convert_to_logits(scores: NDArray[np.float64], are_decisions: bool) -> NDArray[np.float64]:
    """Return a logit for each class, as in scikit-learn's temperature scaling."""
    if are_decisions:
        return np.hstack([-scores, scores]) if scores.shape[1] == 1 else scores
    probabilities = np.hstack([1 - scores, scores]) if scores.shape[1] == 1 else scores
    logits: NDArray[np.float64] = np.log(probabilities + 1e-12)  # log(0) is -inf
    return logits
