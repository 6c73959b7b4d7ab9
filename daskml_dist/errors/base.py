"""The root of the exception tree."""

from __future__ import annotations

from typing import Any


class DaskMLDistError(Exception):
    """Base of every error that the package raises."""

    __module__ = "daskml_dist.errors"  # where users know it from

    def __init_subclass__(cls, **more: Any) -> None:
        # Of several built-in bases one has fields of its own, and only its `__new__` may make the
        # object: Dask's unpickling calls it, and sends a plain Exception where that fails.
        super().__init_subclass__(**more)
        made_by: Any = cls.__base__
        while made_by.__module__ != "builtins":
            made_by = made_by.__base__
        cls.__new__ = made_by.__new__  # type: ignore[method-assign]
