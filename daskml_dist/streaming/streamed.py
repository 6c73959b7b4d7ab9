"""`Streamed`: the mixin of estimators that learn from streams, and the hooks of their kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from daskml_dist.data.computing import check_client
from daskml_dist.data.feature_names import check_feature_names
from daskml_dist.errors import InvalidParameterError
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.drift import DriftWatch
from daskml_dist.training.checkpoint import Checkpoint

if TYPE_CHECKING:
    from daskml_dist.streaming.checkpoints import SavedStream
    from daskml_dist.streaming.drift import ProgressiveLoss
    from daskml_dist.streaming.session import Session
    from daskml_dist.streaming.start import StartedStream

__all__ = ["Streamed"]


class Streamed:
    """Estimator trained by gradient steps, which can learn from a stream.

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

    #: Whether a call is one batch, whatever `batch_size`, which begins by weighted rows.
    _whole_calls: ClassVar[bool] = False

    def stream(
        self,
        *,
        classes: Any = None,
        checkpoint: Checkpoint | None = None,
        checkpoint_seconds: float | None = None,
        on_checkpoint: Callable[[Any], Any] | None = None,
        drift: Any = None,
        on_drift: str | Callable[[Session], Any] | None = None,
        publish: Callable[[Any], Any] | None = None,
        publish_every: int = 1000,
        client: Any = None,
    ) -> Session:
        """Open a stream: rows are learned as they come, and nothing is set up between calls.

        The steps are those of ``partial_fit`` with the same batches and ``shuffle=False``, to
        the bit for dense rows. With ``batch_size="auto"`` or None a call is one step; a number
        cuts the rows of a call into batches (a call of MiniBatchKMeans is always one). The rate
        is that of ``partial_fit``: with ``learning_rate="auto"`` the optimizer's own, there is no
        pilot, and what depends on the rows (units of the targets, their mean) is taken from the
        first call's.

        Parameters
        ----------
        classes : array-like of shape (n_classes,), optional
            All labels that will ever come; classifiers need it unless they are fitted.
        checkpoint : Checkpoint, optional
            Where the stream saves its parameters and its position, in one file, after so many
            calls as `every` says, and at its end. With ``resume=True`` it goes on from there: rows
            at or before the session's `position` are not learned again, so that none counts twice
            or not at all, wherever the process ended. This is apart from the estimator's own
            parameter `checkpoint`, which is for fits.
        checkpoint_seconds : float, optional
            Save after so many seconds instead.
        on_checkpoint : callable, optional
            Called with the position that was saved, for instance to commit offsets.
        drift : object, optional
            Detector of drifts, told the mean loss of each call before it is learned:
            :class:`~daskml_dist.streaming.PageHinkley`, or one of River.
        on_drift : {"rate", "reset"} or callable, optional
            What is done on a drift: the optimizer and the schedule begin anew (adaptive rates are
            large again), the parameters too, or a function of the session is called.
        publish : callable, optional
            Called with a fitted copy of the estimator, every so many calls and at the end.
        publish_every : int, default=1000
        client : distributed.Client, "inline" or None
            Of the cluster whose workers learn the rows that this process gives, under the
            estimator's policy: in lock-step all lanes share each step, else steps go to lanes in
            turn and :meth:`~Session.learn` does not wait for each. A worker that dies costs time
            alone. "inline" or None: the calling process learns them itself. For all but
            ``MatrixFactorization``.

        Returns
        -------
        Session
            For a ``with`` statement.

        Raises
        ------
        InvalidParameterError
            Parameters with no meaning in a stream, such as ``early_stopping``, or on a cluster,
            such as ``compression``.

        Examples
        --------
        >>> import numpy as np
        >>> from daskml_dist.linear_model import SGDClassifier
        >>> rng = np.random.default_rng(0)
        >>> clf = SGDClassifier(optimizer="sgd", learning_rate=1.0)
        >>> with clf.stream(classes=[0, 1]) as s:
        ...     for _ in range(100):
        ...         X = rng.standard_normal((100, 3))
        ...         loss = s.learn(X, (X[:, 0] > 0).astype(int))
        >>> s.n_rows, s.progressive_loss < 0.5
        (10000, True)
        """
        # They load the engine, which an import of an estimator does without.
        from daskml_dist.streaming.checkpoints import SavingSchedule
        from daskml_dist.streaming.session import Session
        from daskml_dist.training.job import INLINE

        if client is not None and not (isinstance(client, str) and client == INLINE):
            check_client(client, "a stream", '"inline" or None for a stream in this process')
        else:
            client = None
        _check_publish(publish, publish_every)
        saving = None if checkpoint is None else SavingSchedule(checkpoint, checkpoint_seconds)
        return Session(
            self,
            classes=classes,
            saving=saving,
            on_checkpoint=on_checkpoint,
            watch=DriftWatch(drift, on_drift),
            publish=publish,
            publish_every=publish_every,
            client=client,
        )

    def _check_no_stream(self, method: str) -> None:
        """Raise where a stream is open: it would undo what `method` does to the parameters."""
        if vars(self).get("_stream") is not None:
            raise InvalidParameterError(
                f"{method} while this estimator learns from a stream: the stream would undo it. "
                "Leave the stream's context first, or use a copy: copy.copy(estimator)."
            )

    # -- hooks that some kinds of estimators override --------------------------------------------

    def _stream_inputs(self, X: Any, y: Any, sample_weight: Any, begun: bool) -> tuple[Any, ...]:
        """Return the inputs of a call, checked like those of a fit; `begun`: of a later call."""
        estimator: Any = self
        inputs: tuple[Any, ...] = estimator._prepare_inputs(X, y, sample_weight)
        if begun:
            estimator._check_target(inputs[1])
            # A bare object with the names alone: asking the estimator itself for an attribute would
            # set all fitted attributes from the stream.
            named = object.__new__(type(estimator))
            names = vars(estimator).get("feature_names_in_")
            vars(named).update({} if names is None else {"feature_names_in_": names})
            check_feature_names(named, inputs[0], reset=False)
        return inputs

    def _begin_stream(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> StartedStream:
        """Return the stream that is planned by its first rows; nothing is learned yet."""
        from daskml_dist.streaming.start import plan_stream

        return plan_stream(self, X, y, sample_weight, classes)

    def _resume_stream(self, saved: SavedStream, path: Any, classes: Any) -> StartedStream:
        """Return the stream that goes on from where it was saved."""
        from daskml_dist.streaming.start import plan_resumed_stream

        return plan_resumed_stream(self, saved, path, classes)

    def _rule_of_rows(self, rule: UpdateRule, n_rows: int) -> UpdateRule:
        """Return the rule of steps of `n_rows` rows; by default the same for any number."""
        return rule

    def _show_stream(
        self, started: StartedStream, state: ShardState, progress: ProgressiveLoss
    ) -> None:
        """Set the fitted attributes to what a stream has learned."""
        estimator: Any = self
        estimator._set_learned(state, started.fit.steps.model, started.rows)
        estimator.n_iter_ = 1
        estimator.t_ = started.n_seen(progress)

    # Attributes of an open stream are made when somebody asks for them: a copy of the parameters
    # for each call would cost more than many a step.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            session = vars(self).get("_stream")
            fitted = name.endswith("_") or name.startswith("_")
            if session is not None and fitted and not name.startswith("__"):
                session.show()
                if name in vars(self):
                    return vars(self)[name]
            # Fails again, with the error that names the remedy: the loss may not have this method.
            return super().__getattribute__(name)

    def __getstate__(self) -> Any:
        session = vars(self).get("_stream")
        if session is not None:
            session.show()
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_stream"}


def _check_publish(publish: Any, every: Any) -> None:
    """Raise where `publish` is no function, or `publish_every` no number of calls."""
    whole = isinstance(every, int) and every >= 1
    if publish is not None and not (whole and callable(publish)):
        raise InvalidParameterError(
            f"publish={publish!r}, publish_every={every!r}: give a function of a fitted estimator, "
            "and an integer >= 1, in calls."
        )
