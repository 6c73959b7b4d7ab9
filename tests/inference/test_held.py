"""Models held for a service: limits of BLAS threads that requests share."""

from __future__ import annotations

from threading import Thread

from threadpoolctl import ThreadpoolController

from daskml_dist.inference.request_rows import _BlasLimits
from tests.serving.tiny import until


def test_who_wants_other_threads_gets_a_turn() -> None:
    limits, blas = _BlasLimits(), ThreadpoolController()
    done: list[int] = []

    def ask(n_threads: int) -> None:
        with limits.at(n_threads, blas):
            done.append(n_threads)

    threads = [Thread(target=ask, args=(n,), daemon=True) for n in (2, 1)]
    with limits.at(1, blas):
        for n_waiting, thread in enumerate(threads, 1):
            thread.start()
            # The second, though it wants what there is, lets the first have its turn.
            until(lambda n=n_waiting: limits._waiting.total() == n)
        assert not done
        ask_more = Thread(target=ask, args=(0,))  # without a limit nobody waits
        ask_more.start()
        ask_more.join(30)
        assert done == [0]
    for thread in threads:
        thread.join(30)
    assert sorted(done) == [0, 1, 2]
    assert limits._waiting.total() == 0
