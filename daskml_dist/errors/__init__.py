"""The exceptions of the package. Every message names the remedy.

::

    DaskMLDistError
    ├── InvalidParameterError   (also ValueError)      a constructor or fit argument
    │   ├── NoCandidateError    (also IndexError)      a search has no candidate of that number
    │   └── UnknownModelError   (also LookupError)     no model or version of that name is served
    ├── InvalidDataError        (also ValueError)      rows, labels or weights
    │   └── InvalidTypeError    (also TypeError)       values of a wrong type, or of several
    ├── NotFittedError          (also scikit-learn's)  predict before fit
    ├── DeviceUnavailableError  (also RuntimeError)    a requested GPU is not available
    ├── DeviceMemoryError       (also MemoryError)     rows do not fit in a GPU's memory
    ├── ExportError             (also ValueError)      a model cannot be converted to a format
    ├── ModelFileError          (also ValueError)      a model file cannot be read or written
    ├── RequestError            (also ValueError)      a request that a server of models refuses
    ├── ServingError            (also RuntimeError)    a server cannot start or continue
    └── TrainingError           (also RuntimeError)    a fit that had started
        ├── SchedulerLostError                         the client lost the Dask scheduler
        ├── WorkerLostError                            a Dask worker of the fit was lost
        ├── CommunicationError  (also ConnectionError) a peer closed or refused a connection
        │   ├── SilentPeerError                        the peer's host no longer responds
        │   └── MessageError                           a message cannot be understood
        ├── WaitTimeoutError    (also TimeoutError)    a wait exceeded its time limit
        ├── RunAbortedError                            another part of the fit failed first
        │   └── GenerationError                        the membership of the fit changed
        ├── DataLostError                              rows were lost with their worker
        ├── FunctionError                              a function of several ranks raised an error
        ├── RankMismatchError                          ranks of a function make different calls
        ├── CheckpointError     (also ValueError)      a checkpoint cannot be written or used
        └── DivergedError       (also ValueError)      parameters became NaN or infinite

Each error is also of the built-in class that a user of scikit-learn would catch, so that code that
catches ValueError continues to work. Errors with additional attributes define ``__reduce__``, since
they are pickled on their way from workers to the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "CheckpointError",
    "CommunicationError",
    "DaskMLDistError",
    "DataLostError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "DivergedError",
    "ExportError",
    "FunctionError",
    "GenerationError",
    "InvalidDataError",
    "InvalidParameterError",
    "InvalidTypeError",
    "MessageError",
    "ModelFileError",
    "NoCandidateError",
    "NotFittedError",
    "RankMismatchError",
    "RequestError",
    "RunAbortedError",
    "SchedulerLostError",
    "ServingError",
    "SilentPeerError",
    "TrainingError",
    "UnknownModelError",
    "WaitTimeoutError",
    "WorkerLostError",
    "as_ours",
    "is_consequence",
]


class DaskMLDistError(Exception):
    """Base class of all errors of this package."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Some built-in errors, such as OSError and its subclasses, have C fields, and only their
        # `__new__` may make the object. Dask's unpickling calls `__new__`, and sends a plain
        # Exception if that fails. `__base__` is the base that determines the memory layout of the
        # class.
        super().__init_subclass__(**kwargs)
        layout_base: Any = cls.__base__
        while layout_base.__module__ != "builtins":
            layout_base = layout_base.__base__
        cls.__new__ = layout_base.__new__  # type: ignore[method-assign]


class InvalidParameterError(DaskMLDistError, ValueError):
    """An argument is invalid; the message lists the valid values."""


class NoCandidateError(InvalidParameterError, IndexError):
    """A search has no candidate with the index that the user's function chose."""


class UnknownModelError(InvalidParameterError, LookupError):
    """A model, or a version of it, is not in a registry or not served; the message lists others."""


class ServingError(DaskMLDistError, RuntimeError):
    """A model server cannot start, or its processes crash repeatedly."""


class ExportError(DaskMLDistError, ValueError):
    """A model cannot be converted to another library; the message has a remedy."""


class ModelFileError(DaskMLDistError, ValueError):
    """A model file is damaged, of another version, not trusted, or cannot be read or written."""


class RequestError(DaskMLDistError, ValueError):
    """A request that a model server refuses; the message describes a valid one.

    Attributes
    ----------
    status : int
        HTTP status.
    headers : tuple of (bytes, bytes)
        Additional headers of the response.
    """

    def __init__(
        self, message: str = "", status: int = 400, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling an exception keeps only `args`.
        return type(self), (*self.args, self.status, self.headers)


class InvalidDataError(DaskMLDistError, ValueError):
    """The rows, labels or weights cannot be used unchanged."""


class InvalidTypeError(InvalidDataError, TypeError):
    """Values have an unsupported type, or several types."""


class DeviceUnavailableError(DaskMLDistError, RuntimeError):
    """``device="gpu"`` was requested, but a worker has no usable GPU."""


class DeviceMemoryError(DaskMLDistError, MemoryError):
    """A block, or data computed from it, does not fit in GPU memory."""


class TrainingError(DaskMLDistError, RuntimeError):
    """A fit that had started could not be finished."""


class SchedulerLostError(TrainingError):
    """The client lost its connection to the Dask scheduler, which ends the fit."""


class WorkerLostError(TrainingError):
    """A Dask worker that ran a trainer or a server of the fit was lost."""


class CommunicationError(TrainingError, ConnectionError):
    """A trainer or server closed the connection or refused the handshake."""


class SilentPeerError(CommunicationError):
    """The host of a trainer or server no longer responds: it is down or unreachable."""


class MessageError(CommunicationError):
    """A message from another part of the fit cannot be understood."""


class WaitTimeoutError(TrainingError, TimeoutError):
    """A bounded wait inside a fit ran out."""


class RunAbortedError(TrainingError):
    """The fit was stopped because another part of it failed or the user asked."""


class GenerationError(RunAbortedError):
    """A message of an earlier membership of the fit; the trainer waits for its new one."""


class RankMismatchError(TrainingError):
    """The ranks of a function make different collective calls."""


class FunctionError(TrainingError):
    """A function that runs on several ranks raised an error on one of them.

    Attributes
    ----------
    rank : int
        The rank on which it was raised.
    worker : str
        Dask address of the rank's worker; empty without a cluster.
    """

    def __init__(self, message: str, rank: int = 0, worker: str = "") -> None:
        super().__init__(message)
        self.rank, self.worker = rank, worker

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank, self.worker)


class DataLostError(TrainingError):
    """Rows were lost with the only worker that held them, and cannot be recomputed."""


class CheckpointError(TrainingError, ValueError):
    """A checkpoint cannot be written, read, or resumed from."""


class DivergedError(TrainingError, ValueError):
    """The parameters, or the loss, became NaN or infinite.

    Attributes
    ----------
    snapshot : ndarray or None
        Earlier parameters whose loss was finite, if they were stored.
    clock : int or None
        Number of steps before the one whose loss was not finite, if it is known.
    """

    def __init__(self, message: str = "", snapshot: Any = None, clock: int | None = None) -> None:
        super().__init__(message)
        self.snapshot = snapshot
        self.clock = clock

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling an exception keeps only `args`.
        return type(self), (*self.args, self.snapshot, self.clock)


def as_ours(error: Exception, where: str = "") -> DaskMLDistError:
    """Return an error about rows as one of the package, with a remedy and the place `where`.

    Examples
    --------
    >>> from daskml_dist.errors import as_ours
    >>> type(as_ours(ValueError('bad rows'))).__name__
    'InvalidDataError'
    """
    if isinstance(error, DaskMLDistError) and not where:
        return error
    from daskml_dist.errors.remedies import add_remedy

    kind = InvalidTypeError if isinstance(error, TypeError) else InvalidDataError
    # An error of the package already contains its remedy.
    message = str(error) if isinstance(error, DaskMLDistError) else add_remedy(str(error))
    return kind(f"{where}{message}")


def is_consequence(error: BaseException) -> bool:
    """Return whether an error only reports that another part of the fit failed first.

    Parameters
    ----------
    error : BaseException

    Returns
    -------
    bool

    Examples
    --------
    >>> from daskml_dist.errors import is_consequence
    >>> is_consequence(ValueError('bad rows'))
    False
    """
    return isinstance(error, (CommunicationError, RunAbortedError))


# Importing scikit-learn takes over a second, and workers train without it: this error, which is
# also scikit-learn's, is defined at its first use.
if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError as _NotFittedError

    class NotFittedError(DaskMLDistError, _NotFittedError):
        """The estimator was asked to predict before it was fitted."""

else:

    def __getattr__(name: str) -> Any:
        """Define the one error that is also scikit-learn's, at its first use."""
        if name != "NotFittedError":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sklearn.exceptions import NotFittedError

        doc = "The estimator was asked to predict before it was fitted."
        bases, facts = (DaskMLDistError, NotFittedError), {"__module__": __name__, "__doc__": doc}
        return globals().setdefault(name, type(name, bases, facts))
