"""Supervisor of forked processes: it replaces those that die, and all of them at a signal.

The parent handles no requests, so no request can crash it. It is one thread around `poll`, which
wakes for bytes from a child (that it is ready, or why it failed), for a signal (Python writes its
number into a socket), and for the next deadline. Each iteration of the loop starts missing
processes, handles signals and messages of children, reaps processes that have ended, and kills
those that are late.
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
#: Signals that a supervisor handles; on Windows, where no server starts, only the existing ones.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD")
    if hasattr(signal, name)
)
#: Seconds after which the death of a process no longer counts as a failed start, which delays the
#: next start.
_SETTLED_SECONDS = 10.0
#: Seconds until a process whose start failed is replaced: doubled with each failure, from the first
#: number to the second.
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.1, 10.0


@dataclass(frozen=True)
class ProcessSlot:
    """Number of a forked process, and its pipes from and to the parent."""

    slot: int  # a number that no other living process has
    parent_end: int  # file descriptor that becomes readable when the parent ends
    _to_parent: int  # file descriptor of the pipe to the parent

    def report_ready(self) -> None:
        """Notify the parent that this process answers requests."""
        self._tell(b"R")

    def report_failure(self, reason: str) -> None:
        """Send the parent the reason why this process ends before it is ready."""
        self._tell(b"E" + reason.encode()[:4000])

    def _tell(self, data: bytes) -> None:
        """Write to the parent; if it has ended, `parent_end` shows it."""
        with suppress(BrokenPipeError):
            os.write(self._to_parent, data)


@dataclass
class _Child:
    """The parent's data about a forked process; times are of the monotonic clock."""

    pid: int
    slot: int
    pipe: int  # file descriptor of the process's messages to the parent
    since: float  # when it was started
    is_ready: bool = False
    output: bytes = b""  # its messages to the parent, without "R"
    deadline: float | None = None  # when it is killed, after it was told to end
    replaces: _Child | None = None  # process that is told to end once this one is ready


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
        Called in the parent: when the first process is ready, and before all are told to end.
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
        # Processes to be replaced after SIGHUP that have no successor yet.
        self._to_replace: list[_Child] = []
        self._stopping = self._anyone_was_ready = False
        # Monotonic time before which no process is started, and the seconds of that wait.
        self._not_before, self._wait = 0.0, 0.0
        # Why the first process failed: then nothing can be served, and `run` raises.
        self._failure: str | None = None

    @staticmethod
    def n_slots(n_children: int) -> int:
        """Return the maximum number of processes at a time: working ones, and ones that still end.

        With three times as many slots, a second SIGHUP may arrive while processes of the first end.
        """
        return 3 * n_children + 2

    def run(self) -> None:
        """Fork the processes, and supervise them until SIGTERM or SIGINT."""
        if (
            threading.current_thread() is not threading.main_thread()
            or threading.active_count() > 1
        ):
            raise ServingError(
                "The server forks, but this process has threads, which do not survive a fork. "
                "Start it in a separate process: python -m daskml_dist serve PATH."
            )
        # Children watch for the end of this pipe, which is closed when the parent ends for any
        # reason.
        self._life = os.pipe()
        # Python writes the number of each signal into this socket, so that `poll` wakes.
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.setblocking(False)
        self._waker = waker
        handlers = {signum: signal.signal(signum, lambda *_: None) for signum in _SIGNALS}
        previous_fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            self._loop()
        finally:
            for child in self._children:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                os.close(child.pipe)
            signal.set_wakeup_fd(previous_fd)
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
            for fd in self._life:
                os.close(fd)
            self._woken.close()
            waker.close()
        if self._failure is not None:
            raise ServingError(self._failure)

    # --- the loop ------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Supervise until all processes have ended after a signal to end."""
        wakeup_fd = self._woken.fileno()
        while True:
            if not self._stopping:
                self._fill()
            elif not self._children:
                return
            # A child that is ready writes nothing more; SIGCHLD signals its death.
            pipes = [child.pipe for child in self._children if not child.is_ready]
            poll = select.poll()
            for descriptor in (wakeup_fd, *pipes):
                poll.register(descriptor, select.POLLIN)
            readable = {fd for fd, _ in poll.poll(self._seconds_to_wait() * 1e3)}
            if wakeup_fd in readable:
                self._handle_signals()
            for child in list(self._children):
                if child.pipe in readable:
                    self._read_message(child)
            self._reap()
            self._kill_late()

    def _seconds_to_wait(self) -> float:
        """Return the seconds until a deadline or the end of a wait, at most 1."""
        now = time.monotonic()
        waits = [child.deadline - now for child in self._children if child.deadline is not None]
        if self._not_before > now:
            waits.append(self._not_before - now)
        return max(0.0, min([1.0, *waits]))

    def _handle_signals(self) -> None:
        """Handle received signals, whose numbers are in the socket."""
        with suppress(BlockingIOError):
            while signals := self._woken.recv(256):
                for number in signals:
                    if number == signal.SIGHUP and not self._stopping:
                        _LOG.info("SIGHUP: replacing all processes, one by one")
                        self._to_replace = self._at_work()
                    elif number in (signal.SIGTERM, signal.SIGINT):
                        self._stop(is_repeated=self._stopping)

    def _stop(self, is_repeated: bool) -> None:
        """Tell all processes to end; if repeated (`is_repeated`), kill them immediately."""
        self._stopping = True
        self._to_replace = []
        if is_repeated:
            _LOG.warning("Second request to stop: killing all processes")
        elif self._on_stop is not None:
            self._on_stop()
        for child in self._children:
            self._retire(child, timeout=0.0 if is_repeated else self._end_within)

    def _retire(self, child: _Child, timeout: float) -> None:
        """Send a process SIGTERM, and set its kill deadline, unless that was done before."""
        if child.deadline is None or timeout == 0.0:
            child.deadline = time.monotonic() + timeout
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)

    def _at_work(self) -> list[_Child]:
        """Return the processes, without ending ones and successors that are not ready."""
        return [
            child for child in self._children if child.deadline is None and child.replaces is None
        ]

    def _fill(self) -> None:
        """Start missing processes, and the next successor if no other is starting."""
        if time.monotonic() < self._not_before:
            return
        while len(self._at_work()) < self._n_children and self._start(None):
            pass
        at_work = self._at_work()
        self._to_replace = [child for child in self._to_replace if child in at_work]
        if self._to_replace and not any(child.replaces for child in self._children):
            self._start(self._to_replace[0])

    def _read_message(self, child: _Child) -> None:
        """Read a child's message: that it is ready, why it fails, or the end of its pipe."""
        data = os.read(child.pipe, 4096)
        if data == b"R":
            if not self._anyone_was_ready and self._on_ready is not None:
                self._on_ready()
            child.is_ready = self._anyone_was_ready = True
            _LOG.info("Process %d is ready", child.pid)
            predecessor, child.replaces = child.replaces, None
            if predecessor is not None and predecessor in self._children:
                self._to_replace = [other for other in self._to_replace if other is not predecessor]
                self._retire(predecessor, self._end_within)
        elif data:
            child.output += data
        else:
            # The pipe's end: it would be readable in each iteration, until the process is reaped.
            child.is_ready = True

    def _reap(self) -> None:
        """Remove the processes that have ended, after reading their last messages."""
        for child in list(self._children):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            with suppress(OSError):
                while data := os.read(child.pipe, 4096):
                    child.output += data
            os.close(child.pipe)
            self._children.remove(child)
            if child.deadline is None:
                self._died(child, os.waitstatus_to_exitcode(status))

    def _died(self, child: _Child, status: int) -> None:
        """Log an unexpected death; end all processes, or delay the next start."""
        reason = child.output.removeprefix(b"R").removeprefix(b"E").decode(errors="replace")
        ending = f"ended with {status}" if status >= 0 else f"was killed by signal {-status}"
        _LOG.error("Process %d %s%s", child.pid, ending, f": {reason}" if reason else "")
        # If not even the first start succeeds, another one would fail in the same way.
        if not self._anyone_was_ready:
            self._failure = (
                reason or f"The first process {ending}; see standard error for the reason."
            )
            self._stop(is_repeated=False)
            return
        if child.replaces is not None:
            _LOG.error("Its replacement did not start: the other processes continue")
            self._to_replace = []
        if time.monotonic() - child.since > _SETTLED_SECONDS:
            self._wait = 0.0
            return
        self._wait = min(max(2 * self._wait, _MIN_BACKOFF_SECONDS), _MAX_BACKOFF_SECONDS)
        self._not_before = time.monotonic() + self._wait

    def _kill_late(self) -> None:
        """Kill processes that did not end, or were not ready, in time."""
        now = time.monotonic()
        for child in self._children:
            is_late = child.deadline is not None and now > child.deadline
            is_slow = not child.is_ready and now > child.since + self._start_within
            if is_late or is_slow:
                _LOG.error("Process %d did not stop in time; killed", child.pid)
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                # Not repeated in each iteration until it is reaped. A process that is not yet ready
                # started less than 10 s ago, so its death counts as a failed start.
                if is_late:
                    child.deadline = now + 1.0
                else:
                    child.since, child.output = now, b"EIt was not ready in time."

    # --- processes -----------------------------------------------------------------------------

    def _start(self, replaces: _Child | None) -> bool:
        """Fork a process; return whether there was a free slot for it."""
        used_slots = {child.slot for child in self._children}
        free_slots = [
            slot for slot in range(self.n_slots(self._n_children)) if slot not in used_slots
        ]
        if not free_slots:  # many are still ending
            return False
        pipe, to_parent = os.pipe()
        # Buffered text would be written twice, by parent and child.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The child shares the parent's wakeup socket: until it has its own handlers, a signal to
        # the child would look like one to the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with warnings.catch_warnings():
            # Python warns of forks with threads: the existing ones are BLAS threads, which support
            # forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._run_child(ProcessSlot(free_slots[0], self._life[0], to_parent), pipe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(to_parent)  # so that the pipe ends when the child ends
        self._children.append(_Child(pid, free_slots[0], pipe, time.monotonic(), replaces=replaces))
        return True

    def _run_child(self, process_slot: ProcessSlot, pipe: int) -> Any:
        """Do the work of a forked process, and end it: this function does not return."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A terminal sends these to the whole process group: only the parent handles them.
            for signum in (signal.SIGINT, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN)
            # The parent's ends of the pipes: if a child kept the writing end of `_life` open, no
            # child would notice the parent's end.
            for fd in (pipe, self._life[1], *(child.pipe for child in self._children)):
                os.close(fd)
            self._woken.close()
            self._waker.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._work(process_slot)
            status = 0
        except SystemExit:  # `work` has sent the parent the reason
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            # `os._exit` skips the rest of the parent's stack, its `finally` blocks and its exit
            # handlers; buffers are flushed here instead.
            with suppress(Exception):
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
