"""Sums over the training rows of each split, for many candidate models at once.

A *candidate* is one model of a search, fitted to the training rows of one split. A block is fetched
once for all splits and candidates. :class:`PerSplitStatistic` repeats any sum for each split, in
one reading of the block if possible, else in one for each split. :class:`BatchedGradient` evaluates
all candidates as columns of one matrix, so that their predictions are one matrix product and their
gradients another. The roles of a row in all splits come with its targets
(`BatchedLinear.split_roles`); scores (`batched_scores.py`) read the rows of another role by the
same tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend, is_sparse
from daskml_dist.backends.namespace import cast, is_host, namespace, one_hot, total, zeros
from daskml_dist.models.base import BatchRows
from daskml_dist.models.batched import TRAIN, BatchedLinear
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.newton import LossHessian
from daskml_dist.solvers.rows import row_tiles, to_rows_dtype

#: The splits that train on a row are the bits of an int64; this many splits and more are summed one
#: by one.
_MAX_MEMBERSHIP_BITS = 62
#: Bytes of float64 rows that are copied at once (2 MiB), to be read again from a core's cache.
_COPY_BYTES = 1 << 21
#: Raw predictions of a tile of rows: 512 KiB of float64, which stay in a core's L2 cache.
_TILE_ENTRIES = 1 << 16
#: Fewest rows of a tile, so that a product takes longer than its call; and rows of a tile for a
#: kernel, which cuts smaller ones itself: enough that Python's share of the time is small.
_MIN_TILE_ROWS, _KERNEL_TILE_ROWS = 64, 1 << 12
#: Most candidates that `evaluate_by_split` evaluates in one pass: caches hold their coefficients.
_MAX_CANDIDATES_PER_PASS = 1024
#: Adjacent rows that are read together when a share of the rows is sampled.
_SAMPLE_RUN_ROWS = 512


@dataclass(frozen=True, eq=False)
class PerSplitStatistic(Statistic):
    """Inner statistic, summed over the training rows of each of some splits.

    Parameters
    ----------
    statistic : Statistic
        Statistic of a single model, `BatchedLinear.single_model`.
    splits : tuple of int
    """

    statistic: Statistic
    splits: tuple[int, ...]

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Return whether the inner statistic is additive."""
        return self.statistic.additive

    @property
    def shows_not_finite(self) -> bool:
        """Return that of the inner statistic."""
        return self.statistic.shows_not_finite

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.splits), *self.statistic.shape(model.single_model)

    def merge(self, total: Array, part: Array) -> None:
        for split_total, split_part in zip(total, part, strict=True):
            self.statistic.merge(split_total, split_part)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        # Rows have one weight in all splits that train on them, unless class weights or bootstrap
        # counts differ from split to split.
        plain = model.class_weight is None and not model.roles.counted
        if self.additive and plain and is_host(rows.y):
            y, roles = _read_targets(model, rows.y), model.split_roles(rows.y)[1]
            all_rows = BatchRows(rows.X, y, rows.weight, rows.key, rows.block, rows.first)
            if self._add_by_membership(model, all_rows, roles, out, backend):
                return
        for k, split_rows in enumerate(
            _weight_rows_by_split(model, rows, np.array(self.splits), backend)
        ):
            self.statistic.add(model.single_model, split_rows, out[k, ...], backend)

    def _add_by_membership(
        self, model: BatchedLinear, rows: BatchRows, roles: Any, out: Any, backend: Backend
    ) -> bool:
        """Sum rows that the same splits train on once for all of these splits.

        In a k-fold cross-validation each row is then read once for any k. Return False, with
        nothing added, if there are too many kinds of rows for a saving.
        """
        if len(self.splits) >= _MAX_MEMBERSHIP_BITS:
            return False
        trained = roles[:, list(self.splits)] == TRAIN
        # Rows with the same set of training splits form one kind: a bit for each split.
        kinds = trained @ (1 << np.arange(len(self.splits)))
        kinds_met = [(kind, np.flatnonzero(kinds == kind)) for kind in np.unique(kinds) if kind]
        # Sparse rows can be sliced, but not selected by their numbers.
        if len(kinds_met) > len(self.splits) + 1 or (
            is_sparse(rows.X)
            and not all(_are_contiguous(row_indices) for _, row_indices in kinds_met)
        ):
            return False
        for kind, row_indices in kinds_met:
            sums = np.zeros(out.shape[1:])
            for kind_rows in _iterate_selected_rows(rows, row_indices, backend):
                self.statistic.add(model.single_model, kind_rows, sums, backend)
            for k in range(len(self.splits)):
                if kind >> k & 1:
                    out[k] += sums
        return True


def _are_contiguous(row_indices: NDArray[np.intp]) -> bool:
    """Return whether ascending row numbers, of which there is one at least, have no gaps."""
    return len(row_indices) == int(row_indices[-1]) - int(row_indices[0]) + 1


def _iterate_selected_rows(
    rows: BatchRows, row_indices: NDArray[np.intp], backend: Backend
) -> Iterator[BatchRows]:
    """Yield the rows `row_indices`: as one view if contiguous, else as copies in tiles."""
    if _are_contiguous(row_indices):
        yield rows.part(slice(int(row_indices[0]), int(row_indices[-1]) + 1), backend)
        return
    step = max(1, _COPY_BYTES // (8 * max(1, rows.X.shape[1])))
    for start in range(0, len(row_indices), step):
        indices = row_indices[start : start + step]
        weight = None if rows.weight is None else rows.weight[indices]
        X = backend.rows(rows.X, indices)
        yield BatchRows(X, rows.y[indices], weight, (*rows.key, start), rows.block)


def iterate_split_rows(
    model: BatchedLinear, rows: BatchRows, split: int, role: int, backend: Backend
) -> Iterator[BatchRows]:
    """Yield the rows that have a role in a split.

    On a device, and of sparse rows unless they are contiguous: all rows, of which the others have
    weight 0.
    """
    _, roles = model.split_roles(rows.y)
    has_role = roles[:, split] == role
    if is_host(roles):
        row_indices = np.flatnonzero(has_role)
        if not len(row_indices):
            return
        if not is_sparse(rows.X) or _are_contiguous(row_indices):
            yield from _iterate_selected_rows(rows, row_indices, backend)
            return
    weight = cast(has_role, roles.dtype)
    if rows.weight is not None:
        weight = weight * cast(rows.weight, roles.dtype)
    yield BatchRows(rows.X, rows.y, weight, rows.key, rows.block, rows.first)


def _training_weights(
    model: BatchedLinear, rows: BatchRows, splits: NDArray[np.int64], dtype: Any, backend: Backend
) -> Any:
    """Return the rows' weights in some splits, of shape (n, n_some); 0 for rows not trained on.

    A row's weight is its sample weight, times the weight of its class in the split, times how often
    the split trains on it.
    """
    y, roles = model.split_roles(rows.y)
    xp = namespace(roles)
    has_all = np.array_equal(splits, np.arange(roles.shape[1]))
    split_roles = roles if has_all else xp.take(roles, backend.to_device(splits), axis=1)
    weights = cast(model.count_draws(split_roles, TRAIN), dtype)
    if rows.weight is not None:
        weights = weights * cast(rows.weight, dtype)[:, None]
    if model.class_weight is not None:
        class_weight = cast(backend.to_device(model.class_weight.T[:, splits]), dtype)
        weights = weights * xp.take(class_weight, model.label_codes(y), axis=0)
    return weights


def _read_targets(model: BatchedLinear, y: Any) -> Any:
    """Return the encoded targets of a single model, without roles, as its loss reads them."""
    dtype = namespace(y).int32 if model.single_model.n_classes > 2 else y.dtype
    targets = cast(model.split_roles(y)[0], dtype)
    # Compiled kernels read adjacent entries; `split_roles` returns a column of a matrix.
    return np.ascontiguousarray(targets) if is_host(targets) else targets


def _weight_rows_by_split(
    model: BatchedLinear, rows: BatchRows, splits: NDArray[np.int64], backend: Backend
) -> list[BatchRows]:
    """Return, for each split, all rows with their training weights, as a single model's rows."""
    y = _read_targets(model, rows.y)
    weights = _training_weights(model, rows, splits, rows.y.dtype, backend).T
    weights = np.ascontiguousarray(weights) if is_host(weights) else weights
    return [
        BatchRows(rows.X, y, weights[k, :], rows.key, rows.block, rows.first)
        for k in range(len(splits))
    ]


@dataclass(frozen=True, eq=False)
class SplitWeights(Statistic):
    """Weight of the training rows of each split."""

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return (model.roles.n_splits,)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        splits, float64 = np.arange(model.roles.n_splits), namespace(rows.y).float64
        out += total(_training_weights(model, rows, splits, float64, backend), axis=0)


@dataclass(frozen=True, eq=False)
class SplitLabelWeights(Statistic):
    """Weight of the training rows of each split, by their labels."""

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        assert model.classes is not None
        return model.roles.n_splits, len(model.classes)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        splits, float64 = np.arange(model.roles.n_splits), namespace(rows.y).float64
        weights = _training_weights(model, rows, splits, float64, backend)
        code = model.label_codes(model.split_roles(rows.y)[0])
        out += weights.T @ one_hot(code, out.shape[1], float64)


class ActiveCandidates:
    """Candidates of the splits in which any row of a tile has the requested role.

    Parameters
    ----------
    w : ndarray of shape (n_candidates, n_params, width)
        Parameters of all candidates.
    splits : ndarray of int of shape (n_candidates,), ascending
    indices : ndarray of int of shape (n_active,)
        Indices of the active candidates.
    X : rows
        Rows whose device and arithmetic dtype `w` is copied to.
    backend : Backend

    Attributes
    ----------
    splits : ndarray of int of shape (n_active,)
    w : array of shape (n_params, n_active * width)
        Parameters as columns side by side.
    sums : dict of str to array
        Sums over all tiles with the same active candidates.
    """

    def __init__(
        self,
        w: Array,
        splits: NDArray[np.int64],
        indices: NDArray[np.intp],
        X: Any,
        backend: Backend,
    ) -> None:
        self.indices, self.splits, self.width = indices, splits[indices], w.shape[2]
        flat = np.ascontiguousarray(w[indices].transpose(1, 0, 2).reshape(w.shape[1], -1))
        self.w = to_rows_dtype(flat, X, backend)
        self.sums: dict[str, Any] = {}

    def split_ends(self, n_splits: int) -> NDArray[np.int64]:
        """Return the end of each split's range of active candidates."""
        return np.searchsorted(self.splits, np.arange(n_splits), side="right")

    def coefficients(self, model: LinearModel) -> tuple[Any, Any]:
        """Return coefficients, of shape (n_features, n_active), and intercepts, for kernels."""
        if model.fit_intercept:
            return self.w[:-1], self.w[-1]
        return self.w, np.zeros(self.w.shape[1], self.w.dtype)


def is_kernel_supported(model: LinearModel, rows: BatchRows) -> bool:
    """Return whether the compiled kernels take these rows: log loss, one output, dense, C order."""
    X = rows.X
    if not isinstance(X, np.ndarray) or model.width > 1:
        return False
    is_log_loss = model.linear.dense_kernel == "log_loss"
    return is_log_loss and X.flags.c_contiguous and X.dtype == rows.y.dtype


def iterate_candidate_tiles(
    model: BatchedLinear, w: Array, splits: NDArray[np.int64], role: int, rows: BatchRows,
    backend: Backend, in_kernel: bool,
) -> Iterator[tuple[BatchRows, ActiveCandidates]]:  # fmt: skip
    """Yield tiles of rows whose raw predictions fit a cache, each with its active candidates.

    Without a shuffle the rows of a fold are adjacent, so a tile of test rows, for example, concerns
    only the candidates of one split.
    """
    n_columns, _, width = w.shape
    # Cached by the set of active splits, so that parameters are copied rarely.
    candidates_of: dict[bytes, ActiveCandidates] = {}
    tile_rows = (
        _KERNEL_TILE_ROWS
        if in_kernel
        else max(_MIN_TILE_ROWS, _TILE_ENTRIES // max(n_columns * width, 1))
    )
    for tile in row_tiles(rows.X, backend, cached=8 * tile_rows * max(1, rows.X.shape[1])):
        for start in range(tile.start, tile.stop, tile_rows):
            part = rows.part(slice(start, min(start + tile_rows, tile.stop)), backend)
            _, roles = model.split_roles(part.y)
            is_active = np.ones(roles.shape[1], bool)
            if is_host(roles):
                # On a GPU each tile would wait for this to be copied to the host.
                is_active = model.count_draws(roles, role).any(axis=0)
            if (key := is_active.tobytes()) not in candidates_of:
                active = np.flatnonzero(is_active[splits])
                candidates_of[key] = ActiveCandidates(w, splits, active, rows.X, backend)
            if len(candidates_of[key].indices):
                yield part, candidates_of[key]


def evaluate_by_split(
    evaluate: Callable[[Array, NDArray[np.int64]], Array], w: Array, splits: NDArray[np.int64]
) -> Array:
    """Return `evaluate(w, splits)` for all candidates, in their order.

    It is called with candidates sorted by split, as the statistics need them, some at a time.
    """
    order = np.argsort(splits, kind="stable")
    parts = []
    for start in range(0, len(order), _MAX_CANDIDATES_PER_PASS):
        batch = order[start : start + _MAX_CANDIDATES_PER_PASS]
        parts.append(evaluate(w[batch], splits[batch]))
    in_order = np.concatenate(parts)
    results = np.empty_like(in_order)
    results[order] = in_order
    return results


@dataclass(frozen=True, eq=False)
class BatchedGradient(Statistic):
    """Losses and gradients of candidates, each over the training rows of its split.

    The sum has a row ``[loss, *gradient.ravel()]`` for each candidate.

    Parameters
    ----------
    w : ndarray of shape (n_candidates, n_params, width)
    splits : ndarray of int of shape (n_candidates,), ascending
    sample_stride : int, default=1
        With `sample_stride` > 1, one in `sample_stride` runs of rows is read, and the sums are
        extrapolated.
    """

    w: Array
    splits: NDArray[np.int64]
    sample_stride: int = 1
    in_parts: ClassVar[bool] = True

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        n_columns, *size = self.w.shape
        return n_columns, 1 + int(np.prod(size))

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        if self.sample_stride == 1:
            self._add_candidates(model, rows, out, backend)
            return
        sample_sums = zeros(out.shape, np.float64, out)
        runs, factor = _sample_runs(rows.X.shape[0], self.sample_stride)
        for run in runs:
            self._add_candidates(model, rows.part(run, backend), sample_sums, backend)
        out += sample_sums * factor

    def _add_candidates(
        self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend
    ) -> None:
        # Sums are kept apart for each set of active candidates, and scattered to all candidates at
        # the end: once a set instead of once a tile.
        candidates_by_id: dict[int, ActiveCandidates] = {}
        kernel = is_kernel_supported(model.single_model, rows)
        tiles = iterate_candidate_tiles(model, self.w, self.splits, TRAIN, rows, backend, kernel)
        for part, active in tiles:
            if id(active) not in candidates_by_id:
                candidates_by_id[id(active)] = active
                active.sums["losses"] = zeros((len(active.indices),), np.float64, out)
                active.sums["gradient"] = zeros(active.w.shape, np.float64, out)
            if kernel:
                self._add_by_kernel(model, part, active, backend)
                continue
            # A step that a candidate's line search tries may overflow; the candidate detects it
            # from the loss.
            with np.errstate(over="ignore", invalid="ignore"):
                raw = model.single_model.raw_prediction(active.w, part.X, backend)
                g = self._weighted_derivatives(model, raw, part, active, backend)
                model.single_model.add_products(part.X, g, active.sums["gradient"], backend)
        xp, (_, n_params, width) = namespace(out), self.w.shape
        for active in candidates_by_id.values():
            # From columns side by side to a flat gradient for each candidate.
            gradients = xp.reshape(active.sums["gradient"], (n_params, len(active.indices), width))
            gradients = xp.reshape(xp.permute_dims(gradients, (1, 0, 2)), (len(active.indices), -1))
            sums = xp.concat([active.sums["losses"][:, None], gradients], axis=1)
            if len(active.indices) == out.shape[0]:
                out += sums
            else:
                out[active.indices] += sums

    def _add_by_kernel(
        self, model: BatchedLinear, rows: BatchRows, active: ActiveCandidates, backend: Backend
    ) -> None:
        from daskml_dist.backends.batched_log_loss import add_log_gradients

        w, bias = active.coefficients(model.single_model)
        # The kernel always writes the intercepts' derivatives, too: drop them if there are none.
        gradient = np.zeros((len(w) + 1, len(bias)))
        all_splits = np.arange(model.roles.n_splits)
        add_log_gradients(
            rows.X, np.ascontiguousarray(rows.y[:, 0]),
            _training_weights(model, rows, all_splits, rows.X.dtype, backend),
            active.split_ends(len(all_splits)), w, bias, active.sums["losses"], gradient,
        )  # fmt: skip
        active.sums["gradient"] += gradient[: len(active.w)]

    def _weighted_derivatives(
        self,
        model: BatchedLinear,
        raw: Any,
        rows: BatchRows,
        active: ActiveCandidates,
        backend: Backend,
    ) -> Any:
        """Return the weighted losses' derivatives by `raw`, and add up each candidate's losses."""
        xp, losses = namespace(raw), active.sums["losses"]
        all_splits = np.arange(model.roles.n_splits)
        weights = _training_weights(model, rows, all_splits, raw.dtype, backend)
        y, width = rows.y[:, 0], active.width
        n, n_active = raw.shape[0], len(active.indices)
        # The loss of every row and candidate at once: (row, candidate) pairs are rows of one
        # problem.
        flat = xp.reshape(raw, (n * n_active, width) if width > 1 else (n * n_active,))
        targets = model.single_model.targets(
            cast(xp.repeat(y, n_active), xp.int32 if model.single_model.n_classes > 2 else y.dtype),
            raw.dtype,
        )
        values, g = model.single_model.loss.value_and_gradient(targets, flat)
        weight = xp.take(weights, backend.to_device(active.splits), axis=1)
        losses += total(xp.reshape(values, (n, n_active)) * weight, axis=0, dtype=xp.float64)
        return xp.reshape(xp.reshape(g, (n, n_active, width)) * weight[:, :, None], raw.shape)


def _sample_runs(n: int, sample_stride: int) -> tuple[list[slice], float]:
    """Return every `sample_stride`-th run of rows, and the factor that extrapolates to all rows."""
    runs = [
        slice(start, min(start + _SAMPLE_RUN_ROWS, n))
        for start in range(0, n, _SAMPLE_RUN_ROWS * sample_stride)
    ]
    return runs, n / max(sum(run.stop - run.start for run in runs), 1)


@dataclass(frozen=True, eq=False)
class BatchedHessian(Statistic):
    """Hessians of candidates over a share of the training rows of their splits.

    The sum has a row for each candidate, laid out as in :class:`LossHessian`.

    Parameters
    ----------
    w : ndarray of shape (n_candidates, n_params, width)
    splits : ndarray of int of shape (n_candidates,)
    sample_stride : int
        As of :class:`BatchedGradient`.
    """

    w: Array
    splits: NDArray[np.int64]
    sample_stride: int
    in_parts: ClassVar[bool] = True

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return len(self.w), *LossHessian(self.w[0]).shape(model.single_model)

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        sample_sums = zeros(out.shape, np.float64, out)
        runs, factor = _sample_runs(rows.X.shape[0], self.sample_stride)
        splits, split_index = np.unique(self.splits, return_inverse=True)
        requests = [LossHessian(w) for w in self.w]
        # A Hessian is weighted by its own candidate's curvature, so each is a separate product:
        # only the reading of the rows is shared.
        for run in runs:
            rows_by_split = _weight_rows_by_split(model, rows.part(run, backend), splits, backend)
            for k, request in enumerate(requests):
                request.add(
                    model.single_model, rows_by_split[split_index[k]], sample_sums[k, ...], backend
                )
        out += sample_sums * factor
