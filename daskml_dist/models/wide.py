"""Many linear models of the same rows, trained by the same steps: columns of one matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, total
from daskml_dist.losses import Loss
from daskml_dist.models.base import BatchRows, LinearForm, Parameters, Part, StepModel
from daskml_dist.models.linear import LinearModel
from daskml_dist.models.stacked import FoldAssignment

__all__ = ["WideLinear", "WideLoss"]


@dataclass(frozen=True, eq=False)
class WideLoss(Loss):
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
        """As of each."""
        return self.each.kind

    @property
    def parameters(self) -> tuple[float, ...]:
        """As of each."""
        return self.each.parameters

    def value_and_gradient(self, y: Any, raw: Any) -> tuple[Any, Any]:
        """Of one column."""
        return self.each.value_and_gradient(y, raw)


@dataclass(frozen=True, eq=False)
class WideLinear(StepModel):
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
        loss: Any = WideLoss(each.loss, tuple((stops * each.width).tolist()), each.width)
        linear = LinearForm(loss, each.n_features, each.fit_intercept)
        object.__setattr__(self, "parameters", Parameters(tuple(parts), n_columns))
        object.__setattr__(self, "linear", linear)
        object.__setattr__(self, "_stops", loss.stops)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Targets as each model reads them, then the weight in each split.

        Parameters
        ----------
        y : ndarray of shape (n, 2)
            Targets and codes counted from 1.

        Returns
        -------
        ndarray of float64 or float32 of shape (n, 1 + n_splits)
        """
        codes = y[:, 1].astype(np.int64) - 1
        out = np.empty((len(y), 1 + self.roles.n_splits), dtype)
        out[:, 0] = self.each.encode(y[:, 0], self.classes, dtype)
        for split, scale in enumerate(self.scales):
            out[:, 1 + split] = scale * self.roles.trained(codes, split)
        return out

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """As each begins."""
        w = np.zeros(self.parameters.shape, dtype)
        w[:-1] = np.tile(self.each.init(seed, dtype), len(self.splits))
        return w

    def identity(self) -> dict[str, Any]:
        """Facts of each, and how many there are."""
        return {**self.each.identity(), "splits": self.splits}

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradients of the summed losses of a batch; the mean loss of a model."""
        with np.errstate(over="ignore", invalid="ignore"):
            raw = self.each.raw_prediction(w[:-1, ...], rows.X, backend)
            losses, g = self._derivatives(raw, rows, backend)
            self.each.add_products(rows.X, g, out[:-1, ...], backend)
        xp = namespace(losses)
        out[-1, :: self.each.width] -= cast(losses, out.dtype)
        finite = xp.isfinite(losses)
        losses = xp.where(finite, losses, 0.0)
        return float(xp.sum(losses)) / max(int(xp.sum(cast(finite, xp.int32))), 1)

    def _derivatives(self, raw: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """The losses of each model, and the derivatives by all raw predictions, weighted."""
        xp, each, width = namespace(raw), self.each, self.each.width
        n, n_models = raw.shape[0], len(self.splits)
        mask, y = rows.y[:, 1:], rows.y[:, 0]
        if rows.weight is not None:
            mask = mask * rows.weight[:, None]
        if is_host(raw) and width == 1 and each.loss.kernel == "log_loss":
            from daskml_dist.backends.margins import AT_ROW
            from daskml_dist.backends.wide_kernels import slope_loop

            raw, losses = np.ascontiguousarray(raw.reshape(n, -1)), np.zeros(n_models)
            given = np.ascontiguousarray(y), np.ascontiguousarray(mask), np.array(self._stops)
            slope_loop(AT_ROW["log_loss"])(n, *given, raw, losses, each.loss.parameters)
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
