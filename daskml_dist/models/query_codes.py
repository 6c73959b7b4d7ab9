"""64-bit codes of queries, as two columns of float64 beside a target.

A fit takes rows, targets and weights. If targets are ranked within queries, the query of each row
is encoded in two more columns of its target. Halves of 32 bits are exact in float64, and pass the
checks of targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Columns of a target with its query: label, upper half, lower half.
N_COLUMNS = 3
_HALF, _LOWER = np.uint64(32), np.uint64(2**32 - 1)


def attach_codes(y: Any, codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return targets, of shape (n,), with the codes of their queries, of shape (n, 3)."""
    bits = codes.view(np.uint64)
    targets = np.empty((len(y), N_COLUMNS))
    targets[:, 0] = y
    targets[:, 1] = bits >> _HALF
    targets[:, 2] = bits & _LOWER
    return targets


def read_codes(y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the codes of queries in targets of :func:`attach_codes`."""
    upper, lower = y[:, 1].astype(np.uint64), y[:, 2].astype(np.uint64)
    codes: NDArray[np.int64] = ((upper << _HALF) | lower).view(np.int64)
    return codes


def find_query_starts(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where runs of equal codes begin, and the number of all rows."""
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    ends = np.append(changes, len(codes))
    return np.concatenate([[0], ends]).astype(np.int64) if len(codes) else np.zeros(1, np.int64)
