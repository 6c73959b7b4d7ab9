"""The feed of the page: a callback of every fit, and one line to the scheduler a client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from daskml_dist.diagnostics.live.fits import HANDLER
from daskml_dist.diagnostics.live.plain import plain

__all__ = ["Feed", "harmless", "line_of"]

logger = logging.getLogger(__name__)

#: Seconds between two messages, before the first of a fit, and that a message may take.
_EVERY, _FIRST, _CALL = 1.0, 0.25, 5.0
#: Events that wait for a message at most; of more the oldest are left out.
_MOST = 20_000

_lines: WeakKeyDictionary[Any, _Line] = WeakKeyDictionary()


def harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that no fit fails from."""

    @wraps(hook)
    def call(*args: Any) -> None:
        try:
            hook(*args)
        except Exception:
            logger.debug("The page of fits is not told", exc_info=True)

    return call


class Feed:
    """Callback that tells the page how a fit on a cluster goes on; of others it tells nothing.

    It appends to a list; what sends it runs in the client's event loop.

    Parameters
    ----------
    estimator : str
        Name of its class.
    max_iter : int or None, default=None
        Number of passes that count as the whole; None takes the fit's ``max_iter``.
    """

    def __init__(self, estimator: str, max_iter: int | None = None) -> None:
        self._estimator = estimator
        self._max_iter = max_iter
        self._client: Any = None
        self._fit = ""
        self._began = 0.0
        self._lanes: list[str] = []
        #: Name of the present part of the fit.
        self._part = ""

    @harmless
    def on_phase(self, phase: str, done: int, total: int | None) -> None:
        """Tell what a fit that has begun does now.

        Parameters
        ----------
        phase : str
        done, total : int, int or None
        """
        if self._client is not None:
            self._tell("phase", text=phase)

    @harmless
    def on_fit_begin(self, run: Any) -> None:
        """Tell what begins.

        Parameters
        ----------
        run : RunView
        """
        self._client = run.client
        if self._client is None:
            return
        self._fit, self._began, self._lanes = run.run_id, time.monotonic(), []
        self._part = run.run_id
        most = run.max_iter if self._max_iter is None else self._max_iter
        self._tell(
            "begin",
            estimator=self._estimator,
            policy=run.policy_name,
            max_iter=None if most is None else int(most),
            n_lanes=run.n_lanes,
            n_servers=run.n_servers,
            client=self._client.id,
            began=time.time(),
        )

    @harmless
    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Tell of a pass.

        Parameters
        ----------
        run : RunView
        record : dict
        """
        if self._client is not None:
            if run.run_id != self._part:
                self._part = run.run_id
                self._tell("part", run=run.run_id)
            self._tell_lanes(run)
            self._tell("pass", record=plain(record))

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Tell of a pass that takes the place of one told before.

        Parameters
        ----------
        run : RunView
        record : dict
        """
        self.on_pass_end(run, record)

    @harmless
    def on_generation(self, run: Any, event: Any) -> None:
        """Tell of another membership.

        Parameters
        ----------
        run : RunView
        event : GenerationEvent
        """
        if self._client is not None:
            self._tell("generation", text=str(event), n_passes=run.n_passes)
            self._tell_lanes(run)

    @harmless
    def on_fit_end(self, run: Any) -> None:
        """Tell of the end.

        Parameters
        ----------
        run : RunView
        """
        client, error = self._client, run.error
        if client is None:
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        how = "interrupted" if interrupted else f"failed: {type(error).__name__}"
        self._tell("end", how="ended" if error is None else how)
        self._client = None

    def _tell_lanes(self, run: Any) -> None:
        lanes = [address for _, address in sorted(run.lane_addresses.items())]
        if lanes != self._lanes:
            # Lanes first have their places where the fit begins.
            at = None if self._lanes else 0.0
            self._lanes = lanes
            self._tell("lanes", at=at, lanes=lanes)

    def _tell(self, kind: str, at: float | None = None, **facts: Any) -> None:
        at = time.monotonic() - self._began if at is None else at
        line_of(self._client).tell(
            self._client, {"fit": self._fit, "kind": kind, "at": at, **facts}
        )


def line_of(client: Any) -> _Line:
    """The way to the scheduler of a client."""
    return _lines.setdefault(client, _Line())


class _Line:
    """A client's way to the scheduler: a message a second at most, and one as a fit ends."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST)
        #: Whether the scheduler has the page; None: nobody has asked.
        self._has_page: bool | None = None
        self._is_sending = False
        self._at_once = asyncio.Event()
        self._sent = self._hurried = -_EVERY

    def tell(self, client: Any, event: dict[str, Any]) -> None:
        """Put an event on the line; in any thread."""
        if self._has_page is False:
            return
        self._events.append(event)
        if event["kind"] == "end":
            client.loop.add_callback(self._at_once.set)
        if not self._is_sending:
            client.loop.add_callback(self._send_all, client)

    # -- in the client's event loop ------------------------------------------------------------

    async def _send_all(self, client: Any) -> None:
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._events and self._has_page is not False:
                await self._wait_for_turn()
                await asyncio.wait_for(self._send(client), _CALL)
        except Exception:
            logger.debug("The scheduler does not take what a fit tells", exc_info=True)
            self._events.clear()
            self._has_page = None  # it may be another scheduler
        finally:
            self._is_sending = False
        if self._has_page is False:
            self._events.clear()
        elif self._events:  # that came between the last look and the line above
            client.loop.add_callback(self._send_all, client)

    async def _wait_for_turn(self) -> None:
        wait = max(_FIRST, self._sent + _EVERY - time.monotonic())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._at_once.wait(), wait)
            # Of many short fits not each has a message of its own.
            await asyncio.sleep(max(0.0, self._hurried + _EVERY - time.monotonic()))
            self._hurried = time.monotonic()
        self._at_once.clear()

    async def _send(self, client: Any) -> None:
        if self._has_page is None:
            self._has_page = await client.run_on_scheduler(_opener())
        events = list(self._events)
        self._events.clear()
        self._at_once.clear()
        if self._has_page:
            await getattr(client.scheduler, HANDLER)(events=events)
            self._sent = time.monotonic()


def _opener() -> Callable[..., bool]:
    """A function that opens the page; it travels whole, as a scheduler may lack the package."""

    def open_on(dask_scheduler: Any) -> bool:
        try:
            from daskml_dist.diagnostics.live.plugin import open_page
        except ImportError:
            return False
        return open_page(dask_scheduler)

    return open_on
