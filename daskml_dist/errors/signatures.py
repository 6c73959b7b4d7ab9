"""Signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cache, wraps
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

from daskml_dist.errors import InvalidTypeError
from daskml_dist.errors.suggestions import called_here, nearest

__all__ = [
    "ConstructorSignature",
    "NamedParameters",
    "check_names",
    "check_places",
    "is_of_the_call",
    "names_of",
    "telling_arguments",
    "wrong_arguments",
]


class ConstructorSignature:
    """Descriptor of ``__signature__`` that returns the parameters of the class's ``__init__``.

    A class with a general ``__new__(cls, *args, **params)`` needs it: documentation tools, IDEs and
    `inspect.signature` look at ``__new__`` first and would show ``(*args, **params)``.
    """

    def __get__(self, made: Any, kind: type) -> inspect.Signature | None:
        if made is not None:
            return None  # of an object that is called, as Python finds it
        if kind.__init__ is object.__init__:  # type: ignore[misc]
            return inspect.Signature()
        own = inspect.signature(kind.__init__)  # type: ignore[misc]
        without_self = list(own.parameters.values())[1:]
        return own.replace(parameters=without_self, return_annotation=inspect.Signature.empty)


class NamedParameters:
    """Base class of objects whose constructor says which parameter was meant by an unknown name.

    Raises
    ------
    InvalidTypeError
        A constructor has no parameter of a name; a TypeError too, as Python's own.
    """

    __signature__: ClassVar[Any] = ConstructorSignature()

    def __new__(cls, *args: Any, **params: Any) -> Self:
        check_names(cls, params)  # here, since signatures are those of each __init__
        if args:
            check_places(cls, args)
        if args and cls.__init__ is object.__init__:  # which leaves them to us
            raise InvalidTypeError(f"{cls.__name__}() has no parameters. Leave {args!r} out.")
        return super().__new__(cls)


def check_names(kind: type, params: Mapping[str, Any], hint: str = "") -> None:
    """Check that a constructor has the parameters that it is called with by name."""
    names = names_of(kind) if params else None
    name = None if names is None else next((name for name in params if name not in names), None)
    if names is None or name is None:
        return
    has = f" It has {', '.join(sorted(names))}." if names else " It has none."
    remedy = hint or called_here(name, names) or has
    raise InvalidTypeError(f"{kind.__name__}(): {name!r} is no parameter of it.{remedy}")


def check_places(kind: type, args: tuple[Any, ...]) -> None:
    """Check that a constructor takes as many arguments by their places."""
    most = _n_places(kind)
    if len(args) <= most:
        return
    raise InvalidTypeError(
        f"{kind.__name__}() takes {most or 'no'} argument{'s' * (most != 1)} by place, and "
        f"{len(args)} are given. Give the others by their names, such as "
        f"{kind.__name__}({_example(kind, most)}=...)."
    )


@cache
def _n_places(kind: type) -> float:
    """Arguments that a constructor takes by their places; infinity where it takes any."""
    if kind.__init__ is object.__init__:  # type: ignore[misc]
        return float("inf")  # which is told elsewhere
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return float("inf")
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _example(kind: type, most: float) -> str:
    """Name of the first parameter that has no place."""
    names = list(inspect.signature(kind.__init__).parameters)[1:]  # type: ignore[misc]
    return names[min(int(most), len(names) - 1)] if names else "name"


@cache
def names_of(kind: type) -> frozenset[str] | None:
    """Names of a constructor's parameters; None where it takes any."""
    if kind.__init__ is object.__init__:  # type: ignore[misc]
        return frozenset()
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


P = ParamSpec("P")
R = TypeVar("R")

#: What arguments of methods are called in other libraries, and in this package.
_OUR_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "eval_set": ("X_val",),
    "evals": ("eval_set", "X_val"),
    "valid_sets": ("eval_set", "X_val"),
    "validation_data": ("eval_set", "X_val"),
    "weight": ("sample_weight",),
    "weights": ("sample_weight",),
    "y_proba": ("y_prob", "y_score", "y_pred"),
}
#: Arguments of scikit-learn's functions that are gone, and what to call in their place.
_GONE = {"squared": "root_mean_squared_error is the function of the root."}


def is_of_the_call(error: BaseException) -> bool:
    """Return whether a TypeError was raised by the call in the frame that caught it.

    Then Python could not begin the function: it had no frame of its own.
    """
    return type(error) is TypeError and getattr(error.__traceback__, "tb_next", error) is None


def wrong_arguments(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    params: Mapping[str, Any],
    constructor: tuple[str, Collection[str]] = ("", ()),
) -> InvalidTypeError:
    """Return the error of a call that Python refused."""
    own = inspect.signature(function)
    # Without annotations, which are longer than what is to be told.
    shown = [p.replace(annotation=p.empty) for p in own.parameters.values() if p.name != "self"]
    names = [p.name for p in shown]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in shown)
    unknown = None if takes_any else next((key for key in params if key not in names), None)
    hint = ""
    if unknown is not None:
        said = f"got an unexpected keyword argument {unknown!r}"
        hint = _hint(unknown, names, *constructor)
    else:
        said = _refusal(own, args, params)
    return InvalidTypeError(f"{name}(): {said}.{hint} Its arguments are {_listed(shown)}.")


def telling_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make a public function tell which argument was meant by one that it does not have."""

    @wraps(function)
    def told(*args: P.args, **params: P.kwargs) -> R:
        try:
            return function(*args, **params)
        except TypeError as error:
            if not is_of_the_call(error):
                raise
            raise wrong_arguments(function.__name__, function, args, params) from None

    return told


def _refusal(signature: inspect.Signature, args: tuple[Any, ...], params: Mapping[str, Any]) -> str:
    """Return why a signature does not take some arguments."""
    try:
        signature.bind(*args, **params)
    except TypeError as error:
        return str(error)
    return "its arguments are others"


def _hint(unknown: str, names: Collection[str], owner: str, of_owner: Collection[str]) -> str:
    """Return what was meant by an argument that there is none of."""
    if unknown in _GONE:
        return f" {_GONE[unknown]}"
    here = next((other for other in _OUR_ARGUMENTS.get(unknown, ()) if other in names), None)
    if here is not None:
        return f" Here it is called {here!r}."
    if unknown in of_owner:
        return f" It is a parameter of the constructor: {owner}({unknown}=...)."
    of_constructor = called_here(unknown, of_owner)
    if "called" in of_constructor:
        return f"{of_constructor[:-1]}, a parameter of the constructor of {owner}."
    return nearest(unknown, names)


def _listed(parameters: list[inspect.Parameter]) -> str:
    return str(inspect.Signature(parameters))
