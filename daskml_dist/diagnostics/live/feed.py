"""The feed of the page: a callback of every fit, and one line to the scheduler a client."""

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

__all__ = ["Feed", "SearchFeed", "get_scheduler_line", "guard_hook", "to_plain_values"]


logger = logging.getLogger(__name__)

#: Seconds between two messages, before the first of a fit, and that a message may take.
_EVERY, _FIRST, _CALL = 1.0, 0.25, 5.0
#: Events that wait for a message at most; of more the oldest are left out.
_MOST = 20_000

_lines: WeakKeyDictionary[Any, _SchedulerLine] = WeakKeyDictionary()


def guard_hook(hook: Callable[..., None]) -> Callable[..., None]:
    """Wrap a hook so that its exceptions are logged and never end a fit."""

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

    @guard_hook
    def on_phase(self, phase: str, done: int, total: int | None) -> None:
        """Tell what a fit that has begun does now."""
        if self._client is not None:
            self._tell("phase", text=phase)

    @guard_hook
    def on_fit_begin(self, run: Any) -> None:
        """Tell what begins."""
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

    @guard_hook
    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Tell of a pass."""
        if self._client is not None:
            if run.run_id != self._part:
                self._part = run.run_id
                self._tell("part", run=run.run_id)
            self._tell_lanes(run)
            self._tell("pass", record=to_plain_values(record))

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Tell of a pass that takes the place of one told before."""
        self.on_pass_end(run, record)

    @guard_hook
    def on_generation(self, run: Any, event: Any) -> None:
        """Tell of another membership."""
        if self._client is not None:
            self._tell("generation", text=str(event), n_passes=run.n_passes)
            self._tell_lanes(run)

    @guard_hook
    def on_fit_end(self, run: Any) -> None:
        """Tell of the end."""
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
        get_scheduler_line(self._client).tell(
            self._client, {"fit": self._fit, "kind": kind, "at": at, **facts}
        )


def get_scheduler_line(client: Any) -> _SchedulerLine:
    """Return the connection of a client to its scheduler."""
    return _lines.setdefault(client, _SchedulerLine())


class _SchedulerLine:
    """A client's way to the scheduler: a message a second at most, and one as a fit ends."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST)
        #: Whether the scheduler has the page; None: not asked yet.
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
            self._has_page = await client.run_on_scheduler(_make_page_opener())
        events = list(self._events)
        self._events.clear()
        self._at_once.clear()
        if self._has_page:
            await getattr(client.scheduler, HANDLER)(events=events)
            self._sent = time.monotonic()


def _make_page_opener() -> Callable[..., bool]:
    """Return a function that opens the page, pickled by value: a scheduler may lack the package."""

    def open_on(dask_scheduler: Any) -> bool:
        try:
            from daskml_dist.diagnostics.live.plugin import open_page
        except ImportError:
            return False
        return open_page(dask_scheduler)

    return open_on


def to_plain_values(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record's numbers, texts and lists without NumPy's types, other values left out."""
    values = {key: getattr(value, "item", lambda v=value: v)() for key, value in record.items()}
    return {
        k: v
        for k, v in values.items()
        if v is None or isinstance(v, int | float | str | list | tuple)
    }


class SearchFeed:
    """Feed of the page about a work, where there is a current client; else nothing.

    Parameters
    ----------
    name : str
        Of the estimator's class.
    """

    def __init__(self, name: str) -> None:
        self._client: Any = None
        self._fit, self._began = uuid.uuid4().hex, time.monotonic()
        self._begin(name)

    @guard_hook
    def _begin(self, name: str) -> None:
        from distributed import default_client

        try:
            self._client = default_client()
        except ValueError:
            return
        facts = {"policy": "", "max_iter": None, "n_lanes": 0, "n_servers": 0}
        self._tell("begin", estimator=name, client=self._client.id, began=time.time(), **facts)

    @guard_hook
    def phase(self, text: str) -> None:
        """Tell what it does now."""
        self._tell("phase", text=text)

    @guard_hook
    def rung(self, scores: Sequence[dict[str, Any]]) -> None:
        """Tell the scores of some candidates: ``candidate``, ``bracket``, ``resource``, ``score``.

        A score that is NaN is of a candidate that failed.
        """
        plain = [
            [
                int(told["candidate"]),
                int(told["bracket"]),
                float(told["resource"]),
                float(told["score"]),
            ]
            for told in scores
        ]
        self._tell("rung", scores=plain)

    @guard_hook
    def end(self, how: str) -> None:
        """Tell the end."""
        self._tell("end", how=how)
        self._client = None

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._client is not None:
            at = time.monotonic() - self._began
            event = {"fit": self._fit, "kind": kind, "at": at, **facts}
            get_scheduler_line(self._client).tell(self._client, event)
