"""A sample of the rows that a fit trains on, brought to the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.namespace import namespace
from daskml_dist.data.batches import LaneRows, LaneSpec
from daskml_dist.data.blocks import Block
from daskml_dist.data.conversion import to_host
from daskml_dist.training.engine import Engine

__all__ = ["sample_rows"]

#: Blocks that are read anew for a sample, where rows are streamed.
_BLOCKS = 8


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
        return Block(block.index, to_host(xp.take(rows, xp.asarray(at), axis=0)), y, weight)


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
    trained = _trained(lanes[:1] if columns else lanes, seed, held_out)
    numbers = sorted(trained)
    draw = np.random.default_rng((seed, n_rows))
    if engine.streaming is not None and len(numbers) > _BLOCKS:
        numbers = sorted(draw.choice(numbers, _BLOCKS, replace=False).tolist())
    sizes = [len(trained[i]) for i in numbers]
    chosen = np.arange(total := sum(sizes))
    if total > n_rows:
        chosen = np.sort(draw.choice(total, n_rows, replace=False, shuffle=False))
    parts = np.split(chosen, np.searchsorted(chosen, np.cumsum(sizes)[:-1]))
    starts = np.cumsum([0, *sizes[:-1]])
    places = {
        i: trained[i][part - start]
        for i, part, start in zip(numbers, parts, starts, strict=True)
        if len(part)
    }
    if not columns:
        return _joined(engine.look(_Taken(places), sorted(places)))
    parts_of = [_of_columns(engine, lane, places) for lane in lanes]
    return replace(parts_of[0], rows=_beside([part.rows for part in parts_of]))


def _of_columns(engine: Engine, lane: LaneSpec, places: dict[int, NDArray[np.intp]]) -> Block:
    """The rows' columns that a lane has."""
    own = {s.block: places[s.drawn] for s in lane.segments if s.drawn in places}
    return _joined(engine.look(_Taken(own), sorted(own)))


def _beside(parts: list[Any]) -> Any:
    dense = not any(sparse.issparse(X) for X in parts)
    return np.hstack(parts) if dense else sparse.hstack(parts, format="csr")


def _trained(lanes: Sequence[LaneSpec], seed: int, held_out: float) -> dict[int, Any]:
    """Places of the rows of each block that are trained on, sorted."""
    found: dict[int, list[Any]] = {}
    for lane in lanes:
        left_out = dict(LaneRows(lane, 1, seed, True, held_out).held_out)
        for segment in lane.segments:
            rows = np.arange(segment.start, segment.stop)
            if segment.block in left_out:
                rows = np.setdiff1d(rows, left_out[segment.block], assume_unique=True)
            found.setdefault(segment.drawn, []).append(rows)
    return {i: np.sort(np.concatenate(rows)) for i, rows in found.items() if sum(map(len, rows))}


def _joined(parts: list[Block]) -> Block:
    rows: list[Any] = [part.rows for part in parts]
    dense = not any(sparse.issparse(X) for X in rows)
    X = np.concatenate(rows) if dense else sparse.vstack(rows, format="csr")
    y, weight = (
        None if a[0] is None else np.concatenate(a)
        for a in ([p.y for p in parts], [p.sample_weight for p in parts])
    )
    return Block(0, X, y, weight)
