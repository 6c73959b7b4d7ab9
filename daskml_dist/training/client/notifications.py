"""Facts that workers tell the client before it hears by way of the scheduler of a task's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from distributed import Client

from daskml_dist.data.blocks import BlockInfo
from daskml_dist.training.client.early import Early
from daskml_dist.training.worker.notifications import tell_bundles, tell_results

__all__ = ["ToldResults", "ask_of_bundles"]

#: Seconds in which workers are to tell of bundles.
_TELL = 3.0
#: Seconds for which workers are asked for results: a longer fit would not notice.
_SHORT = 2.0


def ask_of_bundles(
    client: Client, keys: Mapping[str, list[Any]], early: Early | None = None, wait: float = 0.0
) -> dict[int, tuple[str, BlockInfo]]:
    """Ask workers what they know of the blocks of some bundles in their memory.

    Parameters
    ----------
    client : Client
    keys : mapping of worker to list of keys
        The bundles that each is asked of.
    early : Early, optional
        Its worker is asked for this actor, too.
    wait : float, default=0
        Seconds for which a worker may wait until it has made them all.

    Returns
    -------
    dict of int to (worker, BlockInfo)
        Perhaps not of all.
    """
    asked: dict[str, tuple[list[Any], str | None]] = {w: (here, None) for w, here in keys.items()}
    if early is not None and early.address is not None:
        asked[early.address] = keys.get(early.address, []), early.key
    answers: dict[str, Any] = {}
    if asked:
        with suppress(Exception):  # some worker does not answer: Dask will tell
            asking = partial(_broadcast, client, tell_bundles, asked, wait)
            answers = client.sync(asking, callback_timeout=_TELL)
    found = {}
    for address, (told, endpoint) in answers.items():
        found.update({i: (address, info) for infos in told for i, info in infos.items()})
        if early is not None and endpoint is not None:
            early.hear(endpoint)
    return found


class ToldResults:
    """Results of trainers, as their workers tell them; of a short fit alone.

    Parameters
    ----------
    client : Client
    run_id : str
    on_all : callable
        Called in a thread of the client's once all have been told.
    """

    def __init__(self, client: Client, run_id: str, on_all: Callable[[], None]) -> None:
        self._client: Any = client
        self._run_id = run_id
        self._on_all = on_all
        self._found: dict[Any, Any] = {}

    def ask(self, keys: Mapping[str, list[Any]]) -> None:
        """Ask workers for the results of some tasks, when there are any; returns at once."""

        async def ask() -> None:
            with suppress(Exception):  # one is lost, or the client closes: the scheduler says so
                told = await _broadcast(self._client, tell_results, keys, self._run_id, _SHORT)
                for results in told.values():
                    self._found.update(results)
                self._on_all()

        self._client.loop.add_callback(ask)

    def of(self, keys: Sequence[Any]) -> list[Any] | None:
        """Results of some tasks; None where not all have been told."""
        return [self._found[key] for key in keys] if self._found.keys() >= set(keys) else None


async def _broadcast(
    client: Any, function: Callable[..., Any], asked: Mapping[str, Any], *args: Any
) -> dict[str, Any]:
    """Answers of some workers, each of which finds by its address what it is asked for.

    It is one message of the client's; whoever is gone does not answer.
    """
    running = client.run(function, asked, *args, workers=list(asked), on_error="ignore")
    answers: dict[str, Any] = await running
    return answers
