"""Base classes of models: methods that the engine calls, and the rows that it passes to them."""

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
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses import Loss

__all__ = [
    "BatchRows",
    "ColumnModel",
    "ColumnPart",
    "LinearForm",
    "Model",
    "Parameters",
    "Part",
    "StagedModel",
    "StepModel",
    "distinct",
    "identity_of",
]


def identity_of(thing: Any) -> dict[str, Any]:
    """Return the class and the fields of a model or solver as JSON values, alike in all processes.

    A checkpoint holds them, and goes on only where they agree.
    """
    if is_dataclass(thing):
        names = [field.name for field in fields(thing) if field.repr]
    else:
        # What is computed when it is first asked for says nothing that the others do not.
        kind = type(thing)
        names = [
            name
            for name in getattr(thing, "__dict__", ())
            if not isinstance(getattr(kind, name, 0), cached_property)
        ]
    return {"class": type(thing).__name__} | {n: _plain_value(getattr(thing, n)) for n in names}


def _plain_value(value: Any) -> Any:
    """Return a field as a JSON value; arrays are known by dtype, shape and checksum."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else repr(float(value))  # NaN equals nothing
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return [_plain_value(one) for one in value.tolist()]
        return [str(value.dtype), list(value.shape), crc32(np.ascontiguousarray(value).data)]
    if isinstance(value, Mapping):
        return {str(name): _plain_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(one) for one in value]
    if hasattr(value, "__qualname__"):  # classes and functions
        return value.__qualname__
    if is_dataclass(value) or getattr(type(value), "__repr__", None) is object.__repr__:
        return identity_of(value)
    return repr(value)


@dataclass(frozen=True)
class Part:
    """A named array among the parameters of a model.

    Parameters
    ----------
    name : str
    shape : tuple of int
    penalised : bool, default=True
        Whether the penalty applies to it.
    buffer : bool, default=False
        Whether it is a running mean instead of something to minimise by (the statistics of a batch
        normalisation). The "gradient" of a buffer is ``rows * (old - new)``, and every policy takes
        the mean of the rows' `new`; it has neither penalty nor learning rate.
    additive : bool, default=False
        Whether it is a sum over the rows of all steps (counts). Its "gradient" is minus what the
        rows add; every policy takes the sum of that, with neither penalty nor learning rate.

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


@dataclass(frozen=True)
class Parameters:
    """Layout of a model's named arrays in the one matrix that the engine moves and updates.

    Parameters
    ----------
    parts : tuple of Part
        In their order in the matrix. The size of each is a multiple of `width`.
    width : int, default=1
        Columns of the matrix: 1 unless rows are to be touched one by one (linear models).

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
        """Rows of the matrix that each part takes."""
        found, start = {}, 0
        for part in self.parts:
            stop = start + prod(part.shape) // self.width
            found[part.name] = slice(start, stop)
            start = stop
        return found

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return sum(prod(part.shape) for part in self.parts) // self.width, self.width

    def views(self, w: Any) -> dict[str, Any]:
        """Return the parts of a matrix by their names, as views."""
        xp = namespace(w)
        return {
            part.name: xp.reshape(w[self.rows[part.name], ...], part.shape) for part in self.parts
        }


@dataclass(frozen=True)
class LinearForm:
    """Form of a linear model, for its kernels: the loss of ``X @ coef + intercept``.

    The parameters of such a model are a row for each feature, and last the intercepts.

    Parameters
    ----------
    loss : Loss
    n_features : int
    fit_intercept : bool
    few_entries : bool, default=False
        Whether all rows of the fit have too few entries for a kernel of dense rows to be compiled.

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
        """Name of the kernel that computes gradients of dense rows on the host, if any."""
        return None if self.few_entries else self.loss.kernel


class BatchRows:
    """Rows that a model is given at once: a batch, or a piece of a large one.

    Parameters
    ----------
    X : rows of shape (n, ...)
        As the backend has them.
    y : array of shape (n, ...) or None
        Targets as :meth:`Model.encode` made them.
    weight : array of shape (n,) or None
        None: all are 1.
    key : tuple of int
        Of the random stream: seed, lane, clock, and number of the piece.
    block : int, default=-1
        Number of the block that the rows are of, where they are neighbours in it.
    first : int, default=0
        Position of the first of them in the block.
    state : array of shape (n, ...) or None
        State that a statistic keeps for each row between rounds.
    places : ndarray of int of shape (n,), or None
        Places of the rows, counted from `first`, where they are some of neighbours.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import BatchRows
    >>> BatchRows(np.zeros((2, 3)), np.zeros(2)).X.shape
    (2, 3)
    """

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
        """Return some adjacent rows; they are valid until the next part is asked for."""
        y, weight, state, places = (
            None if array is None else array[at, ...]
            for array in (self.y, self.weight, self.state, self.places)
        )
        # Places, where there are any, go on from the same row.
        first = self.first + at.start if places is None else self.first
        return BatchRows(
            backend.part(self.X, at), y, weight, (*self.key, at.start), self.block, first, state,
            places,
        )  # fmt: skip

    def draw(self) -> np.random.Generator:
        """Return a new random stream, the same on any worker and at any time for these rows."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self.key)))


class Model(ABC):
    """Base class of all models: how rows and targets become what their maths reads.

    Immutable, since it travels to trainers. Pure functions of arrays, written in the functions of
    the array API standard, run on every backend.

    Attributes
    ----------
    flushes : bool
        Whether numbers too small to be normal count as 0, wherever the host computes for it.
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

        A model that reads tensors as they are (images of uint8) returns `X` itself, and casts the
        rows of a batch where it works on them. What it makes is in memory beside the rows, and
        `memory_budget` counts the rows alone.

        Parameters
        ----------
        X : ndarray, or CSR matrix, of shape (n, ...)
            Of a linear model float32 or float64, of tensors in their own dtype; not to be changed.
            Or an array of CuPy.
        dtype : numpy dtype of the fit

        Returns
        -------
        ndarray, CSR matrix or array of CuPy, of n rows
        """
        return X if X.dtype == dtype else X.astype(dtype)

    def computing(self, n_threads: int) -> AbstractContextManager[Any]:
        """Return a context for a trainer's computing, with `n_threads` threads for each lane."""
        return nullcontext()


class StepModel(Model):
    """Base class of models trained by gradient steps.

    Attributes
    ----------
    parameters : Parameters
        Set when the model is made.
    linear : LinearForm or None
        Of a linear model, for which there are kernels; None for all others.
    touches : float or None
        Rows of the parameters that a row of data touches, in the mean, where these are few and
        :meth:`touched` names them; None: all. Steps in few of many rows move nothing else: only
        these are pulled and pushed, and only their state of the optimizer changes.
    starts_threads : bool
        Whether threads that it starts may outlive a fit, even where a lane is to use one alone:
        its trainers then do not keep to a share of the cores, which these would inherit.

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
    starts_threads: ClassVar[bool] = True

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the initial parameters: a new array of ``parameters.shape``; zeros by default."""
        return np.zeros(self.parameters.shape, dtype=dtype)

    def init_rows(self, at: slice, seed: int, dtype: Any) -> NDArray[Any]:
        """Return some rows of :meth:`init` as a new array.

        Other processes may hold the other rows.
        """
        return self.init(seed, dtype)[at, :].copy()

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the rows of the parameters that a batch touches, and renumber its pieces to them.

        Asked of a model with `touches`, whose batches touch few rows of many. For the gradient of
        such a batch :meth:`add_gradient` is given these rows of the parameters alone, in their
        order, and room for their gradient. So whatever in a piece's `X` names rows of the
        parameters must name places among these from now on: ``piece.X = ...``, a new array.
        :func:`~daskml_dist.models.distinct` finds both.

        Parameters
        ----------
        pieces : list of BatchRows
            All rows of the batch; at least one.
        backend : Backend

        Returns
        -------
        ndarray of int64
            Sorted, each once; on the host.
        """
        raise NotImplementedError

    @abstractmethod
    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of the summed loss of some rows to `out`, in place.

        Parameters
        ----------
        w : array of ``parameters.shape``, or of the rows of it that the batch touches
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
        """Return the gradient of the summed loss in an array of the model's own, and that loss.

        The array is the caller's until the model is asked for another gradient of the same lane.
        None, as by default: the model has none of its own, and is asked to add it to another.
        """
        return None

    def validation_sums(self, w: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Return sums over held-out rows, any number of them in float64, which are added up.

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
            f"{type(self).__name__} has no score of held-out rows. Give it `validation_sums` and "
            "`validation_score`, or set early_stopping=False."
        )

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return the facts, as JSON values, that a checkpoint of this model must agree with."""

    def origin(self) -> Any:
        """Return the origin that the parameters are relative to, as a JSON value; None for zero.

        Unlike :meth:`identity` it may be another in a later fit (the mean of its targets), which
        goes on through :meth:`moved`.
        """
        return None

    def moved(self, w: NDArray[Any], origin: Any) -> NDArray[Any]:
        """Return the parameters of this model, given parameters relative to another origin.

        Raises
        ------
        ValueError
            No model has such an origin.
        """
        if origin is not None:
            raise ValueError("its parameters are relative to nothing")
        return w.copy()


class StagedModel(StepModel):
    """Base class of networks whose layers form a chain, which a pipeline cuts into stages.

    Attributes
    ----------
    layers : tuple of tuple of str
        Names of the parts of each layer. The parts of a layer lie one after the other in
        `parameters`, and the layers as data goes through them.

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
        """Return the rows of the parameters' matrix that belong to some adjacent layers."""
        rows = self.parameters.rows
        found = [rows[name] for layer in layers for name in self.layers[layer]]
        return slice(found[0].start, found[-1].stop) if found else slice(0, 0)

    @abstractmethod
    def forward(
        self, w: Any, x: Any, layers: range, rows: BatchRows, backend: Backend
    ) -> tuple[Any, Any]:
        """Return the output of some adjacent layers, and memory for :meth:`backward`.

        Parameters
        ----------
        w : array
            The rows of the parameters' matrix that are these layers'.
        x : array of shape (n, ...)
            Rows as prepared, or the output of the layer before; not to be changed.
        layers : range
        rows : BatchRows
            The rows that all begins with. Only the first layer may look at their `X`.
        backend : Backend

        Returns
        -------
        array of shape (n, ...)
        object
            Memory for :meth:`backward`; good until then, though other rows come in between.
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
        """Add the gradient of some neighbouring layers' parameters to `out`, in place.

        Parameters
        ----------
        w : array
            As in :meth:`forward`.
        memory : object
            What that left.
        gradient : array of shape (n, ...)
            Of the loss by the output; may be changed.
        out : array like `w`
        layers : range
        rows : BatchRows
        backend : Backend
        wants_input : bool

        Returns
        -------
        array of shape (n, ...) or None
            Gradient of the loss by the input, where it is wanted.
        """

    @abstractmethod
    def loss_gradient(self, output: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """Return the sum of the weighted losses, and its gradient by the last layer's output."""

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        layers = range(len(self.layers))
        output, memory = self.forward(w, rows.X, layers, rows, backend)
        loss, gradient = self.loss_gradient(output, rows, backend)
        self.backward(w, memory, gradient, out, layers, rows, backend, wants_input=False)
        return loss


class ColumnModel(ABC):
    """Base class, beside `StepModel`, of models that are a function of ``X @ V``: their *head*.

    Some columns of X and the rows of V that belong to them make up a `ColumnPart`; the sum of the
    products of all parts is what the head goes on with. What belongs to no column (an intercept,
    parameters of the head) is of the last part.

    Examples
    --------
    >>> from daskml_dist.losses import SquaredError
    >>> from daskml_dist.models import ColumnModel
    >>> from daskml_dist.models.linear import LinearModel
    >>> model = LinearModel(SquaredError(), 4, 0, True)
    >>> isinstance(model, ColumnModel), model.rows_of_columns(2, 4)  # the intercept is of the last
    (True, slice(2, 5, None))
    """

    @abstractmethod
    def of_columns(self, start: int, stop: int) -> ColumnPart:
        """Return the part of some adjacent columns, which is a `StepModel` itself.

        Its parameters are those of :meth:`rows_of_columns`, with the same initial values as in the
        whole model.
        """

    @abstractmethod
    def rows_of_columns(self, start: int, stop: int) -> slice:
        """Return the rows of the parameters' matrix that belong to some adjacent columns.

        The rows of the last columns are followed by the rows that belong to no column.
        """


class ColumnPart(ABC):
    """Base class, beside `StepModel`, of the part of a model that belongs to some columns of X.

    Attributes
    ----------
    has_head : bool
        Whether the head has parameters; else every part can go on from the sum of the products.

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
        """Return the products of this part's columns and parameters, its share of the head's input.

        Parameters
        ----------
        w : array
            The part's parameters; for sparse rows perhaps only the touched ones.
        X : rows of shape (n, n_columns)
        backend : Backend

        Returns
        -------
        array of shape (n,) or (n, width), in memory of its own
        """

    @abstractmethod
    def add_products(self, X: Any, slope: Any, out: Any, backend: Backend) -> None:
        """Add the gradient of the part's parameters, but for the head's, to `out`, in place.

        Parameters
        ----------
        X : rows of shape (n, n_columns)
        slope : array like the products
            Gradient of the summed loss by them; not to be changed.
        out : array
            As `w` in :meth:`products`.
        backend : Backend
        """

    @abstractmethod
    def head(self, w: Any, total: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Return the loss of some rows and its gradient, given the sum of all parts' products.

        Parameters
        ----------
        w : array
            Parameters of the last part, asked for where the head has any.
        total : array
            Of the products; may be changed.
        rows : BatchRows
            Of targets and weights alone.
        out : array like `w`
            What the gradient of the head's parameters is added to.
        backend : Backend

        Returns
        -------
        float
            Sum of the rows' weighted losses.
        array like `total`
            Its gradient by the products.
        """

    @abstractmethod
    def head_sums(
        self, w: Any, total: Any, rows: BatchRows, backend: Backend
    ) -> NDArray[np.float64]:
        """Return the sums over held-out rows, given the sum of all parts' products."""


def distinct(numbers: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Return the sorted distinct numbers of some arrays, and the position of each entry among them.

    Parameters
    ----------
    numbers : sequence of ndarray of int
        Of any shapes; numbers from 0 on.

    Returns
    -------
    index : ndarray of int64 of shape (n_distinct,)
    places : list of ndarray of int
        Of the shapes of the arrays: ``index[places[i]]`` is ``numbers[i]``.

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
