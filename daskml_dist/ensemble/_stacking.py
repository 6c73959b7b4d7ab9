"""Stacking: fits of members, and of the last one to what they say of rows they have not seen."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import delayed
from sklearn.base import clone, is_classifier

from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import as_column
from daskml_dist.ensemble._heterogeneous import Named, label_encoder
from daskml_dist.errors.sklearn_errors import check_fitted, checked_as_theirs
from daskml_dist.inference.transform import map_blocks, sample_rows
from daskml_dist.meta_estimators.lazy_labels import check_indicators
from daskml_dist.meta_estimators.members import (
    OutOfFold,
    as_array,
    check_weighable,
    fit_folds,
    fit_members,
)
from daskml_dist.model_selection._checks import has_columns
from daskml_dist.model_selection._validation import Splits

__all__ = ["Stacking"]


class Stacking(Named):
    """Mixin of the stacking ensembles, put before scikit-learn's class."""

    cv: Any
    stack_method: str
    passthrough: bool
    final_estimator: Any
    final_estimator_: Any
    _encoder = "_label_encoder"

    def _will_have(self, name: str) -> bool:
        # scikit-learn asks the last estimator: where none is given, there is none before the fit.
        is_fitted = hasattr(self, "final_estimator_")
        return self.final_estimator is None and not is_fitted and hasattr(self._default(), name)

    @abstractmethod
    def _default(self) -> Any:
        """The last estimator, where the user gives none."""

    def _checked_members(self, params: dict[str, Any]) -> list[tuple[str, Any]]:
        named = super()._checked_members(params)
        with checked_as_theirs():
            self._validate_final_estimator()  # type: ignore[attr-defined]
        del self.final_estimator_  # until it is fitted
        check_weighable([("final_estimator", self._final())], params)
        return named

    def _encoded(self, y: Any) -> tuple[Any, int | None]:
        if not has_columns(y):
            return super()._encoded(y)
        n_labels = check_indicators(y)  # of several labels a row: 0 and 1, as they are
        self.classes_ = [np.array([0, 1]) for _ in range(n_labels)]
        self._label_encoder = [label_encoder(labels) for labels in self.classes_]
        return y, None

    def _fit_lazy(
        self, named: list[tuple[str, Any]], given: list[dict[str, Any]], X: Any, y: Any,
        params: dict[str, Any], few: bool,
    ) -> None:  # fmt: skip
        members = [member for _, member in named]
        with checked_as_theirs():
            methods = [
                self._method_name(name, member, self.stack_method)  # type: ignore[attr-defined]
                for name, member in named
            ]
        if self.cv == "prefit":
            for member in members:
                check_fitted(member)
            self._set_members(members)
            self.stack_method_ = methods
            meta = self._answers(X)
        else:
            jobs = [(m, X, y, own) for m, own in zip(members, given, strict=True)]
            self._set_members(fit_members(jobs, few))
            self.stack_method_ = methods
            meta = self._out_of_fold(members, X, y, given, few)
        final = self._final(), meta, *_aligned(X, y, params)
        (self.final_estimator_,) = fit_members([final], few)

    def _final(self) -> Any:
        return clone(self._default() if self.final_estimator is None else self.final_estimator)

    def _answers(self, X: Any) -> Any:
        """Answers of fitted members, lazy."""
        function = partial(_joined, self._plain(), self.estimators_)
        meta = function(sample_rows(X))
        self._set_widths(sample_rows(X))
        return map_blocks(function, X, meta=meta)

    def _out_of_fold(
        self, members: list[Any], X: Any, y: Any, given: list[dict[str, Any]], few: bool
    ) -> Any:
        """Answers to rows by members that have not seen them, lazy."""
        fits = []
        cv = _fixed(self.cv)
        for member, params in zip(members, given, strict=True):
            splits = Splits(self, X, y, None, params, cv)
            fits.append(fit_folds(member, splits, few))
        several = is_classifier(self) and isinstance(self.classes_, list)
        n_classes = len(self.classes_) if is_classifier(self) and not several else None
        own = OutOfFold(fits, self.stack_method_, n_classes)
        plain = self._plain()
        sample = sample_rows(X)
        found = plain._concatenate_predictions(sample, own.of_rows(sample))
        self._set_widths(sample)
        rows = splits.rows
        blocks = own.blocks(rows, partial(_concatenated, plain, found[:0]))
        return as_array(blocks, rows.columns, found)

    def _plain(self) -> Any:
        """Ensemble without members: all that puts answers side by side."""
        plain = copy(self)
        for name in ("estimators_", "named_estimators_", "final_estimator_"):
            vars(plain).pop(name, None)
        plain.estimators, plain.final_estimator = [], None
        return plain

    def _set_widths(self, X: Any) -> None:
        """Set the columns of each member's answers, which names of features are made of."""
        _joined(self, self.estimators_, X)


def _joined(plain: Any, fitted: list[Any], X: Any) -> Any:
    """Answers of fitted members to a block, side by side."""
    each = zip(fitted, plain.stack_method_, strict=True)
    return plain._concatenate_predictions(X, [getattr(one, method)(X) for one, method in each])


def _concatenated(plain: Any, none: Any, X: Any, answers: list[Any]) -> Any:
    return plain._concatenate_predictions(X, answers) if answers else none


def _fixed(cv: Any) -> Any:
    """A splitter that splits alike for every member."""
    if hasattr(cv, "random_state") and not isinstance(cv.random_state, int | np.integer):
        cv = copy(cv)
        cv.random_state = int(np.random.RandomState().randint(2**31 - 1))
    return cv


def _aligned(X: Any, y: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Targets and arguments of the last fit, cut as the rows are."""
    weight = params.get("sample_weight")
    rows = as_collection(X, y, weight, numeric=False, multi_output=True, any_shape=True)
    column = delayed(partial(as_column, name="y", several=True), pure=False)
    width = y.shape[1:] if has_columns(y) else ()
    targets = np.empty((0, *width), getattr(y, "dtype", np.float64))
    y = as_array([column(part[1]) for part in rows.parts], rows, targets)
    if weight is None or np.ndim(weight) == 0:
        return y, params
    column = delayed(partial(as_column, name="sample_weight"), pure=False)
    weights = as_array([column(part[2]) for part in rows.parts], rows, np.empty(0))
    return y, {**params, "sample_weight": weights}
