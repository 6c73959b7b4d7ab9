"""Errors of scikit-learn, translated to errors of the package with the same words and a remedy.

`translate_sklearn_errors` wraps the public methods of classes that derive from scikit-learn's;
`translate_errors` and `translate_parameter_errors` translate errors that are raised inside a block.

An error is translated only if scikit-learn or this package raised it (`_find_raising_package`): a
user's own function, such as a scorer, raises its own errors. The original one is its cause.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

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
from daskml_dist.errors.remedies import add_remedy
from daskml_dist.errors.signatures import (
    is_signature_error,
    list_parameter_names,
    make_argument_error,
)
from daskml_dist.sklearn_internals import SklearnParameterError

#: Packages whose plain errors are translated; errors of a user's own functions are not.
_TRANSLATED_PACKAGES = {"sklearn", "daskml_dist"}
#: Libraries that these call: an error counts as raised by the caller of the library.
_CALLED_PACKAGES = {"joblib", "numpy", "pandas", "scipy"}
#: Error classes that only report that a value is wrong.
_PLAIN_ERRORS = (ValueError, TypeError, DTypePromotionError)
#: Base classes of all estimators, whose methods are not wrapped.
_ROOT_CLASSES = frozenset(BaseEstimator.__mro__)
#: Methods that process few rows in microseconds, so that a wrapper would slow them noticeably.
_FAST_METHODS = {"predict", "predict_proba", "predict_log_proba", "decision_function", "transform"}
#: Attribute of classes whose methods translate errors, and of their subclasses.
_TRANSLATED = "_translates_sklearn_errors"
#: Methods whose errors are about parameters, not about data.
_PARAMETER_METHODS = {"__init__", "set_params"}


_Kind = TypeVar("_Kind", bound=type)


def make_not_fitted_error(estimator: Any) -> NotFittedError:
    """Return the error of an estimator that is not fitted."""
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


def _convert_value_error(error: Exception, kind: type[DaskMLDistError]) -> DaskMLDistError:
    """Return an error about values as one of the package, in the same words, with a remedy."""
    if isinstance(error, SklearnParameterError):
        kind = InvalidParameterError
    elif isinstance(error, TypeError):
        kind = InvalidTypeError
    return kind(add_remedy(str(error)))


def _convert_error(
    error: Exception, owner: Any = None, kind: type[DaskMLDistError] = InvalidDataError
) -> DaskMLDistError | None:
    """Return the error of the package for one of scikit-learn's; None if it is not translated.

    `owner` is the estimator whose method raised it: if a fitted attribute of it is missing, it is
    not fitted.
    """
    if isinstance(error, DaskMLDistError):
        return None
    if isinstance(error, SklearnNotFittedError):
        return NotFittedError(str(error))
    # Some methods of scikit-learn read a fitted attribute without a call of `check_is_fitted`.
    if isinstance(error, AttributeError):
        is_fitted_attribute = (
            error.obj is owner and (error.name or "").endswith("_") and owner is not None
        )
        return make_not_fitted_error(owner) if is_fitted_attribute else None
    # Classes derived from these, such as UnicodeDecodeError, are more specific and are not
    # translated.
    is_plain = type(error) in _PLAIN_ERRORS or isinstance(error, SklearnParameterError)
    return (
        _convert_value_error(error, kind)
        if is_plain and _find_raising_package(error) in _TRANSLATED_PACKAGES
        else None
    )


def _find_raising_package(error: Exception) -> str:
    """Return the package of the innermost function in the traceback, without called libraries."""
    raising, frame = "", error.__traceback__
    while frame is not None:
        package = frame.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        raising, frame = raising if package in _CALLED_PACKAGES else package, frame.tb_next
    return raising


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate errors of scikit-learn raised in a block; also usable as a decorator."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if (translated := _convert_error(error)) is None:
            raise
        raise translated from error


def translate_sklearn_errors(cls: _Kind) -> _Kind:
    """Make the public methods of a class raise errors of the package; a class decorator.

    A base class also calls it in ``__init_subclass__``, so that its subclasses are translated when
    they are defined. All errors of public methods that scikit-learn's classes also have are
    translated; for other methods, except the fast ones, only those of calls with unknown arguments.
    """
    sklearn_classes = [kind for kind in cls.__mro__ if kind.__module__.startswith("sklearn.")]
    names = {name for kind in sklearn_classes if kind not in _ROOT_CLASSES for name in vars(kind)}
    for name in names | {"set_params"}:
        if not name.startswith("_") or name in _PARAMETER_METHODS:
            _wrap_method_errors(cls, name)
    # Methods of plain mixins, which no call of this function has wrapped, are wrapped here.
    kinds = [cls, *(kind for kind in cls.__mro__ if _is_untranslated_mixin(kind))]
    for name, method in [item for kind in kinds for item in vars(kind).items()]:
        if inspect.isfunction(method) and not (name.startswith("_") or name in _FAST_METHODS):
            if inspect.getattr_static(cls, name) is method:
                _wrap_call_errors(cls, name, method)
    setattr(cls, _TRANSLATED, True)
    return cls


def _is_untranslated_mixin(kind: type) -> bool:
    """Return whether a class is of this package and not wrapped itself."""
    return kind.__module__.partition(".")[0] == "daskml_dist" and not hasattr(kind, _TRANSLATED)


def _wrap_call_errors(cls: type, name: str, method: Callable[..., Any]) -> None:
    """Make a method suggest an argument for one that it does not have."""
    if inspect.isgeneratorfunction(method) or hasattr(method, "_tells"):
        return

    @wraps(method)
    def wrapper(self: Any, *args: Any, **params: Any) -> Any:
        try:
            return method(self, *args, **params)
        except TypeError as error:
            if not is_signature_error(error):
                raise
            raise _make_call_error(self, name, method, args, params) from None
        except SklearnNotFittedError as error:  # of a part, such as a frozen estimator
            if isinstance(error, NotFittedError):
                raise
            raise NotFittedError(str(error)) from error

    setattr(cls, name, wrapper)


def _make_call_error(
    owner: Any, name: str, method: Callable[..., Any], args: tuple[Any, ...], params: dict[str, Any]
) -> InvalidTypeError:
    """Return the error of a call with arguments that a method does not have."""
    kind: Any = type(owner)  # of which mypy thinks that it has no hash
    call_name = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
    constructor = kind.__name__, list_parameter_names(kind) or ()
    return make_argument_error(call_name, method, (owner, *args), params, constructor)


def _wrap_method_errors(cls: type, name: str) -> None:
    """Make a method of a class translate all errors, if the class has such a method."""
    attribute = inspect.getattr_static(cls, name, None)
    # scikit-learn's `available_if` stores the function in `fn`, and its condition in `check`.
    method = attribute.fn if (is_conditional := hasattr(attribute, "check")) else attribute
    if not inspect.isfunction(method) or hasattr(method, "_tells"):
        return
    if inspect.isgeneratorfunction(method):
        return  # it raises when it is iterated over
    wrapper = _translate_method(cls, name, method)
    setattr(cls, name, available_if(attribute.check)(wrapper) if is_conditional else wrapper)


def _translate_method(cls: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `cls` that calls `method`, its own or an inherited one."""
    kind = InvalidParameterError if name in _PARAMETER_METHODS else InvalidDataError
    is_own = name in vars(cls)

    @wraps(method)
    def wrapper(self: Any, *args: Any, **params: Any) -> Any:
        try:
            if is_own:
                return method(self, *args, **params)
            # The next class in the MRO of the object, which may derive from `cls`.
            return getattr(super(cls, self), name)(*args, **params)
        except (ValueError, TypeError, AttributeError) as error:
            if is_signature_error(error):
                raise _make_call_error(self, name, method, args, params) from None
            if (translated := _convert_error(error, self, kind)) is None:
                raise
            raise translated from error

    wrapper._tells = True  # type: ignore[attr-defined]  # not wrapped again in a subclass
    return wrapper


@contextmanager
def translate_parameter_errors() -> Iterator[None]:
    """Translate errors of scikit-learn's checks of parameters that are raised in a block."""
    try:
        yield
    except DaskMLDistError:
        raise
    except SklearnNotFittedError as error:
        raise NotFittedError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(add_remedy(str(error))) from error
