"""Voting and stacking: ensembles of named members of any kind.

Rows in memory are left to scikit-learn. On a Dask collection `NamedMembersMixin.fit` checks the
members and encodes the labels; voting then fits all members to all rows. Stacking (D. H. Wolpert,
"Stacked generalization", Neural Networks 5, 1992) also fits each member to the training rows of
each split of a cross-validation, predicts the test rows by these fits, block by block, and fits its
last estimator to the predictions.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from dask.delayed import delayed
from sklearn import ensemble
from sklearn.base import clone, is_classifier
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import Bunch

from daskml_dist.data.collection import as_collection, join_lazy_blocks
from daskml_dist.data.conversion import as_column, convert_named_columns, convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.operation_progress import report_operation
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted, translate_parameter_errors
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.block_mapping import call_on_sample, map_blocks
from daskml_dist.linear_model import LogisticRegression, RidgeCV
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.members import (
    check_indicators,
    check_weighable,
    count_labels,
    encode_labels,
    find_numpy_dtype,
    fit_folds,
    fit_members,
    has_few_entries,
    prepare_in_memory,
    prepare_lazy_inputs,
    route_member_params,
)
from daskml_dist.model_selection._out_of_fold import OutOfFoldPredictor
from daskml_dist.model_selection._validation import Splits, has_several_columns
from daskml_dist.parameters.checks import taking_client


def _make_label_encoder(labels: Any) -> LabelEncoder:
    """Return scikit-learn's encoder of sorted labels."""
    encoder = LabelEncoder()
    encoder.classes_ = labels
    return encoder


class NamedMembersMixin(OnBlocks):
    """Mixin of ensembles of named members, which precedes scikit-learn's class in the bases."""

    estimators: Any
    estimators_: list[Any]
    #: Attribute in which scikit-learn keeps the encoder of labels.
    _encoder_attribute: ClassVar[str]

    @taking_client
    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Self:
        """Fit every member to all rows, and the last estimator of stacking to their predictions.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        client : distributed.Client, optional
            Client to compute with; the current one by default.
        **fit_params
            `sample_weight`, or arguments that scikit-learn's metadata routing sends to members.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        self._check_names_given()
        X, y = convert_named_columns(*convert_to_host(X, y))
        if not is_dask(X):
            X, y, fit_params = prepare_in_memory(X, y, fit_params, labels=is_classifier(self))
            fitted: Self = super().fit(X, y, **fit_params)  # type: ignore[misc]
            return fitted
        X, y, params = prepare_lazy_inputs(X, y, fit_params)
        members = self._check_members(params)
        params_of_members = route_member_params(self, members, params)
        y, n_rows = self._encode_labels(y) if is_classifier(self) else (y, None)
        is_small = has_few_entries(X, n_rows)
        with report_operation(type(self).__name__, getattr(self, "verbose", 0)):
            self._fit_collection(members, params_of_members, X, y, params, is_small)
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and transform the same rows; arguments and errors as :meth:`fit`.

        Parameters
        ----------
        X, y, **fit_params
            As in :meth:`fit`.

        Returns
        -------
        ndarray, pandas.DataFrame, dask Array or dask DataFrame
            As :meth:`transform` returns.
        """
        # scikit-learn's own would make one frame in memory if ``set_output`` requests frames.
        return self.fit(X, y, **fit_params).transform(X)  # type: ignore[attr-defined]

    def _check_names_given(self) -> None:
        """Check that `estimators` has pairs with an estimator: others fail in scikit-learn."""
        pairs = self.estimators if isinstance(self.estimators, list | tuple) else ()
        if not all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and (hasattr(pair[1], "fit") or (isinstance(pair[1], str) and pair[1] == "drop"))
            for pair in pairs
        ):
            raise InvalidParameterError(
                f"estimators={self.estimators!r}: give (name, estimator) pairs, such as "
                '[("nb", GaussianNB())]; a member is left out by "drop".'
            )

    def _encode_labels(self, y: Any) -> tuple[Any, int | None]:
        """Set `classes_`; return the labels as positions among them, and the number of rows.

        The number is None if finding the classes does not count rows.
        """
        self.classes_: Any
        self.classes_, counts = count_labels(y)
        setattr(self, self._encoder_attribute, _make_label_encoder(self.classes_))
        return encode_labels(y, self.classes_), int(counts.sum())

    @abstractmethod
    def _fit_collection(
        self, named_members: list[tuple[str, Any]], params_of_members: list[dict[str, Any]], X: Any,
        y: Any, params: dict[str, Any], has_few_rows: bool,
    ) -> None:  # fmt: skip
        """Fit to a Dask collection whose labels are encoded.

        `params_of_members` has the arguments of each member's ``fit``; `has_few_rows` is whether
        the rows are few enough for a member to be fitted in one task.
        """

    def _check_members(self, params: dict[str, Any]) -> list[tuple[str, Any]]:
        """Check the parameters, before any pass; return names and members, except dropped ones."""
        with translate_parameter_errors():
            self._validate_params()  # type: ignore[attr-defined]
            names, members = self._validate_estimators()  # type: ignore[attr-defined]
        for name, member in zip(names, members, strict=True):
            if isinstance(member, type):
                raise InvalidParameterError(f"Member {name!r}:{suggest_nearest(member, ())}")
        return [(n, m) for n, m in zip(names, members, strict=True) if m != "drop"]

    def _set_fitted_members(self, fitted: list[Any]) -> None:
        """Set `estimators_`, `named_estimators_` and the feature names."""
        self.estimators_ = fitted
        # Dropped members keep their names, but are not fitted.
        remaining = iter(fitted)
        self.named_estimators_ = Bunch(
            **{
                name: "drop" if member == "drop" else next(remaining)
                for name, member in self.estimators
            }
        )
        # As in scikit-learn, the names are those of the last member.
        self.__dict__.pop("feature_names_in_", None)
        for member in fitted:
            if hasattr(member, "feature_names_in_"):
                self.feature_names_in_ = member.feature_names_in_


class VotingMixin(NamedMembersMixin):
    """Mixin of the voting ensembles, which precedes scikit-learn's class in the bases."""

    weights: Any
    _encoder_attribute = "le_"

    def _check_members(self, params: dict[str, Any]) -> list[tuple[str, Any]]:
        members = super()._check_members(params)
        if self.weights is not None and len(self.weights) != len(self.estimators):
            raise InvalidParameterError(
                f"Number of `estimators` and weights must be equal; got {len(self.weights)} "
                f"weights, {len(self.estimators)} estimators. Give one weight per member."
            )
        return members

    def _fit_collection(
        self, named_members: list[tuple[str, Any]], params_of_members: list[dict[str, Any]], X: Any,
        y: Any, params: dict[str, Any], has_few_rows: bool,
    ) -> None:  # fmt: skip
        jobs = [
            (member, X, y, member_params)
            for (_, member), member_params in zip(named_members, params_of_members, strict=True)
        ]
        self._set_fitted_members(fit_members(jobs, has_few_rows))


class VotingClassifier(VotingMixin, ensemble.VotingClassifier):
    """Voting classifier: majority vote, or mean probabilities, of several members.

    Rows in memory are left to scikit-learn. On a Dask collection members of this package are fitted
    one after the other, each on the whole cluster; others are fitted in parallel tasks, on rows
    gathered on a worker. Labels are counted in one pass, and predictions are lazy.

    Parameters
    ----------
    estimators, voting, weights, flatten_transform
        scikit-learn's. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, le_, classes_, n_features_in_, feature_names_in_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import VotingClassifier
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> clf = VotingClassifier([('linear', LogisticRegression()), ('bayes', GaussianNB())])
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    """


class VotingRegressor(VotingMixin, ensemble.VotingRegressor):
    """Voting regressor: mean prediction of several members.

    Rows in memory are left to scikit-learn; Dask collections as in :class:`VotingClassifier`.

    Parameters
    ----------
    estimators, weights
        scikit-learn's. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, n_features_in_, feature_names_in_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import VotingRegressor
    >>> from daskml_dist.linear_model import LinearRegression, Ridge
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = X @ np.array([1.0, 2.0])
    >>> model = VotingRegressor([('ridge', Ridge()), ('squares', LinearRegression())]).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """


class StackingMixin(NamedMembersMixin):
    """Mixin of the stacking ensembles, which precedes scikit-learn's class in the bases."""

    cv: Any
    stack_method: str
    passthrough: bool
    final_estimator: Any
    final_estimator_: Any
    _encoder_attribute = "_label_encoder"
    #: Class of the default last estimator.
    _default_final_estimator: ClassVar[type[Any]]

    def _will_have(self, name: str) -> bool:
        # scikit-learn checks the last estimator for its methods; if the user gives none, the
        # default answers until the fit has made one.
        is_fitted = hasattr(self, "final_estimator_")
        return (
            self.final_estimator is None
            and not is_fitted
            and hasattr(self._default_final_estimator(), name)
        )

    def _check_members(self, params: dict[str, Any]) -> list[tuple[str, Any]]:
        members = super()._check_members(params)
        with translate_parameter_errors():
            self._validate_final_estimator()  # type: ignore[attr-defined]
        del self.final_estimator_  # scikit-learn's check has set an unfitted clone
        # Weights go to the last estimator too.
        check_weighable([("final_estimator", self._make_final_estimator())], params)
        return members

    def _encode_labels(self, y: Any) -> tuple[Any, int | None]:
        if not has_several_columns(y):
            return super()._encode_labels(y)
        n_labels = check_indicators(y)  # with several labels per row: 0 and 1, unchanged
        self.classes_ = [np.array([0, 1]) for _ in range(n_labels)]
        self._label_encoder = [_make_label_encoder(labels) for labels in self.classes_]
        return y, None

    def _fit_collection(
        self, named_members: list[tuple[str, Any]], params_of_members: list[dict[str, Any]], X: Any,
        y: Any, params: dict[str, Any], has_few_rows: bool,
    ) -> None:  # fmt: skip
        members = [member for _, member in named_members]
        with translate_parameter_errors():
            methods = [
                self._method_name(name, member, self.stack_method)  # type: ignore[attr-defined]
                for name, member in named_members
            ]
        # The last estimator is fitted to predictions: of members fitted in advance, or of fits that
        # have not seen the row, so that it does not favour overfitting members.
        if self.cv == "prefit":
            for member in members:
                check_fitted(member)
            self._set_fitted_members(members)
            self.stack_method_ = methods
            meta_features = self._predict_fitted(X)
        else:
            # The members fitted to all rows make the later predictions.
            jobs = [
                (m, X, y, member_params)
                for m, member_params in zip(members, params_of_members, strict=True)
            ]
            self._set_fitted_members(fit_members(jobs, has_few_rows))
            self.stack_method_ = methods
            meta_features = self._predict_out_of_fold(
                members, X, y, params_of_members, has_few_rows
            )
        # Predictions have the blocks of X, so targets are cut at the same rows.
        final = self._make_final_estimator(), meta_features, *_align_targets(X, y, params)
        (self.final_estimator_,) = fit_members([final], has_few_rows)

    def _make_final_estimator(self) -> Any:
        """Return an unfitted last estimator: a clone of the user's, or the default."""
        return clone(
            self._default_final_estimator()
            if self.final_estimator is None
            else self.final_estimator
        )

    def _predict_fitted(self, X: Any) -> Any:
        """Return the lazy predictions of fitted members, side by side."""
        function = partial(_predict_and_concatenate, self._without_members(), self.estimators_)
        sample, meta = call_on_sample(function, X)
        self._remember_widths(sample)
        return map_blocks(function, X, meta=meta)

    def _predict_out_of_fold(
        self,
        members: list[Any],
        X: Any,
        y: Any,
        params_of_members: list[dict[str, Any]],
        has_few_rows: bool,
    ) -> Any:
        """Return lazy predictions of each row by the fits that have not seen it, side by side."""
        fits = []
        cv = _fix_random_state(self.cv)
        # Members with the same arguments of fit share their splits, since a splitter may need a
        # pass over the rows to count labels.
        shared: dict[Any, Splits] = {}
        for member, params in zip(members, params_of_members, strict=True):
            # Keyed by identity: `==` on lazy weights would return a lazy array.
            key = tuple((name, id(value)) for name, value in params.items())
            if key not in shared:
                shared[key] = Splits(self, X, y, None, params, cv)
            splits = shared[key]
            fits.append(fit_folds(member, splits, has_few_rows))
        by_output = is_classifier(self) and isinstance(self.classes_, list)
        # Members are fitted to the positions of labels among the classes, not to the labels.
        classes = np.arange(len(self.classes_)) if is_classifier(self) and not by_output else None
        predictor = OutOfFoldPredictor(fits, self.stack_method_, classes)
        without_members = self._without_members()
        # Predictions for a sample give scikit-learn the numbers of columns, and Dask the dtype.
        sample, predictions = call_on_sample(predictor.predict_by_first_fits, X)
        sample_features = without_members._concatenate_predictions(sample, predictions)
        self._remember_widths(sample)
        # The splits of all members are the same, so the codes of the last one are valid for all.
        rows = splits.rows
        combine = partial(_concatenate_or_empty, without_members, sample_features[:0])
        return join_lazy_blocks(
            predictor.predict_blocks(rows, combine), rows.columns, sample_features
        )

    def _without_members(self) -> Any:
        """Return a copy without members, small enough to be part of every task."""
        copied = copy(self)
        for name in ("estimators_", "named_estimators_", "final_estimator_"):
            vars(copied).pop(name, None)
        copied.estimators, copied.final_estimator = [], None
        return copied

    def _remember_widths(self, X: Any) -> None:
        """Make scikit-learn store each member's number of columns, for `get_feature_names_out`."""
        _predict_and_concatenate(self, self.estimators_, X)


def _predict_and_concatenate(plain: Any, fitted: list[Any], X: Any) -> Any:
    """Return the predictions of fitted members for a block, side by side."""
    pairs = zip(fitted, plain.stack_method_, strict=True)
    predictions = [getattr(member, method)(X) for member, method in pairs]
    return plain._concatenate_predictions(X, predictions)


def _concatenate_or_empty(plain: Any, none: Any, X: Any, predictions: list[Any]) -> Any:
    """Return predictions for a block, side by side; `none` for a block without rows."""
    return plain._concatenate_predictions(X, predictions) if predictions else none


def _fix_random_state(cv: Any) -> Any:
    """Return a splitter that makes the same splits for every member."""
    # Without a seed, or with a generator, a shuffling splitter would give each member other folds,
    # and a row's code could not identify the fits that have not seen it.
    if hasattr(cv, "random_state") and not isinstance(cv.random_state, int | np.integer):
        cv = copy(cv)
        cv.random_state = int(np.random.RandomState().randint(2**31 - 1))
    return cv


def _align_targets(X: Any, y: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return y and arguments of the last estimator's ``fit``, in blocks of the same rows as X."""
    weight = params.get("sample_weight")
    rows = as_collection(X, y, weight, numeric=False, multi_output=True, any_shape=True)
    column = delayed(partial(as_column, name="y", multi_output=True), pure=False)
    width = y.shape[1:] if has_several_columns(y) else ()
    targets = np.empty((0, *width), find_numpy_dtype(y))
    y = join_lazy_blocks([column(part[1]) for part in rows.parts], rows, targets)
    if weight is None or np.ndim(weight) == 0:
        return y, params
    column = delayed(partial(as_column, name="sample_weight"), pure=False)
    weights = join_lazy_blocks([column(part[2]) for part in rows.parts], rows, np.empty(0))
    return y, {**params, "sample_weight": weights}


class StackingClassifier(StackingMixin, ensemble.StackingClassifier):
    """Stacking classifier: fitted to out-of-fold predictions of several members.

    Rows in memory are left to scikit-learn. On a Dask collection every member is fitted to all rows
    and to the training rows of each split (linear members with a solver to all splits in one
    batched fit); the last estimator's rows are made from their predictions, block by block, on the
    blocks' workers.

    Parameters
    ----------
    estimators, final_estimator, cv, stack_method, passthrough
        scikit-learn's. On a Dask collection the last estimator is this package's
        `LogisticRegression` by default. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, final_estimator_, stack_method_, classes_, n_features_in_, \
feature_names_in_
        scikit-learn's.

    References
    ----------
    D. H. Wolpert, "Stacked generalization", Neural Networks 5 (1992).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import StackingClassifier
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> clf = StackingClassifier([('linear', LogisticRegression()), ('bayes', GaussianNB())])
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    """

    _default_final_estimator = LogisticRegression


class StackingRegressor(StackingMixin, ensemble.StackingRegressor):
    """Stacking regressor: fitted to out-of-fold predictions of several members.

    Rows in memory are left to scikit-learn; Dask collections as in :class:`StackingClassifier`.

    Parameters
    ----------
    estimators, final_estimator, cv, passthrough
        scikit-learn's. On a Dask collection the last estimator is this package's `RidgeCV` by
        default. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, final_estimator_, stack_method_, n_features_in_, \
feature_names_in_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import StackingRegressor
    >>> from daskml_dist.linear_model import LinearRegression, Ridge
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = X @ np.array([1.0, 2.0])
    >>> model = StackingRegressor([('ridge', Ridge()), ('squares', LinearRegression())]).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    stack_method = "predict"

    _default_final_estimator = RidgeCV
