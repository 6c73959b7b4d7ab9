"""Twins: scikit-learn estimators with the predictions of fitted estimators of this package.

The class of a twin is scikit-learn's class of the same name, or the one that `OTHER_KINDS` names.
The twin gets those parameters that its constructor accepts, and copies of the fitted attributes;
`sklearn_parts.finish` sets the attributes that have another form in scikit-learn. `_Converter` does
this for every estimator of this package within pipelines, searches and scorers.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from typing import Any

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import ExportError, NotFittedError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.fitted import is_fitted
from daskml_dist.losses.base import Loss

_PACKAGE = "daskml_dist"
#: Fitted attributes that only this package reads.
_NOT_EXPORTED = {"history_", "_drawn_rows", "_feature_dtypes", "_first_row"}
_REMEDY = (
    "Export the other parts of the model, and pickle this one, or apply it before the exported "
    "model."
)


@suggest_arguments
def to_sklearn(estimator: Any) -> Any:
    """Return a scikit-learn estimator with the predictions of a fitted one of this package.

    The result needs neither this package nor Dask: pickle it, convert it, or pass it to any tool
    for scikit-learn's estimators. In a pipeline, a ``ColumnTransformer`` or a search of
    scikit-learn's, all parts that are of this package become scikit-learn's; other parts are kept.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator or transformer of this package, or one of scikit-learn's that contains
        such. It is not changed.

    Returns
    -------
    estimator
        Fitted; it shares no memory with the original. Parameters of fitting that scikit-learn's
        class does not have, and values that it does not accept, are left at its defaults.

    Raises
    ------
    ExportError
        scikit-learn has no such estimator, or the installed version has other private parts than
        those known here.
    NotFittedError
        The estimator is not fitted.

    Notes
    -----
    Predictions are equal up to rounding, those of trees and boosting bit for bit, with one
    exception: scikit-learn's trees and forests (not its boosting) round rows to float32, so a
    float64 row within such rounding of a threshold may go to its other side.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.inference import to_sklearn
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> twin = to_sklearn(clf)
    >>> type(twin).__module__.split('.')[0], twin.predict(X).tolist()
    ('sklearn', [0, 0, 1, 1])
    """
    check_exportable(estimator)
    return _Converter().convert(estimator)


def check_exportable(estimator: Any) -> None:
    """Raise if an object is no estimator, or an estimator of this package that is not fitted."""
    check_is_estimator(estimator)
    check_fitted_if_ours(estimator, "export")


def check_is_estimator(estimator: Any) -> None:
    """Raise if an object is no estimator; a class of estimators is no estimator either."""
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        kind = type(estimator).__name__
        raise ExportError(
            f"{kind} is not an estimator.{suggest_nearest(estimator, ())} Pass a fitted "
            "estimator, transformer or pipeline."
        )


def check_fitted_if_ours(estimator: Any, verb: str) -> None:
    """Raise if an estimator of this package is not fitted; `verb` is the verb for the error."""
    if _is_ours(estimator) and not is_fitted(estimator):
        raise NotFittedError(
            f"This {type(estimator).__name__} is not fitted yet, so there is nothing to {verb}. "
            "Call fit first."
        )


class _Converter:
    """Converter of estimators, and of objects that hold some, to twins; each is converted once.

    Like `copy.deepcopy`, with a memo: parts that several estimators share are shared by the twins.
    """

    def __init__(self) -> None:
        # Copies by the `id` of the original; and the originals, kept alive so that no other object
        # gets the same `id`.
        self.copies: dict[int, Any] = {}
        self.originals: list[Any] = []

    def convert(self, value: Any) -> Any:
        """Return a copy of a value, with this package's estimators replaced by twins."""
        if id(value) not in self.copies:
            self.originals.append(value)
            self.copies[id(value)] = self._convert(value)
        return self.copies[id(value)]

    def _convert(self, value: Any) -> Any:
        """Return a new copy of a value, by its kind."""
        if hasattr(value, "get_params") and not inspect.isclass(value):
            return self._make_twin(value) if _is_ours(value) else self._copy(value)
        if type(value) in (list, tuple):
            return type(value)(self.convert(one) for one in value)
        if isinstance(value, dict):
            found = copy.copy(value)
            for name, one in value.items():
                found[name] = self.convert(one)
            return found
        # scikit-learn's objects that are no estimators, such as scorers, may hold estimators.
        if type(value).__module__.startswith("sklearn.") and hasattr(value, "__dict__"):
            return self._copy(value)
        return copy.deepcopy(value)

    def _copy(self, original: Any) -> Any:
        """Return a copy of an object of another package, with its attributes converted."""
        found = copy.copy(original)
        for name, value in vars(original).items():
            vars(found)[name] = self.convert(value)
        return found

    def _make_twin(self, estimator: Any) -> Any:
        """Return the twin of an estimator of this package; an unfitted one gets parameters only."""
        from daskml_dist.inference.export.sklearn_parts import find_stand_in, finish

        _check_exact(estimator)
        if (inner := find_stand_in(estimator)) is not None:
            return self.convert(inner)
        kind = _find_sklearn_class(estimator)
        twin = kind(**self._select_params(estimator, kind))
        if not is_fitted(estimator):
            return twin
        params = estimator.get_params(deep=False)
        # A subclass of scikit-learn's class also has its private attributes.
        inherits = isinstance(estimator, kind)
        for name, value in vars(estimator).items():
            fitted = inherits or (name.endswith("_") and not name.startswith("_"))
            fitted |= name == "_sklearn_output_config"
            if fitted and name not in params and name not in _NOT_EXPORTED and not is_dask(value):
                # A property of scikit-learn's class is computed from other attributes.
                if not isinstance(inspect.getattr_static(kind, name, None), property):
                    setattr(twin, name, self.convert(value))
        finish(estimator, twin)
        return twin

    def _select_params(self, estimator: Any, kind: type) -> dict[str, Any]:
        """Return the estimator's parameters that scikit-learn's class has and accepts."""
        from daskml_dist.inference.export.sklearn_parts import find_loss_name

        known = inspect.signature(kind).parameters
        given = estimator.get_params(deep=False)
        # A loss object is replaced by its name, and the parameters that set it get its values.
        if isinstance(loss := given.get("loss"), Loss):
            given |= {"loss": find_loss_name(loss)} | {
                n: v for n, v in vars(loss).items() if n in given
            }
        found = {name: self.convert(value) for name, value in given.items() if name in known}
        return {
            name: value for name, value in found.items() if _accepts_parameter(kind, name, value)
        }


def _is_ours(value: Any) -> bool:
    """Return whether a value's class is of this package, or derived from one of it."""
    return any(_is_of_package(kind) for kind in type(value).__mro__)


def _is_of_package(kind: type) -> bool:
    """Return whether a class is defined in this package."""
    return kind.__module__.partition(".")[0] == _PACKAGE


def _check_exact(estimator: Any) -> None:
    """Raise if an estimator's class is a user's subclass, which may predict other values."""
    kind = type(estimator)
    if not _is_of_package(kind):
        base = next(one for one in kind.__mro__ if _is_of_package(one))
        raise ExportError(
            f"{kind.__name__} is your own class, and may predict differently from "
            f"{base.__name__}. Give it a method to_sklearn, or export a {base.__name__}."
        )


def _find_sklearn_class(estimator: Any) -> type:
    """Return the scikit-learn class with the same predictions as an estimator of this package."""
    from daskml_dist.inference.export.sklearn_parts import OTHER_KINDS

    # Find a base class of the same name; else, by convention, the class of the same name in the
    # subpackage of the same name.
    name = type(estimator).__name__
    for kind in type(estimator).__mro__:
        if kind.__name__ == name and kind.__module__.startswith("sklearn."):
            return kind
    module = type(estimator).__module__.split(".")[1]
    if name in OTHER_KINDS:
        module, name = OTHER_KINDS[name](estimator) or (module, name)
    try:
        found = getattr(importlib.import_module(f"sklearn.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"scikit-learn has no {name}, so it cannot be converted. {_REMEDY}"
        ) from error
    assert isinstance(found, type)
    return found


def _accepts_parameter(kind: type, name: str, value: Any) -> bool:
    """Return whether scikit-learn's class accepts a value of a parameter."""
    from daskml_dist.sklearn_internals import SklearnParameterError, validate_parameter_constraints

    # Without a constraint any value is accepted; but a twin with an object of this package as a
    # parameter would depend on it.
    constraints = getattr(kind, "_parameter_constraints", {})
    if name not in constraints:
        return not _is_of_package(type(value))
    try:
        validate_parameter_constraints(
            {name: constraints[name]}, {name: value}, caller_name=kind.__name__
        )
    except SklearnParameterError:
        return False
    return True
