"""Classes that a solver's questions are made of, told by name in every process alike.

A name alone does not say whose class it is: notebooks of many users give their classes the same
names, and what is unpickled twice leaves empty classes of a known name behind. So a class counts
where its module has it under its name, or where the fit's own solver or model brought it along.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import reduce
from typing import Any

import cloudpickle

from daskml_dist.comm.packing import Kinds, kinds
from daskml_dist.losses import Loss
from daskml_dist.solvers import RowState, Statistic

__all__ = ["question_kinds"]

_BASES = (Statistic, RowState, Loss)


def question_kinds(*brought: Any) -> Kinds:
    """Classes by name: those of modules, and those that some objects bring along.

    Parameters
    ----------
    *brought : object
        A fit's solver and model, whose classes may be no module's.
    """
    of_modules = [kind for base in _BASES for kind in _derived(base) if _is_of_module(kind)]
    return kinds([*of_modules, *_brought_by(brought)])


def _derived(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _derived(kind)


def _is_of_module(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    found: Any = reduce(
        lambda at, name: getattr(at, name, None), kind.__qualname__.split("."), module
    )
    return found is kind


def _brought_by(objects: Any) -> list[type]:
    """Classes that travel with some objects, in the same order in every process."""
    finder = _Finder()
    finder.dump(objects)
    return finder.found


class _Finder(cloudpickle.Pickler):
    """Goes where pickling goes, without a copy of any array."""

    def __init__(self) -> None:
        super().__init__(self, protocol=5, buffer_callback=lambda _: None)
        self.found: list[type] = []

    def write(self, data: bytes) -> int:
        return len(data)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and issubclass(obj, _BASES):
            self.found.append(obj)
        return super().reducer_override(obj)
