"""Linear models: gradient and Hessian of a loss of ``X @ coef + intercept``.

`LinearModel` is all of least squares, logistic regression, linear SVMs and other generalised linear
models: they differ in the loss, the encoding of the targets and the number of outputs. The gradient
with respect to the coefficients is ``X.T @ g``, with g the loss's derivative at each row.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import (
    cast,
    is_host,
    item_bytes,
    namespace,
    numbers,
    one_hot,
    ones,
    scalar,
    total,
    zeros,
)
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.losses.base import Loss
from daskml_dist.losses.survival import AFT
from daskml_dist.models.base import (
    BatchRows,
    ColumnModel,
    ColumnPart,
    LinearForm,
    Parameters,
    Part,
    StepModel,
    encode_labels,
    encode_signs,
    r2_of_sums,
)


@dataclass(frozen=True)
class LinearModel(StepModel, ColumnModel, ColumnPart):
    """Generalised linear model with one or more outputs.

    The parameters are one matrix `w` of shape ``(n_features + fit_intercept, width)``: a row for
    each feature, and the intercepts in the last row.

    Parameters
    ----------
    loss : Loss
    n_features : int
    n_classes : int
        0 for regression.
    fit_intercept : bool
    n_targets : int or None
        Columns of the targets of a regression; None for one-dimensional targets.
    target_shift : tuple of float
        Number near the targets of each output (mean, median), which is subtracted from them before
        the fit and added to the intercept after it, so that the optimum is near the initial
        parameters. Empty: none.
    first_intercept : float or tuple of float, default=0.0
        Initial value of all intercepts, or of each.
    units : tuple of float
        For several targets, the divisor of each one's reported loss. Empty: 1.
    touches : float or None
        Mean number of entries in a sparse row; None for dense rows.
    row_size : float or None
        Mean L1 norm of a row, for a learning rate that depends on it.
    target_units : tuple of float
        Unit of each target, by which automatic learning rates are multiplied: that of the first
        rows, since a later call may hold one row, or equal targets. Empty: not measured.
    few_entries : bool, default=False
        Whether gradients of dense rows on the CPU are computed by NumPy rather than by a compiled
        kernel. The choice depends on the shape of the whole data set alone, so that any number of
        workers, with numba's cache warm or cold, computes the same bits.
    row_clip : float or None, default=None
        Largest norm of the gradient of a row. That gradient is the row, and a 1 for the intercept,
        times the slope of its loss: a bound of the slope clips it (:meth:`bound_slopes`), and
        replaces the row's weight.
    """

    loss: Loss
    n_features: int
    n_classes: int
    fit_intercept: bool
    n_targets: int | None = None
    target_shift: tuple[float, ...] = ()
    first_intercept: float | tuple[float, ...] = 0.0
    units: tuple[float, ...] = ()
    touches: float | None = field(default=None, compare=False)
    row_size: float | None = field(default=None, compare=False)
    target_units: tuple[float, ...] = field(default=(), compare=False)
    few_entries: bool = field(default=False, compare=False, repr=False)
    row_clip: float | None = None

    parameters: Parameters = field(init=False, repr=False, compare=False)
    linear: LinearForm = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Coefficients first: a penalty applies to leading rows.
        parts = [Part("coef", (self.n_features, self.width))]
        if self.fit_intercept:
            parts.append(Part("intercept", (1, self.width), penalised=False))
        linear = LinearForm(self.loss, self.n_features, self.fit_intercept, self.few_entries)
        # The dataclass is frozen.
        object.__setattr__(self, "parameters", Parameters(tuple(parts), self.width))
        object.__setattr__(self, "linear", linear)

    @property
    def width(self) -> int:
        """Number of raw outputs."""
        return self.n_classes if self.n_classes > 2 else self.n_targets or 1

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the parameters."""
        return self.n_features + int(self.fit_intercept), self.width

    @property
    def n_penalised(self) -> int:
        """Number of leading rows of the parameters that the penalty applies to."""
        return self.n_features

    @property
    def _one_vs_rest(self) -> bool:
        """Flag: each class has a separate binary loss, unlike the joint multinomial loss."""
        return self.width > 1 and self.loss.multiclass == "ovr"

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return shifted targets, class indices, or -1/+1 for two classes.

        Parameters
        ----------
        y : ndarray of shape (n,), or (n, n_columns) of several targets or of bounds of times
        classes : ndarray of shape (n_classes,), sorted, or None for regression
        dtype : numpy dtype of the fit
        """
        if classes is None:
            if isinstance(self.loss, AFT):
                bounds: NDArray[Any] = self.loss.join(y, dtype)
                return bounds
            if self.target_shift:
                y = y - np.array(self.target_shift if y.ndim == 2 else self.target_shift[0])
            return y.astype(dtype, copy=False)
        if self.width > 1:
            return encode_labels(y, classes, np.int32)
        return encode_signs(y == classes[1], dtype)

    def of_target(self, target: int) -> LinearModel:
        """Return the single-output model of one of several targets."""
        shift, first = self.target_shift, self.first_intercept
        return replace(
            self,
            n_targets=None,
            target_shift=shift[target : target + 1],
            first_intercept=first[target] if isinstance(first, tuple) else first,
            units=(),
        )

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return initial parameters: coefficients of 0, intercepts of `first_intercept`."""
        w = np.zeros(self.shape, dtype=dtype)
        if self.fit_intercept:
            w[-1, :] = self.first_intercept
        return w

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the distinct columns of sparse rows and the intercept's row; renumber the rows."""
        # Sorted: the intercept's row is the last of all.
        columns = backend.columns([piece.X for piece in pieces])
        return np.append(columns, self.n_features) if self.fit_intercept else columns

    def identity(self) -> dict[str, Any]:
        """Return the loss, the shape, and whether there are intercepts."""
        plain_repr = type(self.loss).__repr__ is object.__repr__  # holds an address
        return {
            "loss": self.loss.name if plain_repr else repr(self.loss),
            "shape": self.shape,
            "fit_intercept": self.fit_intercept,
        } | ({} if self.row_clip is None else {"row_clip": self.row_clip})

    def origin(self) -> Any:
        """Return the shift that was subtracted from the targets."""
        return list(self.target_shift)

    def moved(self, w: NDArray[Any], origin: Any) -> NDArray[Any]:
        """Return parameters for this model's target shift, given those for another shift.

        If the shifts are equal, the bits are unchanged.
        """
        # The origin comes from a checkpoint, so it is validated.
        are_floats = isinstance(origin, list) and all(isinstance(value, float) for value in origin)
        sizes = (0, self.width) if self.fit_intercept else (0,)
        if not are_floats or len(origin) not in sizes or not np.isfinite(origin).all():
            raise ValueError(f"no targets are shifted by {reprlib.repr(origin)}")
        if tuple(origin) == self.target_shift:
            return w.copy()
        return self.centred(replace(self, target_shift=tuple(origin)).uncentred(w))

    def centred(self, w: NDArray[Any]) -> NDArray[Any]:
        """Return parameters for the shifted targets, given those for the user's targets."""
        return self._shift_intercepts(w, -1.0)

    def uncentred(self, w: NDArray[Any]) -> NDArray[Any]:
        """Return parameters for the user's targets, given those for the shifted targets."""
        return self._shift_intercepts(w, 1.0)

    def _shift_intercepts(self, w: NDArray[Any], sign: float) -> NDArray[Any]:
        """Return a copy of the parameters with the target shift added to the intercepts."""
        w = w.copy()
        if self.target_shift:
            w[-1, :] += sign * np.array(self.target_shift)
        return w

    def raw_prediction(self, w: Any, X: Any, backend: Backend) -> Any:
        """Return ``X @ coef + intercept`` of shape (n,) for width 1, else (n, width)."""
        if not self.fit_intercept:
            return backend.dot(X, w)
        # Not by a column of ones, which would copy X.
        raw = backend.dot(X, w[:-1, :])
        raw += w[-1, 0] if w.shape[1] == 1 else w[-1, :]
        return raw

    def targets(self, y: Any, dtype: Any) -> Any:
        """Return the targets of a batch as the loss reads them: signs for one-versus-rest."""
        if not self._one_vs_rest:
            return y
        signs = one_hot(y, self.width, dtype)
        signs *= 2
        signs -= 1
        return signs

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of the summed loss of a batch to `out`; return the summed loss.

        A compiled kernel reads X once. Without one, X goes through ``X @ w`` and ``X.T @ g`` in
        blocks of rows that stay in a processor's cache, and the blocks' sums are added in float64.

        Parameters
        ----------
        w : array of shape (n_rows_touched + fit_intercept, width)
        rows : BatchRows
            `X` of shape (n, n_features), `y` of shape (n,).
        out : array of the shape of `w`, of its dtype or float64
        backend : Backend
            That of the rows.
        """
        X, y, weight = rows.X, rows.y, rows.weight
        kernel = self.linear.dense_kernel if is_host(X) else self.loss.kernel
        # One pass over X that computes predictions, losses and the gradient. It multiplies by
        # weights, which are bounds where rows are clipped.
        if self.row_clip is None:
            fused = backend.add_fused(kernel, w, X, y, weight, out, self.loss.parameters)
            if fused is not None:
                return fused
        first_block, *other_blocks = backend.row_blocks(X)
        if not other_blocks:
            return self._add_rows(w, X, y, weight, out, backend)
        # Sums of many float32 blocks would lose digits in the dtype of `out`.
        loss, sums = 0.0, zeros(out.shape, np.float64, out)
        for block in (first_block, *other_blocks):
            block_weight = None if weight is None else weight[block]
            loss += self._add_rows(
                w, backend.borrow_rows(X, block), y[block, ...], block_weight, sums, backend
            )
        out += cast(sums, out.dtype)
        return loss

    def _add_rows(
        self, w: Any, X: Any, y: Any, weight: Any | None, out: Any, backend: Backend
    ) -> Any:
        """Add the gradient of some rows by two products, ``X @ w`` and ``X.T @ g``."""
        loss, g = self._loss_gradient(self.raw_prediction(w, X, backend), y, weight)
        self.add_products(X, g, out, backend)
        return loss

    def _loss_gradient(self, raw: Any, y: Any, weight: Any | None) -> tuple[Any, Any]:
        """Return the weighted sum of the losses, and its gradient with respect to `raw`."""
        losses, g = self._compute_losses(raw, y)
        if self.row_clip is not None:
            return 0.0, _clip_slopes(g, weight)
        if weight is not None:
            losses = losses * weight
            g *= weight if g.ndim == 1 else weight[:, None]
        return scalar(total(losses, dtype=namespace(losses).float64)), g

    def _compute_losses(self, raw: Any, y: Any) -> tuple[Any, Any]:
        """Return the loss of each row, and its gradient with respect to `raw`.

        The `units` divide the reported losses of several targets, not the gradients: each target is
        a problem of its own.
        """
        if not self.units:
            return self.loss.value_and_gradient(self.targets(y, raw.dtype), raw)
        # All (row, target) pairs at once, as the rows of one elementwise loss.
        xp, n = namespace(raw), raw.shape[0]
        flat = xp.reshape(y, (-1,)), xp.reshape(raw, (-1,))
        values, g = self.loss.value_and_gradient(*flat)
        inverse_units = numbers([1 / unit for unit in self.units], raw)
        return xp.reshape(values, (n, -1)) @ inverse_units, xp.reshape(g, (n, -1))

    def bound_slopes(self, X: Any) -> NDArray[Any] | None:
        """Return the largest slope of each row whose gradient is not longer than `row_clip`."""
        if self.row_clip is None:
            return None
        squares = (
            X.multiply(X).sum(axis=1)
            if sparse.issparse(X)
            else np.einsum("ij,ij->i", X, X, dtype=np.float64)
        )
        norms = np.sqrt(np.asarray(squares, np.float64).ravel() + float(self.fit_intercept))
        with np.errstate(divide="ignore"):  # a row of zeros adds nothing, whatever its slope
            bounds: NDArray[Any] = (self.row_clip / norms).astype(X.dtype)
        return bounds

    # -- shards of features ----------------------------------------------------------------------

    def of_columns(self, start: int, stop: int) -> LinearModel:
        """Return the model of some adjacent columns; that of the last ones has the intercepts."""
        is_last = stop == self.n_features
        # A shard of a linear model is a linear model; only the losses need the sum of all shards.
        return replace(self, n_features=stop - start, fit_intercept=self.fit_intercept and is_last)

    def rows_of_columns(self, start: int, stop: int) -> slice:
        """Return the slice of the parameters' rows that belongs to some adjacent columns."""
        is_last = stop == self.n_features
        return slice(start, stop + int(self.fit_intercept and is_last))

    def products(self, w: Any, X: Any, backend: Backend) -> Any:
        """Return the part's summand of the raw predictions."""
        return self.raw_prediction(w, X, backend)

    def add_products(self, X: Any, slope: Any, out: Any, backend: Backend) -> None:
        """Add the gradient of the part's parameters to `out`, in place."""
        if self.fit_intercept:
            # An intercept's regressor is 1: its gradient is the sum of the slopes.
            backend.add_tdot(X, slope, out[:-1, :])
            out[-1, :] += total(slope, axis=0)
        else:
            backend.add_tdot(X, slope, out)

    def head(self, w: Any, total: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Return the summed loss and its gradient, given the sum of all parts' raw predictions."""
        return self._loss_gradient(total, rows.y, rows.weight)

    def head_sums(self, w: Any, total: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return sums over held-out rows, given the sum of all parts' raw predictions."""
        return self._sum_scores(total, rows)

    # -- held-out rows -------------------------------------------------------------------------

    def validation_sums(self, w: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Return weighted sums from which :meth:`validation_score` computes accuracy or R^2.

        Classification: the weight, and the weight of correct rows, of shape (2,). Regression: the
        weight, then squared errors, targets and squared targets of each output, of shape
        (1 + 3 * n_targets,). Censored times: the weight and the loss.
        """
        return self._sum_scores(self.raw_prediction(w, rows.X, backend), rows)

    def _sum_scores(self, raw: Any, rows: BatchRows) -> NDArray[np.float64]:
        """Return the sums of :meth:`validation_sums`, given raw predictions."""
        xp, y, weight = namespace(raw), rows.y, rows.weight
        if weight is None:
            weight = ones(y.shape[:1], np.float64, y)
        weight = cast(weight, xp.float64)
        if isinstance(self.loss, AFT):
            # A time that is known only by bounds has no residual.
            sums = [total(weight), weight @ cast(self.loss.value(y, raw), xp.float64)]
        elif self.n_classes:
            # Several outputs are compared with class indices, one with signs.
            right = xp.argmax(raw, axis=1) == y if raw.ndim == 2 else (raw > 0) == (y > 0)
            sums = [total(weight), weight @ cast(right, xp.float64)]
        else:
            # In float64, as sums over all held-out rows; squares of large targets would cancel in
            # float32.
            y64 = cast(y, xp.float64)
            residual = y64 - self.loss.inverse_link(raw)
            if y.ndim == 2:
                sums_by_kind = [weight @ residual**2, weight @ y64, weight @ y64**2]
                sums = [
                    total(weight),
                    *(target_sums[k] for target_sums in sums_by_kind for k in range(self.width)),
                ]
            else:
                sums = [total(weight), weight @ residual**2, weight @ y64, weight @ y64**2]
        return np.array([float(value) for value in sums])

    def validation_score(self, sums: NDArray[np.float64]) -> float:
        """Return accuracy (classification) or R^2 (regression), the mean over several targets.

        For censored times it is minus the mean loss.
        """
        total = sums[0]
        if total == 0:
            return float("nan")
        if isinstance(self.loss, AFT):
            return float(-sums[1] / total)
        if self.n_classes:
            return float(sums[1] / total)
        return float(r2_of_sums(total, *sums[1:].reshape(3, -1)).mean())


def _clip_slopes(slopes: Any, bounds: Any) -> Any:
    """Return slopes whose norm over the outputs is at most each row's bound."""
    xp = namespace(slopes)
    if slopes.ndim == 1:
        return xp.clip(slopes, -bounds, bounds)
    norms = xp.sqrt(total(slopes * slopes, axis=1))
    # Shorter slopes keep their bits. A norm of 0 is never longer than a bound.
    is_long = norms > bounds
    factors = xp.where(is_long, bounds / xp.where(is_long, norms, bounds), xp.ones_like(bounds))
    return slopes * factors[:, None]


@dataclass(frozen=True)
class SignedClasses(LinearModel):
    """Linear classifier fitted as a regression on signs: -1 or +1 for each class.

    ``n_classes`` is 0 and ``n_targets`` the number of classes. Two classes need only one target,
    the sign of the second class; ``n_targets`` is None.
    """

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return labels as signs, a column for each class.

        Parameters
        ----------
        y : ndarray of shape (n,)
        classes : ndarray of shape (n_classes,), sorted
        dtype : numpy dtype of the fit
        """
        assert classes is not None
        return encode_signs(y == classes[1] if len(classes) == 2 else y[:, None] == classes, dtype)


@dataclass(frozen=True)
class SignedLabels(LinearModel):
    """Linear multilabel classifier fitted as a regression on signs: -1 or +1 for each label."""

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return signs, given label indicators of 0 and 1."""
        return encode_signs(y > 0, dtype)


#: Bytes of a block of rows (1 MiB): it and its weighted copy stay in a core's L2 cache.
_CACHE_BLOCK_BYTES = 2**20


def add_curvature(
    model: LinearModel, w: Any, rows: BatchRows, gradient: Any, hessian: Any, backend: Backend
) -> tuple[Any, Any]:
    """Add gradient and Hessian of the summed loss of some rows to `gradient` and `hessian`.

    Products are computed in the dtype of the rows, block by block; sums of blocks in float64. The
    second derivative of a row whose loss is not convex there is replaced by its absolute value, as
    in scikit-learn's `NewtonSolver`.

    Parameters
    ----------
    model : LinearModel
    w : array of shape ``model.shape``
    rows : BatchRows
        Their targets encoded, of shape (n,).
    gradient : float64 array of shape ``model.shape``
    hessian : float64 array of shape ``model.shape * 2``
    backend : Backend

    Returns
    -------
    loss : float
        Sum of the weighted losses.
    nonconvex : float
        Weight of the rows whose second derivative is not positive; 0 for several outputs.
    """
    if model.width == 1:
        # One compiled pass for losses and rows that have a kernel; else None.
        X, y, weight = rows.X, rows.y, rows.weight
        kernel = model.linear.dense_kernel if is_host(X) else model.loss.kernel
        fused = backend.add_curved(kernel, w, X, y, weight, gradient, hessian[:, 0, :, 0])
        if fused is not None:
            return fused
    xp = namespace(w)
    loss = nonconvex = 0.0
    for block_slice in slice_for_curvature(rows.X, backend):
        block = rows.part(block_slice, backend)
        X, weight = block.X, block.weight
        raw = model.raw_prediction(w, X, backend)
        # Per row: g of the gradient X.T @ g, and h of the Hessian X.T @ diag(h) @ X.
        losses, g, h = model.loss.value_gradient_hessian(block.y, raw)
        if weight is not None:
            losses = losses * weight
            g *= weight if g.ndim == 1 else weight[:, None]
            h *= weight if h.ndim == 1 else weight[:, None, None]
        model.add_products(X, g, gradient, backend)
        if h.ndim == 1:
            not_positive = cast(h <= 0, xp.float64)
            nonconvex += scalar(total(not_positive if weight is None else not_positive * weight))
            _add_weighted_gram(X, xp.abs(h), hessian[:, 0, :, 0], backend)
        else:
            _add_class_pairs(X, h, hessian, backend)
        loss += scalar(total(losses, dtype=xp.float64))
    return loss, nonconvex


def slice_for_curvature(X: Any, backend: Backend) -> Iterator[slice]:
    """Yield slices of rows of `X`, in order, of a size for a core's cache (or for a GPU)."""
    n_rows, n_features = X.shape
    # Adding a block's d x d Gram matrix in float64 costs as much as several rows of products: with
    # d features a block has at least 4 * d rows (up to 16,384), even if it leaves the cache.
    entries = backend.entries_at_once or _CACHE_BLOCK_BYTES // item_bytes(X)
    step = max(64, entries // n_features, min(4 * n_features, 2**14))
    return row_slices(n_rows, step)


def _add_class_pairs(X: Any, h: Any, out: Any, backend: Backend) -> None:
    """Add the Hessian's blocks of all pairs of classes to `out`, given `h` of shape (n, k, k)."""
    width = h.shape[1]
    for k in range(width):
        _add_weighted_gram(X, h[:, k, k], out[:, k, :, k], backend)
        for other in range(k):
            # Off the diagonal h = -p_k * p_other (Bishop 2006, equation 4.110) is negative, while
            # Gram matrices take weights that are not: -h is added up and subtracted.
            pair_sum = zeros(out.shape[::2], np.float64, out)
            _add_weighted_gram(X, -h[:, k, other], pair_sum, backend)
            out[:, k, :, other] -= pair_sum
            out[:, other, :, k] -= pair_sum


def _add_weighted_gram(X: Any, h: Any, out: Any, backend: Backend) -> None:
    """Add ``Z.T @ diag(h) @ Z`` to `out`, where Z is X, with a column of ones for an intercept."""
    xp, n_features = namespace(h), X.shape[1]
    backend.add_gram(X, h, out[:n_features, :n_features])
    # The intercept's row and column: X.T @ h, and the sum of h in the corner.
    if out.shape[0] > n_features:
        intercept_column = zeros((n_features, 1), np.float64, out)
        backend.add_tdot(X, h, intercept_column)
        out[:n_features, n_features] += intercept_column[:, 0]
        out[n_features, :n_features] += intercept_column[:, 0]
        out[n_features, n_features] += total(h, dtype=xp.float64)
