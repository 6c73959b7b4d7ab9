"""The Ctrl-C handler raises the first interrupt, between two steps, and no later one."""

from __future__ import annotations

import signal
import threading

import pytest

from daskml_dist.training.interrupts import Interrupts
from tests.training.interrupts.endless import press


def test_only_the_first_interrupt_is_raised() -> None:
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            press()
        press()


def test_a_deferred_interrupt_is_raised_at_the_end() -> None:
    events = []

    def run() -> None:
        with Interrupts() as interrupts:
            with interrupts.delay():
                press()
                events.append("whole")
            events.append("after")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert events == ["whole", "after"]


def test_an_interrupt_during_a_step_is_raised_after_it() -> None:
    with Interrupts() as interrupts, interrupts.between_steps():
        interrupts.raise_pending()
        press()
        with pytest.raises(KeyboardInterrupt) as caught:
            interrupts.raise_pending()
        assert interrupts.was_pending(caught.value)


def test_a_second_interrupt_is_raised_within_the_step() -> None:
    with Interrupts() as interrupts, interrupts.between_steps():
        press()
        with pytest.raises(KeyboardInterrupt) as caught:
            press()
        assert not interrupts.was_pending(caught.value)


def test_an_interrupt_in_user_code_is_raised_immediately() -> None:
    with Interrupts() as interrupts, interrupts.between_steps(), interrupts.at_once():
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_users_own_handler_is_called() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGINT, lambda *_: called.append(1))
    try:
        with Interrupts() as interrupts, interrupts.between_steps():
            press()
            press()
            interrupts.raise_pending()
        assert called == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_install_no_handler() -> None:
    def run() -> None:
        with Interrupts() as interrupts, interrupts.between_steps():
            interrupts.raise_pending()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
