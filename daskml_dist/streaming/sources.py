"""Sources of streams: what a batch of any of them is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.names import NamedParameters

__all__ = ["Batch", "in_columns"]


@dataclass(frozen=True, eq=False)
class Batch(NamedParameters):
    """Rows of a source, and where in it they are.

    Parameters
    ----------
    X, y : as in :meth:`Session.learn`
    position : number, str, list or dict
        Of :meth:`Session.learn`.
    """

    X: Any
    y: Any
    position: Any


def in_columns(target: str) -> Callable[[Any, str], tuple[Any, Any]]:
    """Function that takes a target from a dataframe, which is of a source of some name."""

    def cut(frame: Any, source: str) -> tuple[Any, Any]:
        if target not in frame.columns:
            raise InvalidDataError(
                f"{source} has no column {target!r}; its columns are {list(frame.columns)[:20]}. "
                "Name the target's: target=..."
            )
        return frame.drop(columns=target), frame[target]

    return cut
