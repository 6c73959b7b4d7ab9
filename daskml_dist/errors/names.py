"""Constructors that are called with names of parameters which they do not have."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self

from daskml_dist.errors import InvalidTypeError
from daskml_dist.errors.foreign import called_here

__all__ = [
    "ConstructorSignature",
    "NamedParameters",
    "check_names",
    "check_places",
    "names_of",
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
