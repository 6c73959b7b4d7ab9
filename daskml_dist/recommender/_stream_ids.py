"""Ids of users and items of a stream, numbered as they come, and as a checkpoint holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.keyed.ids import check_one_kind
from daskml_dist.errors import InvalidParameterError

__all__ = ["Ids", "ids_of", "plain_ids"]

Array = NDArray[Any]


class Ids:
    """Ids of one side in the order in which they came, and the number of each.

    Parameters
    ----------
    first : ndarray
        Those that are there at first.
    """

    def __init__(self, first: Array) -> None:
        self._parts: list[Array] = []
        self._numbers: dict[Any, int] = {}
        if len(first):
            self._add(first)

    def __len__(self) -> int:
        return len(self._numbers)

    def check(self, ids: Array) -> None:
        """Check that ids can be compared with those that there are."""
        if self._parts:
            check_one_kind([self._parts[0], ids])

    def numbers(self, ids: Array) -> NDArray[np.int64]:
        """Numbers of ids, each given once; new ones are added, in their order."""
        get = self._numbers.get
        found = np.array([get(key, -1) for key in ids.tolist()], np.int64)
        if len(new := np.flatnonzero(found < 0)):
            found[new] = len(self) + np.arange(len(new))
            self._add(ids[new])
        return found

    def with_new(self, ids: Array) -> int:
        """Number of all, with those of some ids, each given once, that have not come before."""
        return len(self) + sum(key not in self._numbers for key in ids.tolist())

    def _add(self, ids: Array) -> None:
        self._parts.append(ids)
        start = len(self)
        self._numbers.update((key, start + i) for i, key in enumerate(ids.tolist()))

    @property
    def array(self) -> Array:
        """All of them, in their order."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


def plain_ids(ids: Array) -> dict[str, Any]:
    """Ids as JSON can hold them."""
    if ids.dtype.kind == "M":
        return {"dtype": ids.dtype.str, "ids": ids.view(np.int64).tolist()}
    found = ids.tolist()
    if any(isinstance(key, bytes) for key in found[:1]):
        raise InvalidParameterError(
            "A checkpoint of a stream holds ids that are numbers, text or times, and these are "
            "bytes. Decode them: frame[column].str.decode('utf-8')."
        )
    return {"dtype": ids.dtype.str, "ids": found}


def ids_of(plain: dict[str, Any]) -> Array:
    """Ids of :func:`plain_ids`."""
    dtype = np.dtype(plain["dtype"])
    if dtype.kind == "M":
        return np.array(plain["ids"], np.int64).view(dtype)
    return np.array(plain["ids"], dtype)
