"""Natural batching: what was parsed in one turn of the event loop is called with no wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from daskml_dist.errors import DaskMLDistError, RequestError

__all__ = ["Batcher", "check_length"]

#: Makes the answers of the rows of some requests, row after row.
Product = Callable[[list[Any]], NDArray[Any]]
#: Requests of a row each that are one call, of as many rows as a predictor answers at once.
_MOST_EACH = 256
#: Seconds of calls after which the event loop has a turn for all else.
_TURN = 0.005


class _Line:
    """Requests that wait for one product."""

    __slots__ = ("answers", "pieces", "product", "sizes", "together")

    def __init__(self, product: Product, together: bool) -> None:
        self.product = product
        self.together = together
        self.pieces: list[Any] = []
        self.sizes: list[int] = []
        self.answers: list[Any] = []  # futures, or what is told like them


class Batcher:
    """Requests that came at the same time: called together, or one after the other.

    Parameters
    ----------
    max_waiting : int, default=1024
        Requests that may wait; a further one is refused.
    max_rows : int, default=65536
        Rows of one call. A single request with more is a call of its own.

    Notes
    -----
    The cost of a call of a small model is nearly all fixed, so that under load, where each turn of
    the loop finds many requests, their number a second grows; without load nothing waits. Where a
    call fails, each of its requests is tried alone, and only those that fail by themselves are told
    so. Calls that are many, or take long, leave the loop a turn every few milliseconds, where one
    does not take longer. What must not be in the loop's way (`delay`) runs in a thread, the
    requests of a line one after the other, while those of the next gather.
    """

    def __init__(self, *, max_waiting: int = 1024, max_rows: int = 65536) -> None:
        self.max_waiting = max_waiting
        self.max_rows = max_rows
        self.waiting = 0
        self._lines: dict[Hashable, _Line] = {}
        self._due: deque[Hashable] = deque()
        self._busy = False
        self._thread: ThreadPoolExecutor | None = None

    def ask(
        self,
        key: Hashable,
        product: Product,
        rows: Any,
        n_rows: int,
        delay: float | None = None,
        together: bool = True,
        answer: Any = None,
    ) -> Any:
        """Take in a request."""
        if self.waiting >= self.max_waiting:
            raise RequestError(
                f"{self.waiting} requests wait: try again after a second, or serve with more "
                "processes.",
                503,
                ((b"retry-after", b"1"),),
            )
        loop = asyncio.get_running_loop()
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(product, together)
            if delay is None:
                loop.call_soon(self._flush, key)
            else:
                loop.call_later(delay, self._come_due, key)
        if answer is None:
            answer = loop.create_future()
        line.pieces.append(rows)
        line.sizes.append(n_rows)
        line.answers.append(answer)
        self.waiting += 1
        return answer

    def close(self) -> None:
        """End the thread, once its call is made."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def _flush(self, key: Hashable) -> None:
        line = self._lines.pop(key)
        self._go_on(line, 0, self._parts(line))

    def _go_on(self, line: _Line, at: int, parts: Iterator[list[Any]]) -> None:
        """Answer requests from one on, and those that this turn has no time for in the next."""
        end = time.perf_counter() + _TURN
        for results in parts:
            self._tell(line, at, results)
            at += len(results)
            if at < len(line.answers) and time.perf_counter() >= end:
                asyncio.get_running_loop().call_soon(self._go_on, line, at, parts)
                return

    def _come_due(self, key: Hashable) -> None:
        self._due.append(key)
        self._next()

    def _next(self) -> None:
        """Hand the thread what has waited longest."""
        if self._busy or not self._due:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "daskml_dist-serving")
        self._busy = True
        line = self._lines.pop(self._due.popleft())
        loop = asyncio.get_running_loop()
        called = loop.run_in_executor(self._thread, self._made, line)
        called.add_done_callback(lambda done: self._told(line, done))

    def _told(self, line: _Line, done: asyncio.Future[list[Any]]) -> None:
        self._busy = False
        lost = [asyncio.CancelledError()] * len(line.pieces)
        self._tell(line, 0, lost if done.cancelled() else done.result())
        self._next()

    def _tell(self, line: _Line, first: int, results: list[Any]) -> None:
        self.waiting -= len(results)
        for at, result in enumerate(results, first):
            answer = line.answers[at]
            if answer.done():  # its client has left
                continue
            if isinstance(result, asyncio.CancelledError):
                answer.cancel()
            elif isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    def _made(self, line: _Line) -> list[Any]:
        return list(chain.from_iterable(self._parts(line)))

    def _parts(self, line: _Line) -> Iterator[list[Any]]:
        """Answers, or errors, of the requests of a line in their order, as calls make them."""
        if line.together:
            first = rows = 0
            for at, size in enumerate(line.sizes):
                if at > first and rows + size > self.max_rows:
                    yield _called(line, first, at)
                    first, rows = at, 0
                rows += size
            yield _called(line, first, len(line.sizes))
        elif max(line.sizes) == 1 < len(line.sizes) and hasattr(line.product, "each"):
            for at in range(0, len(line.sizes), _MOST_EACH):
                yield from _each(line.product, line.pieces[at : at + _MOST_EACH])
        else:
            for one in zip(line.pieces, line.sizes, strict=True):
                yield [_alone(line.product, *one)]


def _called(line: _Line, first: int, end: int) -> list[Any]:
    """Answers, or errors, of some requests of a line, by one call where that does not fail."""
    pieces, sizes = line.pieces[first:end], line.sizes[first:end]
    if len(sizes) == 1:
        return [_alone(line.product, pieces[0], sizes[0])]
    try:
        answers = _whole(line.product, pieces, sum(sizes))
    except Exception:
        return [_alone(line.product, *one) for one in zip(pieces, sizes, strict=True)]
    results, at = [], 0
    for size in sizes:
        results.append(answers[at : at + size])
        at += size
    return results


def _each(product: Any, pieces: list[Any]) -> Iterator[list[Any]]:
    """Answers to requests of a row each, by one call where it makes each as if it were alone."""
    try:
        answers = product.each(pieces)
    except Exception:  # of one of them, which a call of its own tells
        answers = None
    if answers is None:
        for piece in pieces:
            yield [_alone(product, piece, 1)]
    else:
        yield [answers[at : at + 1] for at in range(len(pieces))]


def _alone(product: Product, piece: Any, size: int) -> Any:
    """The answer, or the error, of one request."""
    try:
        return _whole(product, [piece], size)
    except Exception as error:
        return error


def _whole(product: Product, pieces: list[Any], n_rows: int) -> NDArray[Any]:
    """The answers of a product, one a row."""
    answers = product(pieces)
    check_length(answers, n_rows)
    return answers


def check_length(answers: NDArray[Any], n_rows: int) -> None:
    """Check that there is an answer a row, of a model that may be anybody's."""
    if len(answers) != n_rows:
        raise _Uneven(f"The model gave {len(answers)} answers for {n_rows} rows.")


class _Uneven(DaskMLDistError, RuntimeError):
    """A model that answers other rows than it was given: it cannot be served."""
