"""The root of the exception tree."""

from __future__ import annotations

from typing import Any


class DaskMLDistError(Exception):
    """Base of every error that the package raises."""

    __module__ = "daskml_dist.errors"  # where users know it from

    def __init_subclass__(cls, **more: Any) -> None:
        # Some built-in errors, such as OSError and its subclasses, have C fields of their own, and
        # only their `__new__` may make the object. Dask's unpickling calls `__new__`, and sends a
        # plain Exception where that fails. `__base__` is the base whose layout the class has.
        super().__init_subclass__(**more)
        layout_base: Any = cls.__base__
        while layout_base.__module__ != "builtins":
            layout_base = layout_base.__base__
        cls.__new__ = layout_base.__new__  # type: ignore[method-assign]
