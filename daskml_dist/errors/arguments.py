"""Errors of calls whose arguments a function or method does not have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from daskml_dist.errors import InvalidTypeError
from daskml_dist.errors.foreign import called_here
from daskml_dist.errors.nearest import nearest

__all__ = ["is_of_the_call", "telling_arguments", "wrong_arguments"]

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
