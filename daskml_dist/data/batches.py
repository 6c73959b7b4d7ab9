"""From a lane's rows to batches, reproducibly.

A lane owns segments (row ranges of blocks). Each pass visits its blocks in a new order, in groups
of up to :data:`GROUP` blocks whose rows are shuffled together, so that blocks which are sorted
(by label, by time) still give mixed batches while only one group need be in memory. The order
depends on (random_state, pass, block) alone, never on which worker runs the lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["GROUP", "LaneRows", "LaneSpec", "Segment", "held_out_rows", "pass_steps"]

#: Blocks whose rows are shuffled together.
GROUP = 8

Rows = NDArray[np.intp] | slice


@dataclass(frozen=True)
class Segment:
    """Rows ``start`` to ``stop`` of a block."""

    block: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class LaneSpec:
    """A logical worker of the maths: its number and its rows.

    Parameters
    ----------
    lane : int
    segments : tuple of Segment
    """

    lane: int
    segments: tuple[Segment, ...]

    @property
    def n_rows(self) -> int:
        """Rows of the lane, held-out ones included."""
        return sum(map(len, self.segments))


def held_out_rows(segment: Segment, fraction: float) -> int:
    """How many rows of a segment are kept for validation."""
    return min(round(len(segment) * fraction), max(len(segment) - 1, 0))


def pass_steps(lanes: list[LaneSpec], batch_size: int | None, fraction: float = 0.0) -> int:
    """Steps of a pass: all lanes make as many, lanes with fewer rows take smaller batches.

    Parameters
    ----------
    lanes : list of LaneSpec
    batch_size : int or None
        Rows of the largest lane's batches; None: all its rows.
    fraction : float
        Share of rows held out.
    """
    if batch_size is None:
        return 1
    largest = max(sum(len(s) - held_out_rows(s, fraction) for s in lane.segments) for lane in lanes)
    return max(1, -(-largest // batch_size))


class LaneRows:
    """The batches of one lane, as rows of blocks.

    Parameters
    ----------
    spec : LaneSpec
    n_steps : int
        Batches in a pass; batch s holds rows ``[s n / n_steps, (s + 1) n / n_steps)`` of the
        pass's order.
    seed : int
    shuffle : bool
    fraction : float
        Share of rows held out for validation.
    """

    def __init__(
        self, spec: LaneSpec, n_steps: int, seed: int, shuffle: bool, fraction: float = 0.0
    ) -> None:
        self._n_steps = n_steps
        self._seed = seed
        self._shuffle = shuffle
        self._train: list[tuple[Segment, NDArray[np.intp] | None]] = []
        self.held_out: list[tuple[int, NDArray[np.intp]]] = []
        for segment in spec.segments:
            kept = None
            count = held_out_rows(segment, fraction)
            if count:
                order = self._random(0, segment).permutation(len(segment)) + segment.start
                self.held_out.append((segment.block, np.sort(order[:count])))
                kept = np.sort(order[count:])
            self._train.append((segment, kept))
        self.n_rows = sum(
            len(segment) if kept is None else len(kept) for segment, kept in self._train
        )

    def _random(self, pass_: int, *segments: Segment) -> np.random.Generator:
        key = [self._seed, pass_]
        for segment in segments:
            key += [segment.block, segment.start]
        return np.random.default_rng(key)

    def _whole(self, segments: list[int]) -> Iterator[list[tuple[int, Rows]]]:
        """Each segment at once, in the order in which it lies."""
        for i in segments:
            segment, kept = self._train[i]
            yield [(segment.block, slice(segment.start, segment.stop) if kept is None else kept)]

    def batches(self, pass_: int, start: int = 0) -> Iterator[list[tuple[int, Rows]]]:
        """Batches of a pass (from 1), from step `start` on: lists of (block, rows)."""
        visit = [i for i, (segment, _) in enumerate(self._train) if len(segment)]
        if self._n_steps == 1:
            # A full batch needs no order; views of the blocks are enough.
            if start == 0:
                yield [piece for pieces in self._whole(visit) for piece in pieces]
            return
        if self._shuffle and len(visit) > GROUP:
            first = self._train[visit[0]][0]
            visit = [visit[i] for i in self._random(pass_, first).permutation(len(visit))]
        groups = [visit[i : i + GROUP] for i in range(0, len(visit), GROUP)]
        cuts = (np.arange(self._n_steps + 1) * self.n_rows) // self._n_steps
        done = 0
        step = 0
        open_batch: list[tuple[int, Rows]] = []
        for group in groups:
            size, take = self._group(pass_, group)
            while step < self._n_steps and cuts[step + 1] <= done + size:
                low = max(cuts[step] - done, 0)
                if step >= start:
                    yield open_batch + take(int(low), int(cuts[step + 1] - done))
                open_batch = []
                step += 1
            if step < self._n_steps and cuts[step] < done + size:
                open_batch = open_batch + take(int(max(cuts[step] - done, 0)), size)
            done += size
        for _ in range(max(step, start), self._n_steps):
            yield []

    def _group(self, pass_: int, group: list[int]) -> tuple[int, _Take]:
        members = [self._train[i] for i in group]
        sizes = [len(s) if kept is None else len(kept) for s, kept in members]
        order: NDArray[np.intp] | None = None
        if self._shuffle:
            order = self._random(pass_, *(s for s, _ in members)).permutation(sum(sizes))
        return sum(sizes), _Take(members, sizes, order)


class _Take:
    """Positions of a group's order, as rows of blocks."""

    def __init__(
        self,
        members: list[tuple[Segment, NDArray[np.intp] | None]],
        sizes: list[int],
        order: NDArray[np.intp] | None,
    ) -> None:
        self._members = members
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])
        self._order = order

    def __call__(self, low: int, high: int) -> list[tuple[int, Rows]]:
        if low >= high:
            return []
        if self._order is None:
            at = np.arange(low, high)
        else:
            at = self._order[low:high]
        if len(self._members) == 1:
            return [self._rows(0, at)]
        member = np.searchsorted(self._offsets, at, side="right") - 1
        return [self._rows(int(m), at[member == m] - self._offsets[m]) for m in np.unique(member)]

    def _rows(self, member: int, at: NDArray[np.intp]) -> tuple[int, Rows]:
        segment, kept = self._members[member]
        return segment.block, at + segment.start if kept is None else kept[at]
