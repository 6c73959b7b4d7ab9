"""Callbacks: user code that runs at seven moments of a fit.

A callback is any object with one or more of the methods

- ``on_phase(phase, done, total)``: when one of the `PHASES` begins, and as it makes progress;
- ``on_fit_begin(run)``: before the first step;
- ``on_pass_end(run, record)``: after each pass over the data, with its record of the history;
- ``on_pass_redone(run, record)``: after a pass was repeated because a worker was lost, if
  ``on_pass_end`` was already called for it: the new record replaces the old one;
- ``on_generation(run, event)``: after lanes moved because a worker died, left or joined; see
  :class:`~daskml_dist.training.client.cluster_run.GenerationEvent`;
- ``on_fit_end(run)``: after the last step, even if the fit failed or was interrupted;
- ``on_step_end(step)``: after each gradient step of a lane, with a :class:`StepEnd`.

If a callback's attribute ``needs_parameters`` is true, ``on_pass_end`` is called once the client
has the parameters after the pass: ``run.parameters()``, ``run.estimator()``. A fit by gradient
steps then runs pass by pass, as it does with a checkpoint after each.

The first six methods run in the client. Phases may come in any order and number: a fit that loses a
worker repeats "placing", and a fit of rows in memory has no such phase. ``"reading"`` counts
blocks, `done` of `total`; in other phases, or if it is unknown, `total` is None. The last phase is
``"end"``, however the fit ends, even if it fails before ``on_fit_begin``.

``on_step_end`` runs where the steps are made. On a cluster this is in the workers' processes, each
of which has a copy of the callback (so it must be picklable), and in several threads if a process
has several lanes. An exception in it ends the fit: it is raised unchanged by a fit in one process,
and is the cause of a :class:`~daskml_dist.errors.TrainingError` if it was raised on a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from daskml_dist.errors import InvalidParameterError

__all__ = ["HOOKS", "PHASES", "STEP_HOOK", "CallbackList", "StepEnd"]

#: Methods that the client calls, and the one that is called where steps are made.
HOOKS = (
    "on_phase",
    "on_fit_begin",
    "on_pass_end",
    "on_pass_redone",
    "on_generation",
    "on_fit_end",
)
STEP_HOOK = "on_step_end"
#: Phases of a fit, the first argument of ``on_phase``.
PHASES = (
    "waiting for workers",
    "reading",
    "numbering keys",
    "placing",
    "finding a learning rate",
    "training",
    "gathering",
    "end",
)


@dataclass(frozen=True)
class StepEnd:
    """A step of a lane, the argument of ``on_step_end``.

    Parameters
    ----------
    lane : int
    clock : int
        Steps that the lane has made so far.
    n_rows : int
        Rows of the step's batch.
    loss : float
        Sum of the losses of these rows, before the step.

    Examples
    --------
    >>> from daskml_dist.training.callbacks import StepEnd
    >>> StepEnd(lane=0, clock=3, n_rows=64, loss=0.5).loss
    0.5
    """

    lane: int
    clock: int
    n_rows: int
    loss: float


class CallbackList:
    """The callbacks of a fit, called one after the other.

    An exception in a callback ends the call and is raised unchanged, with a note that names the
    callback. Each callback whose ``on_fit_begin`` was called also gets ``on_fit_end``, once,
    whatever the other callbacks do: a callback may open resources in the first and close them in
    the second.

    Parameters
    ----------
    callbacks : object, sequence of objects, or None, default=None
        Objects with one or more of the methods in `HOOKS`, or `STEP_HOOK`.

    Raises
    ------
    InvalidParameterError
        An object has none of these methods, or is a class.

    Examples
    --------
    >>> from daskml_dist.training.callbacks import CallbackList
    >>> class Printer:
    ...     def on_pass_end(self, run, record):
    ...         print(record['pass'])
    >>> CallbackList([Printer()]).need_parameters
    False
    """

    def __init__(self, callbacks: object = None) -> None:
        self._callbacks = _list_callbacks(callbacks)
        for callback in self._callbacks:
            _check_callback(callback)
        self._begun_callbacks: list[object] = []
        self._in_phase = False
        self._error: BaseException | None = None
        #: Makes a fitted estimator from parameters; None if the fit has no such function.
        self.fitted: Callable[[Any], Any] | None = getattr(callbacks, "fitted", None)

    def __len__(self) -> int:
        return len(self._callbacks)

    def __iter__(self) -> Iterator[object]:
        return iter(self._callbacks)

    @property
    def step_callbacks(self) -> tuple[Any, ...]:
        """Return the callbacks with ``on_step_end``, which are called where steps are made."""
        return tuple(c for c in self._callbacks if callable(getattr(c, STEP_HOOK, None)))

    @property
    def need_parameters(self) -> bool:
        """Return whether any callback needs the parameters after each pass."""
        return any(getattr(c, "needs_parameters", False) for c in self._callbacks)

    def on_phase(self, phase: str, done: int = 0, total: int | None = None) -> None:
        """Call ``on_phase`` of every callback.

        Parameters
        ----------
        phase : str
            One of `PHASES`.
        done, total : int, int or None
            Number of blocks read, and the number to read.

        Raises
        ------
        BaseException
            Exception of a callback; later callbacks are not called.
        """
        self._in_phase = True
        for callback in self._callbacks:
            self._call_hook(callback, "on_phase", phase, done, total)

    def end(self, error: BaseException | None = None) -> None:
        """Call ``on_phase("end")`` of every callback; do nothing if no phase has begun.

        Parameters
        ----------
        error : BaseException or None, default=None
            The exception that ends the fit, if one is being raised.

        Raises
        ------
        BaseException
            Exception of a callback, unless there is an `error`.
        """
        # A fit that failed before its first phase has no phase to end.
        started, self._in_phase = self._callbacks if self._in_phase else (), False
        self._call_at_end(started, error, "on_phase", "end", 0, None)

    def on_fit_begin(self, run: Any) -> None:
        """Call ``on_fit_begin`` of every callback.

        Parameters
        ----------
        run : object
            View of the fit, passed on unchanged.

        Raises
        ------
        BaseException
            Exception of a callback. ``on_fit_end`` has then been called for it and the earlier
            ones.
        """
        self._begun_callbacks, self._error = [], None
        try:
            for callback in self._callbacks:
                # Recorded before the call, so that a callback that fails part way can clean up too.
                self._begun_callbacks.append(callback)
                self._call_hook(callback, "on_fit_begin", run)
        except BaseException as error:
            self.on_fit_end(run, error)
            raise

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Call ``on_pass_end`` of every callback.

        Parameters
        ----------
        run : object
            View of the fit.
        record : dict
            Record of the pass, as the history keeps it.

        Raises
        ------
        BaseException
            Exception of a callback; later callbacks are not called.
        """
        for callback in self._callbacks:
            self._call_hook(callback, "on_pass_end", run, record)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Call ``on_pass_redone`` of every callback.

        Parameters
        ----------
        run : object
            View of the fit.
        record : dict
            New record of the pass, which replaces the earlier one.

        Raises
        ------
        BaseException
            Exception of a callback; later callbacks are not called.
        """
        for callback in self._callbacks:
            self._call_hook(callback, "on_pass_redone", run, record)

    def on_generation(self, run: Any, event: Any) -> None:
        """Call ``on_generation`` of every callback.

        Parameters
        ----------
        run : object
            View of the fit.
        event : object
            The change of membership; its `str` describes it in words.

        Raises
        ------
        BaseException
            Exception of a callback; later callbacks are not called.
        """
        for callback in self._callbacks:
            self._call_hook(callback, "on_generation", run, event)

    def on_fit_end(self, run: Any, error: BaseException | None = None) -> None:
        """Call ``on_fit_end`` of every callback whose ``on_fit_begin`` was called.

        All of these are called even if one raises. The first error is raised, and later ones are
        added to it as notes. A second call does nothing.

        Parameters
        ----------
        run : object
            View of the fit.
        error : BaseException or None, default=None
            The exception that ends the fit, if the caller is about to raise it.

        Raises
        ------
        BaseException
            Exception of a callback, unless there is an `error`, or an earlier call of this fit
            raised first.
        """
        # If a callback's error has already ended the fit, that error is the one to raise.
        first = error or self._error
        callbacks, self._begun_callbacks, self._error = self._begun_callbacks, [], None
        has_error = callbacks and hasattr(run, "error")
        if has_error:
            run.error = first
        try:
            self._call_at_end(callbacks, first, "on_fit_end", run)
        finally:
            if has_error:
                run.error = None

    def _call_at_end(
        self, callbacks: Sequence[object], first: BaseException | None, hook: str, *args: Any
    ) -> None:
        """Call an ending hook of all callbacks, even if some raise; later errors become notes."""
        raised: BaseException | None = None
        for callback in callbacks:
            try:
                self._call_hook(callback, hook, *args)
            except BaseException as later:
                if first is None or _takes_precedence(later, first):
                    first = raised = later
                else:
                    name = type(callback).__name__
                    first.add_note(f"then, as the fit ended, {name}.{hook} raised {later!r}")
        self._error = None  # its traceback would keep the run alive
        if raised is not None:
            raise raised

    def _call_hook(self, callback: object, hook: str, *args: Any) -> None:
        """Call one hook of a callback, if it has that hook; add the callback's name to an error."""
        method = getattr(callback, hook, None)
        if not callable(method):
            return
        try:
            method(*args)
        except BaseException as error:
            note = f"raised by the callback {type(callback).__name__}.{hook}"
            # A Ctrl-C may be raised in any frame, so naming the callback would be wrong.
            if isinstance(error, Exception) and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            self._error = self._error or error
            raise

    def has_raised(self, error: BaseException) -> bool:
        """Return whether an error is the one that a callback of this fit raised first."""
        return error is self._error


def _list_callbacks(callbacks: object) -> tuple[object, ...]:
    """Return callbacks given as None, one object, a sequence or a `CallbackList` as a tuple."""
    if callbacks is None:
        return ()
    if isinstance(callbacks, CallbackList):
        return tuple(callbacks)
    # An object with a hook is a callback, even if it is also a sequence.
    if (
        isinstance(callbacks, Sequence)
        and not isinstance(callbacks, str)
        and not _find_hooks(callbacks)
    ):
        return tuple(callbacks)
    return (callbacks,)


def _find_hooks(callback: object) -> list[str]:
    """Return the names of the hooks that an object has."""
    return [hook for hook in (*HOOKS, STEP_HOOK) if callable(getattr(callback, hook, None))]


def _check_callback(callback: object) -> None:
    """Raise `InvalidParameterError` for a class, or an object without any hook."""
    if isinstance(callback, type):
        name = callback.__name__
        raise InvalidParameterError(
            f"callback {name} is a class; pass an instance, as in callbacks=[{name}()]"
        )
    if not _find_hooks(callback):
        raise InvalidParameterError(
            f"callback {callback!r} has no method that a fit would call; it needs one or more of "
            f"{', '.join((*HOOKS, STEP_HOOK))}"
        )


def _takes_precedence(later: BaseException, first: BaseException) -> bool:
    """Return whether to raise `later` instead: an interrupt after an ordinary error."""
    return isinstance(first, Exception) and not isinstance(later, Exception)
