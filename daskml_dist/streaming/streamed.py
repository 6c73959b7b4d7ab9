"""`Streamed`: estimators that learn from streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.streaming.session import Session
from daskml_dist.training.run import INLINE

__all__ = ["Streamed"]


class Streamed:
    """Estimator trained by gradient steps, which can learn from a stream."""

    def stream(self, *, classes: Any = None, client: Any = None) -> Session:
        """Open a stream: rows are learned as they come, and nothing is set up between calls.

        The steps are those of ``partial_fit`` with the same batches and ``shuffle=False``, to
        the bit for dense rows. With ``batch_size="auto"`` or None a call is one step; a number
        cuts the rows of a call into batches. The rate is that of ``partial_fit``: with
        ``learning_rate="auto"`` the optimizer's own, there is no pilot, and what depends on the
        rows (units of the targets, their mean) is taken from the first call's.

        Parameters
        ----------
        classes : array-like of shape (n_classes,), optional
            All labels that will ever come; classifiers need it unless they are fitted.
        client : "inline" or None
            Streams are learned in the calling process.

        Returns
        -------
        Session
            For a ``with`` statement.

        Raises
        ------
        InvalidParameterError
            Parameters with no meaning in a stream, such as ``early_stopping``.

        Examples
        --------
        >>> import numpy as np
        >>> from daskml_dist.linear_model import SGDClassifier
        >>> rng = np.random.default_rng(0)
        >>> clf = SGDClassifier()
        >>> with clf.stream(classes=[0, 1]) as s:
        ...     for _ in range(100):
        ...         X = rng.standard_normal((100, 3))
        ...         loss = s.learn(X, (X[:, 0] > 0).astype(int))
        >>> s.n_rows, s.progressive_loss < 0.4
        (10000, True)
        """
        if client is not None and client != INLINE:
            raise InvalidParameterError(
                f"client={client!r}: a stream is learned in the calling process. Leave client "
                'out (or give "inline"); rows on a cluster are learned by fit or partial_fit.'
            )
        return Session(self, classes=classes)

    # Attributes of an open stream are made when somebody asks for them: a copy of the parameters
    # for each call would cost more than many a step.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            session = vars(self).get("_stream")
            fitted = name.endswith("_") or name in ("_state", "_last_model")
            if session is not None and fitted and not name.startswith("__"):
                session.show()
                if name in vars(self):
                    return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> Any:
        session = vars(self).get("_stream")
        if session is not None:
            session.show()
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_stream"}
