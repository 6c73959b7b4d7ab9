"""Client side of the dashboard's page: callbacks that send events of fits to the scheduler.

Hooks of a fit put events into a queue of the client (`_SchedulerLine`), from any thread. A
coroutine in the client's event loop sends the queued events, at most once per second. It first
checks whether the scheduler has the page; if not, all further events are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from daskml_dist.diagnostics.live.fits import HANDLER

logger = logging.getLogger(__name__)

#: Seconds between two messages; before the first one (a short fit has ended by then and is sent
#: whole); and until a message times out.
_SEND_INTERVAL, _FIRST_DELAY, _SEND_TIMEOUT = 1.0, 0.25, 5.0
#: Largest number of queued events; beyond it, the oldest are dropped.
_MAX_EVENTS = 20_000

#: Queue of each client, garbage-collected with the client.
_lines: WeakKeyDictionary[Any, _SchedulerLine] = WeakKeyDictionary()


def _guard_hook(hook: Callable[..., None]) -> Callable[..., None]:
    """Wrap a hook so that its exceptions are logged and never end a fit."""

    @wraps(hook)
    def call(*args: Any) -> None:
        try:
            hook(*args)
        except Exception:
            logger.debug("The page of fits could not be updated", exc_info=True)

    return call


class FitFeed:
    """Callback that reports fits on a cluster to the page; fits in one process are not reported.

    Hooks append to a queue, which is sent from the client's event loop.

    Parameters
    ----------
    estimator : str
        Name of its class.
    max_iter : int or None, default=None
        Number of passes that counts as 100 %; None uses the fit's ``max_iter``.
    """

    def __init__(self, estimator: str, max_iter: int | None = None) -> None:
        self._estimator = estimator
        self._max_iter = max_iter
        # None between fits, and during fits in one process.
        self._client: Any = None
        self._fit = ""
        self._began = 0.0
        # Worker of each lane, as last reported.
        self._lanes: list[str] = []
        # Run id of the current part of the fit: a fit that trains in parts has several run ids.
        self._run_id = ""

    @_guard_hook
    def on_phase(self, phase: str, n_done: int, total: int | None) -> None:
        """Report the current phase, once the fit has begun."""
        if self._client is not None:
            self._tell("phase", text=phase)

    @_guard_hook
    def on_fit_begin(self, run: Any) -> None:
        """Report the start of a fit and its size."""
        self._client = run.client
        if self._client is None:
            return
        self._fit, self._began, self._lanes = run.run_id, time.monotonic(), []
        self._run_id = run.run_id
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

    @_guard_hook
    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Report a pass."""
        if self._client is not None:
            # Workers report by run id: send the page the id of a new part of the fit.
            if run.run_id != self._run_id:
                self._run_id = run.run_id
                self._tell("part", run=run.run_id)
            self._tell_lanes(run)
            self._tell("pass", record=_to_plain_values(record))

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Report a repeated pass, which replaces its first report."""
        self.on_pass_end(run, record)

    @_guard_hook
    def on_generation(self, run: Any, event: Any) -> None:
        """Report a change of membership."""
        if self._client is not None:
            self._tell("generation", text=str(event), n_passes=run.n_passes)
            self._tell_lanes(run)

    @_guard_hook
    def on_fit_end(self, run: Any) -> None:
        """Report the end of the fit, and how it ended."""
        client, error = self._client, run.error
        if client is None:
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        how = "interrupted" if interrupted else f"failed: {type(error).__name__}"
        self._tell("end", how="ended" if error is None else how)
        self._client = None

    def _tell_lanes(self, run: Any) -> None:
        """Report the worker of each lane, if that has changed."""
        lanes = [address for _, address in sorted(run.lane_addresses.items())]
        if lanes != self._lanes:
            # The first assignment of lanes is shown from the start of the fit.
            at = None if self._lanes else 0.0
            self._lanes = lanes
            self._tell("lanes", seconds=at, lanes=lanes)

    def _tell(self, kind: str, seconds: float | None = None, **details: Any) -> None:
        """Queue an event that happened at a second of the fit; None means now."""
        seconds = time.monotonic() - self._began if seconds is None else seconds
        get_scheduler_line(self._client).tell(
            self._client, {"fit": self._fit, "kind": kind, "at": seconds, **details}
        )


def get_scheduler_line(client: Any) -> _SchedulerLine:
    """Return a client's queue of events for its scheduler."""
    return _lines.setdefault(client, _SchedulerLine())


class _SchedulerLine:
    """Queue of a client's events, sent at most once per second and at the end of a fit."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)
        # Whether the scheduler has the page; None: not yet known.
        self._has_page: bool | None = None
        self._is_sending = False
        self._send_early = asyncio.Event()
        self._last_sent = self._last_early_send = -_SEND_INTERVAL

    def tell(self, client: Any, event: dict[str, Any]) -> None:
        """Queue an event; called from any thread."""
        if self._has_page is False:
            return
        self._events.append(event)
        # Send the end of a fit early: a script may end soon after it, and close its client.
        if event["kind"] == "end":
            client.loop.add_callback(self._send_early.set)
        if not self._is_sending:
            client.loop.add_callback(self._send_all, client)

    # -- in the client's event loop ------------------------------------------------------------

    async def _send_all(self, client: Any) -> None:
        """Send events until the queue is empty, unless another call is already doing so."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._events and self._has_page is not False:
                await self._wait_for_turn()
                await asyncio.wait_for(self._send(client), _SEND_TIMEOUT)
        except Exception:
            logger.debug("The scheduler rejected progress reports of a fit", exc_info=True)
            self._events.clear()
            # After a restart the scheduler must be checked again.
            self._has_page = None
        finally:
            self._is_sending = False
        if self._has_page is False:
            self._events.clear()
        # Another thread has queued an event after the last check of the queue.
        elif self._events:
            client.loop.add_callback(self._send_all, client)

    async def _wait_for_turn(self) -> None:
        """Wait until the next message may be sent, or until a fit ends."""
        wait = max(_FIRST_DELAY, self._last_sent + _SEND_INTERVAL - time.monotonic())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._send_early.wait(), wait)
            # The end of a fit is sent early, but at most once per interval.
            await asyncio.sleep(max(0.0, self._last_early_send + _SEND_INTERVAL - time.monotonic()))
            self._last_early_send = time.monotonic()
        self._send_early.clear()

    async def _send(self, client: Any) -> None:
        """Send all queued events as one message; open the page before the first one."""
        if self._has_page is None:
            self._has_page = await client.run_on_scheduler(_make_page_opener())
        events = list(self._events)
        self._events.clear()
        self._send_early.clear()
        if self._has_page:
            await getattr(client.scheduler, HANDLER)(events=events)
            self._last_sent = time.monotonic()


def _make_page_opener() -> Callable[..., bool]:
    """Return a page opener, pickled by value, since the scheduler may lack the package."""

    def open_on(dask_scheduler: Any) -> bool:
        try:
            from daskml_dist.diagnostics.live.plugin import open_page
        except ImportError:
            return False
        return open_page(dask_scheduler)

    return open_on


def _to_plain_values(record: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers, texts and lists of a record as Python objects; others are left out.

    The scheduler then needs no NumPy to read the message.
    """
    values = {key: getattr(value, "item", lambda v=value: v)() for key, value in record.items()}
    return {
        k: v
        for k, v in values.items()
        if v is None or isinstance(v, int | float | str | list | tuple)
    }


class SearchFeed:
    """Reporter of a search to the page of the current client's scheduler, if there is one.

    Parameters
    ----------
    name : str
        Name of the estimator's class.
    """

    def __init__(self, name: str) -> None:
        self._client: Any = None
        self._fit, self._began = uuid.uuid4().hex, time.monotonic()
        self._report_start(name)

    @_guard_hook
    def _report_start(self, name: str) -> None:
        """Report the start, if there is a client; a search has no lanes or passes."""
        from distributed import default_client

        try:
            self._client = default_client()
        except ValueError:
            return
        facts = {"policy": "", "max_iter": None, "n_lanes": 0, "n_servers": 0}
        self._tell("begin", estimator=name, client=self._client.id, began=time.time(), **facts)

    @_guard_hook
    def phase(self, text: str) -> None:
        """Report the current phase."""
        self._tell("phase", text=text)

    @_guard_hook
    def rung(self, scores: Sequence[dict[str, Any]]) -> None:
        """Report candidates' scores: ``candidate``, ``bracket``, ``resource``, ``score``.

        A score of NaN marks a failed candidate.
        """
        plain = [
            [
                int(score["candidate"]),
                int(score["bracket"]),
                float(score["resource"]),
                float(score["score"]),
            ]
            for score in scores
        ]
        self._tell("rung", scores=plain)

    @_guard_hook
    def end(self, end_state: str) -> None:
        """Report the end."""
        self._tell("end", how=end_state)
        self._client = None

    def _tell(self, kind: str, **details: Any) -> None:
        """Queue an event, if there is a client."""
        if self._client is not None:
            at = time.monotonic() - self._began
            event = {"fit": self._fit, "kind": kind, "at": at, **details}
            get_scheduler_line(self._client).tell(self._client, event)
