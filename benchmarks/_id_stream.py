"""Rows of ids of a stream, drawn by a compiled loop, so that drawing does not dominate the time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry
from daskml_dist.backends.forest_kernels import hash_number
from daskml_dist.backends.id_hashing import FIELD_BITS, ID_BITS

#: An odd factor: products with different numbers, modulo a power of two, differ.
_ODD = 0x1E3779B97F4A7C15
_MASK, _BITS = (1 << ID_BITS) - 1, FIELD_BITS


@compiled_entry(error_model="numpy")
def fill_ids(first: int, n_once: int, n_often: int, ids: Any) -> None:
    """Write the ids of rows, starting at row number `first` of a stream.

    Parameters
    ----------
    first : int
    n_once : int
        Number of leading fields whose ids occur in one row only; the ids of other fields are
        integers below `n_often`, the k-th about as frequent as 1 / k.
    n_often : int
    ids : ndarray of int64 of shape (n_rows, n_fields)
    """
    scale = math.log(n_often)
    for i in range(len(ids)):
        row = np.uint64(first + i)
        for field in range(ids.shape[1]):
            if field < n_once:
                own = row * np.uint64(n_once) + np.uint64(field)
            else:
                bits = hash_number(row * np.uint64(64) + np.uint64(field))
                uniform = np.int64(bits >> np.uint64(11)) * 2.0**-53
                own = np.uint64(math.exp(scale * uniform))
            mixed = (own * np.uint64(_ODD)) & np.uint64(_MASK)
            ids[i, field] = np.int64((mixed << np.uint64(_BITS)) | np.uint64(field))
