"""Parts of a lazy collection that workers hold while blocks are made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask.delayed import delayed
from distributed import Client, futures_of

__all__ = ["HeldParts"]


class HeldParts:
    """Parts that are made once, held by workers until they are let go of.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._futures: list[Any] = []

    def hold(self, lazy: list[Any]) -> tuple[list[Any], Callable[[Any], list[Any]]]:
        """Parts that are held from now on, and what maps a function over them."""
        held = self._client.persist(lazy)
        self._futures += futures_of(held)

        def ask(function: Callable[[Any], Any]) -> list[Any]:
            of = delayed(function, pure=False)
            found = self._client.compute([of(part) for part in held])
            self._futures += found
            return list(self._client.gather(found))

        return held, ask

    def release(self) -> None:
        """Let go of all of them."""
        for future in self._futures:
            future.release()
        self._futures = []
