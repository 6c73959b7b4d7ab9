"""Sample of the rows that a fit trains on, drawn on the workers and brought to the client."""

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

__all__ = ["draw_sample_rows"]

#: Blocks that are read again for a sample, where rows are streamed.
_SAMPLED_BLOCKS = 8
#: Rows from which a few blocks are taken too where some rows are held out, since these must be
#: found block by block.
_FEW_BLOCKS_FROM = 1 << 22


@dataclass(frozen=True, eq=False)
class _TakeRows:
    """Picklable function that returns some rows of a block, by their positions in it."""

    places: dict[int, NDArray[np.intp]]

    def __call__(self, block: Block) -> Block:
        at = self.places[block.index]
        y, weight = (None if a is None else a[at] for a in (block.y, block.sample_weight))
        rows = block.rows
        if sparse.issparse(rows):
            return Block(block.index, rows[at], y, weight)
        xp = namespace(rows)
        return Block(block.index, copy_to_host(xp.take(rows, xp.asarray(at), axis=0)), y, weight)


def draw_sample_rows(
    engine: Engine, lanes: Sequence[LaneSpec], n_rows: int, seed: int, held_out: float
) -> Block:
    """Draw rows without replacement, none of them held out; all rows where there are no more.

    Which rows depends on the seed and the rows' places among all, never on who holds them. Of
    streamed rows those of a few blocks alone are drawn, so that not all are read again.
    """
    columns = engine.columns is not None
    # Lanes of columns have the same rows.
    # The order of the blocks, not of the lanes: the sample does not depend on placement.
    segments = _TrainingRows(lanes[:1] if columns else lanes, seed, held_out)
    draw = np.random.default_rng((seed, n_rows))
    many = held_out > 0 and segments.n_rows > _FEW_BLOCKS_FROM
    if engine.streaming is not None or many:
        segments.leave(_SAMPLED_BLOCKS, draw)
    # Draw numbers among all rows, then find the block and position of each.
    total = segments.n_rows
    chosen = np.arange(total)
    if total > n_rows:
        chosen = np.sort(draw.choice(total, n_rows, replace=False, shuffle=False))
    places = segments.places(chosen)
    if not columns:
        return _join_rows(engine.map_chosen_blocks(_TakeRows(places), sorted(places)))
    parts_of = [_take_columns(engine, lane, places) for lane in lanes]
    return replace(parts_of[0], rows=_join_columns([part.rows for part in parts_of]))


class _TrainingRows:
    """Numbering of the rows that lanes train on, in block order, without a list of them.

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
    def _segment_sizes(self) -> list[int]:
        """Return the number of training rows of each segment."""
        return [len(s) - count_held_out_rows(s, self._held_out) for s in self._all]

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return sum(self._segment_sizes)

    def leave(self, n_blocks: int, draw: np.random.Generator) -> None:
        """Keep the rows of some randomly drawn blocks only."""
        numbers = sorted({segment.drawn for segment in self._all})
        if len(numbers) > n_blocks:
            kept = set(draw.choice(numbers, n_blocks, replace=False).tolist())
            self._all = [segment for segment in self._all if segment.drawn in kept]

    def places(self, chosen: NDArray[np.intp]) -> dict[int, NDArray[np.intp]]:
        """Return, by block, the positions of rows given by their sorted numbers."""
        ends = np.cumsum(self._segment_sizes)
        parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
        found: dict[int, list[NDArray[np.intp]]] = {}
        for segment, part, end, size in zip(
            self._all, parts, ends, self._segment_sizes, strict=True
        ):
            if len(part):
                at = self._training_positions(segment, part - (end - size))
                found.setdefault(segment.drawn, []).append(at)
        return {number: np.concatenate(rows) for number, rows in found.items()}

    def _training_positions(self, segment: Segment, at: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return positions in the block of a segment's training rows."""
        if not count_held_out_rows(segment, self._held_out):
            return at + segment.start
        lane = LaneRows(LaneSpec(0, (segment,)), 1, self._seed, True, self._held_out)
        ((_, held),) = lane.held_out
        # Held-out rows are drawn from the seed, as in the fit, and skipped.
        rows = np.arange(segment.start, segment.stop)
        return np.setdiff1d(rows, held, assume_unique=True)[at]


def _take_columns(engine: Engine, lane: LaneSpec, places: dict[int, NDArray[np.intp]]) -> Block:
    """Return the columns that one lane holds, of the sampled rows."""
    own = {s.block: places[s.drawn] for s in lane.segments if s.drawn in places}
    return _join_rows(engine.map_chosen_blocks(_TakeRows(own), sorted(own)))


def _join_columns(parts: list[Any]) -> Any:
    """Join columns of the same rows."""
    dense = not any(sparse.issparse(X) for X in parts)
    return np.hstack(parts) if dense else sparse.hstack(parts, format="csr")


def _join_rows(parts: list[Block]) -> Block:
    """Join the rows of blocks into one block; an empty one where there are no blocks."""
    if not parts:
        return Block(0, np.empty((0, 0)))
    rows: list[Any] = [part.rows for part in parts]
    dense = not any(sparse.issparse(X) for X in rows)
    X = np.concatenate(rows) if dense else sparse.vstack(rows, format="csr")
    return Block(
        0,
        X,
        _concatenate_or_none([p.y for p in parts]),
        _concatenate_or_none([p.sample_weight for p in parts]),
    )


def _concatenate_or_none(parts: list[Any]) -> Any:
    """Concatenate arrays; None where blocks have none."""
    return None if parts[0] is None else np.concatenate(parts)
