"""Checkpoints: a fit in parts, with its state in a file between them.

Each part is a fit of `every` passes that goes on from the state of the one before, so the state
is whole and consistent under every policy. Under ``"sync"`` and ``"allreduce"`` the parts make
the same steps as a fit without checkpoints; ``"local"`` and ``"average"`` average their lanes at
the end of each part.
"""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.errors import CheckpointError, DivergedError, InvalidParameterError
from daskml_dist.models.linear import LinearModel
from daskml_dist.ps.shard import ShardState
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint_files import Files, why
from daskml_dist.training.checkpoint_format import (
    DamagedError,
    decode,
    encode,
    is_count,
    is_number,
)
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.history import RECORD_KEYS
from daskml_dist.training.spec import FitSpec

__all__ = ["Checkpoint", "train_in_parts"]

#: Bytes of the facts of any fit at most; those of one pass.
_FACTS, _PASS = 1 << 28, 1 << 12


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit saves itself.

    ``path`` is the newest checkpoint, ``path.1`` the one before, up to ``path.<keep - 1>``. A new
    one is written as ``path.new``; once it is whole, each file moves up by one name. A crash at
    any instant leaves the last whole one under one of these names, even where moving means to
    copy and delete, as in object stores; :meth:`load` finds it.

    A file is an ``.npz``: parameters, optimizer state and facts in JSON, with a checksum of every
    array and without pickle. It is read only if it is whole. On a local disk only its owner may
    read it.

    Parameters
    ----------
    path : str or path
        A file in an existing folder, or the URL of one on any file system that fsspec knows, such
        as ``"s3://bucket/fit.npz"``. The client alone reads and writes it. Two fits at a time
        need two paths.
    every : int, default=1
        Passes between two checkpoints.
    resume : bool, default=False
        Go on from the newest whole checkpoint where there is one, with any policy and any number
        of workers, lanes and servers.
    keep : int, default=2
        Checkpoints kept. With two or more, a fit whose newest file was damaged later goes on from
        the one before.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.
    """

    path: str | os.PathLike[str]
    every: int = 1
    resume: bool = False
    keep: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise InvalidParameterError(
                f"Checkpoint(path={self.path!r}): give the path or the URL of a file."
            )
        for name, unit in (("every", "passes"), ("keep", "files")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidParameterError(
                    f"Checkpoint({name}={value!r}): give an integer >= 1, in {unit}."
                )

    def check_writable(self) -> None:
        """Try to write, move and remove a small file.

        Raises
        ------
        CheckpointError
            One of them failed, the file system is unknown or not installed, or something that
            is no regular file has one of the names.
        """
        files = self._files()
        try:
            files.probe()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot write checkpoints to {self.path} ({why(error)}). Name a file in a "
                "folder that exists and that you may write to."
            ) from error

    def save(self, state: ShardState, facts: dict[str, Any]) -> None:
        """Write the state, and facts that JSON can hold, as the newest checkpoint.

        Parameters
        ----------
        state : ShardState
        facts : dict

        Raises
        ------
        CheckpointError
            It could not be written, for example because the disk is full. The newest whole one
            is as it was.
        """
        files, data = self._files(), encode(state, facts)
        try:
            if files.is_whole(files.new):  # a crash came while the files moved
                files.rotate()
            files.write(files.new, data)
            files.rotate()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot save the checkpoint {self.path} ({why(error)}). The last one that was "
                "saved is whole. Make room, or mend access to the file, and fit again with "
                "resume=True to go on from there."
            ) from error

    def load(self) -> tuple[ShardState, dict[str, Any]]:
        """Read the newest whole checkpoint; a `UserWarning` tells if a newer one is damaged.

        Returns
        -------
        state : ShardState
        facts : dict

        Raises
        ------
        CheckpointError
            There is none, none is whole, or it has another format version.
        """
        found = self._find()
        if found is None:
            raise CheckpointError(
                f"There is no checkpoint {self.path}. Correct the path, or set resume=False to "
                "begin anew."
            )
        return found

    def _find(self, most: int | None = None) -> tuple[ShardState, dict[str, Any]] | None:
        """The newest whole checkpoint, of so many bytes; None where there is no file."""
        files, damaged = self._files(), ""
        for name in (files.new, *files.versions):
            try:
                data = files.read(name, most)
                found = None if data is None else decode(data, name)
            except DamagedError as error:
                # A damaged path.new is a save that a crash cut short: what it is for.
                damaged = damaged or ("" if name == files.new else str(error))
                continue
            if found is not None:
                if damaged:
                    warnings.warn(f"{damaged} Taking the older {name}.", UserWarning, stacklevel=2)
                return found
        if damaged:
            raise CheckpointError(
                f"{damaged} No older whole one is kept (keep={self.keep}). Restore the file from "
                "a copy, or set resume=False to begin anew."
            )
        return None

    def _files(self) -> Files:
        return Files.of(os.fspath(self.path), self.keep)


# --- a fit in parts --------------------------------------------------------------------------


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
        Before the first step, where the file cannot be written, is damaged or belongs to another
        fit; later, where a checkpoint cannot be saved.
    """
    checkpoint.check_writable()
    max_iter, partial, dropped, lost = fit.stopping.max_iter, 0.0, 0, 0
    records: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    if checkpoint.resume and (found := checkpoint._find(_most_bytes(fit))) is not None:
        fit, records = _resumed(fit, checkpoint, *found)
    watched = _OneFit(callbacks)
    result, began = FitResult(fit.start_state(), [], fit.stopping, 0.0), fit.first_pass
    interrupted: KeyboardInterrupt | None = None
    try:
        while fit.first_pass < max_iter and not fit.stopping.converged and not watched.stopped:
            last = min(fit.first_pass + checkpoint.every, max_iter)
            part = dataclasses.replace(
                fit, stopping=dataclasses.replace(fit.stopping, max_iter=last)
            )
            result = engine.train(part, watched)
            state = result.state
            assert isinstance(state, ShardState)
            _check_finite(state)
            records = records + result.records
            partial += result.partial_rows
            dropped, lost = dropped + result.dropped, lost + result.lost_rows
            events = events + result.events
            fit = dataclasses.replace(
                fit,
                initial=state,
                stopping=dataclasses.replace(result.stopping, max_iter=max_iter),
                first_pass=fit.first_pass + len(result.records),
            )
            if (interrupted := result.interrupted) is not None:
                break  # not at the end of a pass, where a fit could go on to the same digits
            checkpoint.save(state, {**_identity(fit), **_progress(fit, records)})
    except BaseException as error:
        watched.finish(error)
        if not isinstance(error, KeyboardInterrupt) or fit.first_pass == began:
            raise
        interrupted = error  # what the parts before have found stays
    watched.finish(interrupted)
    return FitResult(
        result.state, records, fit.stopping, partial, dropped, lost, events, interrupted
    )


def _identity(fit: FitSpec) -> dict[str, Any]:
    """What must be the same for a fit to go on, as JSON gives it back."""
    model = fit.step_model
    loss = model.loss
    plain_repr = type(loss).__repr__ is object.__repr__  # holds an address
    facts = {
        "loss": loss.name if plain_repr else repr(loss),
        "shape": model.shape,
        "fit_intercept": model.fit_intercept,
        "dtype": fit.dtype,
        "optimizer": fit.rule.optimizer.name,
        "classes": None if fit.classes is None else fit.classes.tolist(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=repr))
    return plain


def _progress(fit: FitSpec, records: list[dict[str, Any]]) -> dict[str, Any]:
    rule = fit.stopping
    return {
        "passes": fit.first_pass,
        "seed": fit.seed,
        "target_shift": fit.step_model.target_shift,
        "best": rule.best,
        "stale_passes": rule.stale_passes,
        "records": records,
    }


def _most_bytes(fit: FitSpec) -> int:
    """Bytes of a checkpoint of this fit at most."""
    n_arrays = 2 + len(fit.rule.optimizer.slot_names)
    size = int(np.prod(fit.model.shape)) * np.dtype(fit.dtype).itemsize
    return n_arrays * size + _FACTS + _PASS * fit.stopping.max_iter


def _check_finite(state: ShardState) -> None:
    if not np.isfinite(state.w).all():
        raise DivergedError(
            "The parameters became NaN or infinite. Lower learning_rate, or scale the features "
            "(StandardScaler). The last checkpoint is of an earlier pass."
        )


def _resumed(
    fit: FitSpec, checkpoint: Checkpoint, state: ShardState, facts: dict[str, Any]
) -> tuple[FitSpec, list[dict[str, Any]]]:
    if problem := _difference(fit, facts) or _unfit(fit, state) or _unlikely(state, facts):
        raise CheckpointError(
            f"{checkpoint.path} {problem}. Name another file, or set resume=False to begin anew."
        )
    if fit.rule.average_after is None:  # an old average would stand for the parameters
        state = dataclasses.replace(state, average=None, n_averaged=0)
    state = _about(state, facts.get("target_shift", []), fit.step_model, checkpoint)
    stopping = dataclasses.replace(
        fit.stopping, best=facts["best"], stale_passes=facts["stale_passes"]
    )
    resumed = dataclasses.replace(
        fit, initial=state, stopping=stopping, seed=facts["seed"], first_pass=facts["passes"]
    )
    return resumed, facts["records"]


def _difference(fit: FitSpec, facts: dict[str, Any]) -> str:
    """What tells another fit; empty for this one."""
    for name, value in _identity(fit).items():
        if facts.get(name) != value:
            return (
                f"is of another fit: its {name} is {reprlib.repr(facts.get(name))}, here it is "
                f"{reprlib.repr(value)}"
            )
    return ""


def _unfit(fit: FitSpec, state: ShardState) -> str:
    """Why the fit cannot go on from a state; empty where it can."""
    if state.w.shape != tuple(fit.model.shape) or state.w.dtype != fit.dtype:
        return f"holds parameters of shape {state.w.shape} and dtype {state.w.dtype}"
    wanted = fit.rule.optimizer.init(np.zeros_like(state.w))
    if state.slots.keys() != wanted.keys():
        return f"holds the optimizer state {sorted(state.slots)}, and {sorted(wanted)} is needed"
    for name, slot in state.slots.items():
        if slot.shape != wanted[name].shape:
            return f"holds {name} in the shape {slot.shape} instead of {wanted[name].shape}"
    return ""


def _unlikely(state: ShardState, facts: dict[str, Any]) -> str:
    """Why the facts of a fit's course cannot be true; empty where they can."""
    for name in ("passes", "seed", "stale_passes"):
        if not is_count(facts.get(name)):
            return f"says {name}={reprlib.repr(facts.get(name))}"
    if not is_number(facts.get("best")):
        return f"says best={reprlib.repr(facts.get('best'))}"
    records = facts.get("records")
    if not (isinstance(records, list) and all(map(_is_record, records))):
        return "has no records of its passes"
    if [record["pass"] for record in records] != list(range(1, len(records) + 1)):
        return "has records of other passes than the first ones"
    if records and not state.step:
        return f"has records of {len(records)} passes, and no step"
    if len(records) != facts["passes"]:
        return f"says passes={facts['passes']}, and has records of {len(records)}"
    return ""


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and all(
        type(record.get(key)) in (int, float) or (key == "val_score" and record.get(key) is None)
        for key in RECORD_KEYS
    )


def _about(state: ShardState, shift: Any, model: LinearModel, checkpoint: Checkpoint) -> ShardState:
    """The state about the model's own shift of the targets, not a digit changed if it was so."""
    known = isinstance(shift, list) and all(isinstance(value, float) for value in shift)
    sizes = (0, model.width) if model.fit_intercept else (0,)
    if not known or len(shift) not in sizes or not np.isfinite(shift).all():
        raise CheckpointError(
            f"{checkpoint.path} has target_shift={reprlib.repr(shift)}, which no fit writes. "
            "Restore the file from a copy, or set resume=False to begin anew."
        )
    if tuple(shift) == model.target_shift:
        return state
    old = dataclasses.replace(model, target_shift=tuple(shift))
    w, average = (
        None if values is None else model.centred(old.uncentred(values))
        for values in (state.w, state.average)
    )
    assert w is not None
    return dataclasses.replace(state, w=w, average=average)
