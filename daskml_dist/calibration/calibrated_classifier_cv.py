"""Classifier whose probabilities are calibrated by cross-validation."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import calibration
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import LeaveOneOut
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import has_fit_parameter

from daskml_dist.calibration._answers import (
    MemberAssignments,
    check_known_classes,
    has_decisions,
    lacking_labels,
)
from daskml_dist.calibration._calibrators import by_scores, by_temperature
from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import convert_named_columns, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import doing, reading, tell
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import translate_parameter_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.lazy_labels import counted_labels, encoded
from daskml_dist.meta_estimators.members import fit_folds, fit_members, has_few_entries, here, taken
from daskml_dist.model_selection._validation import Splits
from daskml_dist.parameters.checks import taking_client
from daskml_dist.sklearn_internals import is_metadata_routing_enabled
from daskml_dist.svm import LinearSVC

__all__ = ["CalibratedClassifierCV"]


class CalibratedClassifierCV(OnBlocks, calibration.CalibratedClassifierCV):
    """Classifier whose probabilities are calibrated on rows that it has not been fitted to.

    Rows in memory are scikit-learn's affair. On a Dask collection the classifier is fitted to the
    training rows of each split (a linear one of a solver to those of all splits in one fit), and
    calibrators are fitted to sums over its answers to the others.

    Parameters
    ----------
    estimator, method, cv, ensemble
        scikit-learn's. `estimator` is this package's `LinearSVC` by default; any other may be
        given, scikit-learn's too, which are fitted in the memory of workers. A `FrozenEstimator` is
        not fitted again. `n_jobs` is for rows in memory.

    Attributes
    ----------
    classes_, calibrated_classifiers_, n_features_in_, feature_names_in_
        scikit-learn's.

    Notes
    -----
    A calibrator of a class is fitted to the distinct scores of all test rows, with the weight of
    either label at each, which is all that isotonic regression (pool adjacent violators) and
    Platt's sigmoid need: scikit-learn's own fits, to the same numbers. Up to 2**18 distinct scores
    nothing is lost; of more, neighbours are summed into bins of nearly equal weight, each at its
    middle. The temperature is found by Newton's method on sums over all rows, in some six passes
    over answers that stay on the workers.

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
        found = LinearSVC()
        if is_metadata_routing_enabled():
            found.set_fit_request(sample_weight=True)
        return found

    @taking_client
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit the classifier and its calibrators.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        sample_weight : like `y`, optional
        client : distributed.Client, optional
            That everything is computed by; by default the current one.
        **fit_params
            Arguments of the classifier's ``fit``.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        X, y, sample_weight = convert_named_columns(*convert_to_host(X, y, sample_weight))
        if not is_dask(X):
            X, y, given = here(X, y, {**fit_params, "sample_weight": sample_weight}, labels=True)
            found: Self = super().fit(X, y, **given)
            n_known = [len(one.estimator.classes_) for one in self.calibrated_classifiers_]
            if self.method == "temperature" and min(n_known) < len(self.classes_):
                # scikit-learn fits such temperatures, and fails where rows are predicted.
                del self.calibrated_classifiers_
                raise lacking_labels("The training rows of a split lack a label")
            return found
        with translate_parameter_errors():
            self._validate_params()
        X, y, weighted = taken(X, y, {"sample_weight": sample_weight})
        member = self._get_estimator()
        own, groups = self._params_of(member, weighted, fit_params)
        self.classes_, counts = counted_labels(y)
        self._check_folds(counts)
        if self.method == "temperature" and self.classes_.dtype.kind in "OUST":
            y, classes = encoded(y, self.classes_), np.arange(len(self.classes_))
        else:
            classes = self.classes_
        few = has_few_entries(X, int(counts.sum()))
        with doing(type(self).__name__, None):
            weight = weighted.get("sample_weight")
            self._fit_lazily(member, X, y, groups, own, weight, classes, few)
        return self

    def _fit_lazily(
        self, member: Any, X: Any, y: Any, groups: Any, own: dict[str, Any], weight: Any,
        classes: Any, few: bool,
    ) -> None:  # fmt: skip
        frozen = isinstance(member, FrozenEstimator) or self.cv == "prefit"
        apart = (not frozen) if self.ensemble == "auto" else bool(self.ensemble)
        rows = as_collection(X, y, weight, numeric=False, classification=True, any_shape=True)
        if frozen and not apart:
            roles, fits = None, [member]
            codes: list[Any] = [None] * len(rows.parts)
        else:
            splits = Splits(self, X, y, groups, own, self.cv)
            roles, codes = splits.roles, splits.rows.code_parts
            fits = [member] * splits.n_splits if frozen else fit_folds(member, splits, few)
        if roles is not None:
            check_known_classes(fits, classes, self.method, apart)
        asked = MemberAssignments(fits, roles, classes, apart)
        if apart:
            final = fits
        else:
            final = [fits[0]] if frozen else fit_members([(member, X, y, own)], few)
        columns = [self._columns(one, classes) for one in final]
        tell("calibrating")
        lots = asked.blocks(rows, codes)
        with reading("calibrating"):
            if self.method == "temperature":
                found = by_temperature(lots, len(final), has_decisions(final[0]))
            else:
                found = by_scores(lots, columns, self.method)
        self.calibrated_classifiers_ = [
            calibration._CalibratedClassifier(
                fitted, calibrators, method=self.method, classes=self.classes_
            )
            for fitted, calibrators in zip(final, found, strict=True)
        ]
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(final[0], name):
                setattr(self, name, getattr(final[0], name))

    @staticmethod
    def _columns(fitted: Any, classes: Any) -> list[int]:
        """Classes that the columns of a classifier's answers are of."""
        known = [int(k) for k in np.searchsorted(classes, fitted.classes_)]
        if len(known) > 2:
            return known
        # One column: of two classes it is the second's; scikit-learn takes it for the first that a
        # fit has met where there are more.
        return known[-1:] if len(classes) == 2 else known[:1]

    def _params_of(
        self, member: Any, weighted: dict[str, Any], more: dict[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """Arguments of the classifier's fit, and groups of rows."""
        if lazy := [name for name, value in more.items() if is_dask(value) and name != "groups"]:
            raise InvalidParameterError(
                f"{lazy} cannot be cut into folds; of the arguments of fit sample_weight can. "
                "Leave them out."
            )
        if is_metadata_routing_enabled():
            with translate_parameter_errors():
                given = {"sample_weight": weighted.get("sample_weight"), **more}
                routed = process_routing(self, "fit", **given)
            return dict(routed.estimator.fit), routed.splitter.split.get("groups")
        if weighted and not has_fit_parameter(member, "sample_weight"):
            warnings.warn(
                f"Since {type(member).__name__} does not appear to accept sample_weight, sample "
                "weights will only be used for the calibration itself. Be warned that the result "
                "of the calibration is likely to be incorrect.",
                stacklevel=user_stack_level(),
            )
            return dict(more), None
        return {**more, **weighted}, None

    def _check_folds(self, counts: Any) -> None:
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
