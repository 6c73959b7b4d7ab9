"""Blocks that cannot be read: which one it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dask.base import compute
from dask.delayed import delayed

from daskml_dist.errors import DaskMLDistError, InvalidDataError

__all__ = ["NOT_AS_TOLD", "cannot_be_read", "marking_own", "naming_blocks", "unread"]

#: Attribute of errors that are not of the reading of rows.
_OWN = "_not_of_the_rows"
#: Remedy for a block that is not what its collection says.
NOT_AS_TOLD = (
    "The columns or dtypes of the block are not those that Dask was told (its meta), in a "
    "collection's .columns and .dtypes. Let the function that makes the block give these, or tell "
    "Dask the right ones: meta=..., or dtype= where files are read."
)


def unread(blocks: Iterable[tuple[Any, ...]], error: Exception) -> InvalidDataError:
    """Error of rows that could not be read: it names the block.

    Blocks are read once more, one after the other, up to the one that cannot be.

    Parameters
    ----------
    blocks : iterable of tuple
        The lazy parts of each.
    error : Exception
    """
    there, what = delayed(_is_there, pure=False), "Rows"
    for number, parts in enumerate(blocks):
        try:
            compute(there(*parts))
        except Exception as found:
            what, error = f"Block {number}", found
            break
    return cannot_be_read(what, error)


def cannot_be_read(what: str, error: BaseException, task: str = "") -> InvalidDataError:
    """Return the error of rows whose making raised, with the remedy for its kind.

    Parameters
    ----------
    what : str
        The block, or all rows.
    error : BaseException
    task : str, default=""
        Of Dask's that raised it, where that is known.
    """
    said = f"{what} could not be read: {task and f'{task} raised '}{error!r}. "
    # Dask checks some blocks against what it was told (`meta`), and pandas finds columns missing.
    if "etadata" in str(error) or (isinstance(error, KeyError) and "not in index" in str(error)):
        return InvalidDataError(f"{said}{NOT_AS_TOLD}")
    if isinstance(error, TypeError) and "list indices" in str(error):
        return InvalidDataError(
            f"{said}The block of a Dask Array is a list, of which Dask takes no part. Make arrays "
            "of all blocks first: X.map_blocks(numpy.asarray)."
        )
    return InvalidDataError(f"{said}Mend or leave out the file or the task that makes it.")


def _is_there(*parts: Any) -> bool:
    return True


@contextmanager
def naming_blocks(blocks: Iterable[tuple[Any, ...]]) -> Iterator[None]:
    """Context of a computation over blocks, whose errors of reading name the block.

    Errors of the package, of Dask, and those that :func:`marking_own` has marked stay as they are.
    """
    try:
        yield
    except DaskMLDistError:
        raise
    except Exception as error:
        if getattr(error, _OWN, False) or type(error).__module__.startswith("distributed"):
            raise
        raise unread(blocks, error) from error


def marking_own(function: Callable[..., Any], *args: Any) -> Any:
    """Result of a function of parts that were read; an error of its own is marked as such."""
    try:
        return function(*args)
    except Exception as error:
        with suppress(AttributeError):
            setattr(error, _OWN, True)
        raise
