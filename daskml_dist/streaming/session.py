"""`Session`: the open stream of an estimator.

It checks and learns each call's rows, counts them, saves and publishes the learned state, and sets
the estimator's fitted attributes when they are read.

Each row counts exactly once, even after crashes: a checkpoint holds the parameters together with
the position in the source after the learned calls, and a batch at or before that position is
skipped. After an interrupted call the parameters match no position, so they are never saved
(`_is_whole`).
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
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
from daskml_dist.training.job import leave_task_slot

if TYPE_CHECKING:
    from daskml_dist.streaming.cluster.steps import ClusterSteps


class SingleThreadGuard:
    """Reentrant lock that one thread at a time may hold; raises in another thread.

    Raises
    ------
    InvalidParameterError
        Another thread holds the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise InvalidParameterError(
                "Another thread is using this stream. Use it from one thread, and pass rows "
                "from other threads through a queue.Queue; to predict in another thread, give "
                "it a copy made by the stream's thread: copy.copy(estimator)."
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def plan_lanes(estimator: Any) -> Any:
    """Return the layout of an estimator's stream on a cluster; raise if none is possible."""
    # Imported here: streams in this process need not load `distributed`.
    from daskml_dist.streaming.cluster.calls import StreamLayout

    return StreamLayout.from_estimator(estimator)


class ClusterLanes:
    """Lanes of a session on a cluster, which learn its calls and report the losses in order.

    Their steps replace those of the stream in this process.

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
        steps: Any = started.open_lanes(client, plan_lanes(estimator))
        self._steps: ClusterSteps = steps
        started.steps = steps  # from here on the cluster holds the state of the stream
        self._learned = learned
        self._failed = False

    @property
    def failed(self) -> bool:
        """Return whether the lanes ended before the state included all calls."""
        return self._failed or self._steps.is_cut_off

    def learn_rows(self, rows: Any, block: Any, weight: float, position: Any) -> None:
        """Send a call to the lanes, and report the calls that they have learned so far.

        `position` is the stream's position after the call.
        """
        # Checked before any change, so that the stream can continue.
        self._steps.check_lane_share(block.n_rows)
        try:
            self._steps.learn_rows(rows, block, (weight, block.n_rows, position))
        except Exception:
            self._failed = True
            raise
        self._report_learned()

    def wait_until_learned(self) -> None:
        """Wait until all calls are learned and reported."""
        try:
            self._steps.wait_until_learned()
        except Exception:
            self._failed = True
            raise
        self._report_learned()

    def _report_learned(self) -> None:
        """Report each call that was learned since the last report to the session."""
        # Not a loop over a list: the session's reaction to a drift may wait for the stream, which
        # calls this method again and reports the other calls.
        while (learned := self._steps.pop_finished()) is not None:
            tag, loss = learned
            self._learned(loss, *tag)

    def last_position(self, reached: Any) -> Any:
        """Return the position of the last call that was sent; `reached` if there is none."""
        return reached if self._steps.last is None else self._steps.last[2]

    def note_empty_call(self) -> None:
        """Wait until all calls are learned, before a call without rows changes the position."""
        self.wait_until_learned()
        # After a call without rows, the session has the position, not the last call of the lanes.
        self._steps.last = None


class Session:
    """Open stream of an estimator; a context manager, for one thread.

    :meth:`daskml_dist.base.BaseSteps.stream` opens it.

    The parameters stay in memory between calls, in the calling process or in lanes and servers on a
    cluster, so a call costs little more than its steps. The estimator is always fitted: its
    attributes and predictions are those of the rows learned so far.

    Parameters
    ----------
    estimator : estimator
    classes : array-like or None
        All labels that the stream will have.
    saving : SavingSchedule or None
        Times at which the stream is saved, and the file.
    on_checkpoint : callable or None
        Called with the position that was saved.
    watch : DriftWatch or None
        Detector of drifts, and the reaction to them.
    publish : callable or None
        Called with a fitted copy of the estimator.
    publish_every : int
        Calls between two publications.
    client : distributed.Client or None
        Client of the cluster on whose workers the lanes step; None: the calling process steps.

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
        #: Whether no call was interrupted, so that the parameters match the position.
        self._is_whole = True
        self._progress = ProgressiveLoss()
        self._started: StartedStream | None = None
        self._guard = SingleThreadGuard()
        #: Closed with the stream: what it entered when it was opened.
        self._exit_stack = ExitStack()
        self._lanes: ClusterLanes | None = None  # where steps are made on a cluster
        self._is_open = self._is_over = False
        #: Names of the fitted attributes that :meth:`show` set; None: they are out of date. Copying
        #: the parameters after each call would often cost more than its step. Therefore a step only
        #: removes the attributes, and reading one of them sets all of them again.
        self._shown: list[str] | None = []

    # -- opening and closing -------------------------------------------------------------------

    def __enter__(self) -> Self:
        if vars(self.estimator).get("_stream") is not None:
            raise InvalidParameterError(
                "This estimator is already learning from a stream. Leave that stream's context "
                "first, or use a clone of the estimator."
            )
        if self._is_over:
            raise InvalidParameterError(ENDED)
        # Both are called for their errors: parameters that do not suit a stream are refused here,
        # before the caller fetches the first rows.
        check_stream_settings(self.estimator)
        if self._client is not None:
            plan_lanes(self.estimator)
        with ExitStack() as stack:
            if self._client is not None:
                # A stream in a task waits for actors that may need the thread of this task.
                stack.enter_context(leave_task_slot())
            saved = None if self._saving is None else self._saving.load()
            if saved is not None:
                self._resume(saved)
            self._exit_stack = stack.pop_all()
        self._is_open = True
        # While this is set, `BaseSteps.__getattr__` gets fitted attributes from the session.
        vars(self.estimator)["_stream"] = self
        return self

    def _resume(self, saved: SavedStream) -> None:
        """Restore the saved stream: its position, sums and parameters."""
        assert self._saving is not None
        path, stream = self._saving.checkpoint.path, saved.stream
        classes = saved.classes if self._classes is None else self._classes
        self._started = self._place_steps(self.estimator._resume_stream(saved, path, classes))
        self._position = stream["position"]
        self._progress.restore(stream["progress"])
        self._shown = None
        self.show()

    def _place_steps(self, started: StartedStream) -> StartedStream:
        """Return a started stream, with its steps moved to the cluster if there is one."""
        if self._client is not None:
            self._lanes = ClusterLanes(self._client, self.estimator, started, self._learned)
        return started

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            # After an error the user gets that error, not a later one that it caused.
            with suppress(DivergedError, WorkerLostError) if error is not None else nullcontext():
                self._wait_until_learned()
                self.show()
                if self._may_be_kept and self._started is not None:
                    self._save_and_publish_rest()
        finally:
            self._is_open, self._is_over = False, True
            vars(self.estimator).pop("_stream", None)
            with self._exit_stack:
                if self._started is not None:
                    self._started.steps.close()
                    self.show()  # the last known state, if a second interrupt ended the wait

    # -- learning ------------------------------------------------------------------------------

    def learn(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, position: Any = None
    ) -> float | None:
        """Return the mean loss of some rows, and then learn them.

        Parameters
        ----------
        X : ndarray, pandas.DataFrame or scipy.sparse matrix of shape (n_rows, n_features)
            Rows in memory, as ``fit`` takes them. The dtype of the first call, float32 or float64,
            is that of the parameters.
        y : array-like of shape (n_rows,) or (n_rows, n_targets), or None
            Labels or targets; None for estimators that take none.
        sample_weight : array-like of shape (n_rows,), or float, or None
            Weights of the rows, >= 0, not normalised: a weight of 2 doubles the row's gradient.
        position : number, str, list of these, or dict of them, optional
            Position of the batch in its source. Positions increase (lists are compared like tuples,
            and a dict by its keys, each of which names a partition). A batch at or before
            :attr:`position` is not learned again.

        Returns
        -------
        float or None
            Mean loss of the rows before they were learned; None if they had been learned already,
            NaN if there are no rows. If lanes on a cluster do not wait for each other, it is the
            loss of the last call whose loss is known, NaN before the first.

        Raises
        ------
        InvalidDataError
            The rows have another shape or type than the first ones, or contain NaN, infinity or an
            unknown label. None of them is learned, and the stream can continue.
        DivergedError
            The loss is no longer finite.
        TrainingError
            An earlier call was interrupted (by Ctrl-C, or because its loss was not finite), or
            lanes on a cluster failed; WorkerLostError: workers were lost repeatedly.
        """
        self._check_open()
        with self._guard:  # refuse other threads: `_is_whole` is False during a call
            if not self._is_whole:
                raise TrainingError(TORN)
        check_in_memory(X, y)
        if position is not None:
            position = check_position(position)
            # Compared with the last batch that was sent: lanes may not have learned it yet.
            if is_past(position, self._sent_position):
                return None
        position = advance_position(position, self._sent_position)
        if has_no_rows(X, y):
            # Nothing to learn, but the source has advanced, for example by messages without
            # content.
            if self._lanes is not None:
                self._lanes.note_empty_call()
            self._position = position
            return math.nan
        rows, block = self._make_rows(X, y, sample_weight)
        with self._guard:
            self._hide()
            self._take(rows, block, position)
        self._save_and_publish_if_due()
        return self._progress.last

    def _check_open(self) -> None:
        """Raise if the session's context is not entered."""
        if not self._is_open:
            raise InvalidParameterError(CLOSED)

    def _make_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Return the rows of a call in the model's format; the first call starts the stream."""
        started, check_inputs = self._started, self.estimator._stream_inputs
        if started is None or not are_arrays(X, y):  # plain arrays have no names or dtypes
            X, y, sample_weight = check_inputs(X, y, sample_weight, started is not None)
            check_in_memory(X, y)  # once more: lazy tables have become Dask collections
        if started is not None:
            return started.make_rows(X, y, sample_weight)
        started = self.estimator._begin_stream(X, y, sample_weight, self._classes)
        rows_and_block: tuple[Any, Any] = started.make_rows(X, y, sample_weight)
        self._started = self._place_steps(started)  # only after `make_rows` has accepted the rows
        if "_state" in vars(self.estimator):  # attributes of an earlier fit become stale
            self._shown = None
            self.show()
        return rows_and_block

    def _take(self, rows: Any, block: Any, position: Any) -> None:
        """Make the steps of a call, or send it to the lanes; an interrupted call counts too."""
        self._unpublished += 1
        if self._saving is not None:
            self._saving.count()
        weight = block.n_rows if rows.weight is None else float(rows.weight.sum())
        if self._lanes is not None:
            self._lanes.learn_rows(rows, block, weight, position)
            return
        assert self._started is not None
        # False until the position is set: an interrupt in between leaves only some steps made.
        self._is_whole = False
        self._learned(self._started.steps.learn_rows(rows, block), weight, block.n_rows, position)

    def _learned(self, loss: float, weight: float, n_rows: int, position: Any) -> None:
        """Add a learned call to the sums, set the position, and check for a drift."""
        if not math.isfinite(loss):
            self._is_whole = False  # never save such parameters
            raise DivergedError(
                f"The loss after row {self._progress.n_rows} of the stream is {loss}: the "
                "parameters diverged. Lower learning_rate, or scale the features "
                "(StandardScaler), and start again."
            )
        self._progress.add(loss, weight, n_rows)
        self._position = position
        if self._lanes is None:  # on a cluster `failed` shows whether the state has whole calls
            self._is_whole = True
        # Last, since the reaction to a drift may save or reset the stream after this call.
        if weight:  # rows whose weights are all 0 have no mean loss
            self._watch.update(self, self._progress)

    def _wait_until_learned(self) -> None:
        """Wait until all calls are learned and counted."""
        if self._lanes is not None and self._is_open:
            self._lanes.wait_until_learned()

    @property
    def _sent_position(self) -> Any:
        """Return the position of the last batch that was sent to learn."""
        return self._position if self._lanes is None else self._lanes.last_position(self._position)

    def reset(self, *, parameters: bool = False) -> None:
        """Reset the optimizer's state and the schedule, as after a drift.

        Adaptive rates become large again, and the schedule starts with its first rate.

        Parameters
        ----------
        parameters : bool, default=False
            Reset the parameters too, and so discard everything learned.

        Raises
        ------
        InvalidParameterError
            The stream is closed.
        """
        self._check_open()
        if self._started is not None:
            self._hide()
            self._started.steps.reset(parameters)
            # New parameters contain no part of an interrupted call.
            self._is_whole = self._is_whole or parameters

    # -- saving --------------------------------------------------------------------------------

    @property
    def _may_be_kept(self) -> bool:
        """Return whether the state has whole calls up to the position, so that it can be saved."""
        return self._is_whole and not (self._lanes is not None and self._lanes.failed)

    def _save_and_publish_if_due(self) -> None:
        """Save the stream and publish a copy, each if it is due after this call."""
        if self._saving is not None and self._saving.is_due:
            self.save()
        if self._publish is not None and self._unpublished >= self._publish_every:
            self._publish_copy()

    def _save_and_publish_rest(self) -> None:
        """Save and publish at the end of the stream, each if calls came since the last time."""
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
            The checkpoint could not be written, or the parameters do not match whole calls: the
            stream diverged, its lanes failed, or a call was interrupted.
        """
        if self._saving is None:
            raise InvalidParameterError(
                'The stream has no checkpoint file: stream(checkpoint=Checkpoint("m.npz")).'
            )
        if self._started is None:
            return
        # Position, sums and parameters must match, so lanes finish their calls first.
        self._wait_until_learned()
        if not self._may_be_kept:
            raise CheckpointError(TORN)
        started = self._started
        stream = {
            "position": self._position,
            "progress": self._progress.to_dict(),
            "seen": started.n_rows_seen,
            "likeness": started.describe(),
        }
        self._saving.save(started.fit, started.steps.synchronize(), stream)
        # Only after the file is on disk: the source may then discard everything up to the position.
        if self._on_checkpoint is not None:
            self._on_checkpoint(self._position)

    def _publish_copy(self) -> None:
        """Call the user's `publish` with a fitted copy of the estimator."""
        assert self._publish is not None
        self._unpublished = 0
        self._publish(copy.copy(self.estimator))

    # -- what has been learned -----------------------------------------------------------------

    @property
    def progressive_loss(self) -> float:
        """Return the weighted mean loss of all rows, each measured before it was learned."""
        self._wait_until_learned()
        return self._progress.mean

    @property
    def n_rows(self) -> int:
        """Return the number of rows that the stream has learned, including before a resume."""
        self._wait_until_learned()
        return self._progress.n_rows

    @property
    def position(self) -> Any:
        """Return the position of the last learned batch; None if no call had one."""
        self._wait_until_learned()
        return self._position

    @property
    def drift(self) -> bool:
        """Return whether the last call showed a drift."""
        self._wait_until_learned()
        return self._watch.drift

    @property
    def drifts(self) -> list[int]:
        """Return, for each drift, the number of rows that had been learned."""
        self._wait_until_learned()
        return self._watch.drifts

    def show(self) -> None:
        """Set the estimator's fitted attributes to the state learned so far."""
        started = self._started
        if started is None or self._shown is not None:
            return
        estimator, attributes = self.estimator, vars(self.estimator)
        old_attributes = dict(attributes)
        self._shown = []  # first: setting attributes reads others, which calls this method
        try:
            with self._guard:
                self._wait_until_learned()
                estimator._show_stream(started, started.steps.state(), self._progress)
        except BaseException:  # even after an interrupt, never mix new and old attributes
            attributes.clear()
            attributes.update(old_attributes)
            self._shown = None
            raise
        # New or changed attributes are those that become stale with the next step.
        self._shown = [
            name
            for name in attributes
            if name not in old_attributes or old_attributes[name] is not attributes[name]
        ]

    def _hide(self) -> None:
        """Remove the attributes that become stale; `__getattr__` sets them when they are read."""
        attributes = vars(self.estimator)
        names, self._shown = self._shown, None  # first, so that `show` works after an interrupt
        for name in names or ():
            attributes.pop(name, None)
