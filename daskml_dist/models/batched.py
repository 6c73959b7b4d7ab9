"""Many linear models of the same rows, each trained on rows of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, total
from daskml_dist.losses import Loss
from daskml_dist.models.base import BatchRows, LinearForm, Model, Parameters, Part, StepModel
from daskml_dist.models.linear import LinearModel

__all__ = [
    "NEITHER",
    "TEST",
    "TRAIN",
    "AssignmentWithAllRows",
    "BatchedLinear",
    "BatchedLoss",
    "BatchedStepLinear",
    "FoldAssignment",
    "SingleSplitAssignment",
]


#: What a row is to a split.
NEITHER, TRAIN, TEST = 0, 1, 2
#: Codes whose roles are looked up.
_MAX_TABLE_CODES = 1 << 12


class FoldAssignment(ABC):
    """Roles of rows, by their codes, in each split. Picklable.

    Attributes
    ----------
    n_splits : int
    counted : bool
        Whether :meth:`played` tells how often a split trains on a row. Such a split tests on none.
    weights : ndarray of float64 of shape (n_splits, n_labels) or (n_splits, 1), or None
        Weight of the training rows of each split, by their label; None: the rows have to tell it.
    """

    n_splits: int
    counted: ClassVar[bool] = False
    weights: NDArray[np.float64] | None = None

    @abstractmethod
    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[Any]:
        """Return NEITHER, TRAIN or TEST for each code; where `counted`, the training counts."""

    def every(self, codes: NDArray[np.int64]) -> NDArray[Any]:
        """Return the roles in all splits, of shape (n, n_splits)."""
        most = int(codes.max(initial=-1)) + 1
        few = most <= _MAX_TABLE_CODES and codes.min(initial=0) >= 0
        known = np.arange(most) if few else codes
        roles = [self.played(known, split) for split in range(self.n_splits)]
        table = np.stack(roles, axis=1)
        return table[codes] if few else table

    def times(self, played: Any, role: int) -> Any:
        """Return how often rows have a role, given the result of :meth:`played`."""
        if self.counted:
            return played if role == TRAIN else played * 0
        return played == role

    def trained(self, codes: NDArray[np.int64], split: int) -> NDArray[Any]:
        """Return how often a split trains on a row of each code."""
        times: NDArray[Any] = self.times(self.played(codes, split), TRAIN)
        return times


@dataclass(frozen=True, eq=False)
class AssignmentWithAllRows(FoldAssignment):
    """Roles of some splits, and of one more, the last, that trains on all rows.

    Parameters
    ----------
    each : FoldAssignment
    """

    each: FoldAssignment

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """One more."""
        return self.each.n_splits + 1

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """Return the roles in a split; in the last split all rows train."""
        if split == self.each.n_splits:
            return np.full(len(codes), TRAIN, np.int8)
        return self.each.played(codes, split)


@dataclass(frozen=True, eq=False)
class SingleSplitAssignment(FoldAssignment):
    """Roles of one split alone.

    Parameters
    ----------
    each : FoldAssignment
    split : int
    weights : ndarray of float64 of shape (1, n_labels) or (1, 1), or None
    """

    each: FoldAssignment
    split: int
    weights: NDArray[np.float64] | None = None

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """One."""
        return 1

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """Return the roles in the one split."""
        return self.each.played(codes, self.split)


@dataclass(frozen=True, eq=False)
class BatchedLinear(Model):
    """Linear models of one kind, a column of parameters (or as many as there are classes) each.

    A row's target comes with a code, which tells what it is to each split.

    Parameters
    ----------
    each : LinearModel
    roles : FoldAssignment
    classes : ndarray or None
        As the targets name them; None for regression.
    class_weight : ndarray of float64 of shape (n_splits, n_classes), or None
        Factors of the weights of training rows, by their label.
    """

    each: LinearModel
    roles: FoldAssignment
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None = None

    @property
    def n_features(self) -> int:
        """Columns of the rows."""
        return self.each.n_features

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets as each model reads them, followed by the role in each split."""
        codes = y[:, -1].astype(np.int64) - 1
        given = y[:, 0] if y.shape[1] == 2 else y[:, :-1]
        targets = self.each.encode(given, self.classes, dtype)
        n_targets = self.n_targets
        out = np.empty((len(y), n_targets + self.roles.n_splits), dtype)
        out[:, :n_targets] = targets.reshape(len(y), -1)
        out[:, n_targets:] = self.roles.every(codes)
        return out

    @property
    def n_targets(self) -> int:
        """Columns of the targets."""
        return self.each.n_targets or 1

    def label_codes(self, y: Any) -> Any:
        """Return the numbers of the rows' labels, given targets as each model reads them."""
        xp = namespace(y)
        if y.ndim == 2:  # signs, one a class
            return xp.argmax(y, axis=1)
        return cast(y if self.each.n_classes > 2 else y > 0, xp.int64)

    def parted(self, y: Any) -> tuple[Any, Any]:
        """Return targets as each model reads them, and roles, from encoded targets."""
        n = self.n_targets
        return (y[:, 0] if self.each.n_targets is None else y[:, :n]), y[:, n:]

    def times(self, roles: Any, role: int) -> Any:
        """Return how often rows have a role in each split, given the roles of :meth:`parted`."""
        return self.roles.times(roles, role)


@dataclass(frozen=True, eq=False)
class BatchedLoss(Loss):
    """Loss of each column, for the loops that know columns.

    Parameters
    ----------
    each : Loss
    stops : tuple of int
        Where the columns of each split end.
    width : int
        Columns of a model.
    """

    each: Loss
    stops: tuple[int, ...]
    width: int

    name = "wide"
    kernel = "wide"

    @property
    def kind(self) -> Any:  # type: ignore[override]
        """Kind of each column's loss."""
        return self.each.kind

    @property
    def parameters(self) -> tuple[float, ...]:
        """Parameters of each column's loss."""
        return self.each.parameters

    def value_and_gradient(self, y: Any, raw: Any) -> tuple[Any, Any]:
        """Return the loss and gradient of one column."""
        return self.each.value_and_gradient(y, raw)


@dataclass(frozen=True, eq=False)
class BatchedStepLinear(StepModel):
    """Linear models of one kind, a column of the parameters (or as many as there are classes) each.

    A row's target comes with a code, which tells what it is to each split. A model's gradient is
    that of its own fit with weights of 0 for rows that its split does not train on. The last row of
    the parameters adds up the losses of each.

    Parameters
    ----------
    each : LinearModel
    roles : FoldAssignment
    classes : ndarray or None
        As the targets name them; None for regression.
    splits : tuple of int
        Of each model, ascending.
    scales : tuple of float
        Factors that make the mean weight of all rows 1 in each split.
    """

    each: LinearModel
    roles: FoldAssignment
    classes: NDArray[Any] | None
    splits: tuple[int, ...]
    scales: tuple[float, ...]

    parameters: Parameters = field(init=False, repr=False, compare=False)
    linear: LinearForm = field(init=False, repr=False, compare=False)
    _stops: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        each = self.each
        n_columns = len(self.splits) * each.width
        parts = [Part("coef", (each.n_features, n_columns))]
        if each.fit_intercept:
            parts.append(Part("intercept", (1, n_columns), penalised=False))
        parts.append(Part("losses", (1, n_columns), additive=True))
        stops = np.searchsorted(self.splits, np.arange(self.roles.n_splits), side="right")
        loss: Any = BatchedLoss(each.loss, tuple((stops * each.width).tolist()), each.width)
        linear = LinearForm(loss, each.n_features, each.fit_intercept)
        object.__setattr__(self, "parameters", Parameters(tuple(parts), n_columns))
        object.__setattr__(self, "linear", linear)
        object.__setattr__(self, "_stops", loss.stops)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets as each model reads them, followed by the weight in each split."""
        codes = y[:, 1].astype(np.int64) - 1
        out = np.empty((len(y), 1 + self.roles.n_splits), dtype)
        out[:, 0] = self.each.encode(y[:, 0], self.classes, dtype)
        for split, scale in enumerate(self.scales):
            out[:, 1 + split] = scale * self.roles.trained(codes, split)
        return out

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the initial parameters of each model, side by side."""
        w = np.zeros(self.parameters.shape, dtype)
        w[:-1] = np.tile(self.each.init(seed, dtype), len(self.splits))
        return w

    def identity(self) -> dict[str, Any]:
        """Return the facts of each model, and the splits."""
        return {**self.each.identity(), "splits": self.splits}

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradients of the summed losses of a batch; return the mean loss of a model."""
        with np.errstate(over="ignore", invalid="ignore"):
            raw = self.each.raw_prediction(w[:-1, ...], rows.X, backend)
            losses, g = self._compute_derivatives(raw, rows, backend)
            self.each.add_products(rows.X, g, out[:-1, ...], backend)
        xp = namespace(losses)
        out[-1, :: self.each.width] -= cast(losses, out.dtype)
        finite = xp.isfinite(losses)
        losses = xp.where(finite, losses, 0.0)
        return float(xp.sum(losses)) / max(int(xp.sum(cast(finite, xp.int32))), 1)

    def _compute_derivatives(self, raw: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """Return the losses of each model, and the weighted derivatives by all raw predictions."""
        xp, each, width = namespace(raw), self.each, self.each.width
        n, n_models = raw.shape[0], len(self.splits)
        mask, y = rows.y[:, 1:], rows.y[:, 0]
        if rows.weight is not None:
            mask = mask * rows.weight[:, None]
        if is_host(raw) and width == 1 and each.loss.kernel == "log_loss":
            from daskml_dist.backends.elementary_functions import LOSSES_AT_ROW
            from daskml_dist.backends.wide_gather import compile_slopes

            raw, losses = np.ascontiguousarray(raw.reshape(n, -1)), np.zeros(n_models)
            given = np.ascontiguousarray(y), np.ascontiguousarray(mask), np.array(self._stops)
            compile_slopes(LOSSES_AT_ROW["log_loss"])(n, *given, raw, losses, each.loss.parameters)
            return losses, raw
        flat = xp.reshape(raw, (n * n_models, width) if width > 1 else (n * n_models,))
        targets = xp.repeat(y, n_models)
        if each.n_classes > 2:
            targets = each.targets(cast(targets, xp.int32), raw.dtype)
        values, g = each.loss.value_and_gradient(targets, flat)
        weight = xp.take(mask, backend.to_device(np.array(self.splits)), axis=1)
        losses = total(xp.reshape(values, (n, n_models)) * weight, axis=0, dtype=xp.float64)
        g = xp.reshape(g, (n, n_models, width)) * weight[:, :, None]
        return losses, xp.reshape(g, (n, n_models * width))
