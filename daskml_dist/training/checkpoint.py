"""Checkpoints: a fit in parts, with its state in a file between them.

Each part is a fit of `every` passes that goes on from the state of the one before, so the state
is whole and consistent under every policy. Under ``"sync"`` and ``"allreduce"`` the parts make
the same steps as a fit without checkpoints; ``"local"`` and ``"average"`` average their lanes at
the end of each part.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import reprlib
import warnings
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.core import url_to_fs  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from numpy.typing import NDArray

from daskml_dist import __version__
from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.models.linear import LinearModel
from daskml_dist.ps.shard import ShardState
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.spec import FitSpec

__all__ = ["Checkpoint", "train_in_parts"]

_FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit saves itself.

    ``path`` is the newest checkpoint, ``path.1`` the one before, up to ``path.<keep - 1>``. A new
    one is written as ``path.new``; once it is whole, each file moves up by one name. A crash at
    any instant leaves the last whole one under one of these names, even where moving means to
    copy and delete, as in object stores; :meth:`load` finds it.

    A file is an ``.npz``: parameters, optimizer state and facts in JSON, with a checksum of every
    array and without pickle. It is read only if it is whole.

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
            One of them failed, or the file system is unknown or not installed.
        """
        files = self._files()
        try:
            files.probe()
        except Exception as error:
            raise CheckpointError(
                f"Cannot write checkpoints to {self.path} ({_why(error)}). Name a file in a "
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
        files, data = self._files(), _encode(state, facts)
        try:
            if files.is_whole(files.new):  # a crash came while the files moved
                files.rotate()
            files.write(files.new, data)
            files.rotate()
        except Exception as error:
            raise CheckpointError(
                f"Cannot save the checkpoint {self.path} ({_why(error)}). The last one that was "
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

    def _find(self) -> tuple[ShardState, dict[str, Any]] | None:
        """The newest whole checkpoint; None where there is no file."""
        files, damaged = self._files(), ""
        for name in (files.new, *files.versions):
            try:
                data = files.read(name)
                found = None if data is None else _decode(data, name)
            except _DamagedError as error:
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

    def _files(self) -> _Files:
        try:
            fs, path = url_to_fs(os.fspath(self.path))
        except Exception as error:
            raise CheckpointError(
                f"Cannot open the file system of the checkpoint {self.path} ({_why(error)}). "
                f"{_remedy(error)}"
            ) from error
        return _Files(fs, path, self.keep)


class _DamagedError(CheckpointError):
    """A file is cut short, was changed, or never was a checkpoint."""


@dataclass(frozen=True)
class _Files:
    """The files of one checkpoint, on any file system."""

    fs: Any
    path: str
    keep: int

    @property
    def new(self) -> str:
        return f"{self.path}.new"

    @property
    def versions(self) -> list[str]:
        """Names from the newest to the oldest."""
        return [self.path, *(f"{self.path}.{i}" for i in range(1, self.keep))]

    @property
    def _local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    def read(self, name: str) -> bytes | None:
        """Content, or None where there is no such file."""
        try:
            return bytes(self.fs.cat_file(name))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise CheckpointError(
                f"Cannot read the checkpoint {name} ({_why(error)}). Mend access to the file, or "
                "set resume=False to begin anew."
            ) from error

    def is_whole(self, name: str) -> bool:
        with suppress(CheckpointError):
            data = self.read(name)
            return data is not None and bool(_decode(data, name))
        return False

    def write(self, name: str, data: bytes) -> None:
        """Write a file to the disk; what an error leaves of it is removed."""
        try:
            if self._local:
                with open(name, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            else:
                self.fs.pipe_file(name, data)
        except BaseException:
            with suppress(Exception):
                self.fs.rm_file(name)
            raise

    def rotate(self) -> None:
        """Move each file to the name of the one before it, from the oldest to the new one.

        The new one is whole all the while; files that a crash left half moved are overwritten.
        """
        names = [self.new, *self.versions]
        for i in reversed(range(self.keep)):
            if self.fs.exists(names[i]):
                self._move(names[i], names[i + 1])
        if self._local:
            _sync_folder(os.path.dirname(self.path))

    def _move(self, source: str, target: str) -> None:
        if self._local:
            os.replace(source, target)
            return
        with suppress(FileNotFoundError):  # some file systems do not move onto a file
            self.fs.rm_file(target)
        self.fs.mv(source, target)

    def probe(self) -> None:
        if self.fs.isdir(self.path):
            raise IsADirectoryError(f"{self.path} is a folder")
        before, after = f"{self.path}.probe", f"{self.path}.probed"
        self.write(before, b"daskml_dist")
        self._move(before, after)
        self.fs.rm_file(after)


def _sync_folder(folder: str) -> None:
    """Make moves in a folder outlast a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(handle)
    finally:
        os.close(handle)


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _remedy(error: Exception) -> str:
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if isinstance(missing, ModuleNotFoundError) and missing.name:
        return f"pip install {missing.name}"
    return 'Use a local path, or the URL of an fsspec file system such as "s3://bucket/fit.npz".'


# --- what a file holds -----------------------------------------------------------------------


def _encode(state: ShardState, facts: dict[str, Any]) -> bytes:
    arrays: dict[str, Any] = {
        "w": state.w,
        **{f"slot_{name}": slot for name, slot in state.slots.items()},
    }
    if state.average is not None:
        arrays["average"] = state.average
    facts = {
        **facts,
        "format": _FORMAT,
        "written_by": __version__,
        "checksums": _checksums(arrays),
        "step": state.step,
        "rows_seen": state.rows,
        "n_averaged": state.n_averaged,
    }
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.array(json.dumps(facts)), **arrays)
    return buffer.getvalue()


def _decode(data: bytes, name: str) -> tuple[ShardState, dict[str, Any]]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        facts = json.loads(str(arrays.pop("facts")))
        found = facts["format"]
    except Exception as error:
        # Not NumPy's words: they offer to load a strange file with pickle.
        raise _DamagedError(
            f"{name} is no whole checkpoint: it is cut short, was changed, or holds something "
            f"else ({type(error).__name__})."
        ) from error
    if found != _FORMAT:
        raise CheckpointError(
            f"The checkpoint {name} has format {found!r}, written by daskml_dist "
            f"{facts.get('written_by', '0.1.0')}; this version reads format {_FORMAT}. Go on "
            "with that version, or set resume=False to begin anew."
        )
    if _checksums(arrays) != facts.get("checksums"):
        raise _DamagedError(f"{name} is no whole checkpoint: an array's checksum is wrong.")
    slots = {
        key.removeprefix("slot_"): array for key, array in arrays.items() if key.startswith("slot_")
    }
    state = ShardState(
        arrays["w"], slots, facts["step"], facts["rows_seen"],
        arrays.get("average"), facts["n_averaged"],
    )  # fmt: skip
    return state, facts


def _checksums(arrays: dict[str, NDArray[Any]]) -> dict[str, str]:
    return {
        name: f"{array.dtype.str} {array.shape} {zlib.crc32(np.ascontiguousarray(array).data):08x}"
        for name, array in arrays.items()
    }


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
    if checkpoint.resume and (found := checkpoint._find()) is not None:
        fit, records = _resumed(fit, checkpoint, *found)
    watched = _OneFit(callbacks)
    result = FitResult(fit.start_state(), [], fit.stopping, 0.0)
    try:
        while fit.first_pass < max_iter and not fit.stopping.converged and not watched.stopped:
            last = min(fit.first_pass + checkpoint.every, max_iter)
            part = dataclasses.replace(
                fit, stopping=dataclasses.replace(fit.stopping, max_iter=last)
            )
            result = engine.train(part, watched)
            state = result.state
            assert isinstance(state, ShardState)
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
            checkpoint.save(state, {**_identity(fit), **_progress(fit, records)})
    except BaseException as error:
        watched.finish(error)
        raise
    watched.finish()
    return FitResult(result.state, records, fit.stopping, partial, dropped, lost, events)


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


def _resumed(
    fit: FitSpec, checkpoint: Checkpoint, state: ShardState, facts: dict[str, Any]
) -> tuple[FitSpec, list[dict[str, Any]]]:
    for name, value in _identity(fit).items():
        if facts.get(name) != value:
            raise CheckpointError(
                f"{checkpoint.path} is of another fit: its {name} is "
                f"{reprlib.repr(facts.get(name))}, here it is {reprlib.repr(value)}. Name another "
                "file, or set resume=False to begin anew."
            )
    if fit.rule.average_after is None:  # an old average would stand for the parameters
        state = dataclasses.replace(state, average=None, n_averaged=0)
    state = _about(state, tuple(facts.get("target_shift", ())), fit.step_model)
    stopping = dataclasses.replace(
        fit.stopping, best=facts["best"], stale_passes=facts["stale_passes"]
    )
    resumed = dataclasses.replace(
        fit, initial=state, stopping=stopping, seed=facts["seed"], first_pass=facts["passes"]
    )
    return resumed, facts["records"]


def _about(state: ShardState, shift: tuple[float, ...], model: LinearModel) -> ShardState:
    """The state about the model's own shift of the targets, not a digit changed if it was so."""
    if shift == model.target_shift:
        return state
    old = dataclasses.replace(model, target_shift=shift)
    w, average = (
        None if values is None else model.centred(old.uncentred(values))
        for values in (state.w, state.average)
    )
    assert w is not None
    return dataclasses.replace(state, w=w, average=average)
