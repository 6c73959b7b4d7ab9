"""`Session`: an estimator that learns from a stream."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from daskml_dist.errors import (
    CheckpointError,
    DivergedError,
    InvalidParameterError,
    TrainingError,
    WorkerLostError,
)
from daskml_dist.streaming.checkpoints import CLOSED, ENDED, TORN, SavedStream, SavingSchedule
from daskml_dist.streaming.drift import DriftWatch, ProgressiveLoss
from daskml_dist.streaming.rows import are_arrays, check_in_memory, has_no_rows
from daskml_dist.streaming.sources import advance_position, check_position, is_past
from daskml_dist.streaming.start import StartedStream, check_stream_settings

if TYPE_CHECKING:
    from daskml_dist.streaming.cluster.steps import ClusterSteps

__all__ = ["ClusterLanes", "Session", "SingleThreadGuard", "plan_lanes"]


class SingleThreadGuard:
    """Context that one thread at a time may enter, also again; in another thread it raises.

    Raises
    ------
    InvalidParameterError
        Another thread is in it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise InvalidParameterError(
                "Another thread is using this stream. Let one thread use it, and hand it the rows "
                "of others by a queue.Queue; to predict in another thread, give it a copy that the "
                "stream's thread has made: copy.copy(estimator)."
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def plan_lanes(estimator: Any) -> Any:
    """Return the layout of an estimator's stream on a cluster; raise where none is possible."""
    # It loads the engine of clusters, which streams of this process do without.
    from daskml_dist.streaming.cluster.calls import StreamLayout

    return StreamLayout.of(estimator)


class ClusterLanes:
    """Lanes of a session on a cluster: calls are given to them, and counted in their order.

    Their steps take the place of those that the stream has started with.

    Parameters
    ----------
    client : distributed.Client
    estimator : estimator
    started : StartedStream
    learned : callable
        Called with the loss, the weight, the rows and the position of each call, in their order.
    """

    def __init__(
        self, client: Any, estimator: Any, started: StartedStream, learned: Callable[..., None]
    ) -> None:
        steps: Any = started.over_lanes(client, plan_lanes(estimator))
        self._steps: ClusterSteps = steps
        started.steps = steps
        self._learned = learned
        self._failed = False

    @property
    def failed(self) -> bool:
        """Return whether the lanes cannot go on: the state is of fewer calls than were given."""
        return self._failed or self._steps.is_cut_off

    def give(self, rows: Any, block: Any, weight: float, position: Any) -> None:
        """Have lanes learn a call, and count the calls that they have learned by now.

        `position` is that of the stream after the call.
        """
        self._steps.check(block.n_rows)  # what is refused changes nothing
        try:
            self._steps.take(rows, block, (weight, block.n_rows, position))
        except Exception:
            self._failed = True
            raise
        self._count()

    def settle(self) -> None:
        """Wait until all calls that were given are learned and counted."""
        try:
            self._steps.settle()
        except Exception:
            self._failed = True
            raise
        self._count()

    def _count(self) -> None:
        """Tell the session of each call that has been learned since the last count."""
        # What is done on a drift may ask for the stream, which counts the others first.
        while (learned := self._steps.finished()) is not None:
            tag, loss = learned
            self._learned(loss, *tag)

    def given(self, reached: Any) -> Any:
        """Return the position of the last call that was given; `reached` where none was."""
        return reached if self._steps.last is None else self._steps.last[2]

    def skip(self) -> None:
        """Note that the last call had no rows; wait until all calls before it are learned."""
        self.settle()
        self._steps.last = None


class Session:
    """Stream that an estimator learns from; a context manager.

    :meth:`daskml_dist.base.BaseSteps.stream` opens it.

    The parameters stay in the calling process between calls, which makes a call as cheap as its
    step, or with lanes and servers on a cluster. The estimator is fitted at any time: whoever asks
    it for an attribute or a prediction gets what has been learned by then. Used by one thread.

    Parameters
    ----------
    estimator : estimator
    classes : array-like or None
        All labels that will ever come.
    saving : SavingSchedule or None
        When and where the stream is saved.
    on_checkpoint : callable or None
        Called with the position that was saved.
    watch : DriftWatch or None
        For drifts.
    publish : callable or None
        Called with a fitted copy of the estimator.
    publish_every : int
        Calls between two of these.
    client : distributed.Client or None
        Of the cluster whose workers learn; None: the calling process does.

    Attributes
    ----------
    estimator : estimator

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(64, 2))
    >>> clf = SGDClassifier(random_state=0)
    >>> with clf.stream(classes=[0, 1]) as session:
    ...     loss = session.learn(X, (X[:, 0] > 0).astype(int))
    >>> session.n_rows
    64
    """

    def __init__(
        self,
        estimator: Any,
        *,
        classes: Any = None,
        saving: SavingSchedule | None = None,
        on_checkpoint: Callable[[Any], Any] | None = None,
        watch: DriftWatch | None = None,
        publish: Callable[[Any], Any] | None = None,
        publish_every: int = 1000,
        client: Any = None,
    ) -> None:
        self.estimator = estimator
        self._classes = classes
        self._saving, self._on_checkpoint = saving, on_checkpoint
        self._watch = DriftWatch(None, None) if watch is None else watch
        self._publish, self._publish_every, self._unpublished = publish, publish_every, 0
        self._client = client
        self._position: Any = None
        #: Whether the parameters are those of whole calls.
        self._is_whole = True
        self._progress = ProgressiveLoss()
        self._started: StartedStream | None = None
        self._guard = SingleThreadGuard()
        self._lanes: ClusterLanes | None = None  # where steps are made on a cluster
        self._is_open = self._is_over = False
        #: Names of the attributes that hold what was learned; None: not as of now.
        self._shown: list[str] | None = []

    # -- opening and closing -------------------------------------------------------------------

    def __enter__(self) -> Self:
        if vars(self.estimator).get("_stream") is not None:
            raise InvalidParameterError(
                "This estimator learns from a stream already. Leave that one's context first, or "
                "use a clone of the estimator."
            )
        if self._is_over:
            raise InvalidParameterError(ENDED)
        check_stream_settings(self.estimator)
        if self._client is not None:
            plan_lanes(self.estimator)
        saved = None if self._saving is None else self._saving.load()
        if saved is not None:
            self._resume(saved)
        self._is_open = True
        vars(self.estimator)["_stream"] = self
        return self

    def _resume(self, saved: SavedStream) -> None:
        """Take over the saved stream: its position, sums and parameters."""
        assert self._saving is not None
        path, stream = self._saving.checkpoint.path, saved.stream
        classes = saved.classes if self._classes is None else self._classes
        self._started = self._place_steps(self.estimator._resume_stream(saved, path, classes))
        self._position = stream["position"]
        self._progress.restore(stream["progress"])
        self._shown = None
        self.show()

    def _place_steps(self, started: StartedStream) -> StartedStream:
        """Return a started stream, with its steps moved to the cluster where there is one."""
        if self._client is not None:
            self._lanes = ClusterLanes(self._client, self.estimator, started, self._learned)
        return started

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # What ended the stream is told rather than what came of it.
            with suppress(DivergedError, WorkerLostError) if error is not None else nullcontext():
                self._settle()
                self.show()
                if self._may_be_kept and self._started is not None:
                    self._save_and_publish_rest()
        finally:
            self._is_open, self._is_over = False, True
            vars(self.estimator).pop("_stream", None)
            if self._started is not None:
                self._started.steps.close()
                self.show()  # what is known, where a second interrupt cut short the first one

    # -- learning ------------------------------------------------------------------------------

    def learn(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, position: Any = None
    ) -> float | None:
        """Take the loss of some rows, and then the steps along their gradient.

        Parameters
        ----------
        X : ndarray, pandas.DataFrame or scipy.sparse matrix of shape (n_rows, n_features)
            In memory, as ``fit`` takes it. The first call's dtype is that of the parameters:
            float32 or float64.
        y : array-like of shape (n_rows,) or (n_rows, n_targets), or None
            Labels or targets; None for estimators without any.
        sample_weight : array-like of shape (n_rows,), or float, or None
            Weights of the rows, >= 0, which are taken as they are: one of 2 makes a step of
            twice the length.
        position : number, str, list of these, or dict of them, optional
            Where in its source the batch is: later ones are larger (lists are compared as tuples
            are; of a dict each partition goes on by itself). Rows at or before :attr:`position`
            are not learned again.

        Returns
        -------
        float or None
            Mean loss of the rows, before they were learned; None where they had been, NaN where
            there are no rows. Where lanes on a cluster do not wait for each other, that of the last
            call whose loss has come, NaN before the first.

        Raises
        ------
        InvalidDataError
            The rows are not like the first ones, or hold NaN, infinity or an unknown label.
            Nothing of them is learned, and the stream may go on.
        DivergedError
            The loss is no finite number any more.
        TrainingError
            A call before was cut short (by Ctrl-C, or since its loss was no finite number), or
            lanes on a cluster failed; WorkerLostError: workers were lost again and again.
        """
        self._check_open()
        with self._guard:  # in the midst of a call it is not whole, either
            if not self._is_whole:
                raise TrainingError(TORN)
        check_in_memory(X, y)
        if position is not None:
            position = check_position(position)
            if is_past(position, self._given):
                return None
        position = advance_position(position, self._given)
        if has_no_rows(X, y):
            if self._lanes is not None:
                self._lanes.skip()
            self._position = position
            return math.nan
        rows, block = self._make_rows(X, y, sample_weight)
        with self._guard:
            self._hide()
            self._take(rows, block, position)
        self._save_and_publish_if_due()
        return self._progress.last

    def _check_open(self) -> None:
        """Raise where the session's context is not entered."""
        if not self._is_open:
            raise InvalidParameterError(CLOSED)

    def _make_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Return the rows of a call, as the model reads them; the first ones start the stream."""
        started, take = self._started, self.estimator._stream_inputs
        if started is None or not are_arrays(X, y):  # checked like those of a fit
            X, y, sample_weight = take(X, y, sample_weight, started is not None)
        if started is not None:
            return started.make(X, y, sample_weight)
        started = self.estimator._begin_stream(X, y, sample_weight, self._classes)
        made: tuple[Any, Any] = started.make(X, y, sample_weight)
        self._started = self._place_steps(started)  # by rows that can be learned
        if "_state" in vars(self.estimator):  # of a fit, which the first step makes old
            self._shown = None
            self.show()
        return made

    def _take(self, rows: Any, block: Any, position: Any) -> None:
        """Take the steps of a call, or have lanes take them; an interrupted call counts too."""
        self._unpublished += 1
        if self._saving is not None:
            self._saving.count()
        weight = block.n_rows if rows.weight is None else float(rows.weight.sum())
        if self._lanes is not None:
            self._lanes.give(rows, block, weight, position)
            return
        assert self._started is not None
        self._is_whole = False
        self._learned(self._started.steps.take(rows, block), weight, block.n_rows, position)

    def _learned(self, loss: float, weight: float, n_rows: int, position: Any) -> None:
        """Count a call that was learned, and watch for a drift."""
        if not math.isfinite(loss):
            self._is_whole = False
            raise DivergedError(
                f"The loss after row {self._progress.n_rows} of the stream is {loss}: the "
                "parameters grew beyond all bounds. Lower learning_rate, or scale the features "
                "(StandardScaler), and begin anew."
            )
        self._progress.add(loss, weight, n_rows)
        self._position = position
        if self._lanes is None:
            self._is_whole = True
        if weight:  # else there is no loss to tell
            self._watch.update(self, self._progress)

    def _settle(self) -> None:
        """Wait until all calls that were given are learned and counted."""
        if self._lanes is not None and self._is_open:
            self._lanes.settle()

    @property
    def _given(self) -> Any:
        """Return the position of the last batch that was given."""
        return self._position if self._lanes is None else self._lanes.given(self._position)

    def reset(self, *, parameters: bool = False) -> None:
        """Let the optimizer and the schedule begin anew, as after a drift.

        Adaptive rates are large again then, and a schedule begins with its first rate.

        Parameters
        ----------
        parameters : bool, default=False
            Begin the parameters anew too: forget all that was learned.

        Raises
        ------
        InvalidParameterError
            The stream is closed.
        """
        self._check_open()
        if self._started is not None:
            self._hide()
            self._started.steps.reset(parameters)
            self._is_whole = self._is_whole or parameters

    # -- keeping -------------------------------------------------------------------------------

    @property
    def _may_be_kept(self) -> bool:
        """Return whether the parameters are those of whole calls, as the position tells."""
        return self._is_whole and not (self._lanes is not None and self._lanes.failed)

    def _save_and_publish_if_due(self) -> None:
        """Save, and publish a copy, where that is due after a call."""
        if self._saving is not None and self._saving.is_due:
            self.save()
        if self._publish is not None and self._unpublished >= self._publish_every:
            self._publish_copy()

    def _save_and_publish_rest(self) -> None:
        """Save and publish what was learned since the last time."""
        if self._saving is not None and self._saving.is_behind:
            self.save()
        if self._publish is not None and self._unpublished:
            self._publish_copy()

    def save(self) -> None:
        """Write the checkpoint now: the parameters and the position, in one file.

        Raises
        ------
        InvalidParameterError
            The stream has no `checkpoint`.
        CheckpointError
            It could not be written, or the parameters are not those of whole calls: the stream
            diverged, its lanes failed, or a call was interrupted.
        """
        if self._saving is None:
            raise InvalidParameterError(
                'The stream has no place to be saved at: stream(checkpoint=Checkpoint("m.npz")).'
            )
        if self._started is None:
            return
        self._settle()
        if not self._may_be_kept:
            raise CheckpointError(TORN)
        started = self._started
        stream = {
            "position": self._position,
            "progress": self._progress.facts(),
            "seen": started.seen,
            "likeness": started.facts(),
        }
        self._saving.save(started.fit, started.steps.meeting(), stream)
        if self._on_checkpoint is not None:
            self._on_checkpoint(self._position)

    def _publish_copy(self) -> None:
        """Give a fitted copy of the estimator to the user's function."""
        assert self._publish is not None
        self._unpublished = 0
        self._publish(copy.copy(self.estimator))

    # -- what has been learned -----------------------------------------------------------------

    @property
    def progressive_loss(self) -> float:
        """Return the mean loss of all rows, each before it was learned, by their weights."""
        self._settle()
        return self._progress.mean

    @property
    def n_rows(self) -> int:
        """Return the number of rows learned by this stream, before it was resumed too."""
        self._settle()
        return self._progress.n_rows

    @property
    def position(self) -> Any:
        """Return the position of the last batch that was learned; None where no call named one."""
        self._settle()
        return self._position

    @property
    def drift(self) -> bool:
        """Return whether the last call showed a drift."""
        self._settle()
        return self._watch.drift

    @property
    def drifts(self) -> list[int]:
        """Return the number of rows that had been learned at each drift."""
        self._settle()
        return self._watch.drifts

    def show(self) -> None:
        """Set the estimator's fitted attributes to what has been learned by now."""
        started = self._started
        if started is None or self._shown is not None:
            return
        estimator, held = self.estimator, vars(self.estimator)
        before = dict(held)
        self._shown = []  # setting attributes reads others, which must not come back here
        try:
            with self._guard:
                self._settle()
                estimator._show_stream(started, started.steps.state(), self._progress)
        except BaseException:
            held.clear()
            held.update(before)
            self._shown = None
            raise
        self._shown = [n for n, v in held.items() if n not in before or before[n] is not v]

    def _hide(self) -> None:
        """Remove the attributes that a step makes old: `BaseSteps.__getattr__` sets them anew."""
        held = vars(self.estimator)
        shown, self._shown = self._shown, None  # an interrupt leaves nothing missing
        for name in shown or ():
            held.pop(name, None)
