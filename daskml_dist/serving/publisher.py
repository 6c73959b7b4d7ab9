"""`Publisher`: a function that publishes whatever model it is given under one name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from daskml_dist.errors import InvalidParameterError, ModelFileError
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.serving.registry import check_keep, check_name, publish

__all__ = ["Publisher"]

_LOG = logging.getLogger("daskml_dist.serving")
_ON_ERROR = ("raise", "log")


class Publisher(NamedParameters):
    """Publisher of the versions of one model, such as those that a stream hands out.

    Parameters
    ----------
    folder : str or path-like
        The registry, made where there is none.
    name : str
        Of the model.
    keep : int or None, default=5
        Versions that are kept, the newest, so that a stream without end fills no disk; the one
        that is current, and those with a share of the requests, are kept beside them. None: all.
    current : bool, default=True
        Whether each is the one that is served from now on.
    on_error : {"raise", "log"}, default="raise"
        What is done where a version cannot be written (a full disk, a mount that is away): it is
        raised, or told in the log, and the next model is tried.

    Attributes
    ----------
    version : str or None
        Of the last model that was published.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.

    See Also
    --------
    publish : The same, once.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> from daskml_dist.serving import Publisher
    >>> rng = np.random.default_rng(0)
    >>> publisher = Publisher(tempfile.mkdtemp(), "clicks", keep=3)
    >>> clf = SGDClassifier()
    >>> with clf.stream(classes=[0, 1], publish=publisher, publish_every=10) as s:
    ...     for _ in range(50):
    ...         X = rng.standard_normal((100, 3))
    ...         loss = s.learn(X, (X[:, 0] > 0).astype(int))
    >>> publisher.version
    '5'
    """

    def __init__(
        self,
        folder: Any,
        name: str,
        *,
        keep: int | None = 5,
        current: bool = True,
        on_error: str = "raise",
    ) -> None:
        check_name(name)
        check_keep(keep)
        if on_error not in _ON_ERROR:
            raise InvalidParameterError(f"on_error={on_error!r}: use one of {list(_ON_ERROR)}.")
        self.folder, self.name = Path(folder), name
        self.keep, self.current, self.on_error = keep, current, on_error
        self.version: str | None = None

    def __call__(self, model: Any) -> str | None:
        """Publish a fitted model.

        Parameters
        ----------
        model : estimator

        Returns
        -------
        str or None
            Its version; None where it could not be written, and that was to be logged.

        Raises
        ------
        ModelFileError
            It cannot be written.
        InvalidParameterError
            It neither predicts nor transforms.
        """
        try:
            self.version = publish(
                model, self.folder, self.name, keep=self.keep, current=self.current
            )
        except ModelFileError as error:
            if self.on_error == "raise":
                raise
            _LOG.error("model %s: not published (%s); the next one is tried", self.name, error)
            return None
        return self.version

    def __repr__(self) -> str:
        return f"Publisher({str(self.folder)!r}, {self.name!r}, keep={self.keep})"
