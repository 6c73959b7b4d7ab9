"""Blocks of words or dates where Dask was told numbers: the error is about the meta."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like
from scipy import sparse

from daskml_dist.data.conversion import numbers_of_objects, to_host, where
from daskml_dist.data.lazy import is_dask, is_of_delayed
from daskml_dist.data.unread import NOT_AS_TOLD
from daskml_dist.errors import InvalidDataError

__all__ = ["ToldNumbers", "call_as_told", "told_numbers"]


@dataclass(frozen=True)
class ToldNumbers:
    """Numbers that Dask was told of a collection, by its meta. Picklable and small.

    Parameters
    ----------
    name : str
        Of the argument: "X", "y", ...
    dtype : str
        What Dask was told, for the message.
    others : tuple of str
        Columns of a dataframe that Dask was told to be no numbers.
    """

    name: str
    dtype: str
    others: tuple[Any, ...] = ()

    def check_block(self, block: Any, index: int | None) -> None:
        """Raise `InvalidDataError` where a block holds no numbers, though Dask was told some."""
        if is_dataframe_like(block):
            frame = numbers_of_objects(block)
            dtypes = zip(frame.columns, frame.dtypes, strict=True)
            wrong = {n: t for n, t in dtypes if n not in self.others and t.kind not in "biufc"}
            if wrong:
                found = f"columns {list(wrong)} of dtype {', '.join(map(str, wrong.values()))}"
                self._refuse(found, index)
        elif not _are_numbers(block):
            self._refuse(f"values of dtype {np.asarray(block).dtype}", index)

    def _refuse(self, found: str, index: int | None) -> None:
        raise InvalidDataError(
            f"{where(index)}{self.name} has {found}, and Dask was told {self.dtype}. {NOT_AS_TOLD}"
        )


def told_numbers(values: Any, name: str) -> ToldNumbers | None:
    """Return what Dask was told of the numbers of a collection; None where it was told of none."""
    if not is_dask(values) or (isinstance(values, da.Array) and is_of_delayed(values)):
        return None
    if is_dataframe_like(values):
        dtypes = zip(values.columns, values.dtypes, strict=True)
        others = tuple(column for column, dtype in dtypes if dtype.kind not in "biufc")
        return ToldNumbers(name, "numbers", others) if len(others) < values.shape[1] else None
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "kind", "O") not in "biufc":
        return None
    return ToldNumbers(name, str(dtype))


def call_as_told(
    told: Sequence[ToldNumbers | None],
    blocks: Sequence[Any],
    index: int | None,
    function: Callable[[], Any],
) -> Any:
    """Return the result of a function of blocks; where it fails, tell of one that broke its meta.

    Only a failure looks at the blocks: words may be what the function takes, and a look has a cost.
    """
    try:
        return function()
    except Exception:
        for one, block in zip(told, blocks, strict=True):
            if one is not None and block is not None:
                one.check_block(block, index)
        raise


def _are_numbers(block: Any) -> bool:
    """Return whether a block of an array or series holds numbers, or objects that are numbers."""
    block = to_host(block)
    # A nullable series has numbers by its dtype, and becomes objects where some are missing.
    if sparse.issparse(block) or getattr(getattr(block, "dtype", None), "kind", "O") in "biufc":
        return True
    values = np.asarray(block)
    if values.dtype.kind in "biufc" or not values.size:
        return True
    if values.dtype.kind not in "OUT":
        return False
    try:
        values.astype("float64")
    except (TypeError, ValueError):
        return False
    return True
