"""Room for blocks in memory, as far as it is known before they are made."""

from __future__ import annotations

import math

from distributed import Client

from daskml_dist.data.collection import Collection

__all__ = ["surely_fit"]

#: Times as many bytes as its part takes that a block may take: where bytes become float64.
_WIDER = 8


def surely_fit(client: Client, collection: Collection, room: float, *, persisted: bool) -> bool:
    """Whether all blocks fit, whatever their rows are.

    Parameters
    ----------
    client : Client
    collection : Collection
    room : float
        Bytes that they may take.
    persisted : bool
        Whether the user has persisted all parts.
    """
    nbytes = collection.nbytes
    if nbytes is not None and sum(nbytes) <= room:
        return True
    # Sparse rows, and frames whose rows nobody has counted.
    return persisted and _WIDER * _persisted_bytes(client, collection) <= room


def _persisted_bytes(client: Client, collection: Collection) -> float:
    """Bytes of all parts of the features; infinite where Dask does not say."""
    keys = [X.key for X, _, _ in collection.parts]
    found = client.nbytes(keys, summary=False)
    return float(sum(found.get(key, math.inf) for key in keys))
