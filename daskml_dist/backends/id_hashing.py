"""Row numbers of a growing table, from ids and their fields."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bits of an id within its field, and of a field's number.
ID_BITS, FIELD_BITS = 54, 8
#: Field of parameters of the model rather than of rows: an intercept, weights of layers.
MODEL_FIELD = (1 << FIELD_BITS) - 1
_MASK = np.uint64((1 << ID_BITS) - 1)
#: Odd multipliers (those of splitmix64, cut to the bits of an id): they are invertible.
_FIRST, _SECOND = (
    np.uint64(m & ((1 << ID_BITS) - 1)) for m in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_SHIFT = np.uint64(ID_BITS // 2)


def mix_ids(ids: NDArray[Any]) -> NDArray[np.uint64]:
    """Apply a mixing permutation of the numbers below ``2**54``; fold larger numbers first."""
    x = ids.astype(np.uint64)
    x = (x ^ (x >> np.uint64(ID_BITS))) & _MASK
    # Each line is invertible, so no two ids collide.
    for multiplier in (_FIRST, _SECOND):
        x ^= x >> _SHIFT
        x *= multiplier
        x &= _MASK
    x ^= x >> _SHIFT
    return x


def find_fields(ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the field of each row of a growing table."""
    fields: NDArray[np.uint8] = (ids & ((1 << FIELD_BITS) - 1)).astype(np.uint8)
    return fields


def field_ids(ids: NDArray[Any], field: int) -> NDArray[np.int64]:
    """Return the row numbers of a growing table for the ids of a field."""
    row_numbers: NDArray[np.int64] = (
        (mix_ids(ids) << np.uint64(FIELD_BITS)) | np.uint64(field)
    ).astype(np.int64)
    return row_numbers
