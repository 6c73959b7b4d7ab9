"""Checks before a fit of a module: a trial on some rows, batches, the way to the workers."""

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


class Tried:
    """Rows that a fit tries a module with, and the model that it begins."""

    def __init__(self, sample: NDArray[Any] | None, inputs: TorchInputs) -> None:
        self.sample = sample
        self.inputs = inputs
        self.begun: tuple[TorchModel, DatasetInfo] | None = None

    def by(
        self,
        source: ModuleSource,
        module: Any,
        rows: DatasetInfo,
        dtype: str,
        n_classes: int | None,
        n_targets: int | None,
        chained: bool,
    ) -> ProbeResult:
        """Findings on rows that are here, or on such as could be there."""
        shape, kind = (2, *rows.survey.row_shape), np.dtype(rows.survey.rows_dtype)
        samples = [np.zeros(shape, kind), np.ones(shape, kind)]
        if self.sample is not None and len(self.sample):
            samples = [self.sample]
        errors = []
        for sample in samples:
            try:
                return probe_module(
                    source, module, self.inputs, sample, dtype, n_classes, n_targets, chained
                )
            except InvalidParameterError as error:
                errors.append(error)
        raise errors[0]


def check_shapes(name: str, parameters: Any, last: TorchModel | None) -> None:
    """Check that the parameters are those of the fit that this one goes on from."""
    if last is None or last.parameters == parameters:
        return
    before = {part.name: part.shape for part in last.parameters.parts}
    now = {part.name: part.shape for part in parameters.parts}
    odd = [k for k in {**before, **now} if before.get(k) != now.get(k)]
    raise InvalidParameterError(
        f"{name} has other parameters than in the fit that this one goes on from: "
        + ", ".join(f"{k} of shape {now.get(k)} was {before.get(k)}" for k in odd[:5])
        + ". Keep its arguments, or set warm_start=False and call fit."
    )


def check_batches(fit: FitSpec, model: TorchModel) -> None:
    """Check that each call of the module gets as many rows as it needs."""
    if model.fewest_rows < 2:
        return
    smallest = min((n for n in fit.rows.lane_rows if n), default=0)
    pipeline = fit.steps.pipeline
    parts = 1 if pipeline is None else pipeline.micro_batches
    least, micro = smallest // fit.work.n_steps, fit.work.micro_batch
    fewest = least // parts
    if micro is not None and least:
        fewest = min(n // -(-n // micro) for n in (least, least + 1))
    if fewest < model.fewest_rows:
        of = "micro-batches of the " if parts > 1 or fewest < least else ""
        raise InvalidParameterError(
            f"{model.source.name} has a batch normalisation, which needs two rows of each batch, "
            f"and of {of}{fit.work.n_steps} steps a pass some have {fewest} in a lane of "
            f"{smallest} rows. Use a larger batch_size or micro_batch_size, chunks of more even "
            "sizes, or fewer lanes (run=Run(n_lanes=...))."
        )


def check_travels(model: TorchModel) -> None:
    """Check that a model can be sent to workers, but for its weights."""
    try:
        cloudpickle.dumps(dataclasses.replace(model, start=None))
    except Exception as error:
        where = inspect.getmodule(model.source.module)
        raise InvalidParameterError(
            f"module={class_name_of(model.source.module)} "
            f"(of {getattr(where, '__name__', '?')}) or its arguments cannot be sent to "
            f"workers: {type(error).__name__}: {error}. Keep open "
            "files, locks and connections out of the class and what it refers to."
        ) from error
