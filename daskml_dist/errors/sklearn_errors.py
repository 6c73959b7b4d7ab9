"""Errors that scikit-learn raises, told as errors of the package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from numpy.exceptions import DTypePromotionError
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from daskml_dist.errors import (
    DaskMLDistError,
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    NotFittedError,
)
from daskml_dist.errors.remedies import with_remedy
from daskml_dist.errors.signatures import is_of_the_call, names_of, wrong_arguments
from daskml_dist.sklearn_internals import SklearnParameterError

__all__ = [
    "TranslatesSklearnErrors",
    "check_fitted",
    "checked_as_theirs",
    "not_fitted",
    "telling_errors",
]

#: Packages whose plain errors are told; those of a user's own functions stay as they are.
_OWN = {"sklearn", "daskml_dist"}
#: Libraries that these call: what one of them raises is told of by whoever called it.
_CALLED = {"joblib", "numpy", "pandas", "scipy"}
#: Errors about values that say no more by their class.
_PLAIN = (ValueError, TypeError, DTypePromotionError)
#: Classes that have what is the same of all estimators.
_ROOTS = frozenset(BaseEstimator.__mro__)
#: Methods that answer few rows in microseconds, of which a wrapper would take a share.
_SWIFT = {"predict", "predict_proba", "predict_log_proba", "decision_function", "transform"}
#: Methods that are given parameters alone.
_OF_PARAMETERS = {"__init__", "set_params"}


def not_fitted(estimator: Any) -> NotFittedError:
    """The error of an estimator that is not fitted."""
    return NotFittedError(
        f"This {type(estimator).__name__} instance is not fitted yet. Call 'fit' with "
        "appropriate arguments before using this estimator."
    )


def check_fitted(estimator: Any) -> None:
    """Check that an estimator is fitted."""
    try:
        check_is_fitted(estimator)
    except SklearnNotFittedError as error:
        raise NotFittedError(str(error)) from error


def _told(error: Exception, kind: type[DaskMLDistError]) -> DaskMLDistError:
    """An error about values as one of the package, in the same words and with the remedy."""
    if isinstance(error, SklearnParameterError):
        kind = InvalidParameterError
    elif isinstance(error, TypeError):
        kind = InvalidTypeError
    return kind(with_remedy(str(error)))


def _ours(
    error: Exception, owner: Any = None, kind: type[DaskMLDistError] = InvalidDataError
) -> DaskMLDistError | None:
    """The error of the package for one of scikit-learn's; None: it stays what it is.

    `owner` is the estimator whose method raised it: one that asked for what a fit sets.
    """
    if isinstance(error, DaskMLDistError):
        return None
    if isinstance(error, SklearnNotFittedError):
        return NotFittedError(str(error))
    if isinstance(error, AttributeError):
        asked = error.obj is owner and (error.name or "").endswith("_") and owner is not None
        return not_fitted(owner) if asked else None
    # Others that derive from these say more than they do: UnicodeDecodeError, for one.
    plain = type(error) in _PLAIN or isinstance(error, SklearnParameterError)
    return _told(error, kind) if plain and _raised_by(error) in _OWN else None


def _raised_by(error: Exception) -> str:
    """Package of the innermost function that an error comes from, but for called libraries."""
    found, at = "", error.__traceback__
    while at is not None:
        package = at.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        found, at = found if package in _CALLED else package, at.tb_next
    return found


@contextmanager
def telling_errors() -> Iterator[None]:
    """Calls of scikit-learn's functions, whose errors are the package's; a decorator too."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if (found := _ours(error)) is None:
            raise
        raise found from error


class TranslatesSklearnErrors:
    """Mixin of classes before scikit-learn's own: what their methods raise is the package's.

    Meant are public methods that scikit-learn's classes have too, inherited or not. Of others, but
    for the swift ones, calls with arguments that they do not have are told.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        theirs = [kind for kind in cls.__mro__ if kind.__module__.startswith("sklearn.")]
        names = {name for kind in theirs if kind not in _ROOTS for name in vars(kind)}
        for name in names | {"set_params"}:
            if not name.startswith("_") or name in _OF_PARAMETERS:
                _let_tell(cls, name)
        own = [cls, *(kind for kind in cls.__mro__ if _is_mixin(kind))]
        for name, method in [item for kind in own for item in vars(kind).items()]:
            if inspect.isfunction(method) and not (name.startswith("_") or name in _SWIFT):
                if inspect.getattr_static(cls, name) is method:
                    _let_tell_calls(cls, name, method)


def _is_mixin(kind: type) -> bool:
    """Return whether a class is of this package, and tells no errors itself."""
    return kind.__module__.partition(".")[0] == "daskml_dist" and not issubclass(
        kind, TranslatesSklearnErrors
    )


def _let_tell_calls(cls: type, name: str, method: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(method) or hasattr(method, "_tells"):
        return

    @wraps(method)
    def told(self: Any, *args: Any, **params: Any) -> Any:
        try:
            return method(self, *args, **params)
        except TypeError as error:
            if not is_of_the_call(error):
                raise
            raise _of_arguments(self, name, method, args, params) from None

    setattr(cls, name, told)


def _of_arguments(
    owner: Any, name: str, method: Callable[..., Any], args: tuple[Any, ...], params: dict[str, Any]
) -> InvalidTypeError:
    """The error of a call with arguments that a method does not have."""
    kind: Any = type(owner)  # of which mypy thinks that it has no hash
    called = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
    constructor = kind.__name__, names_of(kind) or ()
    return wrong_arguments(called, method, (owner, *args), params, constructor)


def _let_tell(cls: type, name: str) -> None:
    found = inspect.getattr_static(cls, name, None)
    method = found.fn if (is_conditional := hasattr(found, "check")) else found
    if not inspect.isfunction(method) or hasattr(method, "_tells"):
        return
    if inspect.isgeneratorfunction(method):
        return  # it raises where it is gone through
    told = _telling(cls, name, method)
    setattr(cls, name, available_if(found.check)(told) if is_conditional else told)


def _telling(cls: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    kind = InvalidParameterError if name in _OF_PARAMETERS else InvalidDataError
    is_own = name in vars(cls)

    @wraps(method)
    def told(self: Any, *args: Any, **params: Any) -> Any:
        try:
            if is_own:
                return method(self, *args, **params)
            # Of a class that derives from this one, too, whichever comes next.
            return getattr(super(cls, self), name)(*args, **params)
        except (ValueError, TypeError, AttributeError) as error:
            if is_of_the_call(error):
                raise _of_arguments(self, name, method, args, params) from None
            if (found := _ours(error, self, kind)) is None:
                raise
            raise found from error

    told._tells = True  # type: ignore[attr-defined]
    return told


@contextmanager
def checked_as_theirs() -> Iterator[None]:
    """Checks of parameters that scikit-learn makes, with errors of the package."""
    try:
        yield
    except DaskMLDistError:
        raise
    except SklearnNotFittedError as error:
        raise NotFittedError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(with_remedy(str(error))) from error
