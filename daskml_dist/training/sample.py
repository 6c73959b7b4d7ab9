"""A sample of the rows that a fit trains on, brought to the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.namespace import namespace
from daskml_dist.data.batches import LaneRows, LaneSpec, Segment, count_held_out_rows
from daskml_dist.data.blocks import Block
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.training.engine import Engine

__all__ = ["sample_rows"]

#: Blocks that are read anew for a sample, where rows are streamed.
_BLOCKS = 8
#: Rows from which that is so where some are held out, since which ones is found out block by block.
_MANY = 1 << 22


@dataclass(frozen=True, eq=False)
class _Taken:
    """Picklable function that takes some rows of a block, by their places in it."""

    places: dict[int, NDArray[np.intp]]

    def __call__(self, block: Block) -> Block:
        at = self.places[block.index]
        y, weight = (None if a is None else a[at] for a in (block.y, block.sample_weight))
        rows = block.rows
        if sparse.issparse(rows):
            return Block(block.index, rows[at], y, weight)
        xp = namespace(rows)
        return Block(block.index, copy_to_host(xp.take(rows, xp.asarray(at), axis=0)), y, weight)


def sample_rows(
    engine: Engine, lanes: Sequence[LaneSpec], n_rows: int, seed: int, held_out: float
) -> Block:
    """Draw rows without replacement, none of those held out; all where there are no more.

    Which rows depends on the seed and the rows' places among all, never on who holds them. Of
    streamed rows those of a few blocks alone are drawn, so that not all are read again.

    Parameters
    ----------
    engine : Engine
    lanes : sequence of LaneSpec
    n_rows : int
    seed : int
        That of the fit, from which the rows held out follow.
    held_out : float
        Share of the rows of each block that is held out.

    Returns
    -------
    Block
        In the order of the rows.
    """
    columns = engine.columns is not None
    # Lanes of columns have the same rows.
    segments = _Segments(lanes[:1] if columns else lanes, seed, held_out)
    draw = np.random.default_rng((seed, n_rows))
    many = held_out > 0 and segments.n_rows > _MANY
    if engine.streaming is not None or many:
        segments.leave(_BLOCKS, draw)
    total = segments.n_rows
    chosen = np.arange(total)
    if total > n_rows:
        chosen = np.sort(draw.choice(total, n_rows, replace=False, shuffle=False))
    places = segments.places(chosen)
    if not columns:
        return _joined(engine.look(_Taken(places), sorted(places)))
    parts_of = [_of_columns(engine, lane, places) for lane in lanes]
    return replace(parts_of[0], rows=_beside([part.rows for part in parts_of]))


class _Segments:
    """Rows that lanes train on, in the order of the blocks; numbered without a list of them.

    Parameters
    ----------
    lanes : sequence of LaneSpec
    seed : int
    held_out : float
    """

    def __init__(self, lanes: Sequence[LaneSpec], seed: int, held_out: float) -> None:
        self._seed, self._held_out = seed, held_out
        every = [segment for lane in lanes for segment in lane.segments]
        self._all = sorted(every, key=lambda segment: (segment.drawn, segment.start))

    @property
    def _sizes(self) -> list[int]:
        return [len(s) - count_held_out_rows(s, self._held_out) for s in self._all]

    @property
    def n_rows(self) -> int:
        """Rows of all."""
        return sum(self._sizes)

    def leave(self, n_blocks: int, draw: np.random.Generator) -> None:
        """Keep the rows of some blocks alone."""
        numbers = sorted({segment.drawn for segment in self._all})
        if len(numbers) > n_blocks:
            kept = set(draw.choice(numbers, n_blocks, replace=False).tolist())
            self._all = [segment for segment in self._all if segment.drawn in kept]

    def places(self, chosen: NDArray[np.intp]) -> dict[int, NDArray[np.intp]]:
        """Places in their blocks of the rows of some numbers, which are sorted."""
        ends = np.cumsum(self._sizes)
        parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
        found: dict[int, list[NDArray[np.intp]]] = {}
        for segment, part, end, size in zip(self._all, parts, ends, self._sizes, strict=True):
            if len(part):
                at = self._rows(segment, part - (end - size))
                found.setdefault(segment.drawn, []).append(at)
        return {number: np.concatenate(rows) for number, rows in found.items()}

    def _rows(self, segment: Segment, at: NDArray[np.intp]) -> NDArray[np.intp]:
        if not count_held_out_rows(segment, self._held_out):
            return at + segment.start
        lane = LaneRows(LaneSpec(0, (segment,)), 1, self._seed, True, self._held_out)
        ((_, held),) = lane.held_out
        rows = np.arange(segment.start, segment.stop)
        return np.setdiff1d(rows, held, assume_unique=True)[at]


def _of_columns(engine: Engine, lane: LaneSpec, places: dict[int, NDArray[np.intp]]) -> Block:
    """The rows' columns that a lane has."""
    own = {s.block: places[s.drawn] for s in lane.segments if s.drawn in places}
    return _joined(engine.look(_Taken(own), sorted(own)))


def _beside(parts: list[Any]) -> Any:
    dense = not any(sparse.issparse(X) for X in parts)
    return np.hstack(parts) if dense else sparse.hstack(parts, format="csr")


def _joined(parts: list[Block]) -> Block:
    """The rows of blocks as one; no rows where there are no blocks."""
    if not parts:
        return Block(0, np.empty((0, 0)))
    rows: list[Any] = [part.rows for part in parts]
    dense = not any(sparse.issparse(X) for X in rows)
    X = np.concatenate(rows) if dense else sparse.vstack(rows, format="csr")
    return Block(0, X, _all_of([p.y for p in parts]), _all_of([p.sample_weight for p in parts]))


def _all_of(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)
