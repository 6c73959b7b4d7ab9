"""Checkpoints: a fit in parts, with its state on disk between them.

Each part is a fit of `every` passes that goes on from the state of the one before, so the state
is whole and consistent under every policy. Under ``"sync"`` and ``"allreduce"`` the parts make
the same steps as a fit without checkpoints; ``"local"`` and ``"average"`` average their lanes at
the end of each part.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.ps.shard import ShardState
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.spec import FitSpec

__all__ = ["Checkpoint", "train_in_parts"]

_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit saves itself.

    The file holds parameters, optimizer state and history as NumPy arrays and JSON, without
    pickle. It is replaced as a whole: a crash leaves the one before.

    Parameters
    ----------
    path : str or path
        A file on the client's machine.
    every : int, default=1
        Passes between two checkpoints.
    resume : bool, default=False
        Go on from the file where it exists, with any number of workers and servers.
    """

    path: str | os.PathLike[str]
    every: int = 1
    resume: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InvalidParameterError(
                f"Checkpoint(every={self.every!r}): give an integer >= 1, in passes."
            )

    def check_writable(self) -> None:
        """Raise CheckpointError, before the first step, where the file cannot be written."""
        folder = Path(self.path).resolve().parent
        try:
            with tempfile.NamedTemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise CheckpointError(
                f"Cannot write checkpoints to {folder} ({error}). Name a file in a folder that "
                "exists and that you may write to."
            ) from error

    def save(self, state: ShardState, facts: dict[str, Any]) -> None:
        """Write the state, and facts that JSON can hold; the file before is replaced at once."""
        arrays: dict[str, Any] = {
            "w": state.w,
            **{f"slot_{name}": slot for name, slot in state.slots.items()},
        }
        if state.average is not None:
            arrays["average"] = state.average
        facts = {
            **facts,
            "format": _FORMAT,
            "step": state.step,
            "rows_seen": state.rows,
            "n_averaged": state.n_averaged,
        }
        path = Path(self.path)
        handle, temporary = tempfile.mkstemp(dir=path.resolve().parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def load(self) -> tuple[ShardState, dict[str, Any]]:
        """Read the file.

        Returns
        -------
        state : ShardState
        facts : dict

        Raises
        ------
        CheckpointError
            If it is cut short, or no checkpoint of this version.
        """
        try:
            with Path(self.path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(str(arrays.pop("facts")))
            if facts["format"] != _FORMAT:
                raise ValueError(f"format {facts['format']}, not {_FORMAT}")
            slots = {
                name.removeprefix("slot_"): array
                for name, array in arrays.items()
                if name.startswith("slot_")
            }
            state = ShardState(
                arrays["w"], slots, facts["step"], facts["rows_seen"],
                arrays.get("average"), facts["n_averaged"],
            )  # fmt: skip
        except Exception as error:
            raise CheckpointError(
                f"{self.path} is no whole checkpoint of this version ({error}). Remove it, or "
                "set resume=False to begin anew."
            ) from error
        return state, facts


class _OneFit(CallbackList):
    """Makes the parts of a fit look like one fit to the user's callbacks."""

    def __init__(self, callbacks: CallbackList) -> None:
        super().__init__(callbacks)
        self.view: Any = None

    @property
    def stopped(self) -> bool:
        return self.view is not None and self.view.stopped

    def on_fit_begin(self, run: Any) -> None:
        first, self.view = self.view is None, run
        if first:
            super().on_fit_begin(run)

    def on_fit_end(self, run: Any, error: BaseException | None = None) -> None:
        if error is not None:
            super().on_fit_end(run, error)

    def finish(self, error: BaseException | None = None) -> None:
        """Tell the end, once; a fit that never began has none."""
        if self.view is not None:
            super().on_fit_end(self.view, error)


def train_in_parts(
    engine: Engine, fit: FitSpec, callbacks: CallbackList, checkpoint: Checkpoint
) -> FitResult:
    """Run a fit with a checkpoint every few passes.

    Raises
    ------
    CheckpointError
        Before the first step, where the file cannot be written or belongs to another model.
    """
    checkpoint.check_writable()
    max_iter, partial = fit.stopping.max_iter, 0.0
    records: list[dict[str, Any]] = []
    if checkpoint.resume and Path(checkpoint.path).exists():
        fit, records = _resumed(fit, checkpoint)
    watched = _OneFit(callbacks)
    result = FitResult(fit.start_state(), [], fit.stopping, 0.0)
    try:
        while fit.first_pass < max_iter and not fit.stopping.converged and not watched.stopped:
            last = min(fit.first_pass + checkpoint.every, max_iter)
            part = dataclasses.replace(
                fit, stopping=dataclasses.replace(fit.stopping, max_iter=last)
            )
            result = engine.train(part, watched)
            records = records + result.records
            partial += result.partial_rows
            fit = dataclasses.replace(
                fit,
                initial=result.state,
                stopping=dataclasses.replace(result.stopping, max_iter=max_iter),
                first_pass=fit.first_pass + len(result.records),
            )
            checkpoint.save(result.state, {**_identity(fit), **_progress(fit, records)})
    except BaseException as error:
        watched.finish(error)
        raise
    watched.finish()
    return FitResult(result.state, records, fit.stopping, partial)


def _identity(fit: FitSpec) -> dict[str, Any]:
    """What must be the same for a fit to go on."""
    return {
        "loss": repr(fit.model.loss),
        "shape": list(fit.model.shape),
        "dtype": fit.dtype,
        "optimizer": fit.rule.optimizer.name,
        "classes": None if fit.classes is None else fit.classes.tolist(),
    }


def _progress(fit: FitSpec, records: list[dict[str, Any]]) -> dict[str, Any]:
    rule = fit.stopping
    return {
        "passes": fit.first_pass,
        "seed": fit.seed,
        "best": rule.best,
        "stale_passes": rule.stale_passes,
        "records": records,
    }


def _resumed(fit: FitSpec, checkpoint: Checkpoint) -> tuple[FitSpec, list[dict[str, Any]]]:
    state, facts = checkpoint.load()
    for name, value in _identity(fit).items():
        if facts[name] != value:
            raise CheckpointError(
                f"{checkpoint.path} is of another fit: its {name} is {facts[name]}, here it is "
                f"{value}. Name another file, or set resume=False to begin anew."
            )
    stopping = dataclasses.replace(
        fit.stopping, best=facts["best"], stale_passes=facts["stale_passes"]
    )
    resumed = dataclasses.replace(
        fit, initial=state, stopping=stopping, seed=facts["seed"], first_pass=facts["passes"]
    )
    return resumed, facts["records"]
