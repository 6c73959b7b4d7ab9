"""Natural batching: requests parsed in one iteration of the event loop are answered together.

The application submits each request to the `Batcher`, and awaits the returned future. Requests with
one key (predictor and dtype) wait in a queue, which is emptied after the parsing of the current
iteration, or after a delay, in a thread. A queue is answered in one of three ways
(`Batcher._calls`):

- by calls with the rows of many requests, if other rows do not change any bit or the user allows
  it;
- by one call that rounds each row independently (`Predictor.each`), for requests of one row each;
- otherwise by a call for each request, one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.plain_rows import MAX_FEW_ROWS
from daskml_dist.errors import DaskMLDistError, RequestError
from daskml_dist.inference.request_rows import join_request_rows

#: Function from the rows of some requests to their answers, row by row.
_BatchCall = Callable[[list[Any]], NDArray[Any]]
#: Seconds of calls after which the event loop serves other connections, so that the p99 of their
#: latency stays below 10 ms.
CALL_SECONDS = 0.005


class BatchedPredictor:
    """Predictor as a function of the rows of some requests."""

    __slots__ = ("predictor",)

    def __init__(self, predictor: Any) -> None:
        self.predictor = predictor

    def __call__(self, request_rows: list[Any]) -> NDArray[Any]:
        """Return the answers to the rows of all requests, by one call."""
        answers: NDArray[Any] = self.predictor(join_request_rows(request_rows, self.predictor))
        return answers

    def each(self, request_rows: list[Any]) -> NDArray[Any] | None:
        """Return answers to single-row requests, each with the same bits as a separate call.

        None if only separate calls give these bits.
        """
        function = getattr(self.predictor, "each", None)
        if function is None or isinstance(request_rows[0], dict):
            return None
        answers: NDArray[Any] | None = function(np.concatenate(request_rows))
        return answers


class _Queue:
    """Requests that wait for one predictor: their rows, numbers of rows and futures, in order."""

    __slots__ = ("answers", "call", "may_share", "request_rows", "sizes")

    def __init__(self, call: _BatchCall, may_share: bool) -> None:
        self.call = call
        self.may_share = may_share
        self.request_rows: list[Any] = []
        self.sizes: list[int] = []
        self.answers: list[asyncio.Future[NDArray[Any]]] = []


class Batcher:
    """Requests that arrived at the same time: called together, or one after the other.

    Parameters
    ----------
    max_waiting : int, default=1024
        Requests that may wait; a further one is refused.
    max_rows : int, default=65536
        Maximum rows of one call. A single larger request is a separate call.

    Notes
    -----
    The cost of calling a small model is nearly all fixed, so sharing calls raises the throughput
    under load, when each iteration of the loop has many requests; without load nothing waits. If a
    call fails, each of its requests is tried alone, so that only the failing requests get the
    error. Between calls the loop runs other work every few milliseconds. Requests with a `delay`
    run in a thread, one queue after the other, while the next ones accumulate.
    """

    def __init__(self, *, max_waiting: int = 1024, max_rows: int = 65536) -> None:
        self.max_waiting = max_waiting
        self.max_rows = max_rows
        #: Number of requests whose future is not set yet.
        self.waiting = 0
        self._queues: dict[Hashable, _Queue] = {}
        # Keys of queues whose delay has passed, in the order in which they wait for the thread.
        self._due: deque[Hashable] = deque()
        self._is_busy = False
        self._thread: ThreadPoolExecutor | None = None

    def ask(
        self,
        key: Hashable,
        call: _BatchCall,
        rows: Any,
        n_rows: int,
        delay: float | None = None,
        may_share: bool = True,
    ) -> asyncio.Future[NDArray[Any]]:
        """Return a future for the answer to a request; requests of one `key` may share a call.

        `call`, `delay` and `may_share` are the same for all requests of a key. With a `delay`
        (seconds) the call is made in a thread.
        """
        if self.waiting >= self.max_waiting:
            raise RequestError(
                f"{self.waiting} requests wait: try again after a second, or serve with more "
                "processes.",
                503,
                ((b"retry-after", b"1"),),
            )
        loop = asyncio.get_running_loop()
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(call, may_share)
            if delay is None:
                # Called after all requests that this iteration of the loop still parses.
                loop.call_soon(self._answer_in_loop, key)
            else:
                loop.call_later(delay, self._come_due, key)
        answer: asyncio.Future[NDArray[Any]] = loop.create_future()
        queue.request_rows.append(rows)
        queue.sizes.append(n_rows)
        queue.answers.append(answer)
        self.waiting += 1
        return answer

    def close(self) -> None:
        """End the thread, once its call is done."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    # --- in the event loop ---------------------------------------------------------------------

    def _answer_in_loop(self, key: Hashable) -> None:
        """Answer a queue in the event loop; requests arriving from now on start another one."""
        queue = self._queues.pop(key)
        self._answer_on(queue, 0, self._calls(queue))

    def _answer_on(self, queue: _Queue, request_index: int, calls: Iterator[list[Any]]) -> None:
        """Answer requests of a queue from `request_index` on, by the remaining `calls`.

        Those that this turn of the loop has no time for are left to the next one.
        """
        end = time.perf_counter() + CALL_SECONDS
        for results in calls:
            self._set_results(queue, request_index, results)
            request_index += len(results)
            if request_index < len(queue.answers) and time.perf_counter() >= end:
                asyncio.get_running_loop().call_soon(self._answer_on, queue, request_index, calls)
                return

    # --- in the thread -------------------------------------------------------------------------

    def _come_due(self, key: Hashable) -> None:
        """Append a queue whose delay has passed to those for the thread."""
        self._due.append(key)
        self._answer_in_thread()

    def _answer_in_thread(self) -> None:
        """Submit the queue that has waited longest to the thread, if it is free."""
        if self._is_busy or not self._due:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "daskml_dist-serving")
        self._is_busy = True
        queue = self._queues.pop(self._due.popleft())

        # In the event loop, as futures must not be set from other threads.
        def finish(future: asyncio.Future[list[Any]]) -> None:
            self._is_busy = False
            cancelled = [asyncio.CancelledError()] * len(queue.request_rows)
            self._set_results(queue, 0, cancelled if future.cancelled() else future.result())
            self._answer_in_thread()

        calls = self._calls(queue)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, lambda: list(chain.from_iterable(calls)))
        future.add_done_callback(finish)

    # --- calls ---------------------------------------------------------------------------------

    def _set_results(self, queue: _Queue, first: int, results: list[Any]) -> None:
        """Set the futures of a queue's requests, from `first` on, to answers or exceptions."""
        self.waiting -= len(results)
        for index, result in enumerate(results, first):
            answer = queue.answers[index]
            # Cancelled, since its client has disconnected.
            if answer.done():
                continue
            if isinstance(result, asyncio.CancelledError):
                answer.cancel()
            elif isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    def _calls(self, queue: _Queue) -> Iterator[list[Any]]:
        """Yield the answers, or errors, of the requests of a queue in order, call by call."""
        if queue.may_share:
            # Calls with as many whole requests as fit into `max_rows`.
            start = n_rows = 0
            for index, size in enumerate(queue.sizes):
                if index > start and n_rows + size > self.max_rows:
                    yield _call_together(queue, start, index)
                    start, n_rows = index, 0
                n_rows += size
            yield _call_together(queue, start, len(queue.sizes))
        elif max(queue.sizes) == 1 < len(queue.sizes) and hasattr(queue.call, "each"):
            # At most as many rows as `Predictor.each` answers in one call.
            for index in range(0, len(queue.sizes), MAX_FEW_ROWS):
                yield from _call_each_row(
                    queue.call, queue.request_rows[index : index + MAX_FEW_ROWS]
                )
        else:
            for piece, size in zip(queue.request_rows, queue.sizes, strict=True):
                yield [_call_alone(queue.call, piece, size)]


def _call_together(queue: _Queue, first: int, end: int) -> list[Any]:
    """Return answers, or errors, to some requests of a queue, by one call if it succeeds."""
    pieces, sizes = queue.request_rows[first:end], queue.sizes[first:end]
    if len(sizes) == 1:
        return [_call_alone(queue.call, pieces[0], sizes[0])]
    # A failure may be caused by one request's rows: then each is tried alone.
    try:
        answers = queue.call(pieces)
        check_length(answers, sum(sizes))
    except Exception:
        return [_call_alone(queue.call, *request) for request in zip(pieces, sizes, strict=True)]
    results, offset = [], 0
    for size in sizes:
        results.append(answers[offset : offset + size])
        offset += size
    return results


def _call_each_row(call: Any, request_rows: list[Any]) -> Iterator[list[Any]]:
    """Yield answers to single-row requests, by one call that rounds each row independently."""
    # A failure may be caused by one row, and None means that there is no such call: then each
    # request is a separate call.
    try:
        answers = call.each(request_rows)
    except Exception:
        answers = None
    if answers is None:
        for piece in request_rows:
            yield [_call_alone(call, piece, 1)]
    else:
        yield [answers[index : index + 1] for index in range(len(request_rows))]


def _call_alone(call: _BatchCall, rows: Any, n_rows: int) -> Any:
    """Return the answer to one request, or the exception that its call raised."""
    try:
        answers = call([rows])
        check_length(answers, n_rows)
        return answers
    except Exception as error:
        return error


def check_length(answers: NDArray[Any], n_rows: int) -> None:
    """Raise unless there is one answer per row: a model may come from any package."""
    if len(answers) != n_rows:
        raise _WrongLengthError(f"The model returned {len(answers)} answers for {n_rows} rows.")


class _WrongLengthError(DaskMLDistError, RuntimeError):
    """The number of a model's answers differs from the number of rows."""
