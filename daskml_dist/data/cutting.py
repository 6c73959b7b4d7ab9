"""Alignment: inputs of the same rows, cut into blocks of the same rows."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from daskml_dist.data.computing import tried
from daskml_dist.data.conversion import to_host
from daskml_dist.data.lazy import is_dask, is_dask_frame
from daskml_dist.data.lowering import aligned_pieces
from daskml_dist.errors import InvalidDataError

__all__ = ["check_lengths", "cut"]


def _length(value: Any) -> int | None:
    """Rows of an input, None where it has none or Dask does not know."""
    if value is None or isinstance(value, float) or is_dask_frame(value):
        return None
    return None if np.isnan(value.shape[0]) else int(value.shape[0])


def check_lengths(inputs: dict[str, Any]) -> int | None:
    """Number of rows, where any input knows it."""
    known = {name: n for name, value in inputs.items() if (n := _length(value)) is not None}
    _check_alike(known)
    return next(iter(known.values()), None)


def _check_alike(lengths: dict[str, int]) -> None:
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise InvalidDataError(
            f"Found input variables with inconsistent numbers of samples: {told} rows. Pass "
            "the same rows in each, in the same order."
        )


def _known_chunks(value: Any) -> tuple[int, ...] | None:
    """Row chunks of a Dask Array, None where it does not know them."""
    chunks: tuple[int, ...] | None = value.chunks[0] if isinstance(value, da.Array) else None
    return None if chunks is None or np.isnan(chunks).any() else chunks


def _n_blocks(value: Any) -> int:
    return int(value.npartitions if is_dask_frame(value) else value.numblocks[0])


def _row_counts(inputs: dict[str, Any]) -> list[int] | None:
    """Rows of the blocks of the first lazy input, where an input with as many knows them."""
    lazy = [value for value in inputs.values() if is_dask(value)]
    known = [chunks for value in lazy if (chunks := _known_chunks(value)) is not None]
    n_blocks = _n_blocks(lazy[0])
    return next(([*map(int, c)] for c in known if len(c) == n_blocks), None)


def cut(inputs: dict[str, Any]) -> tuple[list[int] | None, list[tuple[Any, Any, Any]]]:
    """Cut inputs into blocks: lazy pieces of Dask collections, slices of the rest.

    Where there is something to slice, blocks of unknown sizes are counted, in one pass.
    """
    row_counts = _row_counts(inputs)
    lazy = {name: value for name, value in inputs.items() if is_dask(value)}
    if row_counts is not None:
        lazy = {name: _rechunk(value, tuple(row_counts)) for name, value in lazy.items()}
    scalars = [name for name, v in inputs.items() if v is None or isinstance(v, float)]
    here = [name for name in inputs if name not in lazy and name not in scalars]
    pieces: dict[str, list[Any]] = dict(aligned_pieces(lazy, here))
    first = next(iter(pieces))
    if here and row_counts is None:
        row_counts = _counted(pieces[first])
        _check_alike({first: sum(row_counts), **{name: _count(inputs[name]) for name in here}})
    pieces.update({name: [inputs[name]] * len(pieces[first]) for name in scalars})
    pieces.update({name: _slices(inputs[name], row_counts or []) for name in here})
    return row_counts, list(zip(*(pieces[name] for name in inputs), strict=True))


def _counted(pieces: list[Any]) -> list[int]:
    """Rows of each piece."""
    count = delayed(_count, pure=False)
    found: list[int] = tried(
        lambda _: delayed(list, pure=False)([count(piece) for piece in pieces])
    )
    return found


def _count(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def _rechunk(value: Any, row_counts: tuple[int, ...]) -> Any:
    chunks = _known_chunks(value)
    return value if chunks is None or chunks == row_counts else value.rechunk({0: row_counts})


def _slices(value: Any, row_counts: list[int]) -> list[Any]:
    value = to_host(value)  # which goes to the workers
    rows = value.iloc if hasattr(value, "iloc") else value
    stops = list(accumulate(row_counts))
    return [rows[stop - n : stop] for n, stop in zip(row_counts, stops, strict=True)]
