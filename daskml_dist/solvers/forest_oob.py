"""Answers to rows by the trees of a forest that did not draw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.trees import Trees
from daskml_dist.solvers.forest_grow import Growing
from daskml_dist.solvers.forest_rows import ForestRows
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["out_of_bag"]

Array = NDArray[Any]


def out_of_bag(
    rows: OwnRows, rooms: Sequence[ForestRows], growing: Growing, trees: Trees
) -> dict[str, Array]:
    """Sums of answers, numbers of trees and targets of all rows, in their order.

    The first trainer alone gets them; the others get none.
    """
    keys = np.array([growing.keys(t)[0] for t in range(len(trees))], np.uint64)
    parts = rows.map(lambda room: _of_lane(room, keys, growing, trees), rooms)
    own = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    found = []
    for array in own:
        empty = array[:0]
        every = rows.deal([array, *[empty] * (rows.size - 1)]) if rows.size > 1 else [array]
        found.append(np.concatenate(every))
    numbers, sums, times, y = found
    order = np.argsort(numbers, kind="stable")
    return {"oob_sums": sums[order], "oob_times": times[order], "oob_y": y[order]}


def _of_lane(room: ForestRows, keys: Array, growing: Growing, trees: Trees) -> list[Array]:
    from daskml_dist.backends.forest_oob import add_out_of_bag

    nodes = trees.nodes
    sums = np.zeros((len(room.y), nodes.value.shape[1]))
    times = np.zeros(len(room.y), np.int64)
    add_out_of_bag(
        room.rows, room.numbers, keys, growing.table, trees.roots, nodes.feature, nodes.bin,
        nodes.left, nodes.missing_left, growing.bins.max_bins, nodes.value, sums, times,
    )  # fmt: skip
    return [room.numbers, sums, times, room.y]
