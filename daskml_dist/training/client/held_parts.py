"""Parts of a lazy collection that workers hold while blocks are made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask.delayed import delayed
from distributed import Client, futures_of

__all__ = ["HeldParts", "Parts"]


class HeldParts:
    """Parts that are made once, held by workers until they are let go of.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._futures: list[Any] = []

    def hold(self, lazy: list[Any]) -> Parts:
        """Have parts made, and hold them from now on."""
        parts = list(self._client.persist(lazy))
        self._futures += futures_of(parts)
        return Parts(self._client, parts, self._futures)

    def release(self) -> None:
        """Let go of all of them."""
        for future in self._futures:
            future.release()
        self._futures = []


class Parts:
    """Some parts that workers hold.

    Parameters
    ----------
    client : Client
    parts : list of Delayed
    futures : list
        Takes whatever else is to be held as long as they are.
    """

    def __init__(self, client: Client, parts: list[Any], futures: list[Any]) -> None:
        self._client = client
        self.parts = parts
        self._futures = futures

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """Results of a picklable function of each part."""
        of = delayed(function, pure=False)
        found = self._client.compute([of(part) for part in self.parts])
        self._futures += found
        return list(self._client.gather(found))

    def together(self) -> list[list[int]]:
        """Positions of the parts that each worker holds; of one that nobody holds, by itself."""
        held = self._client.who_has(futures_of(self.parts))
        found: dict[Any, list[int]] = {}
        for i, part in enumerate(self.parts):
            found.setdefault(next(iter(held.get(part.key, ())), i), []).append(i)
        return list(found.values())
