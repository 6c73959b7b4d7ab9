"""Twins: estimators of scikit-learn's own that answer as fitted ones of this package do.

A twin is found by its name, its parameters by the names of its own constructor's, and fitted
attributes are copied; what has other names there is set by :mod:`.finish`.
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
from daskml_dist.losses import Loss

__all__ = ["check_exportable", "check_fitted_if_ours", "check_is_estimator", "to_sklearn"]

_PACKAGE = "daskml_dist"
#: Attributes that tell of the fit, or serve Dask collections alone.
_OWN = {"history_", "_drawn_rows", "_feature_dtypes", "_first_row"}
_REMEDY = (
    "Export the parts of the model that have one, keep this one in Python (pickle it), or apply it "
    "before the exported model."
)


@suggest_arguments
def to_sklearn(estimator: Any) -> Any:
    """Return scikit-learn's own estimator that answers as a fitted one of this package does.

    What it returns needs neither this package nor Dask: pickle it, convert it, or give it to
    whatever takes scikit-learn's. Of a pipeline, a ``ColumnTransformer`` or a search of
    scikit-learn's, all parts that are of this package become scikit-learn's; other parts are kept.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator or transformer of this package, or one of scikit-learn's that is made of
        such. It is left as it is.

    Returns
    -------
    estimator
        Fitted; shares no memory with the first. Parameters of fitting that scikit-learn's does not
        have, or values that it does not take, are left at its defaults.

    Raises
    ------
    ExportError
        scikit-learn has no such estimator, or the installed version's has other inner parts than
        are known here.
    NotFittedError
        The estimator is not fitted.

    Notes
    -----
    Predictions are equal to rounding, those of trees and boosting to the bit, with one exception:
    scikit-learn's trees and forests (not its boosting) round rows to float32, so a float64 row
    within such rounding of a threshold may go to its other side.

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
    return _Converter().of(estimator)


def check_exportable(estimator: Any) -> None:
    """Check that an object is an estimator and, of this package, that it is fitted."""
    check_is_estimator(estimator)
    check_fitted_if_ours(estimator, "export")


def check_is_estimator(estimator: Any) -> None:
    """Check that an object is an estimator, and no class of them."""
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        kind = type(estimator).__name__
        raise ExportError(
            f"{kind} is no estimator."
            f"{suggest_nearest(estimator, ())} Pass a fitted estimator, transformer "
            "or pipeline."
        )


def check_fitted_if_ours(estimator: Any, what: str) -> None:
    """Check that an estimator of this package is fitted before one does something with it."""
    if _is_ours(estimator) and not is_fitted(estimator):
        raise NotFittedError(
            f"This {type(estimator).__name__} is not fitted yet, so there is nothing to {what}. "
            "Call fit first."
        )


class _Converter:
    """Way from estimators, and what holds some, to twins; what is met twice is made once."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.kept: list[Any] = []  # so that no number of an object is given again

    def of(self, value: Any) -> Any:
        """The value with scikit-learn's in place of ours; a copy."""
        if id(value) not in self.made:
            self.kept.append(value)
            self.made[id(value)] = self._made(value)
        return self.made[id(value)]

    def _made(self, value: Any) -> Any:
        if hasattr(value, "get_params") and not inspect.isclass(value):
            return self._twin(value) if _is_ours(value) else self._copied(value)
        if type(value) in (list, tuple):
            return type(value)(self.of(one) for one in value)
        if isinstance(value, dict):
            found = copy.copy(value)
            for name, one in value.items():
                found[name] = self.of(one)
            return found
        if type(value).__module__.startswith("sklearn.") and hasattr(value, "__dict__"):
            return self._copied(value)  # scorers hold estimators too
        return copy.deepcopy(value)

    def _copied(self, thing: Any) -> Any:
        """Return a copy of an estimator of another package, with all that it holds."""
        found = copy.copy(thing)
        for name, value in vars(thing).items():
            vars(found)[name] = self.of(value)
        return found

    def _twin(self, estimator: Any) -> Any:
        from daskml_dist.inference.export.sklearn_parts import find_stand_in, finish

        _check_exact(estimator)
        if (inner := find_stand_in(estimator)) is not None:
            return self.of(inner)
        kind = _find_sklearn_class(estimator)
        twin = kind(**self._params(estimator, kind))
        if not is_fitted(estimator):
            return twin
        params = estimator.get_params(deep=False)
        inherits = isinstance(estimator, kind)
        for name, value in vars(estimator).items():
            fitted = inherits or (name.endswith("_") and not name.startswith("_"))
            fitted |= name == "_sklearn_output_config"
            if fitted and name not in params and name not in _OWN and not is_dask(value):
                if not isinstance(inspect.getattr_static(kind, name, None), property):
                    setattr(twin, name, self.of(value))
        finish(estimator, twin)
        return twin

    def _params(self, estimator: Any, kind: type) -> dict[str, Any]:
        """Return the parameters that scikit-learn's class has and accepts."""
        from daskml_dist.inference.export.sklearn_parts import find_loss_name

        known = inspect.signature(kind).parameters
        given = estimator.get_params(deep=False)
        if isinstance(loss := given.get("loss"), Loss):
            given |= {"loss": find_loss_name(loss)} | {
                n: v for n, v in vars(loss).items() if n in given
            }
        found = {name: self.of(value) for name, value in given.items() if name in known}
        return {
            name: value for name, value in found.items() if _accepts_parameter(kind, name, value)
        }


def _is_ours(value: Any) -> bool:
    return any(_is_of_package(kind) for kind in type(value).__mro__)


def _is_of_package(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _PACKAGE


def _check_exact(estimator: Any) -> None:
    """Check that an estimator's class is the package's own: another's may answer otherwise."""
    kind = type(estimator)
    if not _is_of_package(kind):
        base = next(one for one in kind.__mro__ if _is_of_package(one))
        raise ExportError(
            f"{kind.__name__} is a class of your own, and may answer otherwise than {base.__name__}"
            f" does. Give it a method to_sklearn, or export an estimator of {base.__name__}."
        )


def _find_sklearn_class(estimator: Any) -> type:
    """Return the class of scikit-learn that answers as an estimator of this package does."""
    from daskml_dist.inference.export.sklearn_parts import OTHER_KINDS

    name = type(estimator).__name__
    for kind in type(estimator).__mro__:
        if kind.__name__ == name and kind.__module__.startswith("sklearn."):
            return kind
    room = type(estimator).__module__.split(".")[1]
    if name in OTHER_KINDS:
        room, name = OTHER_KINDS[name](estimator) or (room, name)
    try:
        found = getattr(importlib.import_module(f"sklearn.{room}"), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"scikit-learn has no {name}, so there is no twin of it. {_REMEDY}"
        ) from error
    assert isinstance(found, type)
    return found


def _accepts_parameter(kind: type, name: str, value: Any) -> bool:
    """Return whether a parameter of the twin's may have a value."""
    from daskml_dist.sklearn_internals import SklearnParameterError, validate_parameter_constraints

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
