"""Base classes of models (objective functions), and the batches of rows passed to them.

A model defines the preprocessing of rows and targets (`Model`), and for gradient steps a
loss and its gradient as functions of parameters and a batch (`StepModel`). It does not depend on
workers, optimizers or Dask. All parameters are one matrix (`Parameters`), of which the engine moves
slices of rows. The other classes are additional interfaces for models that can be split: by layers
for a pipeline (`StagedModel`), or by features (`ColumnModel`, `ColumnPart`). Models encode labels
by `encode_signs` and `encode_labels`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from math import isfinite, prod
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.base import Loss


def identity_of(model_or_solver: Any) -> dict[str, Any]:
    """Return the class and the fields of a model or solver as JSON values, for checkpoints.

    The values are the same in every process. A fit resumes from a checkpoint only if the stored
    values equal its own.
    """
    # `repr=False` marks caches, and fields that follow from other fields or from the rows.
    if is_dataclass(model_or_solver):
        names = [field.name for field in fields(model_or_solver) if field.repr]
    else:
        # Cached properties derive from the other attributes, and may not have been computed yet.
        kind = type(model_or_solver)
        names = [
            name
            for name in getattr(model_or_solver, "__dict__", ())
            if not isinstance(getattr(kind, name, 0), cached_property)
        ]
    return {"class": type(model_or_solver).__name__} | {
        n: _plain_value(getattr(model_or_solver, n)) for n in names
    }


def _plain_value(value: Any) -> Any:
    """Return a field as a JSON value; arrays are identified by dtype, shape and checksum."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # As text, since NaN does not equal itself, and JSON has no infinity.
        return float(value) if isfinite(value) else repr(float(value))
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return [_plain_value(item) for item in value.tolist()]
        return [str(value.dtype), list(value.shape), crc32(np.ascontiguousarray(value).data)]
    # Containers by their items, in order.
    if isinstance(value, Mapping):
        return {str(name): _plain_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if hasattr(value, "__qualname__"):  # classes and functions
        return value.__qualname__
    # The default repr contains an address, which differs between processes.
    if is_dataclass(value) or getattr(type(value), "__repr__", None) is object.__repr__:
        return identity_of(value)
    return repr(value)


@dataclass(frozen=True)
class Part:
    """Named array among the parameters of a model.

    Parameters
    ----------
    name : str
    shape : tuple of int
    penalised : bool, default=True
        Whether the penalty applies to it.
    buffer : bool, default=False
        Whether it is a running mean instead of a trained parameter (the statistics of batch
        normalisation). A model's "gradient" of a buffer is ``rows * (retention * old - new)``, and
        a step multiplies it by its retention and subtracts the mean gradient of a row, which gives
        the mean of the rows' new values. No penalty and no learning rate apply.
    additive : bool, default=False
        Whether it is a running sum over the rows of all steps (counts). A model's "gradient" is
        minus the rows' terms, which every policy adds up. No penalty and no learning rate apply.
    retention : float, default=1.0
        Factor between 0 and 1 by which each batch multiplies a buffer's old value: 0.9 for
        ``new = 0.9 * old + 0.1 * mean``. The gradient then does not depend on the old value, so
        that a batch that was computed from an outdated one (``"async"``, ``"hogwild"``) does not
        move the mean beyond what the batches held.

    Examples
    --------
    >>> from daskml_dist.models import Part
    >>> Part('weights', (3,)).penalised
    True
    """

    name: str
    shape: tuple[int, ...]
    penalised: bool = True
    buffer: bool = False
    additive: bool = False
    retention: float = 1.0


@dataclass(frozen=True)
class Parameters:
    """Layout of a model's named arrays in the one matrix that the engine moves and updates.

    Parameters
    ----------
    parts : tuple of Part
        In their order in the matrix. The size of each is a multiple of `width`.
    width : int, default=1
        Columns of the matrix: 1, except for models whose steps update single rows of it (a linear
        model's row has the coefficients of one feature for all outputs).

    Raises
    ------
    InvalidParameterError
        Two parts of one name, or a part that is not whole rows.

    Examples
    --------
    >>> from daskml_dist.models import Parameters, Part
    >>> Parameters((Part('weights', (3,)), Part('bias', (1,)))).shape
    (4, 1)
    """

    parts: tuple[Part, ...]
    width: int = 1

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise InvalidParameterError(f"Parts of one name: {names}. Give each its own.")
        for part in self.parts:
            if prod(part.shape) % self.width:
                raise InvalidParameterError(
                    f"The part {part.name!r} of shape {part.shape} is not a whole number of rows "
                    f"of {self.width}. Use width=1."
                )

    @cached_property
    def rows(self) -> dict[str, slice]:
        """Slice of the matrix's rows that holds each part, by the part's name."""
        slices, start = {}, 0
        # Parts are stored one after the other.
        for part in self.parts:
            stop = start + prod(part.shape) // self.width
            slices[part.name] = slice(start, stop)
            start = stop
        return slices

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return sum(prod(part.shape) for part in self.parts) // self.width, self.width

    def views(self, w: Any) -> dict[str, Any]:
        """Return the named arrays of a matrix, as views of it."""
        xp = namespace(w)
        return {
            part.name: xp.reshape(w[self.rows[part.name], ...], part.shape) for part in self.parts
        }


@dataclass(frozen=True)
class LinearForm:
    """Description of a linear model for compiled kernels: the loss of ``X @ coef + intercept``.

    The matrix of the parameters has a row for each feature; the last row holds the intercepts.

    Parameters
    ----------
    loss : Loss
    n_features : int
    fit_intercept : bool
    few_entries : bool, default=False
        Whether the whole data set has too few entries to pay for compiling a kernel of dense rows.

    Examples
    --------
    >>> from daskml_dist.losses import LogLoss
    >>> from daskml_dist.models import LinearForm
    >>> form = LinearForm(LogLoss(), n_features=3, fit_intercept=True, few_entries=True)
    >>> form.dense_kernel is None
    True
    """

    loss: Loss
    n_features: int
    fit_intercept: bool
    few_entries: bool = False

    @property
    def dense_kernel(self) -> str | None:
        """Name of the compiled kernel for gradients of dense rows on the CPU, or None."""
        return None if self.few_entries else self.loss.kernel


class BatchRows:
    """Rows that a model is given in one call: a batch, or a piece of a large one.

    Parameters
    ----------
    X : rows of shape (n, ...)
        As prepared by :meth:`Model.prepare`, on the backend's device.
    y : array of shape (n, ...) or None
        Targets as encoded by :meth:`Model.encode`.
    weight : array of shape (n,) or None
        None: all are 1.
    key : tuple of int
        Seed of the rows' random stream: the fit's seed, the lane, the step or the sum, and the
        position of the rows.
    block : int, default=-1
        Index of the block, if the rows are adjacent in one.
    first : int, default=0
        Position of the first row in the block.
    state : array of shape (n, ...) or None
        State of each row that outlives a sum (`daskml_dist.solvers.RowState`).
    places : ndarray of int of shape (n,), or None
        Positions of the rows relative to `first`, if they are a selection from adjacent rows.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import BatchRows
    >>> BatchRows(np.zeros((2, 3)), np.zeros(2)).X.shape
    (2, 3)
    """

    # A batch has one for each piece, so it is a plain class with slots, not a dataclass.
    __slots__ = ("X", "block", "first", "key", "places", "state", "weight", "y")

    def __init__(
        self,
        X: Any,
        y: Any = None,
        weight: Any = None,
        key: tuple[int, ...] = (0,),
        block: int = -1,
        first: int = 0,
        state: Any = None,
        places: Any = None,
    ) -> None:
        self.X = X
        self.y = y
        self.weight = weight
        self.key = key
        self.block = block
        self.first = first
        self.state = state
        self.places = places

    def part(self, at: slice, backend: Backend) -> BatchRows:
        """Return a slice of the rows; its X may be a buffer that the next call overwrites."""
        y, weight, state, places = (
            None if array is None else array[at, ...]
            for array in (self.y, self.weight, self.state, self.places)
        )
        # Places count from the same row in every slice.
        first = self.first + at.start if places is None else self.first
        # The key is extended by the position, so that slices draw different numbers.
        return BatchRows(
            backend.borrow_rows(self.X, at), y, weight, (*self.key, at.start), self.block, first,
            state, places,
        )  # fmt: skip

    def draw(self) -> np.random.Generator:
        """Return a new generator seeded by `key`: the same rows draw the same on any worker."""
        # Counter-based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self.key)))


class Model(ABC):
    """Base class of all models: preprocessing of rows and targets.

    A model is immutable, since it is copied to every trainer. Its methods are pure functions of
    arrays; written with functions of the array API standard, they run on every backend.

    Attributes
    ----------
    flushes : bool
        Whether the CPU flushes subnormal numbers to 0 during the fit.
    takes_missing : bool
        Whether rows may hold NaN and infinity.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import Model
    >>> class Signs(Model):
    ...     def encode(self, y, classes, dtype):
    ...         return np.where(y == classes[1], 1, -1).astype(dtype)
    >>> Signs().encode(np.array(["a", "b"]), np.array(["a", "b"]), np.float32)
    array([-1.,  1.], dtype=float32)
    >>> Signs().prepare(np.ones((1, 2), np.float32), np.float64)
    array([[1., 1.]])
    """

    flushes: ClassVar[bool] = False
    takes_missing: ClassVar[bool] = False

    @abstractmethod
    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets in the form that the model's loss reads.

        Parameters
        ----------
        y : ndarray of shape (n,) or (n, n_targets)
        classes : ndarray of shape (n_classes,), sorted, or None for regression
        dtype : numpy dtype of the fit
        """

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return a block's rows in the form that the model reads, by default in the fit's dtype.

        A model of tensors (images of uint8) may return `X` itself, and cast each batch instead.
        A new array takes memory in addition to the rows; `memory_budget` counts only the rows.

        Parameters
        ----------
        X : ndarray, CSR matrix or CuPy array, of shape (n, ...)
            Two-dimensional rows in float32 or float64, tensors in their own dtype; not to be
            changed.
        dtype : numpy dtype of the fit

        Returns
        -------
        ndarray, CSR matrix or array of CuPy, of n rows
        """
        return X if X.dtype == dtype else X.astype(dtype)

    def computing(self, n_threads: int) -> AbstractContextManager[Any]:
        """Return a context manager in which a trainer computes, `n_threads` threads a lane."""
        return nullcontext()


#: Possible ids of the rows of a growing table: it is a matrix with this many rows, few of which
#: exist.
N_TABLE_IDS = 2**62
#: Maximum counted sightings of a waiting id, and maximum steps of a table: both are stored in 64
#: bits, one of which is the sign.
MOST_SIGHTINGS, MOST_STEPS = 2**16 - 1, 2**47 - 1


@dataclass(frozen=True)
class GrowingTable:
    """Description of parameters whose rows are created on servers when their ids first occur.

    Parameters
    ----------
    scales : tuple of float
        Standard deviation of the initial values in each column.
    seed : int, default=0
        Seed of the initial values.
    admit_after : int, default=1
        Number of steps that touch an id after which it has a row.
    expire_after : int or None, default=None
        Steps after which a row that none of them touched is dropped; None: never.
    max_rows : int or None, default=None
        Maximum rows of a server; None: as many as its memory holds.
    memory_bytes : int or None, default=None
        Bytes of a server's rows beyond which they are stored in mapped files.
    folder : str or None, default=None
        Folder of the mapped files; None: the folder for temporary files.

    Examples
    --------
    >>> from daskml_dist.models import GrowingTable
    >>> GrowingTable((0.0, 0.01)).admit_after
    1
    """

    scales: tuple[float, ...]
    seed: int = 0
    admit_after: int = 1
    expire_after: int | None = None
    max_rows: int | None = None
    memory_bytes: int | None = None
    folder: str | None = None


class StepModel(Model):
    """Base class of models trained by gradient steps.

    Attributes
    ----------
    parameters : Parameters
        Set when the model is made.
    linear : LinearForm or None
        Description of a linear model, for compiled kernels; None for all others.
    touches : float or None
        Mean number of parameter rows with a nonzero gradient for a row of data, if the gradient is
        row-sparse; None: it is dense. A step of a row-sparse model pulls, pushes and updates only
        the rows that :meth:`touched` returns, and their optimizer state.
    row_clip : float or None
        Largest norm of the gradient of one row, to which longer gradients are scaled down
        (differential privacy); None: no clipping. With clipping, losses are reported as 0, since no
        noise protects them.
    table : GrowingTable or None
        How the rows of the parameters are made, if they are a table of ids: their shape is then
        ``(N_TABLE_IDS, width)``, and :meth:`touched` returns ids. None: all rows exist.
    starts_threads : bool
        Whether the model starts threads that may outlive a fit. Trainers then do not pin themselves
        to a share of the cores, since the threads would inherit the affinity.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import BatchRows, Parameters, Part, StepModel
    >>> class Constant(StepModel):
    ...     parameters = Parameters((Part("level", (1,)),))
    ...     def encode(self, y, classes, dtype):
    ...         return y.astype(dtype)
    ...     def add_gradient(self, w, rows, out, backend):
    ...         error = w[0, 0] - rows.y
    ...         out[0, 0] += error.sum()
    ...         return float(error @ error) / 2
    ...     def identity(self):
    ...         return {"model": "Constant"}
    >>> rows, out = BatchRows(np.empty((2, 1)), np.array([1.0, 3.0])), np.zeros((1, 1))
    >>> Constant().add_gradient(Constant().init(0, np.float64), rows, out, None), out.tolist()
    (5.0, [[-4.0]])
    """

    parameters: Parameters
    linear: LinearForm | None = None
    touches: float | None = None
    row_clip: float | None = None
    table: GrowingTable | None = None
    starts_threads: ClassVar[bool] = True

    @property
    def own_ids(self) -> NDArray[np.int64]:
        """Return the ids of a growing table that every batch uses: the model's own parameters."""
        return np.empty(0, np.int64)

    def with_own_rows_last(self) -> StepModel:
        """Return the model with its own rows after those of the ids that a batch uses.

        Trainers then hold the model's own rows, and servers the others.
        """
        return self

    def bound_slopes(self, X: Any) -> NDArray[Any] | None:
        """Return the weights of rows for :meth:`add_gradient` if it clips gradients.

        A function of each row alone, computed once a fit; None, the default: nothing.
        """
        return None

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the initial parameters: a new array of ``parameters.shape``; zeros by default."""
        return np.zeros(self.parameters.shape, dtype=dtype)

    def init_rows(self, at: slice, seed: int, dtype: Any) -> NDArray[Any]:
        """Return a slice of the rows of :meth:`init`, as a new array.

        For processes that hold a shard of the parameters. Override it if computing all of
        :meth:`init` takes too much memory.
        """
        return self.init(seed, dtype)[at, :].copy()

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the parameter rows that a batch reads, and renumber its pieces to positions there.

        Called for a model whose `touches` is not None. :meth:`add_gradient` is then given only the
        returned rows of the parameters, in their order, and an array for their gradient. Indices of
        parameter rows in a piece's `X` (columns of sparse rows, categories) must therefore become
        positions among the returned rows: assign a new array to ``piece.X``.
        :func:`~daskml_dist.models.distinct` computes the rows and the positions.

        Parameters
        ----------
        pieces : list of BatchRows
            All rows of the batch; at least one.
        backend : Backend

        Returns
        -------
        ndarray of int64
            Sorted and distinct, in host memory.
        """
        raise NotImplementedError

    @abstractmethod
    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of the summed loss of some rows to `out`, in place.

        Parameters
        ----------
        w : array of ``parameters.shape``, or only the rows that :meth:`touched` returned
            On the backend's device, as all arrays; not to be changed.
        rows : BatchRows
        out : array of the shape of `w`, of its dtype or float64
        backend : Backend

        Returns
        -------
        float, or array of no dimension where the rows lie
            Sum of the weighted losses of the rows.
        """

    def own_gradient(self, w: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any] | None:
        """Return the gradient of the summed loss in a buffer owned by the model, and the loss.

        It saves the addition of :meth:`add_gradient`. The caller may use the buffer until the next
        gradient of the same lane. None, the default: the caller uses :meth:`add_gradient`.
        """
        # For models whose library computes gradients in its own memory, such as torch.
        return None

    def validation_sums(self, w: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Return an array of sums over held-out rows, for `validation_score`.

        The engine adds the arrays of all batches.

        Raises
        ------
        InvalidParameterError
            The model has no score of held-out rows.
        """
        raise self._without_score()

    def validation_score(self, sums: NDArray[np.float64]) -> float:
        """Return the score of the held-out rows, given their sums; larger is better."""
        raise self._without_score()

    def _without_score(self) -> InvalidParameterError:
        return InvalidParameterError(
            f"{type(self).__name__} has no score for held-out rows. Implement `validation_sums` "
            "and `validation_score`, or set early_stopping=False."
        )

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return the facts, as JSON values, that a checkpoint of this model must agree with."""

    def origin(self) -> Any:
        """Return the origin of the parameters' coordinates, as a JSON value; None for zero.

        Example: the shift that was subtracted from the targets. Unlike :meth:`identity` it may
        differ in a later fit that resumes from a checkpoint, which then calls :meth:`moved`.
        """
        return None

    def moved(self, w: NDArray[Any], origin: Any) -> NDArray[Any]:
        """Return the parameters relative to this model's origin, given those relative to `origin`.

        Raises
        ------
        ValueError
            `origin` is not one of such a model.
        """
        # A checkpoint of another kind of model may have an origin; here it means a wrong file.
        if origin is not None:
            raise ValueError("its parameters are relative to nothing")
        return w.copy()


class StagedModel(StepModel):
    """Base class of feed-forward networks, for pipeline parallelism: layers are cut into stages.

    Attributes
    ----------
    layers : tuple of tuple of str
        Names of the parts of each layer, from the input to the output. They are contiguous in
        `parameters`, in this order.

    Examples
    --------
    >>> from daskml_dist.losses import SquaredError
    >>> from daskml_dist.models import StagedModel
    >>> from daskml_dist.models.mlp import MLP
    >>> model = MLP(SquaredError(), sizes=(3, 2, 1), activation="tanh", n_classes=0)
    >>> isinstance(model, StagedModel), model.layers[0]
    (True, ('coefs.0', 'intercepts.0'))
    >>> model.rows_of(range(1)), model.rows_of(range(1, 2))
    (slice(0, 8, None), slice(8, 11, None))
    """

    layers: tuple[tuple[str, ...], ...]

    def rows_of(self, layers: range) -> slice:
        """Return the slice of the parameters' rows that belongs to some adjacent layers."""
        rows = self.parameters.rows
        layer_rows = [rows[name] for layer in layers for name in self.layers[layer]]
        return slice(layer_rows[0].start, layer_rows[-1].stop) if layer_rows else slice(0, 0)

    @abstractmethod
    def forward(
        self, w: Any, x: Any, layers: range, rows: BatchRows, backend: Backend
    ) -> tuple[Any, Any]:
        """Return the output of some adjacent layers, and activations for :meth:`backward`.

        Parameters
        ----------
        w : array
            Rows of the parameters' matrix that belong to the layers (:meth:`rows_of`).
        x : array of shape (n, ...)
            Rows as prepared, or the output of the previous layer; not to be changed.
        layers : range
        rows : BatchRows
            The batch. Only the first layer may read its `X`; later stages do not have it.
        backend : Backend

        Returns
        -------
        array of shape (n, ...)
        object
            Activations for :meth:`backward`, which must stay valid while other micro-batches pass.
        """

    @abstractmethod
    def backward(
        self,
        w: Any,
        memory: Any,
        gradient: Any,
        out: Any,
        layers: range,
        rows: BatchRows,
        backend: Backend,
        *,
        wants_input: bool,
    ) -> Any:
        """Add the gradient of some adjacent layers' parameters to `out`, in place.

        Parameters
        ----------
        w : array
            As in :meth:`forward`.
        memory : object
            The second result of :meth:`forward`.
        gradient : array of shape (n, ...)
            Gradient of the loss with respect to the layers' output; may be changed.
        out : array like `w`
        layers : range
        rows : BatchRows
        backend : Backend
        wants_input : bool
            False for the first layers, whose input needs no gradient.

        Returns
        -------
        array of shape (n, ...) or None
            Gradient of the loss with respect to the input, if `wants_input`.
        """

    @abstractmethod
    def loss_gradient(self, output: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """Return the summed weighted loss, and its gradient with respect to the last output."""

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        # Without a pipeline: one stage of all layers.
        layers = range(len(self.layers))
        output, memory = self.forward(w, rows.X, layers, rows, backend)
        loss, gradient = self.loss_gradient(output, rows, backend)
        self.backward(w, memory, gradient, out, layers, rows, backend, wants_input=False)
        return loss


class ColumnModel(ABC):
    """Mix-in of step models that are a function, the *head*, of a product ``X @ V``.

    The features of such a model can be sharded: a `ColumnPart` has some columns of X and the rows
    of V that belong to them, and the head is applied to the sum of the parts' products (an
    all-reduce). Parameters that belong to no column (an intercept, parameters of the head) are in
    the last part.

    Examples
    --------
    >>> from daskml_dist.losses import SquaredError
    >>> from daskml_dist.models import ColumnModel
    >>> from daskml_dist.models.linear import LinearModel
    >>> model = LinearModel(SquaredError(), 4, 0, True)
    >>> isinstance(model, ColumnModel), model.rows_of_columns(2, 4)  # 2 columns and the intercept
    (True, slice(2, 5, None))
    """

    @abstractmethod
    def of_columns(self, start: int, stop: int) -> ColumnPart:
        """Return the part of the columns from `start` to `stop`, which is a `StepModel` itself.

        Its parameters are the whole model's rows :meth:`rows_of_columns`, with the same initial
        values.
        """

    @abstractmethod
    def rows_of_columns(self, start: int, stop: int) -> slice:
        """Return the slice of the parameters' rows that belongs to some adjacent columns.

        The slice of the last columns includes the rows that belong to no column.
        """


class ColumnPart(ABC):
    """Mix-in of step models that are the shard of a `ColumnModel` for some columns of X.

    Attributes
    ----------
    has_head : bool
        Whether the head has parameters, which only the last part holds. Otherwise every part can
        apply the head to the sum of the products.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.backends import get_backend
    >>> from daskml_dist.losses import SquaredError
    >>> from daskml_dist.models.linear import LinearModel
    >>> part = LinearModel(SquaredError(), 4, 0, True).of_columns(0, 2)
    >>> part.products(np.array([[1.0], [10.0]]), np.array([[1.0, 2.0]]), get_backend("cpu")).ravel()
    array([21.])
    """

    has_head: bool = False

    @abstractmethod
    def products(self, w: Any, X: Any, backend: Backend) -> Any:
        """Return the product of this part's columns and parameters, a summand of the head's input.

        Parameters
        ----------
        w : array
            The part's parameters; for sparse rows possibly only the touched ones.
        X : rows of shape (n, n_columns)
        backend : Backend

        Returns
        -------
        array of shape (n,) or (n, width)
            A new array.
        """

    @abstractmethod
    def add_products(self, X: Any, slope: Any, out: Any, backend: Backend) -> None:
        """Add the gradient of the part's parameters, without the head's, to `out`, in place.

        Parameters
        ----------
        X : rows of shape (n, n_columns)
        slope : array like the products
            Gradient of the summed loss with respect to the sum of the products; not to be changed.
        out : array
            Of the shape of `w` in :meth:`products`.
        backend : Backend
        """

    @abstractmethod
    def head(self, w: Any, total: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Return the loss of some rows and its gradient, given the sum of all parts' products.

        Parameters
        ----------
        w : array
            Parameters of the last part; used only if `has_head`.
        total : array
            Sum of all parts' products; may be changed.
        rows : BatchRows
            Only its targets and weights are read.
        out : array like `w`
            The gradient of the head's parameters is added to it.
        backend : Backend

        Returns
        -------
        float
            Sum of the rows' weighted losses.
        array like `total`
            Its gradient with respect to `total`.
        """

    @abstractmethod
    def head_sums(
        self, w: Any, total: Any, rows: BatchRows, backend: Backend
    ) -> NDArray[np.float64]:
        """Return :meth:`StepModel.validation_sums`, given the sum of all parts' products."""


#: Maximum rows summed in sequence; beyond that, sums of runs are added.
_MAX_SUMMED_RUN_ROWS = 1 << 16


def r2_of_sums(weight: Any, errors: Any, targets: Any, squares: Any) -> NDArray[np.float64]:
    """Return R^2 from the weighted sums of squared errors, of targets, and of squared targets.

    A constant target scores 1 if it is predicted exactly, else 0, as in scikit-learn's `r2_score`:
    NaN would never stop a fit, and would leave a search without a best candidate. Without rows the
    score is NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        # Total sum of squares: that of the targets' deviations from their mean. For a constant
        # target it is only the rounding error: equal terms have equal rounding errors, so the error
        # grows with the rows of a run that is summed in sequence.
        deviations = squares - targets**2 / weight
        n_roundings = 64 + np.minimum(weight, _MAX_SUMMED_RUN_ROWS)
        rounding = n_roundings * np.finfo(np.float64).eps * squares
        constant_score = np.where(
            errors == 0, 1.0, 0.0 * errors
        )  # NaN if a prediction is not finite
        score = np.where(deviations > rounding, 1 - errors / deviations, constant_score)
        return np.where(weight > 0, score, np.nan)


def distinct(numbers: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Return the sorted distinct integers of several arrays, and each entry's position among them.

    As ``numpy.unique(..., return_inverse=True)``, in compiled code.

    Parameters
    ----------
    numbers : sequence of ndarray of int
        Arrays of any shapes; not negative.

    Returns
    -------
    index : ndarray of int64 of shape (n_distinct,)
    places : list of ndarray of int
        In the shapes of the arrays: ``index[places[i]]`` equals ``numbers[i]``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import distinct
    >>> numbers, places = distinct([np.array([5, 2]), np.array([2, 9])])
    >>> numbers.tolist(), [place.tolist() for place in places]
    ([2, 5, 9], [[1, 0], [0, 2]])
    """
    from daskml_dist.backends import pair_kernels  # loads numba

    return pair_kernels.find_distinct(numbers)


def encode_signs(is_positive: Any, dtype: DTypeLike) -> NDArray[Any]:
    """Return +1 if a mask is True, and -1 elsewhere."""
    # In place, without temporaries: 0 and 1 become -1 and +1.
    signs = np.asarray(is_positive).astype(dtype)
    signs *= 2
    signs -= 1
    return signs


def encode_labels(y: NDArray[Any], classes: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return the position of each label among the sorted classes.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Each of them one of `classes`.
    classes : ndarray of shape (n_classes,)
    dtype : dtype
        Dtype of the result.
    """
    # Consecutive integers need no search: the position is the difference from the first.
    if classes.dtype.kind in "iu" and y.dtype.kind in "iu":
        first_class, last_class = int(classes[0]), int(classes[-1])
        if last_class - first_class == len(classes) - 1 and last_class <= np.iinfo(np.int64).max:
            return (y.astype(np.int64) - first_class).astype(dtype, copy=False)
    return np.searchsorted(classes, y).astype(dtype)
