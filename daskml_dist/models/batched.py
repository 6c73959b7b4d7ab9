"""Batched linear models: many fits that read the same rows in one pass, as in cross-validation.

Every model is fitted on the training rows of one *split*. A `FoldAssignment` gives the role of a
row in each split, given an integer code that comes with the row's target (the number of its fold,
or of the row itself).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, total
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import BatchRows, LinearForm, Model, Parameters, Part, StepModel
from daskml_dist.models.linear import LinearModel

#: Roles of a row in a split.
NEITHER, TRAIN, TEST = 0, 1, 2
#: Most distinct codes whose roles are computed once and looked up: a table of 4 KiB a split.
_MAX_TABLE_CODES = 1 << 12


class FoldAssignment(ABC):
    """Base class of assignments of rows, by their codes, to roles in each split. Picklable.

    Attributes
    ----------
    n_splits : int
    counted : bool
        Whether :meth:`assign_roles` returns how often a split draws a row for training (bootstrap
        samples), instead of a role. Such a split has no test rows.
    weights : ndarray of float64 of shape (n_splits, n_labels) or (n_splits, 1), or None
        Sum of the weights of each split's training rows, by label; None: not known in advance, it
        is summed over the rows.
    """

    n_splits: int
    counted: ClassVar[bool] = False
    weights: NDArray[np.float64] | None = None

    @abstractmethod
    def assign_roles(self, codes: NDArray[np.int64], split: int) -> NDArray[Any]:
        """Return the role of each code in a split (`counted`: how often it is trained on)."""

    def tabulate_roles(self, codes: NDArray[np.int64]) -> NDArray[Any]:
        """Return :meth:`assign_roles` of all splits, of shape (n, n_splits)."""
        n_codes = int(codes.max(initial=-1)) + 1
        # Codes of folds are few: their roles are computed once a code, not once a row.
        in_table = n_codes <= _MAX_TABLE_CODES and codes.min(initial=0) >= 0
        table_codes = np.arange(n_codes) if in_table else codes
        roles = [self.assign_roles(table_codes, split) for split in range(self.n_splits)]
        table = np.stack(roles, axis=1)
        return table[codes] if in_table else table

    def count_draws(self, roles: Any, role: int) -> Any:
        """Return how often (0 or 1 unless `counted`) rows have a role, given `roles`."""
        if self.counted:
            return roles if role == TRAIN else roles * 0
        return roles == role

    def count_training_draws(self, codes: NDArray[np.int64], split: int) -> NDArray[Any]:
        """Return how often (0 or 1 unless `counted`) a split trains on the rows of given codes."""
        times: NDArray[Any] = self.count_draws(self.assign_roles(codes, split), TRAIN)
        return times


class AllRowsAssignment(FoldAssignment):
    """Assignment of one split, which trains on all rows."""

    n_splits = 1

    def assign_roles(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """Return the role "train" for every row."""
        return np.full(len(codes), TRAIN, np.int8)


@dataclass(frozen=True, eq=False)
class AssignmentWithAllRows(FoldAssignment):
    """Assignment with one more split, the last, that trains on all rows (the refit of a search).

    Parameters
    ----------
    assignment : FoldAssignment
        All splits but the last.
    """

    assignment: FoldAssignment

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Number of splits: one more than `each` has."""
        return self.assignment.n_splits + 1

    def assign_roles(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """Return the roles in a split; in the last split all rows train."""
        if split == self.assignment.n_splits:
            return np.full(len(codes), TRAIN, np.int8)
        return self.assignment.assign_roles(codes, split)


@dataclass(frozen=True, eq=False)
class SingleSplitAssignment(FoldAssignment):
    """Assignment of one of the splits of another assignment.

    Parameters
    ----------
    assignment : FoldAssignment
        All splits.
    split : int
        Index of the one.
    weights : ndarray of float64 of shape (1, n_labels) or (1, 1), or None
    """

    assignment: FoldAssignment
    split: int
    weights: NDArray[np.float64] | None = None
    n_splits = 1

    def assign_roles(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """Return the roles in the one split."""
        return self.assignment.assign_roles(codes, self.split)


@dataclass(frozen=True, eq=False)
class BatchedLinear(Model):
    """Linear models of the same form, fitted together by a solver (sums over rows).

    The last column of the targets is a row's code plus 1.

    Parameters
    ----------
    single_model : LinearModel
        The form of every model.
    roles : FoldAssignment
    classes : ndarray or None
        Sorted labels as in the targets; None for regression.
    class_weight : ndarray of float64 of shape (n_splits, n_classes), or None
        Factors of the weights of each split's training rows, by label.
    """

    single_model: LinearModel
    roles: FoldAssignment
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None = None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.single_model.n_features

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return targets encoded by `each`, followed by a column with the role in each split."""
        codes = y[:, -1].astype(np.int64) - 1
        user_targets = y[:, 0] if y.shape[1] == 2 else y[:, :-1]
        targets = self.single_model.encode(user_targets, self.classes, dtype)
        n_targets = self.n_targets
        encoded = np.empty((len(y), n_targets + self.roles.n_splits), dtype)
        encoded[:, :n_targets] = targets.reshape(len(y), -1)
        encoded[:, n_targets:] = self.roles.tabulate_roles(codes)
        return encoded

    @property
    def n_targets(self) -> int:
        """Number of target columns, without those of the roles."""
        return self.single_model.n_targets or 1

    def label_codes(self, y: Any) -> Any:
        """Return the class index of each row, given targets encoded by `each`."""
        xp = namespace(y)
        if y.ndim == 2:  # a sign for each class: +1 for the row's, -1 for the others
            return xp.argmax(y, axis=1)
        return cast(y if self.single_model.n_classes > 2 else y > 0, xp.int64)

    def split_roles(self, y: Any) -> tuple[Any, Any]:
        """Split encoded targets into those of `each`, and the roles of shape (n, n_splits)."""
        n = self.n_targets
        return (y[:, 0] if self.single_model.n_targets is None else y[:, :n]), y[:, n:]

    def count_draws(self, roles: Any, role: int) -> Any:
        """Return how often rows have a role in each split, given those of :meth:`split_roles`."""
        return self.roles.count_draws(roles, role)


@dataclass(frozen=True, eq=False)
class BatchedLoss(Loss):
    """Loss of each model of a batch, for compiled kernels (of the name "wide") of many columns.

    Parameters
    ----------
    model_loss : Loss
        Loss of every model.
    stops : tuple of int
        End of each split's range of columns.
    width : int
        Number of columns (outputs) of a model.
    """

    model_loss: Loss
    stops: tuple[int, ...]
    width: int

    name = "wide"
    kernel = "wide"

    @property
    def kind(self) -> Any:  # type: ignore[override]
        """Kind of each column's loss."""
        return self.model_loss.kind

    @property
    def parameters(self) -> tuple[float, ...]:
        """Parameters of each column's loss."""
        return self.model_loss.parameters

    def value_and_gradient(self, y: Any, raw: Any) -> tuple[Any, Any]:
        """Return the loss and gradient of the rows for one model."""
        return self.model_loss.value_and_gradient(y, raw)


@dataclass(frozen=True, eq=False)
class BatchedStepLinear(StepModel):
    """Linear models of the same form, fitted together by gradient steps.

    Each model has a column of the parameters, or one for each class if there are more than two. The
    last column of the targets is a row's code plus 1. The gradient of a model is that of its own
    fit, in which rows that its split does not train on have weight 0. The last row of the
    parameters accumulates each model's loss.

    Parameters
    ----------
    single_model : LinearModel
        The form of every model.
    roles : FoldAssignment
    classes : ndarray or None
        Sorted labels as in the targets; None for regression.
    splits : tuple of int
        Split of each model, ascending: the columns of a split are adjacent.
    scales : tuple of float
        Factor of the weights in each split, with which their mean over all rows is 1.
    """

    single_model: LinearModel
    roles: FoldAssignment
    classes: NDArray[Any] | None
    splits: tuple[int, ...]
    scales: tuple[float, ...]

    parameters: Parameters = field(init=False, repr=False, compare=False)
    linear: LinearForm = field(init=False, repr=False, compare=False)
    _stops: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        each = self.single_model
        # The columns of a model are adjacent, and so are the models of a split.
        n_columns = len(self.splits) * each.width
        parts = [Part("coef", (each.n_features, n_columns))]
        if each.fit_intercept:
            parts.append(Part("intercept", (1, n_columns), penalised=False))
        parts.append(Part("losses", (1, n_columns), additive=True))
        # End of each split's models: splits are ascending.
        stops = np.searchsorted(self.splits, np.arange(self.roles.n_splits), side="right")
        loss: Any = BatchedLoss(each.loss, tuple((stops * each.width).tolist()), each.width)
        linear = LinearForm(loss, each.n_features, each.fit_intercept)
        object.__setattr__(self, "parameters", Parameters(tuple(parts), n_columns))
        object.__setattr__(self, "linear", linear)
        object.__setattr__(self, "_stops", loss.stops)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return targets encoded by `each`, followed by a column with the weight in each split."""
        codes = y[:, 1].astype(np.int64) - 1
        encoded = np.empty((len(y), 1 + self.roles.n_splits), dtype)
        encoded[:, 0] = self.single_model.encode(y[:, 0], self.classes, dtype)
        # How often a row counts, times the scale: 0 for rows that the split does not train on.
        for split, scale in enumerate(self.scales):
            encoded[:, 1 + split] = scale * self.roles.count_training_draws(codes, split)
        return encoded

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the initial parameters of each model, in columns side by side."""
        w = np.zeros(self.parameters.shape, dtype)
        w[:-1] = np.tile(self.single_model.init(seed, dtype), len(self.splits))
        return w

    def identity(self) -> dict[str, Any]:
        """Return the identity of `each`, and the splits."""
        return {**self.single_model.identity(), "splits": self.splits}

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradients of the summed losses of a batch; return the mean over the models' sums.

        A model that diverged (its loss is not finite) is left out of the mean.
        """
        # One model may overflow while the others converge.
        with np.errstate(over="ignore", invalid="ignore"):
            raw = self.single_model.raw_prediction(w[:-1, ...], rows.X, backend)
            losses, g = self._compute_derivatives(raw, rows, backend)
            self.single_model.add_products(rows.X, g, out[:-1, ...], backend)
        xp = namespace(losses)
        # Subtracted: the "gradient" of an additive part is minus its terms. A model's loss is kept
        # in the first of its columns.
        out[-1, :: self.single_model.width] -= cast(losses, out.dtype)
        finite = xp.isfinite(losses)
        losses = xp.where(finite, losses, 0.0)
        return float(xp.sum(losses)) / max(int(xp.sum(cast(finite, xp.int32))), 1)

    def _compute_derivatives(self, raw: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """Return each model's summed loss, and its gradient with respect to the raw predictions."""
        xp, each, width = namespace(raw), self.single_model, self.single_model.width
        n, n_models = raw.shape[0], len(self.splits)
        split_weights, y = rows.y[:, 1:], rows.y[:, 0]
        if rows.weight is not None:
            split_weights = split_weights * rows.weight[:, None]
        if is_host(raw) and width == 1 and each.loss.kernel == "log_loss":
            from daskml_dist.backends.elementary_functions import ROW_LOSSES
            from daskml_dist.backends.wide_gather import compile_slopes

            # A compiled loop replaces raw predictions by gradients, in place.
            raw, losses = np.ascontiguousarray(raw.reshape(n, -1)), np.zeros(n_models)
            compile_slopes(ROW_LOSSES["log_loss"])(
                n, np.ascontiguousarray(y), np.ascontiguousarray(split_weights),
                np.array(self._stops), raw, losses, each.loss.parameters,
            )  # fmt: skip
            return losses, raw
        # The loss of every row and model at once: (row, model) pairs are the rows of one problem.
        flat = xp.reshape(raw, (n * n_models, width) if width > 1 else (n * n_models,))
        targets = xp.repeat(y, n_models)
        if each.n_classes > 2:
            targets = each.targets(cast(targets, xp.int32), raw.dtype)
        values, g = each.loss.value_and_gradient(targets, flat)
        # Each model has the weights of its split.
        weight = xp.take(split_weights, backend.to_device(np.array(self.splits)), axis=1)
        losses = total(xp.reshape(values, (n, n_models)) * weight, axis=0, dtype=xp.float64)
        g = xp.reshape(g, (n, n_models, width)) * weight[:, :, None]
        return losses, xp.reshape(g, (n, n_models * width))
