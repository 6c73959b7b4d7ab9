"""Checks before the fit of a module: a trial on some rows, batch sizes, and pickling.

Without them, mistakes in a user's module would only show on a worker, in the middle of a fit.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.torch_modules.module import TorchInputs, TorchModel
from daskml_dist.models.torch_modules.probe import ProbeResult, probe_module
from daskml_dist.models.torch_modules.source import ModuleSource, class_name_of
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.spec import FitSpec


class ModuleTrial:
    """Rows for the trial of a module, and the resulting model.

    Parameters
    ----------
    sample : ndarray or None
        Some rows; None if the rows are not in this process.
    inputs : TorchInputs

    Attributes
    ----------
    model : tuple of (TorchModel, DatasetInfo) or None
        The model that the fit starts with, kept in case the fit diverges.
    output_range : tuple of (float, float)
        Smallest and largest output of the module, once it has been tried.
    """

    def __init__(self, sample: NDArray[Any] | None, inputs: TorchInputs) -> None:
        self.sample = sample
        self.inputs = inputs
        self.model: tuple[TorchModel, DatasetInfo] | None = None
        self.output_range = (0.0, 1.0)

    def run(
        self,
        source: ModuleSource,
        module: Any,
        rows: DatasetInfo,
        dtype: str,
        n_classes: int | None,
        n_targets: int | None,
        chained: bool,
    ) -> ProbeResult:
        """Return the result of calling the module on the sample, or else on made-up rows."""
        errors = []
        for sample in self._list_samples(rows):
            try:
                result = probe_module(
                    source, module, self.inputs, sample, dtype, n_classes, n_targets, chained
                )
            except InvalidParameterError as error:
                errors.append(error)
            else:
                self.output_range = result.output_range
                return result
        # Raise the error for the first sample: the user's own rows, or zeros.
        raise errors[0]

    def _list_samples(self, rows: DatasetInfo) -> list[Any]:
        """Return the rows to try: the sample, or made-up rows."""
        if self.sample is not None and len(self.sample):
            return [self.sample]
        # Rows of zeros, and rows of ones in case the module does not accept zeros.
        shape, kind = (2, *rows.summary.row_shape), np.dtype(rows.summary.rows_dtype)
        return [np.zeros(shape, kind), np.ones(shape, kind)]


def check_shapes(name: str, parameters: Any, last: TorchModel | None) -> None:
    """Raise if the parameters differ from those of the fit that this one continues."""
    if last is None or last.parameters == parameters:
        return
    old_shapes = {part.name: part.shape for part in last.parameters.parts}
    new_shapes = {part.name: part.shape for part in parameters.parts}
    changed = [k for k in {**old_shapes, **new_shapes} if old_shapes.get(k) != new_shapes.get(k)]
    raise InvalidParameterError(
        f"{name} has other parameters than in the fit that is continued: "
        + ", ".join(
            f"{k} of shape {new_shapes.get(k)} was {old_shapes.get(k)}" for k in changed[:5]
        )
        + ". Keep its arguments, or set warm_start=False and call fit."
    )


def check_batches(fit: FitSpec, model: TorchModel) -> None:
    """Raise if the module may be called with fewer rows than its batch normalisation needs."""
    if model.fewest_rows < 2:
        return
    smallest = min((n for n in fit.rows.lane_rows if n), default=0)
    pipeline = fit.steps.pipeline
    parts = 1 if pipeline is None else pipeline.micro_batches
    # The batches of a lane differ by at most one row, and so do the micro-batches of a batch: the
    # smallest lane has batches of `min_batch_rows` rows, or one more.
    min_batch_rows, micro = smallest // fit.work.n_steps, fit.work.micro_batch
    fewest = min_batch_rows // parts
    if micro is not None and min_batch_rows:
        # A batch of n rows is split into ceil(n / micro) parts of nearly equal size.
        fewest = min(n // -(-n // micro) for n in (min_batch_rows, min_batch_rows + 1))
    if fewest < model.fewest_rows:
        unit = "micro-batches of the " if parts > 1 or fewest < min_batch_rows else ""
        raise InvalidParameterError(
            f"{model.source.name} has batch normalisation, which needs at least two rows per "
            f"batch, but of {unit}{fit.work.n_steps} steps a pass some have {fewest} in a lane of "
            f"{smallest} rows. Use a larger batch_size or micro_batch_size, chunks of more even "
            "sizes, or fewer lanes (run=Run(n_lanes=...))."
        )


def check_picklable(model: TorchModel) -> None:
    """Raise if a model cannot be sent to workers."""
    try:
        # Without the weights: they are large, and being arrays they can be sent.
        cloudpickle.dumps(dataclasses.replace(model, start=None))
    except Exception as error:
        where = inspect.getmodule(model.source.module)
        raise InvalidParameterError(
            f"module={class_name_of(model.source.module)} "
            f"(of {getattr(where, '__name__', '?')}) or its arguments cannot be sent to "
            f"workers: {type(error).__name__}: {error}. Keep open "
            "files, locks and connections out of the class and what it refers to."
        ) from error
