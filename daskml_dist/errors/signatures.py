"""Errors of calls with arguments that a constructor, function or method does not have.

Estimators derive from `NamedParameters`, which checks the arguments of constructors; functions and
methods are wrapped, so that Python's own TypeError becomes an error that suggests the right name.
Calls with valid arguments pay nothing: a wrapper looks at the arguments only once Python has
refused them.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping
from functools import cache, wraps
from numbers import Real
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import numpy as np

from daskml_dist.errors import DaskMLDistError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.suggestions import suggest_nearest, suggest_parameter


class ConstructorSignature:
    """Descriptor of ``__signature__`` that returns the parameters of the class's ``__init__``.

    A class with a general ``__new__(cls, *args, **params)`` needs it: documentation tools, IDEs and
    `inspect.signature` look at ``__new__`` first and would show ``(*args, **params)``.
    """

    def __get__(self, instance: Any, kind: type) -> inspect.Signature | None:
        if instance is not None:
            return None  # of a callable object, whose signature Python finds itself
        return inspect.Signature(_list_parameters(kind) or ())


class NamedParameters:
    """Base class of objects whose constructor suggests a parameter for an unknown name.

    Raises
    ------
    InvalidTypeError
        A constructor has no parameter of a name; a TypeError too, as Python's own.
    """

    __signature__: ClassVar[Any] = ConstructorSignature()

    def __new__(cls, *args: Any, **params: Any) -> Self:
        # In `__new__`, which runs before `__init__` and is inherited: each class has its own
        # `__init__`, whose errors Python itself raises.
        check_parameter_names(cls, params)
        if args:
            check_n_positional(cls, args)
        # `object.__init__` ignores arguments if `__new__` is overridden, as it is here.
        if args and cls.__init__ is object.__init__:
            raise InvalidTypeError(f"{cls.__name__}() has no parameters. Leave {args!r} out.")
        return super().__new__(cls)


class _ParameterType(ABCMeta):
    """Metaclass of `ParameterObject`, which converts and checks what constructors are called with.

    Before `__init__`, which a dataclass generates, and which may be the user's own.
    """

    def __call__(cls, *args: Any, **params: Any) -> Any:
        args = tuple(map(_convert_number, args))
        params = {name: _convert_number(value) for name, value in params.items()}
        try:
            instance = super().__call__(*args, **params)
        except TypeError as error:
            if isinstance(error, DaskMLDistError):
                raise
            # Python refuses a call without a required argument, such as CSVLogger().
            if is_signature_error(error) and not inspect.isabstract(cls):
                name, init = cls.__name__, cls.__init__  # type: ignore[misc]
                raise make_argument_error(name, init, (None, *args), params) from None
            # Of a comparison, such as 0 <= "0.1", in the checks of a range.
            _check_kinds(cls, args, params, Real, "a number")
            raise
        _check_kinds(cls, args, params, bool, "True or False")
        return instance


class ParameterObject(NamedParameters, metaclass=_ParameterType):
    """Base class of objects that are passed as a parameter: policies, losses, callbacks, ...

    The values of a search often come from an array (``LocalSGD(k) for k in 2 ** np.arange(5)``).
    Constructors receive such scalars of NumPy as Python's numbers, so that they are checked, shown,
    compared and saved as these.

    Raises
    ------
    InvalidParameterError
        A parameter whose default is a number is no number, or one whose default is True or False is
        neither.
    """


def _convert_number(value: Any) -> Any:
    """Return a scalar of NumPy as a number of Python, and other values unchanged."""
    return value.item() if isinstance(value, np.number | np.bool_) else value


def _check_kinds(
    kind: type, args: tuple[Any, ...], params: Mapping[str, Any], expected_type: type, hint: str
) -> None:
    """Check that arguments in place of a default of a type (Real, bool) are of this type."""
    parameters = _list_parameters(kind) or ()
    values = dict(zip((p.name for p in parameters), args, strict=False)) | dict(params)
    for p in parameters:
        is_flag = isinstance(p.default, bool)
        # A bool is an int in Python, so a default of True is of both types.
        if (
            not isinstance(p.default, expected_type)
            or is_flag != (expected_type is bool)
            or p.name not in values
        ):
            continue
        if not isinstance(values[p.name], expected_type):
            raise InvalidParameterError(
                f"{kind.__name__}({p.name}={values[p.name]!r}): give {hint}, such as {p.default!r}."
            )


def find_changed_parameters(instance: Any) -> dict[str, Any]:
    """Return the parameters of an object that differ from their defaults, by name.

    Those that it does not keep as attributes are left out.
    """
    kind: type = type(instance)
    defaults = {p.name: p.default for p in _list_parameters(kind) or ()}
    values = {name: getattr(instance, name) for name in defaults if hasattr(instance, name)}
    # By repr, since values may not be checked yet: == of an array has no truth value.
    return {name: value for name, value in values.items() if repr(value) != repr(defaults[name])}


def describe_changes(instance: Any) -> str:
    """Return an object as the call that makes it, without parameters at their defaults."""
    settings = [f"{name}={value!r}" for name, value in find_changed_parameters(instance).items()]
    return f"{type(instance).__name__}({', '.join(settings)})"


def check_parameter_names(kind: type, params: Mapping[str, Any], hint: str = "") -> None:
    """Check that a constructor has the parameters that are passed to it by name."""
    names = list_parameter_names(kind) if params else None
    name = None if names is None else next((name for name in params if name not in names), None)
    if names is None or name is None:
        return
    listing = f" It has {', '.join(sorted(names))}." if names else " It has none."
    remedy = hint or suggest_parameter(name, names) or listing
    raise InvalidTypeError(f"{kind.__name__}(): {name!r} is not one of its parameters.{remedy}")


def check_n_positional(kind: type, args: tuple[Any, ...]) -> None:
    """Check that a constructor accepts the given number of positional arguments."""
    limit = _count_positional(kind)
    if len(args) <= limit:
        return
    # The example is the first parameter that cannot be positional.
    names = [p.name for p in _list_parameters(kind) or ()]
    example = names[min(int(limit), len(names) - 1)] if names else "name"
    raise InvalidTypeError(
        f"{kind.__name__}() takes {limit or 'no'} argument{'s' * (limit != 1)} by position, but "
        f"{len(args)} were given. Pass the others by name, such as "
        f"{kind.__name__}({example}=...)."
    )


@cache
def _list_parameters(kind: type) -> tuple[inspect.Parameter, ...] | None:
    """Return the parameters of a class's ``__init__`` without self; None if it has none."""
    if kind.__init__ is object.__init__:  # type: ignore[misc]
        return None
    return tuple(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]


@cache
def _count_positional(kind: type) -> float:
    """Return the number of positional arguments of a constructor; infinity if it accepts any."""
    parameters = _list_parameters(kind)
    if parameters is None or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return float("inf")
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


@cache
def list_parameter_names(kind: type) -> frozenset[str] | None:
    """Return the names of a constructor's parameters; None if it accepts any."""
    parameters = _list_parameters(kind) or ()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


P = ParamSpec("P")
R = TypeVar("R")

#: Names of methods' arguments in other libraries, and their names here.
_ARGUMENTS_OF_OTHERS: dict[str, tuple[str, ...]] = {
    "eval_set": ("X_val",),
    "evals": ("eval_set", "X_val"),
    "valid_sets": ("eval_set", "X_val"),
    "validation_data": ("eval_set", "X_val"),
    "weight": ("sample_weight",),
    "weights": ("sample_weight",),
    "y_proba": ("y_prob", "y_score", "y_pred"),
}
#: Arguments that scikit-learn's functions had in the past, and their replacements.
_REMOVED_ARGUMENTS = {"squared": "use root_mean_squared_error for the root."}


def is_signature_error(error: BaseException) -> bool:
    """Return whether a TypeError was raised by the call in the frame that caught it.

    Then Python refused the arguments: the traceback has no frame of the function itself.
    """
    return type(error) is TypeError and getattr(error.__traceback__, "tb_next", error) is None


def make_argument_error(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    params: Mapping[str, Any],
    constructor: tuple[str, Collection[str]] = ("", ()),
) -> InvalidTypeError:
    """Return the error of a call that Python refused."""
    signature = inspect.signature(function)
    # Without annotations, which would make the message several lines long.
    parameters = signature.parameters.values()
    shown_parameters = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    names = [p.name for p in shown_parameters]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in shown_parameters)
    unknown = None if takes_any else next((key for key in params if key not in names), None)
    hint = ""
    # The package's own words for an unknown name; for missing or too many arguments those of
    # `Signature.bind`.
    if unknown is not None:
        reason = f"got an unexpected keyword argument {unknown!r}"
        hint = _suggest_argument(unknown, names, *constructor)
    else:
        reason = "its arguments are others"
        try:
            signature.bind(*args, **params)
        except TypeError as error:
            reason = str(error)
    return InvalidTypeError(
        f"{name}(): {reason}.{hint} Its arguments are {inspect.Signature(shown_parameters)}."
    )


def suggest_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function to suggest an argument for one that it does not have."""

    @wraps(function)
    def wrapper(*args: P.args, **params: P.kwargs) -> R:
        try:
            return function(*args, **params)
        except TypeError as error:
            # A TypeError from within the function is about values, and is raised unchanged.
            if not is_signature_error(error):
                raise
            raise make_argument_error(function.__name__, function, args, params) from None

    return wrapper


def _suggest_argument(
    unknown: str, names: Collection[str], owner: str, of_owner: Collection[str]
) -> str:
    """Return a sentence that suggests the argument that was probably meant; or an empty one."""
    if unknown in _REMOVED_ARGUMENTS:
        return f" {_REMOVED_ARGUMENTS[unknown]}"
    own_name = next(
        (other for other in _ARGUMENTS_OF_OTHERS.get(unknown, ()) if other in names), None
    )
    if own_name is not None:
        return f" Here it is named {own_name!r}."
    # Arguments of fit in other libraries may be parameters of the constructor here.
    if unknown in of_owner:
        return f" It is a parameter of the constructor: {owner}({unknown}=...)."
    of_constructor = suggest_parameter(unknown, of_owner)
    if "named" in of_constructor:  # from the table of names, not a word that only looks alike
        return f"{of_constructor[:-1]}, a parameter of the constructor of {owner}."
    return suggest_nearest(unknown, names)
