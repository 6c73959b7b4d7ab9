"""Request batching: one call per iteration of the loop, a limit, and a thread for slow models."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")

from daskml_dist.errors import RequestError
from daskml_dist.serving import batching
from daskml_dist.serving.batching import Batcher


class Product:
    """Predictor that doubles rows and refuses negative ones."""

    def __init__(self):
        self.calls = []
        self.threads = set()

    def __call__(self, pieces):
        self.calls.append(len(pieces))
        self.threads.add(threading.current_thread().name)
        rows = np.concatenate(pieces)
        if (rows < 0).any():
            raise ValueError("negative")
        return 2 * rows


def answers(batcher, product, pieces, delay=None, together=True):
    async def run():
        waiting = [
            batcher.ask("m", product, piece, len(piece), delay, together) for piece in pieces
        ]
        return await asyncio.gather(*waiting, return_exceptions=True)

    return asyncio.run(run())


PIECES = [np.arange(n, dtype=float) for n in (1, 3, 2)]


@pytest.mark.parametrize("delay", [None, 0.0])
@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({}, [3]),
        ({"together": False}, [1, 1, 1]),
        ({"max_rows": 5}, [2, 1]),
        ({"max_rows": 1}, [1] * 3),
    ],
)
def test_requests_of_one_loop_iteration_share_a_call(settings, calls, delay):
    product, together = Product(), settings.get("together", True)
    batcher = Batcher(**{name: n for name, n in settings.items() if name != "together"})
    for piece, answer in zip(
        PIECES, answers(batcher, product, PIECES, delay, together), strict=True
    ):
        np.testing.assert_array_equal(answer, 2 * piece)
    assert product.calls == calls
    assert batcher.waiting == 0
    assert not batcher._queues
    in_thread = threading.current_thread().name not in product.threads
    assert in_thread == (delay is not None)
    batcher.close()


@pytest.mark.parametrize(("turn", "seen_by_others"), [(0.0, {1, 2, 3}), (100.0, {3})])
def test_the_loop_runs_between_slow_calls(turn, seen_by_others, monkeypatch):
    """The event loop runs other tasks between two slow calls."""
    monkeypatch.setattr(batching, "CALL_SECONDS", turn)
    calls, n_calls = Product(), set()

    async def run():
        batcher, loop = Batcher(), asyncio.get_running_loop()

        def look():
            n_calls.add(len(calls.calls))
            if batcher.waiting:
                loop.call_soon(look)

        waiting = [batcher.ask("m", calls, piece, len(piece), None, False) for piece in PIECES]
        loop.call_soon(look)
        found = await asyncio.gather(*waiting)
        assert batcher.waiting == 0
        return found

    for piece, answer in zip(PIECES, asyncio.run(run()), strict=True):
        np.testing.assert_array_equal(answer, 2 * piece)
    assert calls.calls == [1, 1, 1]
    assert n_calls == seen_by_others


def test_a_failing_request_does_not_affect_others():
    product = Product()
    good, bad, other = answers(Batcher(), product, [PIECES[1], -PIECES[1], PIECES[2]])
    assert isinstance(bad, ValueError)
    np.testing.assert_array_equal(good, 2 * PIECES[1])
    np.testing.assert_array_equal(other, 2 * PIECES[2])
    assert product.calls == [3, 1, 1, 1]


def test_a_model_that_returns_a_wrong_number_of_rows():
    (error,) = answers(Batcher(), lambda pieces: np.zeros(7), [PIECES[0]])
    assert "7 answers for 1 rows" in str(error)


class Each(Product):
    """The same, with a separate method for single rows."""

    def each(self, pieces):
        rows = np.concatenate(pieces)
        if (rows == 7).any():
            return None
        if (rows < 0).any():
            raise ValueError("negative")
        self.calls.append(-len(pieces))
        return 2 * rows


@pytest.mark.parametrize(
    ("values", "calls"),
    [
        ([1, 2, 3], [-3]),
        ([1], [1]),
        ([1, 7], [1, 1]),
        ([1, -1], [1, 1]),
        (range(10, 310), [-256, -44]),
        (range(-1, 299), [1] * 256 + [-44]),
    ],
)
def test_single_rows_are_predicted_separately(values, calls):
    product = Each()
    pieces = [np.array([float(value)]) for value in values]
    found = answers(Batcher(), product, pieces, together=False)
    assert product.calls == calls
    for piece, answer in zip(pieces, found, strict=True):
        if piece[0] < 0:
            assert isinstance(answer, ValueError)
        else:
            np.testing.assert_array_equal(answer, 2 * piece)
    # Requests of several rows have separate calls.
    product = Each()
    assert len(answers(Batcher(), product, PIECES, together=False)) == 3
    assert product.calls == [1, 1, 1]


def test_requests_beyond_the_limit_are_refused():
    async def run():
        batcher, product = Batcher(max_waiting=2), Product()
        waiting = [batcher.ask("m", product, PIECES[0], 1) for _ in range(2)]
        with pytest.raises(RequestError, match="try again") as caught:
            batcher.ask("m", product, PIECES[0], 1)
        assert caught.value.status == 503
        assert (b"retry-after", b"1") in caught.value.headers
        await asyncio.gather(*waiting)
        await batcher.ask("m", product, PIECES[0], 1)  # the queue has space again

    asyncio.run(run())


def test_requests_gather_while_the_thread_is_busy():
    """Requests that arrive during a call form the next call, and the loop is not blocked."""
    entered, free = threading.Event(), threading.Event()
    calls = []

    def product(pieces):
        calls.append(len(pieces))
        entered.set()
        assert free.wait(200)
        return np.concatenate(pieces)

    async def run():
        batcher = Batcher()
        first = batcher.ask("m", product, PIECES[0], 1, 0.0)
        while not entered.is_set():
            await asyncio.sleep(0)
        later = []
        for _ in range(5):
            later.append(batcher.ask("m", product, PIECES[0], 1, 0.0))
            await asyncio.sleep(0.001)
        assert calls == [1]
        later[0].cancel()  # a client that left does not affect others
        free.set()
        await asyncio.gather(first, *later[1:])
        assert calls == [1, 5]
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(run())
