"""Blocks of arbitrary values, for functions that several processes run together.

`as_value_collection` converts the user's collections (Dask Arrays, dataframes, bags, lists of
delayed values, arrays and frames in memory) to a `ValueCollection`, whose parts become
`ValueBlock`s on the workers that hold them. The values are neither converted nor checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.sizeof import sizeof

from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import (
    Collection,
    check_equal_lengths,
    count_rows_of_block,
    cut_into_blocks,
    slice_rows,
)
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.errors import InvalidDataError, InvalidTypeError

#: Maximum lanes of blocks per worker thread; a worker that joins later can take over lanes.
LANES_PER_THREAD = 8
#: Placeholder row: every block counts as one row when work is shared out, since its cost is
#: unknown.
_ONE_ROW = np.empty((1, 0))


@dataclass(frozen=True, eq=False)
class ValueBlock(Block):
    """Values of one block, one from each collection.

    Parameters
    ----------
    values : tuple
        In the types of the user's collections.
    """

    values: tuple[Any, ...] = ()

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of all values, as estimated by Dask."""
        return sum(sizeof(value) for value in self.values)


def make_value_block(index: int, *values: Any, **_: Any) -> ValueBlock:
    """Return a block of unconverted values, as a block maker."""
    return ValueBlock(index, _ONE_ROW, values=values)


@dataclass(frozen=True, eq=False)
class ValueCollection(Collection):
    """Blocks of arbitrary values.

    Parameters
    ----------
    is_single : bool
        Whether the user gave a single collection instead of a list.
    """

    is_single: bool = False
    travels_in_parts = True
    has_timed_rows = False

    @property
    def block_maker(self) -> Any:
        """Return the function that makes a block of unconverted values."""
        return make_value_block

    @property
    def nbytes(self) -> list[float] | None:
        """Return None: the size of values is unknown before they are computed."""
        return None

    def cut(self, n_blocks: int) -> ValueCollection:
        """Return values in memory cut into blocks of neighbouring rows, nearly equal in number."""
        if not self.inputs:
            # A function without values: each block stands for a place where it runs.
            return replace(self, parts=[()] * (LANES_PER_THREAD * n_blocks))
        n_rows = count_rows_of_block(self.inputs[0])
        n_blocks = max(1, min(n_blocks, n_rows))
        counts = np.diff(np.arange(n_blocks + 1) * n_rows // n_blocks).tolist()
        columns = [slice_rows(value, counts) for value in self.inputs]
        return replace(self, parts=list(zip(*columns, strict=True)))


def as_value_collection(blocks: Any) -> ValueCollection:
    """Convert a collection, several of them, or None to blocks; nothing is computed.

    Parameters
    ----------
    blocks : Dask collection, array or frame in memory, list or tuple of these, or None
        The nth blocks of several collections belong together. A list of delayed values is one
        collection, with a block per value.

    Raises
    ------
    InvalidDataError
        There are no blocks, or the collections differ in their blocks or rows.
    InvalidTypeError
        A value has no blocks.
    """
    is_single = _is_one_collection(blocks)
    inputs = () if blocks is None else (blocks,) if is_single else tuple(blocks)
    if not is_single and blocks is not None and not inputs:
        raise InvalidDataError(
            "blocks is empty: there is nothing to run the function on. Give it a collection, or "
            "blocks=None to run it once on each worker without data."
        )
    for position, value in enumerate(inputs):
        _check_has_blocks(value, position)
    if any(map(_is_lazy, inputs)):
        parts = _cut_lazy(inputs)
        if not parts:
            raise InvalidDataError(
                "blocks has no partition: there is nothing to run the function on."
            )
        return _make_collection("dask", parts, inputs, is_single)
    counts = {count_rows_of_block(value) for value in inputs}
    if len(counts) > 1:
        raise InvalidDataError(
            f"The values in blocks have {sorted(counts)} rows, but they are split into blocks "
            "together. Give all the same number of rows."
        )
    if counts == {0}:
        raise InvalidDataError("blocks has no rows: there is nothing to run the function on.")
    return _make_collection("memory", [inputs], inputs, is_single)


def _make_collection(
    kind: Any, parts: list[tuple[Any, ...]], inputs: tuple[Any, ...], is_single: bool
) -> ValueCollection:
    """Return a collection of parts whose contents are unknown."""
    return ValueCollection(
        kind, parts, None, None, None, tensors=True, inputs=inputs, is_single=is_single
    )


def _is_one_collection(blocks: Any) -> bool:
    """Return whether a value is one collection rather than a list of several."""
    if isinstance(blocks, list | tuple):
        return bool(blocks) and all(isinstance(value, Delayed) for value in blocks)
    return blocks is not None


def _is_lazy(value: Any) -> bool:
    """Return whether blocks of a value are on workers."""
    return isinstance(value, list) or is_dask_collection(value)


def _has_lazy_rows(value: Any) -> bool:
    """Return whether a value is a Dask Array or dataframe, whose rows must be aligned."""
    return isinstance(value, da.Array) or is_dask_frame(value)


def _check_has_blocks(value: Any, position: int) -> None:
    """Raise `InvalidTypeError` for a value that cannot be cut into blocks."""
    is_list = isinstance(value, list | tuple) and all(isinstance(v, Delayed) for v in value)
    has_rows = hasattr(value, "shape") and len(value.shape) > 0 and hasattr(value, "__getitem__")
    if is_list or has_rows or hasattr(value, "to_delayed"):
        return
    raise InvalidTypeError(
        f"blocks[{position}] is {type(value).__name__!r}, which has no blocks of rows. Give Dask "
        "Arrays, dataframes, bags, lists of delayed values, or arrays and frames in memory. "
        "Pass values that every rank needs as state."
    )


def _cut_lazy(inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the nth blocks of all collections together, lazily."""
    named = {f"blocks[{i}]": value for i, value in enumerate(inputs)}
    # Arrays and frames have rows: like inputs of a fit, they are aligned, together with inputs in
    # memory.
    rows = {n: _join_columns(v) for n, v in named.items() if _has_lazy_rows(v) or not _is_lazy(v)}
    pieces: dict[str, list[Any]] = {}
    check_equal_lengths(rows)
    if any(map(_has_lazy_rows, rows.values())):
        _, parts = cut_into_blocks(rows)
        pieces.update(zip(rows, map(list, zip(*parts, strict=True)), strict=True))
        rows = {}
    for name, value in named.items():
        if name not in pieces and name not in rows:
            pieces[name] = list(value) if isinstance(value, list | tuple) else _delay(value)
    lengths = {name: len(value_blocks) for name, value_blocks in pieces.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidDataError(
            f"The collections in blocks have different numbers of blocks: {lengths}. Give them "
            "the same number: rechunk() an array, repartition() a dataframe or a bag."
        )
    n_blocks = next(iter(lengths.values()))
    for name, value in rows.items():  # beside bags and delayed values, which have no rows
        n_rows = count_rows_of_block(value)
        counts = np.diff(np.arange(n_blocks + 1) * n_rows // n_blocks).tolist()
        pieces[name] = slice_rows(value, counts)
    return list(zip(*(pieces[name] for name in named), strict=True))


def _join_columns(value: Any) -> Any:
    """Return an array whose chunks hold whole rows; any other value unchanged."""
    if isinstance(value, da.Array) and any(n > 1 for n in value.numblocks[1:]):
        return value.rechunk(dict.fromkeys(range(1, value.ndim), -1))
    return value


def _delay(value: Any) -> list[Any]:
    """Return the lazy blocks of a collection without rows, such as a bag."""
    if isinstance(value, Delayed):
        return [value]
    lazy_blocks: Sequence[Any] = np.ravel(np.asarray(value.to_delayed(), dtype=object)).tolist()
    return list(lazy_blocks)
