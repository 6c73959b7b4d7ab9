"""Models held for a service: shared limits of BLAS threads."""

from __future__ import annotations

from threading import Thread

from threadpoolctl import ThreadpoolController

from daskml_dist.inference.request_rows import _BlasLimits
from tests.serving.tiny import until


def test_a_request_for_another_thread_limit_is_not_starved() -> None:
    limits, blas = _BlasLimits(), ThreadpoolController()
    done: list[int] = []

    def ask(n_threads: int) -> None:
        with limits.limit_threads(n_threads, blas):
            done.append(n_threads)

    threads = [Thread(target=ask, args=(n,), daemon=True) for n in (2, 1)]
    with limits.limit_threads(1, blas):
        for n_waiting, thread in enumerate(threads, 1):
            thread.start()
            # The second, although it wants the current limit, waits behind the first.
            until(lambda n=n_waiting: limits._waiting.total() == n)
        assert not done
        ask_more = Thread(target=ask, args=(0,))  # without a limit no request waits
        ask_more.start()
        ask_more.join(30)
        assert done == [0]
    for thread in threads:
        thread.join(30)
    assert sorted(done) == [0, 1, 2]
    assert limits._waiting.total() == 0
