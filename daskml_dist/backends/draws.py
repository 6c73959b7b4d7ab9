"""What a lane draws for its batches, for code that reads rows where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draw", "flat_runs"]

#: A batch's runs of neighbouring rows, by block: its number, their first rows, and their lengths.
Draw = Sequence[tuple[int, NDArray[np.integer[Any]], NDArray[np.integer[Any]]]]


def flat_runs(batches: Sequence[Draw], places: Mapping[int, int]) -> NDArray[np.intp]:
    """All runs of batches, one after another.

    Parameters
    ----------
    batches : sequence of Draw
    places : mapping of int to int
        What stands for the number of a block.

    Returns
    -------
    ndarray of int of shape (n_runs, 4)
        The batch, the block's place, the first row and the number of rows of each.
    """
    parts = [(number, *part) for number, batch in enumerate(batches) for part in batch]
    if not parts:
        return np.empty((0, 4), np.intp)
    numbers, blocks, firsts, counts = zip(*parts, strict=True)
    lengths = [len(part) for part in firsts]
    runs = np.empty((sum(lengths), 4), np.intp)
    runs[:, 0] = np.repeat(numbers, lengths)
    runs[:, 1] = np.repeat([places[block] for block in blocks], lengths)
    runs[:, 2], runs[:, 3] = np.concatenate(firsts), np.concatenate(counts)
    return runs
