"""Supervisors: parents of forked processes, which they restart when these die or at a signal.

The parent handles no requests, so no request can bring it down.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from daskml_dist.errors import ServingError

_LOG = logging.getLogger("daskml_dist.serving")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
#: Seconds of life after which the death of a process does not count as a failed start.
_SETTLED_SECONDS = 10.0
#: Seconds until a process whose start failed is replaced: doubled from the first to the second.
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.1, 10.0


@dataclass(frozen=True)
class ProcessSlot:
    """Number of a forked process, and its pipes from and to the parent."""

    slot: int  # a number that no other living process has
    parent_end: int  # a file descriptor that becomes readable when the parent ends
    _told: int  # the file descriptor of the pipe to the parent

    def ready(self) -> None:
        """Tell the parent that this process answers requests."""
        self._tell(b"R")

    def failed(self, why: str) -> None:
        """Tell the parent why this process ends before it is ready."""
        self._tell(b"E" + why.encode()[:4000])

    def _tell(self, data: bytes) -> None:
        with suppress(BrokenPipeError):  # the parent has ended: see `parent_end`
            os.write(self._told, data)


@dataclass
class _Child:
    """Forked process, as the parent knows it."""

    pid: int
    slot: int
    pipe: int  # the file descriptor of what it writes to the parent
    since: float  # of its start, by the monotonic clock
    is_ready: bool = False
    said: bytes = b""
    deadline: float | None = None  # once it was told to end: when it is killed
    replaces: _Child | None = None


class Supervisor:
    """Parent of processes that do the same work.

    SIGHUP replaces the processes one by one: each ends once its successor is ready. At SIGTERM or
    SIGINT all processes get SIGTERM and may finish their work within `end_within`; then `run`
    returns. A process that dies is replaced: at once if it had lived for 10 s, else after a wait of
    0.1 s that doubles with each such death, up to 10 s.

    Parameters
    ----------
    work : callable
        Called as ``work(slot)`` in each process, which ends when it returns.
    n_children : int
        Number of processes.
    start_within, end_within : float
        Seconds that a process may take to be ready, and to end after SIGTERM; then it is killed.
    on_ready, on_stop : callable, optional
        Called in the parent when the first process is ready, and before all are told to end.
    """

    def __init__(
        self,
        work: Callable[[ProcessSlot], None],
        n_children: int,
        *,
        start_within: float = 300.0,
        end_within: float = 30.0,
        on_ready: Callable[[], None] | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        self._work, self._n_children = work, n_children
        self._start_within, self._end_within = start_within, end_within
        self._on_ready, self._on_stop = on_ready, on_stop
        self._children: list[_Child] = []
        self._to_replace: list[_Child] = []
        self._stopping = self._anyone_was_ready = False
        self._not_before, self._wait = 0.0, 0.0
        self._failure: str | None = None

    @staticmethod
    def n_slots(n_children: int) -> int:
        """Return the most processes at a time: old ones overlap with their successors."""
        return 3 * n_children + 2

    def run(self) -> None:
        """Fork the processes, and supervise them until SIGTERM or SIGINT."""
        if (
            threading.current_thread() is not threading.main_thread()
            or threading.active_count() > 1
        ):
            raise ServingError(
                "A server forks, and this process has threads, which no fork survives. Start it in "
                "a process of its own: python -m daskml_dist serve PATH."
            )
        # Children wait for the end of this pipe, which comes when the parent ends, however it does.
        self._life = os.pipe()
        # Python writes the number of each signal into this socket, so that `select` wakes.
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.setblocking(False)
        self._waker = waker
        before = {one: signal.signal(one, lambda *_: None) for one in _SIGNALS}
        before_fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            self._loop()
        finally:
            for child in self._children:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                os.close(child.pipe)
            signal.set_wakeup_fd(before_fd)
            for one, handler in before.items():
                signal.signal(one, handler)
            for fd in self._life:
                os.close(fd)
            self._woken.close()
            waker.close()
        if self._failure is not None:
            raise ServingError(self._failure)

    # --- the loop ------------------------------------------------------------------------------

    def _loop(self) -> None:
        woken = self._woken.fileno()
        while True:
            if not self._stopping:
                self._fill()
            elif not self._children:
                return
            pipes = [child.pipe for child in self._children if not child.is_ready]
            readable, _, _ = select.select([woken, *pipes], [], [], self._pause())
            if woken in readable:
                self._hear()
            for child in list(self._children):
                if child.pipe in readable:
                    self._read(child)
            self._reap()
            self._hurry()

    def _pause(self) -> float:
        """Return the seconds until a deadline or the end of a wait, 1 at most."""
        now = time.monotonic()
        due = [child.deadline - now for child in self._children if child.deadline is not None]
        if self._not_before > now:
            due.append(self._not_before - now)
        return max(0.0, min([1.0, *due]))

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while heard := self._woken.recv(256):
                for number in heard:
                    if number == signal.SIGHUP and not self._stopping:
                        _LOG.info("SIGHUP: all processes are replaced, one by one")
                        self._to_replace = self._at_work()
                    elif number in (signal.SIGTERM, signal.SIGINT):
                        self._stop(again=self._stopping)

    def _stop(self, again: bool) -> None:
        self._stopping = True
        self._to_replace = []
        if again:
            _LOG.warning("Asked again to end: processes are killed")
        elif self._on_stop is not None:
            self._on_stop()
        for child in self._children:
            self._retire(child, within=0.0 if again else self._end_within)

    def _retire(self, child: _Child, within: float) -> None:
        if child.deadline is None or within == 0.0:
            child.deadline = time.monotonic() + within
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)

    def _at_work(self) -> list[_Child]:
        """Return the processes without those that are ending, and successors not yet ready."""
        return [one for one in self._children if one.deadline is None and one.replaces is None]

    def _fill(self) -> None:
        """Start missing processes, and the next successor."""
        if time.monotonic() < self._not_before:
            return
        while len(self._at_work()) < self._n_children and self._start(None):
            pass
        here = self._at_work()
        self._to_replace = [one for one in self._to_replace if one in here]
        if self._to_replace and not any(one.replaces for one in self._children):
            self._start(self._to_replace[0])

    def _read(self, child: _Child) -> None:
        data = os.read(child.pipe, 4096)
        if data == b"R":
            if not self._anyone_was_ready and self._on_ready is not None:
                self._on_ready()
            child.is_ready = self._anyone_was_ready = True
            _LOG.info("Process %d is ready", child.pid)
            old, child.replaces = child.replaces, None
            if old is not None and old in self._children:
                self._to_replace = [one for one in self._to_replace if one is not old]
                self._retire(old, self._end_within)
        elif data:
            child.said += data
        else:  # it ends: nothing more is read
            child.is_ready = True

    def _reap(self) -> None:
        for child in list(self._children):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            with suppress(OSError):
                while data := os.read(child.pipe, 4096):
                    child.said += data
            os.close(child.pipe)
            self._children.remove(child)
            if child.deadline is None:
                self._died(child, os.waitstatus_to_exitcode(status))

    def _died(self, child: _Child, status: int) -> None:
        why = child.said.removeprefix(b"R").removeprefix(b"E").decode(errors="replace")
        told = f"ended with {status}" if status >= 0 else f"was killed by signal {-status}"
        _LOG.error("Process %d %s%s", child.pid, told, f": {why}" if why else "")
        if not self._anyone_was_ready:
            self._failure = why or f"The first process {told}; standard error says why."
            self._stop(again=False)
            return
        if child.replaces is not None:
            _LOG.error("What was to take its place did not start: the others go on as they are")
            self._to_replace = []
        if time.monotonic() - child.since > _SETTLED_SECONDS:
            self._wait = 0.0
            return
        self._wait = min(max(2 * self._wait, _MIN_BACKOFF_SECONDS), _MAX_BACKOFF_SECONDS)
        self._not_before = time.monotonic() + self._wait

    def _hurry(self) -> None:
        """Kill processes that did not end, or were not ready, in time."""
        now = time.monotonic()
        for child in self._children:
            late = child.deadline is not None and now > child.deadline
            slow = not child.is_ready and now > child.since + self._start_within
            if late or slow:
                _LOG.error("Process %d is late, and killed", child.pid)
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                if late:
                    child.deadline = now + 1.0
                else:
                    child.since, child.said = now, b"EIt was not ready in time."

    # --- processes -----------------------------------------------------------------------------

    def _start(self, replaces: _Child | None) -> bool:
        used = {child.slot for child in self._children}
        free = [slot for slot in range(self.n_slots(self._n_children)) if slot not in used]
        if not free:  # many still end
            return False
        pipe, told = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The child shares the parent's wakeup socket: until it has handlers of its own, a signal to
        # the child would look like one to the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with warnings.catch_warnings():
            # Python warns of forks with threads: those here are of BLAS, which handles forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._be_child(ProcessSlot(free[0], self._life[0], told), pipe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(told)
        self._children.append(_Child(pid, free[0], pipe, time.monotonic(), replaces=replaces))
        return True

    def _be_child(self, place: ProcessSlot, pipe: int) -> Any:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A terminal sends these to the whole process group: only the parent acts on them.
            for one in (signal.SIGINT, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)
            for fd in (pipe, self._life[1], *(child.pipe for child in self._children)):
                os.close(fd)
            self._woken.close()
            self._waker.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._work(place)
            status = 0
        except SystemExit:  # `work` has told the parent why
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
