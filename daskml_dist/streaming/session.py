"""`Session`: an estimator that learns from a stream."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from daskml_dist.errors import (
    CheckpointError,
    DivergedError,
    InvalidParameterError,
    TrainingError,
    WorkerLostError,
)
from daskml_dist.streaming.alone import Alone
from daskml_dist.streaming.lanes import Lanes, check_lanes
from daskml_dist.streaming.positions import check_position, is_past, later
from daskml_dist.streaming.progress import ProgressiveLoss
from daskml_dist.streaming.rows import are_arrays, check_in_memory, has_no_rows
from daskml_dist.streaming.saved import Saved
from daskml_dist.streaming.saving import CLOSED, ENDED, TORN, Saving
from daskml_dist.streaming.start import Started, check_streams
from daskml_dist.streaming.watching import Watch

__all__ = ["Session"]


class Session:
    """Stream that an estimator learns from, of :meth:`Streamed.stream`; a context manager.

    The parameters stay in the calling process between calls, which makes a call as cheap as its
    step, or with lanes and servers on a cluster. The estimator is fitted at any time: whoever asks
    it for an attribute or a prediction gets what has been learned by then. Used by one thread.

    Parameters
    ----------
    estimator : estimator
    classes : array-like or None
        All labels that will ever come.
    saving : Saving or None
        When and where the stream is saved.
    on_checkpoint : callable or None
        Called with the position that was saved.
    watch : Watch or None
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
        saving: Saving | None = None,
        on_checkpoint: Callable[[Any], Any] | None = None,
        watch: Watch | None = None,
        publish: Callable[[Any], Any] | None = None,
        publish_every: int = 1000,
        client: Any = None,
    ) -> None:
        self.estimator = estimator
        self._classes = classes
        self._saving, self._on_checkpoint = saving, on_checkpoint
        self._watch = Watch(None, None) if watch is None else watch
        self._publish, self._publish_every, self._unpublished = publish, publish_every, 0
        self._client = client
        self._position: Any = None
        #: Whether the parameters are those of whole calls.
        self._is_whole = True
        self._progress = ProgressiveLoss()
        self._started: Started | None = None
        self._alone = Alone()
        self._lanes: Lanes | None = None  # where steps are made on a cluster
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
        check_streams(self.estimator)
        if self._client is not None:
            check_lanes(self.estimator)
        saved = None if self._saving is None else self._saving.load()
        if saved is not None:
            self._resume(saved)
        self._is_open = True
        vars(self.estimator)["_stream"] = self
        return self

    def _resume(self, saved: Saved) -> None:
        """Become the stream that was saved."""
        assert self._saving is not None
        path, stream = self._saving.checkpoint.path, saved.stream
        classes = saved.classes if self._classes is None else self._classes
        self._started = self._on_lanes(self.estimator._resume_stream(saved, path, classes))
        self._position = stream["position"]
        self._progress.restore(stream["progress"])
        self._shown = None
        self.show()

    def _on_lanes(self, started: Started) -> Started:
        """A started stream, with its steps where they are to be made."""
        if self._client is not None:
            self._lanes = Lanes(self._client, self.estimator, started, self._learned)
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
                    self._finish()
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
        with self._alone:  # in the midst of a call it is not whole, either
            if not self._is_whole:
                raise TrainingError(TORN)
        check_in_memory(X, y)
        if position is not None:
            position = check_position(position)
            if is_past(position, self._given):
                return None
        position = later(position, self._given)
        if has_no_rows(X, y):
            if self._lanes is not None:
                self._lanes.skip()
            self._position = position
            return math.nan
        rows, block = self._made(X, y, sample_weight)
        with self._alone:
            self._hide()
            self._take(rows, block, position)
        self._keep()
        return self._progress.last

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidParameterError(CLOSED)

    def _made(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Rows of a call, as the model reads them; by the first ones the stream starts."""
        started, take = self._started, self.estimator._stream_inputs
        if started is None or not are_arrays(X, y):  # checked like those of a fit
            X, y, sample_weight = take(X, y, sample_weight, started is not None)
        if started is not None:
            return started.make(X, y, sample_weight)
        started = self.estimator._begin_stream(X, y, sample_weight, self._classes)
        made: tuple[Any, Any] = started.make(X, y, sample_weight)
        self._started = self._on_lanes(started)  # by rows that can be learned
        if "_state" in vars(self.estimator):  # of a fit, which the first step makes old
            self._shown = None
            self.show()
        return made

    def _take(self, rows: Any, block: Any, position: Any) -> None:
        """Take the steps of a call, or have lanes take them, and count it, cut short or not."""
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
        """Count a call that was learned, and look for a drift."""
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
        """Position of the last batch that was given."""
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

    def _keep(self) -> None:
        """Save and publish where a call is one after which that is due."""
        if self._saving is not None and self._saving.is_due:
            self.save()
        if self._publish is not None and self._unpublished >= self._publish_every:
            self._hand_out()

    def _finish(self) -> None:
        """Save and publish what has not been."""
        if self._saving is not None and self._saving.is_behind:
            self.save()
        if self._publish is not None and self._unpublished:
            self._hand_out()

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
        stream = {
            "position": self._position,
            "progress": self._progress.facts(),
            "seen": self._started.seen,
        }
        self._saving.save(self._started, stream)
        if self._on_checkpoint is not None:
            self._on_checkpoint(self._position)

    def _hand_out(self) -> None:
        assert self._publish is not None
        self._unpublished = 0
        self._publish(copy.copy(self.estimator))

    # -- what has been learned -----------------------------------------------------------------

    @property
    def progressive_loss(self) -> float:
        """Mean loss of all rows of the stream, each before it was learned; by their weights."""
        self._settle()
        return self._progress.mean

    @property
    def n_rows(self) -> int:
        """Rows learned by this stream, before it was resumed too."""
        self._settle()
        return self._progress.n_rows

    @property
    def position(self) -> Any:
        """Position of the last batch that was learned; None: no call named one."""
        self._settle()
        return self._position

    @property
    def drift(self) -> bool:
        """Return whether the last call showed a drift."""
        self._settle()
        return self._watch.drift

    @property
    def drifts(self) -> list[int]:
        """Rows that had been learned at each drift."""
        self._settle()
        return self._watch.drifts

    def show(self) -> None:
        """Set the estimator's fitted attributes to what has been learned by now."""
        started = self._started
        if started is None or self._shown is not None:
            return
        estimator, held = self.estimator, vars(self.estimator)
        before = dict(held)
        self._shown = []  # what follows reads attributes of the estimator
        try:
            with self._alone:
                self._settle()
                estimator._show_stream(started, started.steps.state(), self._progress)
        except BaseException:
            held.clear()
            held.update(before)
            self._shown = None
            raise
        self._shown = [n for n, v in held.items() if n not in before or before[n] is not v]

    def _hide(self) -> None:
        """Take away attributes that a step makes old; whoever asks for one gets it anew."""
        held = vars(self.estimator)
        shown, self._shown = self._shown, None  # an interrupt leaves nothing missing
        for name in shown or ():
            held.pop(name, None)
