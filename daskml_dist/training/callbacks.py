"""Callbacks: a user's own code at seven moments of a fit.

A callback is any object with one or more of the methods

- ``on_phase(phase, done, total)``: as each of its `PHASES` begins, and goes on;
- ``on_fit_begin(run)``: before the first step;
- ``on_pass_end(run, record)``: after each pass over the data, with its record of the history;
- ``on_pass_redone(run, record)``: after a pass that ``on_pass_end`` has told of, and that was made
  again since a worker was lost: its record takes the place of that one;
- ``on_generation(run, event)``: after lanes moved because a worker died, left or joined; see
  :class:`~daskml_dist.training.client.cluster_run.GenerationEvent`;
- ``on_fit_end(run)``: after the last step, also of a fit that failed or was interrupted;
- ``on_step_end(step)``: after each gradient step of a lane, with a :class:`StepEnd`.

One whose attribute ``needs_parameters`` is true is told of a pass once the parameters after it are
with the client: ``run.parameters()``, ``run.estimator()``. A fit by gradient steps then goes on
from pass to pass as it does with a checkpoint after each.

The first six run in the client. Phases come in any order and number: a fit that loses a worker
places again, one that begins in memory places nothing. ``"reading"`` counts blocks, `done` of
`total`; of other phases, or where it is not known, `total` is None. The last one is ``"end"``,
whatever ends the fit, also one that fails before ``on_fit_begin``.

``on_step_end`` runs where the steps are made: on a cluster in the workers' processes, each of which
has a copy of the callback (so it must pickle), and in several threads where a process has several
lanes. What it raises ends the fit: as it is in one process, as
the cause of a :class:`~daskml_dist.errors.TrainingError` where it came from a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from daskml_dist.errors import InvalidParameterError

__all__ = ["HOOKS", "PHASES", "STEP_HOOK", "CallbackList", "StepEnd"]

#: The methods that a callback may have in the client, and the one where steps are made.
HOOKS = (
    "on_phase",
    "on_fit_begin",
    "on_pass_end",
    "on_pass_redone",
    "on_generation",
    "on_fit_end",
)
STEP_HOOK = "on_step_end"
#: Phases of a fit, as ``on_phase`` is told.
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
    """A step of a lane, as ``on_step_end`` sees it.

    Parameters
    ----------
    lane : int
    clock : int
        Steps that the lane has made.
    n_rows : int
        Rows of its batch.
    loss : float
        Sum of their losses, before the step.

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

    What a callback raises ends the call and is raised as it is, with a note that names the
    callback. Whoever has seen ``on_fit_begin`` also sees ``on_fit_end``, once, whatever the
    others do: callbacks may open things there and close them here.

    Parameters
    ----------
    callbacks : object, sequence of objects, or None, default=None
        Objects with one or more of the methods in `HOOKS`, or `STEP_HOOK`.

    Raises
    ------
    InvalidParameterError
        An object has none of the methods, or is a class.

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
        self._begun: list[object] = []
        self._in_phase = False
        self._error: BaseException | None = None
        #: Makes a fitted estimator of parameters; None where the fit has no such thing.
        self.fitted: Callable[[Any], Any] | None = getattr(callbacks, "fitted", None)

    def __len__(self) -> int:
        return len(self._callbacks)

    def __iter__(self) -> Iterator[object]:
        return iter(self._callbacks)

    @property
    def step_callbacks(self) -> tuple[Any, ...]:
        """Return the callbacks with ``on_step_end``, which run where steps are made."""
        return tuple(c for c in self._callbacks if callable(getattr(c, STEP_HOOK, None)))

    @property
    def need_parameters(self) -> bool:
        """Return whether some callback is to see the parameters after each pass."""
        return any(getattr(c, "needs_parameters", False) for c in self._callbacks)

    def on_phase(self, phase: str, done: int = 0, total: int | None = None) -> None:
        """Tell every callback what the fit does now.

        Parameters
        ----------
        phase : str
            One of `PHASES`.
        done, total : int, int or None
            Blocks that are read, of how many.

        Raises
        ------
        BaseException
            What a callback raised; the later ones are not told.
        """
        self._in_phase = True
        for callback in self._callbacks:
            self._call_hook(callback, "on_phase", phase, done, total)

    def end(self, error: BaseException | None = None) -> None:
        """Tell every callback that the last phase ended; nothing where none has begun.

        Parameters
        ----------
        error : BaseException or None, default=None
            What ends the fit, if it is being raised.

        Raises
        ------
        BaseException
            What a callback raised, unless there is an `error`.
        """
        # A fit that failed before its first phase has nothing to end.
        told, self._in_phase = self._callbacks if self._in_phase else (), False
        self._call_at_end(told, error, "on_phase", "end", 0, None)

    def on_fit_begin(self, run: Any) -> None:
        """Tell every callback that the fit begins.

        Parameters
        ----------
        run : object
            The fit, handed on as it is.

        Raises
        ------
        BaseException
            What a callback raised. Those told before it have then been told of the end.
        """
        self._begun, self._error = [], None
        try:
            for callback in self._callbacks:
                # Noted before the call, so that one interrupted half way can clean up too.
                self._begun.append(callback)
                self._call_hook(callback, "on_fit_begin", run)
        except BaseException as error:
            self.on_fit_end(run, error)
            raise

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Tell every callback that a pass over the data ended.

        Parameters
        ----------
        run : object
            The fit.
        record : dict
            The record of the pass, as the history keeps it.

        Raises
        ------
        BaseException
            What a callback raised; the later ones are not told.
        """
        for callback in self._callbacks:
            self._call_hook(callback, "on_pass_end", run, record)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Tell every callback that a pass which they were told of has been made again.

        Parameters
        ----------
        run : object
            The fit.
        record : dict
            The record of the pass that counts.

        Raises
        ------
        BaseException
            What a callback raised; the later ones are not told.
        """
        for callback in self._callbacks:
            self._call_hook(callback, "on_pass_redone", run, record)

    def on_generation(self, run: Any, event: Any) -> None:
        """Tell every callback that the membership of the fit changed.

        Parameters
        ----------
        run : object
            The fit.
        event : object
            What happened; its `str` says it in words.

        Raises
        ------
        BaseException
            What a callback raised; the later ones are not told.
        """
        for callback in self._callbacks:
            self._call_hook(callback, "on_generation", run, event)

    def on_fit_end(self, run: Any, error: BaseException | None = None) -> None:
        """Tell every callback that saw the beginning that the fit ended.

        All of them are told even when one raises, and the first error wins: later ones are added
        to it as notes. A second call does nothing.

        Parameters
        ----------
        run : object
            The fit.
        error : BaseException or None, default=None
            What ends the fit, if the caller is about to raise it.

        Raises
        ------
        BaseException
            What a callback raised, unless there is an `error`, or an earlier call of this fit
            raised first.
        """
        # An error of a callback may have ended the fit already; it stays the one that is raised.
        first = error or self._error
        begun, self._begun, self._error = self._begun, [], None
        told = begun and hasattr(run, "error")
        if told:
            run.error = first
        try:
            self._call_at_end(begun, first, "on_fit_end", run)
        finally:
            if told:
                run.error = None

    def _call_at_end(
        self, callbacks: Sequence[object], first: BaseException | None, hook: str, *args: Any
    ) -> None:
        """Call an ending hook of all callbacks, whatever they raise; later errors become notes."""
        raised: BaseException | None = None
        for callback in callbacks:
            try:
                self._call_hook(callback, hook, *args)
            except BaseException as later:
                if first is None or _outranks(later, first):
                    first = raised = later
                else:
                    name = type(callback).__name__
                    first.add_note(f"then, as the fit ended, {name}.{hook} raised {later!r}")
        self._error = None  # its traceback would keep the run alive
        if raised is not None:
            raise raised

    def _call_hook(self, callback: object, hook: str, *args: Any) -> None:
        """Call one hook of a callback where it has it, and note the callback's name on an error."""
        method = getattr(callback, hook, None)
        if not callable(method):
            return
        try:
            method(*args)
        except BaseException as error:
            note = f"raised by the callback {type(callback).__name__}.{hook}"
            # A Ctrl-C may arrive in any frame; naming the callback would blame it wrongly.
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
    # An object with a hook is a callback, even if it happens to be a sequence as well.
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


def _outranks(later: BaseException, first: BaseException) -> bool:
    """Return whether `later` must be raised instead: an interrupt after an ordinary error."""
    return isinstance(first, Exception) and not isinstance(later, Exception)
