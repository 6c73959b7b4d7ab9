"""Summaries of blocks: errors of reading and of the summary are distinguished."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

from daskml_dist.data.collection import as_collection
from daskml_dist.data.reduce import fold_parts, reduce_parts
from daskml_dist.errors import InvalidDataError
from daskml_dist.metrics import accuracy_score

Y = np.arange(40) % 2


def _rows(reads: list[int], fails_at: int) -> da.Array:
    def read(rows: Any, block_info: Any = None) -> Any:
        number = block_info[0]["chunk-location"][0]
        reads.append(number)
        if number == fails_at:
            raise OSError("no such file")
        return rows

    return da.from_array(np.ones((40, 2)), chunks=(10, 2)).map_blocks(read, dtype=float)


def _of_block(index: int, X: Any, y: Any, weight: Any) -> int:
    if index == 3:
        raise KeyError("my own")
    return len(X)


def test_a_block_that_cannot_be_read_is_named() -> None:
    lazy = as_collection(_rows([], 2), None, None)
    with pytest.raises(InvalidDataError, match=r"Block 2 could not be read: OSError.*no such file"):
        reduce_parts(lazy, lambda index, X, *_: len(X), sum)
    with pytest.raises(InvalidDataError, match=r"Block 2 could not be read: OSError.*no such file"):
        fold_parts(lazy, lambda state, *_: state, 0)
    with pytest.raises(InvalidDataError, match="Block 1 could not be read"):
        accuracy_score(da.from_array(Y, chunks=10), _rows([], 1)[:, 0])


def test_an_error_of_the_summary_is_raised_without_another_read() -> None:
    reads: list[int] = []
    with pytest.raises(KeyError, match="my own"):
        reduce_parts(as_collection(_rows(reads, -1), None, None), _of_block, sum)
    assert len(set(reads)) == len(reads)
