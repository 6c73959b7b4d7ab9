"""Errors of blocks that cannot be read, or that contradict their Dask metadata.

The error names the block that cannot be read. If a block holds words or dates where Dask's metadata
declares numbers, the error is about the collection's meta, which the user must correct.
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

#: Attribute that marks errors not caused by reading rows.
_OWN_ERROR_MARK = "_not_of_the_rows"
#: Remedy for a block that differs from its collection's metadata.
META_MISMATCH_REMEDY = (
    "The columns or dtypes of the block are not those that Dask was told (its meta), in a "
    "collection's .columns and .dtypes. Make the function that makes the block return these, or "
    "tell Dask the right ones: meta=..., or dtype= where files are read."
)


def make_unread_error(blocks: Iterable[tuple[Any, ...]], error: Exception) -> InvalidDataError:
    """Return the error for rows that could not be read; it names the block.

    Blocks are read again, one after the other, until one fails.
    """
    # A task that only returns True fails only if computing its arguments fails.
    touch, unread = delayed(_touch_parts, pure=False), "Rows"
    for number, parts in enumerate(blocks):
        try:
            compute(touch(*parts))
        except Exception as block_error:
            # The first block that cannot be read is reported; many others may fail too.
            unread, error = f"Block {number}", block_error
            break
    return make_reading_error(unread, error)


def make_reading_error(subject: str, error: BaseException, task: str = "") -> InvalidDataError:
    """Return the error for rows whose computation raised, with the remedy for its kind."""
    message = f"{subject} could not be read: {task and f'{task} raised '}{error!r}. "
    # Dask compares some blocks with the declared metadata (`meta`); pandas reports missing columns.
    if "etadata" in str(error) or (isinstance(error, KeyError) and "not in index" in str(error)):
        return InvalidDataError(f"{message}{META_MISMATCH_REMEDY}")
    # Rows in memory are read without distributed, which takes a while to import.
    from daskml_dist.dask_internals.cluster import is_unread_graph

    if isinstance(error, ImportError) or is_unread_graph(error):
        return InvalidDataError(
            f"{message}A module is missing, or has another version, on the scheduler or on a "
            "worker: this package, or one that makes the rows. Install the same packages there as "
            "here."
        )
    if isinstance(error, TypeError) and "list indices" in str(error):
        return InvalidDataError(
            f"{message}A block of the Dask Array is a list, which Dask cannot slice. Convert the "
            "blocks to arrays first: X.map_blocks(numpy.asarray)."
        )
    return InvalidDataError(f"{message}Repair or leave out the file or the task that makes it.")


def _touch_parts(*parts: Any) -> bool:
    """Return True, as a task that fails only if its arguments fail."""
    return True


@contextmanager
def name_blocks_in_errors(blocks: Iterable[tuple[Any, ...]]) -> Iterator[None]:
    """Make errors of reading rows name their block, while a computation over blocks runs.

    Errors of the package, of Dask, and errors marked by :func:`mark_own_errors` are not changed.
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
    """Return a function's result; mark an error that it raises as not caused by reading rows."""
    try:
        return function(*args)
    except Exception as error:
        with suppress(AttributeError):
            setattr(error, _OWN_ERROR_MARK, True)
        raise


@dataclass(frozen=True)
class DeclaredNumbers:
    """Numbers declared by the meta of a Dask collection. Picklable and small.

    Parameters
    ----------
    name : str
        Of the argument: "X", "y", ...
    dtype : str
        Declared dtype, for the message.
    non_numeric_columns : tuple of str
        Columns of a dataframe that are declared as not numeric.
    """

    name: str
    dtype: str
    non_numeric_columns: tuple[Any, ...] = ()

    def check_block(self, block: Any, index: int | None) -> None:
        """Raise `InvalidDataError` if a block holds no numbers, though its meta declares some."""
        if is_dataframe_like(block):
            frame = convert_object_columns(block)
            dtypes = zip(frame.columns, frame.dtypes, strict=True)
            non_numeric = {
                n: t
                for n, t in dtypes
                if n not in self.non_numeric_columns and t.kind not in "biufc"
            }
            if non_numeric:
                description = (
                    f"columns {list(non_numeric)} of dtype "
                    f"{', '.join(map(str, non_numeric.values()))}"
                )
                self._refuse(description, index)
        elif not _holds_numbers(block):
            self._refuse(f"values of dtype {np.asarray(block).dtype}", index)

    def _refuse(self, description: str, index: int | None) -> None:
        """Raise the error for a block whose type differs from the declared one."""
        raise InvalidDataError(
            f"{describe_block(index)}{self.name} has {description}, but Dask expects {self.dtype}. "
            f"{META_MISMATCH_REMEDY}"
        )


def find_declared_numbers(values: Any, name: str) -> DeclaredNumbers | None:
    """Return the declared numbers of a collection; None if it declares none."""
    # Values in memory need no declaration, and delayed blocks have no dtype declared by the user.
    if not is_dask(values) or (isinstance(values, da.Array) and is_from_delayed(values)):
        return None
    if is_dataframe_like(values):
        dtypes = zip(values.columns, values.dtypes, strict=True)
        other_columns = tuple(column for column, dtype in dtypes if dtype.kind not in "biufc")
        return (
            DeclaredNumbers(name, "numbers", other_columns)
            if len(other_columns) < values.shape[1]
            else None
        )
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "kind", "O") not in "biufc":
        return None
    return DeclaredNumbers(name, str(dtype))


def call_on_declared_blocks(
    declared: Sequence[DeclaredNumbers | None],
    blocks: Sequence[Any],
    index: int | None,
    function: Callable[[], Any],
) -> Any:
    """Return a function's result; on failure, raise the error of a block that contradicts its meta.

    Blocks are examined only after a failure: the function may accept words, and the check has a
    cost.
    """
    try:
        return function()
    except Exception:
        for numbers, block in zip(declared, blocks, strict=True):
            if numbers is not None and block is not None:
                numbers.check_block(block, index)
        raise


def _holds_numbers(block: Any) -> bool:
    """Return whether a block of an array or series holds numbers, or objects that are numbers."""
    block = copy_to_host(block)
    # A nullable series has a numeric dtype, but becomes objects if values are missing.
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
