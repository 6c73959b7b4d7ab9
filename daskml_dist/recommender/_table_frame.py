"""Rows of a table of ids as a Dask dataframe."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.id_hashing import find_fields
from daskml_dist.data.conversion import load_pandas


def make_table_frame(
    ids: NDArray[np.int64], weights: NDArray[Any], vectors: NDArray[Any], n_rows: int
) -> Any:
    """Return a lazy dataframe of sorted ids and their rows, `n_rows` to a partition."""
    import dask.dataframe as dd

    starts = range(0, max(len(ids), 1), n_rows)
    parts = [tuple(a[start : start + n_rows] for a in (ids, weights, vectors)) for start in starts]
    # Sorted ids are an index with known divisions: lookups and joins read few partitions.
    divisions = None
    if len(ids):
        divisions = (*(int(part[0][0]) for part in parts), int(ids[-1]))
    no_rows = tuple(a[:0] for a in (ids, weights, vectors))
    return dd.from_map(
        _make_part, parts, meta=_make_part(no_rows), divisions=divisions, label="table"
    )


def _make_part(rows: tuple[NDArray[Any], ...]) -> Any:
    """Return ids and their rows as a pandas frame."""
    ids, weights, vectors = rows
    pandas = load_pandas()
    columns = {"field": find_fields(ids), "weight": weights}
    columns |= {f"factor_{k}": vectors[:, k] for k in range(vectors.shape[1])}
    return pandas.DataFrame(columns, index=pandas.Index(ids, name="id"))
