"""Base class of the backends, the steps and sparse rows that they use, and nearest centroids.

A backend is the arithmetic of models and solvers on one device. Models cannot do without its
abstract methods. The others have a default body in array API functions, or return None or False,
meaning "not supported here": the caller then uses the general way. So a faster implementation on
one device is one method of its backend, and models do not depend on the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import (
    arithmetic_dtype,
    cast,
    namespace,
    ones,
    scalar,
    total,
    zeros,
)
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.shared_buffer import SharedBuffer


@dataclass(frozen=True)
class Step:
    """Step of an optimizer over whole parameters.

    Parameters
    ----------
    w, grad : arrays of shape (n_rows, width)
        Parameters, and the gradient of the summed loss (None if the device computes it).
    opt_state : dict of arrays
        The optimizer's state.
    rows : float
        Number of rows of the gradient; a step with no rows changes nothing.
    lr : float
    number : int
        Learning rate; number of the step, from 1.
    l1, l2 : float
        Strengths of the penalty.
    n_penalised : int
        Number of leading rows that are penalised.
    coordinates : bool, default=False
        Whether the step changes only parameters that rows use; on devices, only without a penalty.
    row_rate_sums, rate_sum : float64 array of shape (n_rows,) or None, float
        Rate sum up to which each row's penalty has been applied, and the current sum of the
        learning rates.
    noise : array of shape (n_rows, width) or None
        Added to the gradient of the summed loss.
    """

    w: Any
    grad: Any
    opt_state: dict[str, Any]
    rows: float
    lr: float
    number: int
    l1: float
    l2: float
    n_penalised: int
    coordinates: bool = False
    row_rate_sums: Any = None
    rate_sum: float = 0.0
    noise: Any = None

    def state(self, optimizer: Any) -> list[Any]:
        """Return the parameters, then the optimizer's state in the order of `state_names`."""
        return [self.w, *(self.opt_state[name] for name in optimizer.state_names)]


class ReplicaSteps:
    """Base class of objects that make many steps in one call, bound to a replica's arrays.

    Parameters
    ----------
    optimizer : Optimizer
    step : Step
        The first step; the others must have the same arrays.
    """

    def __init__(self, optimizer: Any, step: Step) -> None:
        self._optimizer, self._state = optimizer, step.state(optimizer)

    def serves(self, step: Step) -> bool:
        """Return whether a step has the same arrays: restoring a replica changes its arrays."""
        pairs = zip(self._state, step.state(self._optimizer), strict=True)
        return all(array is other for array, other in pairs)


#: Products of rows and centroids that are computed together: 8 MiB of float64, the largest array of
#: a pass over any number of rows.
_PRODUCTS_AT_ONCE = 1 << 20
#: Minimum rows processed together, however many centroids there are: with fewer rows, a product
#: reads all centroids for little work.
_MIN_ROWS_AT_ONCE = 256


def assign_to_centroids(
    backend: Any, X: Any, shift: Any | None, centroids: Any, weight: Any | None, out: Any
) -> Any:
    """Add rows to the sums of their nearest centroids, in array API functions; see
    :meth:`Backend.assign`.
    """
    inertia = 0.0
    for row_slice, rows in _iterate_shifted_rows(backend, X, shift, centroids.shape[0]):
        labels, distances = _nearest(backend, rows, centroids)
        slice_weight = None if weight is None else weight[row_slice]
        # A column of ones counts the rows; both sums are scatter-adds by label.
        unit_column = ones((distances.shape[0], 1), distances.dtype, like=distances)
        backend.add_rows(unit_column, labels, slice_weight, out[:, :1])
        backend.add_rows(rows, labels, slice_weight, out[:, 1:])
        # In float64, on the device: one transfer at the end instead of one per slice.
        distances = cast(distances, out.dtype)
        inertia = inertia + total(distances if slice_weight is None else distances * slice_weight)
    return scalar(inertia)


def find_nearest_centroids(
    backend: Any, X: Any, shift: Any | None, centroids: Any
) -> tuple[Any, Any]:
    """Return each row's nearest centroid in array API functions; see :meth:`Backend.nearest`."""
    slice_results = [
        _nearest(backend, rows, centroids)
        for _, rows in _iterate_shifted_rows(backend, X, shift, centroids.shape[0])
    ]
    labels, distances = zip(*slice_results, strict=True)
    xp = namespace(centroids)
    return xp.concat(labels), xp.concat(distances)


def _iterate_shifted_rows(
    backend: Any, X: Any, shift: Any | None, width: int
) -> Iterator[tuple[slice, Any]]:
    """Yield slices of rows minus the shift, sized to leave memory for `width` numbers per row."""
    step = (backend.entries_at_once or _PRODUCTS_AT_ONCE) // max(width, 1)
    for row_slice in row_slices(X.shape[0], max(step, _MIN_ROWS_AT_ONCE)):
        rows = X[row_slice] if is_sparse(X) else backend.rows(X, row_slice)
        # Near the origin, the products in `_nearest` suffer less cancellation. Shifted rows are
        # dense.
        if shift is not None:
            dense = rows.toarray() if is_sparse(X) else rows
            rows = cast(dense, arithmetic_dtype(dense)) - shift
        yield row_slice, rows


def _nearest(backend: Any, X: Any, centroids: Any) -> tuple[Any, Any]:
    """Return the nearest centroid of each row, and the squared distance to it."""
    xp, k = namespace(centroids), centroids.shape[0]
    # Argmin of |x - c|**2 / 2 without |x|**2, which is the same for all centroids.
    half = total(centroids * centroids, axis=1) / 2
    scores = half - xp.reshape(backend.dot(X, centroids.T), (-1, k))
    # Rounding may make it negative. Compared, not clipped, so that NaN in a row gives NaN.
    squared = _squared_norms(backend, X) + 2 * xp.min(scores, axis=1)
    return xp.argmin(scores, axis=1), xp.where(squared > 0, squared, 0 * squared)


def _squared_norms(backend: Any, X: Any) -> Any:
    """Return the squared norm of each row, dense or sparse."""
    if not is_sparse(X):
        return total(X * X, axis=1)
    # Sparse rows: squared entries times a column of ones, a product that any backend has.
    values = X.values
    unit_column = ones((X.shape[1], 1), X.dtype, like=values)
    return namespace(values).reshape(
        backend.dot(X.with_values(values * values), unit_column), (-1,)
    )


def is_sparse(X: Any) -> bool:
    """Return whether rows are sparse rows of a backend."""
    return isinstance(X, SparseRows)


class SparseRows:
    """Chosen rows of a sparse block, as :meth:`Backend.rows` returns them, on any device.

    To check whether rows are sparse, check whether they are of this class.

    Attributes
    ----------
    shape : tuple of two int
    dtype : dtype
        Dtype of the entries.
    """

    __slots__ = ()

    shape: tuple[int, int]

    @property
    def dtype(self) -> Any:
        """Return the dtype of the stored entries."""
        raise NotImplementedError

    @property
    def values(self) -> Any:
        """Return the stored entries, one-dimensional; entries of other rows may be included."""
        raise NotImplementedError

    def with_values(self, values: Any) -> SparseRows:
        """Return the same rows with other entries in the same positions."""
        raise NotImplementedError

    def toarray(self) -> Any:
        """Return the rows as a dense array of their dtype."""
        raise NotImplementedError

    def __getitem__(self, row_slice: slice) -> SparseRows:
        """Return the rows of a slice."""
        raise NotImplementedError


class Backend(ABC):
    """Operations on blocks and batches with one array library.

    Arrays on the device follow the array API standard. Host arrays are NumPy's; :meth:`to_device`
    and :meth:`to_numpy` convert between the two.

    A batch's `X` is the result of :meth:`rows`: a dense array, or a view of chosen rows of a CSR
    block. Weights `w` are dense ``(n_features, width)`` arrays.
    """

    name: ClassVar[str]
    device: ClassVar[str]
    #: Entries of dense rows that are processed together: a device needs many rows at once, and
    #: memory for intermediate results. 0: as many as fit in a processor's cache, which each caller
    #: computes.
    entries_at_once: ClassVar[int] = 1 << 25

    @classmethod
    @abstractmethod
    def problem(cls) -> str | None:
        """Return the reason why this process cannot use the backend, with the remedy, or None."""

    def check_current_device(self) -> None:  # noqa: B027 (most backends have only one)
        """Check that the calling thread uses the same device as the other threads of a fit."""

    @abstractmethod
    def to_device(self, array: Any) -> Any:
        """Move a block's array (dense or CSR) to the device; no copy if it is already there."""

    @abstractmethod
    def to_numpy(self, array: Any) -> NDArray[Any]:
        """Return a dense device array as NumPy."""

    @abstractmethod
    def rows(self, X: Any, rows: Any) -> Any:
        """Return the rows of an array that form a batch, or a part of one."""

    def borrow_rows(self, X: Any, row_slice: slice) -> Any:
        """Return neighbouring rows for immediate use; valid until the next call."""
        return self.rows(X, row_slice)

    def row_numbers(self, rows: Any) -> Any:
        """Return row numbers in the form for :meth:`rows`, reusable for several arrays."""
        return rows

    @abstractmethod
    def columns(self, row_views: list[Any]) -> NDArray[np.int64]:
        """Return the sorted unique columns of sparse pieces, and renumber the pieces to them."""

    @abstractmethod
    def dot(self, X: Any, w: Any) -> Any:
        """Return the product ``X @ w`` of shape (rows, width), or (rows,) if width is 1."""

    @abstractmethod
    def add_rows(self, X: Any, target_rows: Any, weight: Any | None, out: Any) -> None:
        """Add each row, times its weight, to row ``target_rows[i]`` of `out`, in place."""

    def add_squares(
        self, X: Any, target_rows: Any, weight: Any | None, mean: Any, out: Any
    ) -> None:
        """Add weighted ``(X[i] - mean[r]) ** 2`` to ``out[r]``, where r is ``target_rows[i]``."""
        # The second pass of a two-pass variance: sums of squares about 0 would lose digits.
        deviations = X - namespace(X).take(mean, target_rows, axis=0)
        deviations *= deviations
        self.add_rows(deviations, target_rows, weight, out)

    def assign(
        self, X: Any, shift: Any | None, centroids: Any, weight: Any | None, out: Any,
        bounds: Any = None, previous_centroids: Any = None,
    ) -> Any:  # fmt: skip
        """Add each row, times its weight, to the sums of its nearest centroid.

        Parameters
        ----------
        X : rows of shape (n, n_features)
        shift : array of shape (n_features,), or None
            Subtracted from each row, to move rows near the origin; None for unshifted rows, such as
            sparse ones.
        centroids : array of shape (k, n_features)
            In the dtype of the rows' arithmetic, like `shift` and `weight`.
        weight : array of shape (n,) or None
        out : array of float64 of shape (k, 1 + n_features)
            Total weight of each centroid's rows, and their weighted sum.
        bounds : array of :meth:`row_bounds`, or None
            State of each row, updated in place: it avoids distance computations, with the same
            sums.
        previous_centroids : array of shape (k, n_features), or None
            Centroids of the call that wrote the bounds.
        """
        return assign_to_centroids(self, X, shift, centroids, weight, out)

    def row_bounds(self, X: Any, shift: Any | None, k: int) -> Any:
        """Return initial per-row state for :meth:`assign` with k centroids."""
        return zeros((X.shape[0], 0), X.dtype, like=getattr(X, "values", X))

    def nearest(self, X: Any, shift: Any | None, centroids: Any) -> tuple[Any, Any]:
        """Return the nearest centroid of each row (the first in ties) and its squared distance."""
        return find_nearest_centroids(self, X, shift, centroids)

    @abstractmethod
    def add_tdot(self, X: Any, g: Any, out: Any) -> None:
        """Add ``X.T @ g`` to `out` of shape (n_features, width), in place."""

    def add_matmul(self, a: Any, b: Any, out: Any) -> None:
        """Add ``a @ b`` of dense matrices to `out`, in place."""
        out += cast(a @ b, out.dtype)

    def matmul(self, a: Any, b: Any, use: str | None) -> Any:
        """Return ``a @ b`` of dense matrices of one dtype; valid until the next with that `use`."""
        return a @ b

    def add_fused(
        self,
        kernel: str | None,
        w: Any,
        X: Any,
        y: Any,
        weight: Any | None,
        out: Any,
        parameters: tuple[float, ...] = (),
    ) -> Any | None:
        """Add the gradient of a linear model's summed loss to `out`, reading X once.

        Parameters
        ----------
        kernel : str or None
            Name of the loss's kernel; None if it has none.
        w, out : arrays of shape (n_features, width), or a row longer with intercepts
        X, y, weight : rows, their encoded targets and their weights (or None)
        parameters : tuple of float
            Parameters of the loss.
        """
        return None

    def add_curved(
        self,
        kernel: str | None,
        w: Any,
        X: Any,
        y: Any,
        weight: Any | None,
        gradient: Any,
        hessian: Any,
    ) -> tuple[Any, Any] | None:
        """Add the gradient, as :meth:`add_fused`, and the Hessian of a model with one output."""
        return None

    def updates_at(self, step_number: int, n_entries: int, any_way: bool) -> bool:
        """Return whether :meth:`update` takes a fit's step of this number, over so many parameters.

        `any_way`: all implementations give the same bits, so that the process may choose one.
        """
        return True

    def update(self, optimizer: Any, step: Step) -> bool:
        """Take a step in one launch, or in one pass over memory.

        A device supports the package's own optimizers, the host all with an `elementwise_update`.
        """
        return False

    def updater(self, optimizer: Any, step: Step) -> Callable[[Any, float, float, int], bool]:
        """Return :meth:`update` bound to one step's arrays and penalty, for the following steps.

        It is called with the gradient, its number of rows, the learning rate and the step's number.
        """

        def update(grad: Any, rows: float, lr: float, step_number: int) -> bool:
            return self.update(
                optimizer, replace(step, grad=grad, rows=rows, lr=lr, number=step_number)
            )

        return update

    def coordinate_updater(self, optimizer: Any, step: Step, row_rate_sums: Any) -> Any | None:
        """Return a callable that takes steps in a few rows of the same arrays, or None.

        `row_rate_sums` is the rate sum up to which each row's penalty has been applied, or None. It
        is called with the rows, their gradient of the summed loss, the number of rows of the batch,
        the learning rate, the step's number, and the sum of the learning rates including this one.
        """
        return None

    def steps_copied(self, kernel: str | None, n_entries: int) -> int:
        """Return the number of a fit's first steps that copy their rows instead of using a gather.

        `kernel` is the name of the loss's kernel, `n_entries` the number of entries of a batch's
        rows.
        """
        return 0

    def gather(
        self,
        loss: Any,
        shape: tuple[int, int],
        blocks: Mapping[int, tuple[Any, Any, Any | None]],
        n_rows: int,
        coordinates: bool = False,
        clips: bool = False,
    ) -> Any | None:
        """Return a callable that reads a batch's rows in the blocks, without copies, or None.

        `clips`: the weights are bounds of the rows' slopes instead of factors.
        """
        return None

    def stream_gather(
        self,
        loss: Any,
        n_features: int,
        dtype: Any,
        find: Callable[[int], tuple[Any, Any, Any | None]],
        n_rows: int,
        most_steps: int,
    ) -> Any | None:
        """Return a gather over streamed dense blocks, for parameters of one column, or None."""
        return None

    def recorder(self, gather: Any, optimizer: Any, step: Step) -> Any | None:
        """Return a callable that takes many steps of a replica in one call, or None."""
        return None

    def team_recorder(
        self, gathers: Sequence[Any | None], optimizer: Any, step: Step, board: SharedBuffer
    ) -> Any | None:
        """Return a callable that takes many steps on a team's gradients in one call, or None."""
        return None

    def row_blocks(self, X: Any) -> Iterable[slice]:
        """Return slices of X's rows that each fit in a cache, to be processed in turn."""
        return (slice(0, X.shape[0]),)

    @abstractmethod
    def add_gram(self, X: Any, weight: Any | None, out: Any) -> None:
        """Add ``X.T @ diag(weight) @ X``, weight >= 0, to `out` (n_features, n_features)."""

    def add_products(
        self, X: Any, extra_columns: Any, weight: Any | None, out: Any, shift: Any | None = None
    ) -> None:
        """Add ``X.T @ diag(weight) @ [X, extra_columns]``, weight >= 0, to `out`.

        Parameters
        ----------
        X : dense rows of shape (n, n_features) as they lie, or sparse ones
        extra_columns : array of shape (n, n_columns)
        weight : array of shape (n,) or None
        out : float64 array of shape (n_features, n_features + n_columns)
        shift : array of shape (n_features,), or None
            Subtracted from each dense row first.
        """
        d = X.shape[1]
        X = X if shift is None else X - shift
        self.add_gram(X, weight, out[:, :d])
        extra_columns = extra_columns if weight is None else extra_columns * weight[:, None]
        cross = zeros((d, extra_columns.shape[1]), out.dtype, like=out)
        self.add_tdot(
            X, extra_columns if isinstance(X, SparseRows) else cast(extra_columns, X.dtype), cross
        )
        out[:, d:] += cross
