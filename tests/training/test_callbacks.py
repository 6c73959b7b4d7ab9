"""Callbacks: which hooks are called, in which order, and the effect of an error in one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from daskml_dist.errors import InvalidParameterError, TrainingError
from daskml_dist.training.callbacks import HOOKS, CallbackList

RUN = object()
CALLS: dict[str, Callable[[CallbackList], None]] = {
    "on_phase": lambda callbacks: callbacks.on_phase("reading", 1, 4),
    "on_fit_begin": lambda callbacks: callbacks.on_fit_begin(RUN),
    "on_pass_end": lambda callbacks: callbacks.on_pass_end(RUN, {"pass": 1}),
    "on_pass_redone": lambda callbacks: callbacks.on_pass_redone(RUN, {"pass": 1}),
    "on_generation": lambda callbacks: callbacks.on_generation(RUN, "a worker left"),
    "on_fit_end": lambda callbacks: callbacks.on_fit_end(RUN),
}


class Recorder:
    """Callback that records its calls in a shared list and raises in the given hooks."""

    def __init__(
        self, name: str, log: list[tuple[Any, ...]], raises: dict[str, BaseException] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.raises = raises or {}

    def _note(self, hook: str, *args: Any) -> None:
        self.log.append((self.name, hook, *args))
        if hook in self.raises:
            raise self.raises[hook]

    def on_phase(self, phase: str, done: int, total: int | None) -> None:
        self._note("on_phase", phase, done, total)

    def on_fit_begin(self, run: Any) -> None:
        self._note("on_fit_begin", run)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self._note("on_pass_end", run, record)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        self._note("on_pass_redone", run, record)

    def on_generation(self, run: Any, event: Any) -> None:
        self._note("on_generation", run, event)

    def on_fit_end(self, run: Any) -> None:
        self._note("on_fit_end", run)


class OnlyPasses:
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.losses.append(record["loss"])


@pytest.fixture
def log() -> list[tuple[Any, ...]]:
    return []


def _called(log: list[tuple[Any, ...]], hook: str) -> list[str]:
    return [entry[0] for entry in log if entry[1] == hook]


def test_hooks_table_lists_the_methods_of_callback_list() -> None:
    assert set(HOOKS) == set(CALLS)
    assert {name for name in dir(CallbackList) if name.startswith("on_")} == set(HOOKS)


def test_every_hook_is_passed_on_in_order(log: list[tuple[Any, ...]]) -> None:
    callbacks = CallbackList([Recorder("a", log), Recorder("b", log)])
    for call in CALLS.values():
        call(callbacks)
    arguments: dict[str, tuple[Any, ...]] = {
        "on_phase": ("reading", 1, 4),
        "on_fit_begin": (RUN,),
        "on_pass_end": (RUN, {"pass": 1}),
        "on_pass_redone": (RUN, {"pass": 1}),
        "on_generation": (RUN, "a worker left"),
        "on_fit_end": (RUN,),
    }
    assert log == [(name, hook, *arguments[hook]) for hook in CALLS for name in "ab"]


def test_a_callback_needs_one_method_only() -> None:
    callback = OnlyPasses()
    callbacks = CallbackList(callback)
    callbacks.on_fit_begin(RUN)
    callbacks.on_pass_end(RUN, {"loss": 0.5})
    callbacks.on_generation(RUN, "a worker joined")
    callbacks.on_fit_end(RUN)
    assert callback.losses == [0.5]


@pytest.mark.parametrize("none", [None, [], ()])
def test_an_empty_callback_list_does_nothing(none: object) -> None:
    callbacks = CallbackList(none)
    assert len(callbacks) == 0
    for call in CALLS.values():
        call(callbacks)


def test_callbacks_are_given_as_one_object_a_sequence_or_a_callback_list() -> None:
    first, second = OnlyPasses(), OnlyPasses()
    assert list(CallbackList(first)) == [first]
    assert list(CallbackList([first, second])) == [first, second]
    assert list(CallbackList(CallbackList((first, second)))) == [first, second]


def test_a_callback_that_is_a_sequence_is_one_callback() -> None:
    class Losses(list[float]):
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            self.append(record["loss"])

    callback = Losses([0.5])
    (only,) = CallbackList(callback)
    assert only is callback


@pytest.mark.parametrize("wrong", [object(), "progress", 3, [OnlyPasses(), None], print])
def test_an_object_without_hooks_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidParameterError, match=", ".join(HOOKS)):
        CallbackList(wrong)


@pytest.mark.parametrize("wrong", [OnlyPasses, [OnlyPasses]])
def test_a_class_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidParameterError, match=r"is a class; .*OnlyPasses\(\)"):
        CallbackList(wrong)


def test_an_attribute_that_is_not_callable_is_no_hook() -> None:
    class Wrong:
        on_fit_end = "later"

    with pytest.raises(InvalidParameterError, match="has no method that a fit would call"):
        CallbackList(Wrong())


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_is_raised_as_it_is_and_its_note_names_the_callback(
    hook: str, log: list[tuple[Any, ...]]
) -> None:
    cause = ZeroDivisionError("by zero")
    callbacks = CallbackList([Recorder("a", log, {hook: cause})])
    if hook == "on_fit_end":
        callbacks.on_fit_begin(RUN)
    with pytest.raises(ZeroDivisionError) as caught:
        CALLS[hook](callbacks)
    assert caught.value is cause
    assert cause.__notes__ == [f"raised by the callback Recorder.{hook}"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("hook", HOOKS)
def test_interrupts_pass_through(
    hook: str, interrupt: BaseException, log: list[tuple[Any, ...]]
) -> None:
    callbacks = CallbackList([Recorder("a", log, {hook: interrupt}), Recorder("b", log)])
    if hook == "on_fit_end":
        callbacks.on_fit_begin(RUN)
    with pytest.raises(type(interrupt)):
        CALLS[hook](callbacks)


def test_an_interrupt_in_on_fit_end_spares_the_other_callbacks(log: list[tuple[Any, ...]]) -> None:
    interrupt = {"on_fit_end": KeyboardInterrupt()}
    failure = {"on_fit_end": ValueError("no disk")}
    callbacks = CallbackList([Recorder("a", log, interrupt), Recorder("b", log, failure)])
    callbacks.on_fit_begin(RUN)
    with pytest.raises(KeyboardInterrupt):
        callbacks.on_fit_end(RUN)
    assert _called(log, "on_fit_end") == ["a", "b"]


def test_on_fit_end_is_called_where_on_fit_begin_was_called(log: list[tuple[Any, ...]]) -> None:
    failing = Recorder("b", log, {"on_fit_begin": ValueError("no disk")})
    callbacks = CallbackList([Recorder("a", log), failing, Recorder("c", log)])
    with pytest.raises(ValueError, match="no disk"):
        callbacks.on_fit_begin(RUN)
    assert _called(log, "on_fit_begin") == ["a", "b"]
    assert _called(log, "on_fit_end") == ["a", "b"]
    callbacks.on_fit_end(RUN)
    assert len(_called(log, "on_fit_end")) == 2


def test_on_fit_end_is_called_once_for_each_fit(log: list[tuple[Any, ...]]) -> None:
    callbacks = CallbackList(Recorder("a", log))
    callbacks.on_fit_end(RUN)
    assert log == []
    for _ in range(2):
        callbacks.on_fit_begin(RUN)
        callbacks.on_fit_end(RUN)
        callbacks.on_fit_end(RUN)
    assert _called(log, "on_fit_end") == ["a", "a"]


def test_the_first_error_of_on_fit_end_is_raised_and_notes_the_others(
    log: list[tuple[Any, ...]],
) -> None:
    errors = [{"on_fit_end": ValueError("first")}, {"on_fit_end": OSError("second")}]
    callbacks = CallbackList([Recorder("a", log, errors[0]), Recorder("b", log, errors[1])])
    callbacks.on_fit_begin(RUN)
    with pytest.raises(ValueError, match="first") as caught:
        callbacks.on_fit_end(RUN)
    assert _called(log, "on_fit_end") == ["a", "b"]
    assert "Recorder.on_fit_end raised OSError('second')" in caught.value.__notes__[1]


def test_an_earlier_error_takes_precedence_over_on_fit_end(log: list[tuple[Any, ...]]) -> None:
    errors = {"on_pass_end": ValueError("first"), "on_fit_end": OSError("second")}
    callbacks = CallbackList(Recorder("a", log, errors))
    callbacks.on_fit_begin(RUN)
    with pytest.raises(ValueError, match="first") as caught:
        callbacks.on_pass_end(RUN, {"pass": 1})
    callbacks.on_fit_end(RUN)
    assert "OSError('second')" in caught.value.__notes__[1]


def test_the_error_that_stopped_the_fit_takes_precedence(log: list[tuple[Any, ...]]) -> None:
    stopped = TrainingError("a worker left")
    callbacks = CallbackList(Recorder("a", log, {"on_fit_end": OSError("no disk")}))
    callbacks.on_fit_begin(RUN)
    callbacks.on_fit_end(RUN, stopped)
    assert "OSError('no disk')" in stopped.__notes__[0]


def test_an_error_of_one_fit_does_not_hide_that_of_the_next(log: list[tuple[Any, ...]]) -> None:
    recorder = Recorder("a", log, {"on_pass_end": ValueError("first")})
    callbacks = CallbackList(recorder)
    callbacks.on_fit_begin(RUN)
    with pytest.raises(ValueError, match="first"):
        callbacks.on_pass_end(RUN, {"pass": 1})
    callbacks.on_fit_end(RUN)
    recorder.raises = {"on_fit_end": OSError("second")}
    callbacks.on_fit_begin(RUN)
    with pytest.raises(OSError, match="second"):
        callbacks.on_fit_end(RUN)


def test_a_phase_ends_once_for_every_callback_even_if_one_raises(
    log: list[tuple[Any, ...]],
) -> None:
    first, second = Recorder("a", log), Recorder("b", log)
    callbacks = CallbackList([first, second])
    callbacks.end()  # a fit without any other hook call
    assert log == []
    callbacks.on_phase("reading", 1, 4)
    first.raises = {"on_phase": OSError("no disk")}
    failed = TrainingError("a worker left")
    callbacks.end(failed)
    callbacks.end()
    assert log[2:] == [(name, "on_phase", "end", 0, None) for name in "ab"]
    assert failed.__notes__ == [
        "then, as the fit ended, Recorder.on_phase raised OSError('no disk')"
    ]
    with pytest.raises(OSError, match="no disk"):
        callbacks.on_phase("reading")
    with pytest.raises(OSError, match="no disk"):
        callbacks.end()
    assert log[-1] == ("b", "on_phase", "end", 0, None)
