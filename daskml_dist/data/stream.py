"""Blocks read as a pass comes to them, the next ones ahead, and dropped once they are past."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

__all__ = ["BlockStream"]

T = TypeVar("T")

#: Seconds between two looks at whether a read is still worth waiting for.
_SLICE = 0.2


class BlockStream(Generic[T]):
    """The blocks of one lane, by number; used by one thread.

    Parameters
    ----------
    load : callable
        Makes a block of its number; called in the executor's threads.
    order : callable
        Takes the number of a pass (from 1); returns its blocks in the order in which they are
        needed, in groups needed at the same time.
    last : int
        Number of the last pass.
    ahead : int
        Blocks read ahead of the group in use.
    executor : Executor
    check : callable
        Takes the time (monotonic) since which a read is waited for; raises when it must end.
    """

    def __init__(
        self,
        load: Callable[[int], T],
        order: Callable[[int], list[list[int]]],
        last: int,
        ahead: int,
        executor: Executor,
        check: Callable[[float], None],
    ) -> None:
        self._load = load
        self._order = order
        self._last = last
        self._ahead = ahead
        self._executor = executor
        self._check = check
        self._groups: Iterator[list[int]] = iter(())
        self._coming: deque[list[int]] = deque()
        self._reads: dict[int, Future[T]] = {}
        self._open: dict[int, Future[T]] = {}

    def seek(self, pass_: int) -> None:
        """Go on from the start of a pass."""
        self.close()
        passes = range(pass_, self._last + 1)
        self._groups = (group for number in passes for group in self._order(number))
        self._read_ahead()

    def __getitem__(self, number: int) -> T:
        """The block; those of earlier groups are dropped."""
        if number not in self._open:
            self._enter(number)
        return self._result(self._open[number])

    def aside(self, number: int) -> T:
        """The block, outside the pass's order; it is not kept."""
        if number in self._open:
            return self[number]
        return self._result(self._executor.submit(self._load, number))

    def _enter(self, number: int) -> None:
        self._open = {}
        while number not in (group := self._next_group()):
            for skipped in group:
                self._forget(skipped)
        self._open = {n: self._reads.pop(n) if n in self._reads else self._read(n) for n in group}
        self._read_ahead()

    def _next_group(self) -> list[int]:
        return self._coming.popleft() if self._coming else next(self._groups)

    def _read_ahead(self) -> None:
        """Start reads of coming blocks up to the bound."""
        known = [n for group in self._coming for n in group]
        while len(known) < self._ahead:
            group = next(self._groups, None)
            if group is None:
                break
            self._coming.append(group)
            known += group
        for n in known[: self._ahead]:
            # A block that is open now may come again in the next pass; then it is read again.
            if n not in self._reads:
                self._reads[n] = self._read(n)

    def _read(self, number: int) -> Future[T]:
        return self._executor.submit(self._load, number)

    def _forget(self, number: int) -> None:
        read = self._reads.pop(number, None)
        if read is not None:
            read.cancel()

    def _result(self, read: Future[T]) -> T:
        since = time.monotonic()
        while True:
            try:
                return read.result(timeout=_SLICE)
            except TimeoutError:
                if read.done():
                    raise
                self._check(since)

    def close(self) -> None:
        """Drop everything; reads that have begun end by themselves."""
        for number in list(self._reads):
            self._forget(number)
        self._open = {}
        self._coming.clear()
