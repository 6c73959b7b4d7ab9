"""Errors of blocks that cannot be read, or that are not what Dask was told of them.

A block that cannot be read is named in the error. A block of words or dates where Dask was told
numbers gets an error about the collection's meta, which is what the user must mend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from dask.utils import is_dataframe_like
from scipy import sparse

from daskml_dist.data.conversion import convert_object_columns, copy_to_host, describe_block
from daskml_dist.data.lazy import is_dask, is_from_delayed
from daskml_dist.errors import DaskMLDistError, InvalidDataError

#: Attribute of errors that are not of the reading of rows.
_OWN_ERROR_MARK = "_not_of_the_rows"
#: Remedy for a block that is not what its collection says.
META_MISMATCH_REMEDY = (
    "The columns or dtypes of the block are not those that Dask was told (its meta), in a "
    "collection's .columns and .dtypes. Make the function that makes the block return these, or "
    "tell Dask the right ones: meta=..., or dtype= where files are read."
)


def make_unread_error(blocks: Iterable[tuple[Any, ...]], error: Exception) -> InvalidDataError:
    """Return the error of rows that could not be read, which names the block.

    Blocks are read once more, one after the other, up to the one that cannot be.
    """
    # A task that does nothing with the parts fails only where making them fails.
    there, what = delayed(_touch_parts, pure=False), "Rows"
    for number, parts in enumerate(blocks):
        try:
            compute(there(*parts))
        except Exception as found:
            # The first block that cannot be read explains most; others may be many.
            what, error = f"Block {number}", found
            break
    return make_reading_error(what, error)


def make_reading_error(what: str, error: BaseException, task: str = "") -> InvalidDataError:
    """Return the error of rows whose making raised, with the remedy for its kind."""
    said = f"{what} could not be read: {task and f'{task} raised '}{error!r}. "
    # Dask checks some blocks against what it was told (`meta`), and pandas finds columns missing.
    if "etadata" in str(error) or (isinstance(error, KeyError) and "not in index" in str(error)):
        return InvalidDataError(f"{said}{META_MISMATCH_REMEDY}")
    if isinstance(error, TypeError) and "list indices" in str(error):
        return InvalidDataError(
            f"{said}A block of the Dask Array is a list, which Dask cannot slice. Convert the "
            "blocks to arrays first: X.map_blocks(numpy.asarray)."
        )
    return InvalidDataError(f"{said}Repair or leave out the file or the task that makes it.")


def _touch_parts(*parts: Any) -> bool:
    """Return True, as a task that fails only where its arguments do."""
    return True


@contextmanager
def name_blocks_in_errors(blocks: Iterable[tuple[Any, ...]]) -> Iterator[None]:
    """Let errors of reading rows name their block, while a computation over blocks runs.

    Errors of the package, of Dask, and those that :func:`mark_own_errors` has marked stay as they
    are.
    """
    try:
        yield
    except DaskMLDistError:
        raise
    except Exception as error:
        if getattr(error, _OWN_ERROR_MARK, False) or type(error).__module__.startswith(
            "distributed"
        ):
            raise
        raise make_unread_error(blocks, error) from error


def mark_own_errors(function: Callable[..., Any], *args: Any) -> Any:
    """Return a function's result; an error that it raises is marked as none of reading the rows."""
    try:
        return function(*args)
    except Exception as error:
        with suppress(AttributeError):
            setattr(error, _OWN_ERROR_MARK, True)
        raise


@dataclass(frozen=True)
class DeclaredNumbers:
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
            frame = convert_object_columns(block)
            dtypes = zip(frame.columns, frame.dtypes, strict=True)
            wrong = {n: t for n, t in dtypes if n not in self.others and t.kind not in "biufc"}
            if wrong:
                found = f"columns {list(wrong)} of dtype {', '.join(map(str, wrong.values()))}"
                self._refuse(found, index)
        elif not _holds_numbers(block):
            self._refuse(f"values of dtype {np.asarray(block).dtype}", index)

    def _refuse(self, found: str, index: int | None) -> None:
        """Raise the error of a block that holds something else than Dask was told."""
        raise InvalidDataError(
            f"{describe_block(index)}{self.name} has {found}, but Dask expects {self.dtype}. "
            f"{META_MISMATCH_REMEDY}"
        )


def find_declared_numbers(values: Any, name: str) -> DeclaredNumbers | None:
    """Return what Dask was told of a collection's numbers; None where it was told of none."""
    # Values in memory are what they are; of delayed blocks nobody told Dask a dtype.
    if not is_dask(values) or (isinstance(values, da.Array) and is_from_delayed(values)):
        return None
    if is_dataframe_like(values):
        dtypes = zip(values.columns, values.dtypes, strict=True)
        others = tuple(column for column, dtype in dtypes if dtype.kind not in "biufc")
        return DeclaredNumbers(name, "numbers", others) if len(others) < values.shape[1] else None
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "kind", "O") not in "biufc":
        return None
    return DeclaredNumbers(name, str(dtype))


def call_on_declared_blocks(
    told: Sequence[DeclaredNumbers | None],
    blocks: Sequence[Any],
    index: int | None,
    function: Callable[[], Any],
) -> Any:
    """Return a function's result; where it fails, raise the error of a block that broke its meta.

    Only a failure looks at the blocks: words may be what the function takes, and a look has a cost.
    """
    try:
        return function()
    except Exception:
        for one, block in zip(told, blocks, strict=True):
            if one is not None and block is not None:
                one.check_block(block, index)
        raise


def _holds_numbers(block: Any) -> bool:
    """Return whether a block of an array or series holds numbers, or objects that are numbers."""
    block = copy_to_host(block)
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
