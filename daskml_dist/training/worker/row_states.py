"""Memory that statistics have of a lane's rows from one sum to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from daskml_dist.models.base import BatchRows
from daskml_dist.solvers import RowState

__all__ = ["RowStates"]


class RowStates:
    """Arrays of the rows of a lane, for as long as it is at work.

    Each is held with the number of the sum that left it; whatever a sum is not to find is made
    anew. So a lane that comes from another trainer, or has answered only some of the questions
    since a solver began again, needs nothing of those before.

    Parameters
    ----------
    most : int or None
        Bytes that are held at most; None: all.
    """

    def __init__(self, most: int | None) -> None:
        self._left = most
        self._held: dict[tuple[str, int, int], tuple[int, Any]] = {}

    @contextmanager
    def lent(
        self, state: RowState | None, left: int, number: int, model: Any, rows: BatchRows,
        backend: Any,
    ) -> Iterator[None]:  # fmt: skip
        """Let sum `number` have as ``rows.state`` what sum `left` left; hold what it leaves."""
        if state is None:
            yield
            return
        key = (state.name, rows.block, rows.first)
        # Not held while it is written: what is written half is nothing.
        found, array = self._held.pop(key, (0, None))
        self._free(array)
        if array is None or found != left:
            array = state.make(model, rows, backend)
        rows.state = array
        yield
        if self._left is None or array.nbytes <= self._left:
            self._held[key] = number, array
            self._left = None if self._left is None else self._left - array.nbytes

    def _free(self, array: Any | None) -> None:
        if self._left is not None and array is not None:
            self._left += array.nbytes
