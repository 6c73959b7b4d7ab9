"""Checkpoints of a fit: when they are saved, their files on any file system, and their format.

`Checkpoint` is the user's parameter. `CheckpointFiles` writes files whole, renames older versions,
and refuses everything that is not a regular file, so that another user who may write to the folder
cannot redirect a save or a read. `encode_checkpoint` and `decode_state` convert to and from an
archive of plain arrays and JSON. Reading trusts nothing in the file: members are stored
uncompressed, an array has as many bytes as it announces, and the result is either a state that a
fit can continue from, or an error.

Each part of a fit is a fit of `every` passes that starts from the state of the one before, so the
state is whole and consistent under every policy. Under ``"sync"`` and ``"allreduce"`` the parts
make the same steps as a fit without checkpoints; ``"local"`` and ``"average"`` average their lanes
at the end of each part.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from daskml_dist._version import __version__
from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.ps.shard_state import HeldRows, ShardState

T = TypeVar("T")
#: Only POSIX systems have these flags; other systems do not have the risks either.
_SAFE_OPEN_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
#: O_NONBLOCK: opening a pipe returns at once instead of waiting for a writer.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _SAFE_OPEN_FLAGS
#: O_EXCL: never write to a file or link that was created since the check.
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_OPEN_FLAGS
#: Kinds of non-regular files, as named in errors.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
#: Version of the layout of a file; files of other versions are refused (`decode_checkpoint`).
_FORMAT = 2
#: Most arrays in a file: parameters, average, facts, and optimizer state.
_MOST_ARRAYS = 64
#: Header readers of .npy files, by version; version 3 is for field names, which checkpoints do not
#: have.
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class Checkpoint(ParameterObject):
    """Place and frequency of a fit's checkpoints.

    ``path`` is the newest checkpoint, ``path.1`` the one before, up to ``path.<keep - 1>``. A new
    one is written as ``path.new``; once it is complete, each file is renamed to the next older
    name. A crash at any time leaves the last complete checkpoint under one of these names, even if
    a rename is a copy and a delete, as in object stores; :meth:`load` finds it.

    A file is an ``.npz``: parameters, optimizer state and facts in JSON, with a checksum of every
    array and without pickle. Damaged files are never used. On a local disk only the owner may read
    the file.

    Parameters
    ----------
    path : str or path
        A file in an existing folder, or the URL of one on any file system that fsspec supports,
        such as ``"s3://bucket/fit.npz"``. Only the client reads and writes it. Two concurrent fits
        need two paths.
    every : int, default=1
        Passes between two checkpoints.
    resume : bool, default=False
        Continue from the newest complete checkpoint if there is one, with any policy and any number
        of workers, lanes and servers.
    keep : int, default=2
        Number of checkpoints kept. With two or more, a fit whose newest file was damaged later
        continues from the one before.

    Raises
    ------
    InvalidParameterError
        A parameter is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.callbacks import Checkpoint
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keep = Checkpoint(f'{folder}/fit.npz', resume=True)
    ...     clf = SGDClassifier(max_iter=2, tol=None, checkpoint=keep, random_state=0).fit(X, y)
    ...     longer = SGDClassifier(max_iter=3, tol=None, checkpoint=keep, random_state=0).fit(X, y)
    >>> longer.n_iter_  # of which the first two were in the file
    3
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
        # A bool is an int in Python, but not a valid number of passes.
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
            One of these operations failed, the file system is unknown or not installed, or one of
            the names belongs to something other than a regular file.
        """
        files = self._open_files()
        try:
            files.probe_writing()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot write checkpoints to {self.path} ({error_line(error)}). Name a file in a "
                "folder that exists, has room, and that you may write to."
            ) from error

    def save(self, state: ShardState | NDArray[np.uint8], facts: dict[str, Any]) -> None:
        """Write the state, and facts that JSON can represent, as the newest checkpoint.

        Parameters
        ----------
        state : ShardState, or the log of a round solver
        facts : dict

        Raises
        ------
        CheckpointError
            The checkpoint could not be written, for example because the disk is full. The previous
            one is unchanged.
        """
        # Encode first: an error there must not touch the files.
        files, data = self._open_files(), encode_checkpoint(state, facts)
        try:
            # An earlier save may have crashed after writing its file: rename that file first.
            if files.is_whole(files.temporary_name):  # a crash interrupted the renames
                files.rotate_versions()
            files.write(files.temporary_name, data)
            files.rotate_versions()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot save the checkpoint {self.path} ({error_line(error)}). The previous "
                "checkpoint is intact. Free space, or restore access to the file, and fit again "
                "with resume=True to continue from it."
            ) from error

    def load(self) -> tuple[ShardState, dict[str, Any]]:
        """Read the newest complete checkpoint; a `UserWarning` reports a newer one that is damaged.

        Returns
        -------
        state : ShardState
        facts : dict

        Raises
        ------
        CheckpointError
            There is no checkpoint, none is complete, or it has another format version.
        """
        loaded = self._open_files().load_newest()
        if loaded is None:
            raise CheckpointError(
                f"There is no checkpoint {self.path}. Correct the path, or set resume=False to "
                "start again."
            )
        return loaded

    def _open_files(self) -> CheckpointFiles:
        """Return the files of this checkpoint."""
        return CheckpointFiles.from_url(os.fspath(self.path), self.keep)


@dataclass(frozen=True)
class CheckpointFiles:
    """Files of one checkpoint, newest first.

    Parameters
    ----------
    fs : fsspec file system
    path : str
    keep : int
        Number of versions kept.
    """

    fs: Any
    path: str
    keep: int

    @classmethod
    def from_url(cls, url: str, keep: int) -> CheckpointFiles:
        """Return the files of a path or URL."""
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            fs, path = url_to_fs(url)
        except Exception as error:
            raise CheckpointError(
                f"Cannot open the file system of the checkpoint {url} ({error_line(error)}). "
                f"{_describe_remedy(error)}"
            ) from error
        return cls(fs, path, keep)

    @property
    def temporary_name(self) -> str:
        """Return the name of the file that is being written."""
        return f"{self.path}.new"

    @property
    def version_names(self) -> list[str]:
        """Return the file names, from the newest version to the oldest."""
        return [self.path, *(f"{self.path}.{i}" for i in range(1, self.keep))]

    @property
    def _is_local(self) -> bool:
        """Return whether the files are on a local disk."""
        from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

        return isinstance(self.fs, LocalFileSystem)

    def check_regular(self, name: str) -> bool:
        """Return whether a regular file has that name; raise for any other kind of file."""
        kind = self._describe_kind(name)
        if kind not in ("", "a file"):
            raise CheckpointError(
                f"{name} is {kind}, but checkpoints must be regular files. Name a file (for a "
                "link, its target) in a folder of your own."
            )
        return bool(kind)

    def _describe_kind(self, name: str) -> str:
        """Return the kind of file that a name refers to, in words; empty if there is none."""
        try:
            if self._is_local:
                # lstat, not stat: a link must be seen as a link.
                mode = os.lstat(name).st_mode
                return "a file" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")
            # Object stores have only files and folders.
            kind = self.fs.info(name)["type"]
        except FileNotFoundError:
            return ""
        return {"file": "a file", "directory": "a folder"}.get(kind, f"of the kind {kind!r}")

    def read(self, name: str, max_bytes: int | None = None) -> bytes | None:
        """Return the content, or None where there is no such file."""
        try:
            if not self.check_regular(name):
                return None
            # Checked before reading, since a wrong file may have any size.
            if max_bytes is not None and (size := self.fs.info(name).get("size") or 0) > max_bytes:
                raise CheckpointError(
                    f"The checkpoint {name} has {size} bytes, but checkpoints of this fit have "
                    f"at most {max_bytes}. Name another file, or set resume=False to start again."
                )
            return _read_local_file(name) if self._is_local else bytes(self.fs.cat_file(name))
        except FileNotFoundError:
            return None
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot read the checkpoint {name} ({error_line(error)}). Restore access to the "
                "file, or set resume=False to start again."
            ) from error

    def is_whole(self, name: str) -> bool:
        """Return whether there is a complete checkpoint of that name."""
        with suppress(CheckpointError):
            data = self.read(name)
            return data is not None and bool(decode_checkpoint(data, name))
        return False

    def load_newest(self, max_bytes: int | None = None) -> tuple[ShardState, dict[str, Any]] | None:
        """Return the newest complete checkpoint of a fit by steps, as :meth:`load_newest_by`."""
        return self.load_newest_by(decode_state, max_bytes)

    def load_newest_by(
        self, decode: Callable[[bytes, str], T], max_bytes: int | None = None
    ) -> T | None:
        """Return the result of `decode` for the newest complete checkpoint; None without files."""
        damaged = ""
        # Newest first. A complete path.new is a save whose rename was prevented by a crash.
        for name in (self.temporary_name, *self.version_names):
            # Only a damaged file leads to an older one. A file of another format or kind of fit, or
            # one that is too large, raises `CheckpointError` here: the user decides.
            try:
                data = self.read(name, max_bytes)
                decoded = None if data is None else decode(data, name)
            except DamagedError as error:
                # A damaged path.new is a save that a crash interrupted; this needs no warning.
                damaged = damaged or ("" if name == self.temporary_name else str(error))
                continue
            if decoded is not None:
                if damaged:
                    warnings.warn(
                        f"{damaged} Using the older {name}.",
                        UserWarning,
                        stacklevel=user_stack_level(),
                    )
                return decoded
        if damaged:
            raise CheckpointError(
                f"{damaged} No older intact one is kept (keep={self.keep}). Restore the file "
                "from a copy, or set resume=False to start again."
            )
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file that only its owner may read; remove a partial file after an error."""
        # A link under this name would send the write to another file.
        exists = self.check_regular(name)
        try:
            if self._is_local:
                # Removed first, since a local file is created with O_EXCL (`_WRITE`).
                if exists:
                    os.remove(name)
                with open(os.open(name, _WRITE, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    # Flushed to the disk before it replaces an older file.
                    os.fsync(file.fileno())
            else:
                self.fs.pipe_file(name, data)
        except FileExistsError:  # created by another process
            raise
        except BaseException:
            with suppress(Exception):
                self.fs.rm_file(name)
            raise

    def rotate_versions(self) -> None:
        """Rename each file to the next older name, from the oldest version to the new one.

        The new file stays complete throughout; files that a crash left partly moved are
        overwritten.
        """
        # Starts with the oldest, so that each target is free or already copied.
        names = [self.temporary_name, *self.version_names]
        for i in reversed(range(self.keep)):
            if self.check_regular(names[i]):
                self._move_file(names[i], names[i + 1])
        if self._is_local:
            _sync_folder(os.path.dirname(self.path))

    def _move_file(self, source: str, target: str) -> None:
        """Move a file onto another, even if the file system cannot replace files."""
        self.check_regular(target)
        if self._is_local:
            os.replace(source, target)
            return
        with suppress(FileNotFoundError):  # some file systems cannot move onto an existing file
            self.fs.rm_file(target)
        self.fs.mv(source, target)

    def probe_writing(self) -> None:
        """Try to write, move and remove a small file, if the checkpoint's own names are usable."""
        for name in (*self.version_names, self.temporary_name):
            self.check_regular(name)
        written_path, moved_path = f"{self.path}.probe", f"{self.path}.probed"
        self.write(written_path, b"daskml_dist")
        self._move_file(written_path, moved_path)
        self.fs.rm_file(moved_path)


def _read_local_file(name: str) -> bytes:
    """Return the content of a local file, checked again to be regular after opening."""
    # Opened without following links or waiting for a pipe, then checked again, since the file may
    # have been replaced in the meantime.
    with open(os.open(name, _READ_FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no regular file")
        return file.read()


def _sync_folder(folder: str) -> None:
    """Make renames in a folder survive a power failure."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders, and has its own journal
        return
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(handle)
    finally:
        os.close(handle)


def error_line(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}"


def _describe_remedy(error: Exception) -> str:
    """Return a hint for fixing an error in opening a file system."""
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if isinstance(missing, ModuleNotFoundError) and missing.name:
        return f"pip install {missing.name}"
    return 'Use a local path, or the URL of an fsspec file system such as "s3://bucket/fit.npz".'


class DamagedError(CheckpointError):
    """Error for a file that is truncated, was changed, or never was a checkpoint."""


def encode_checkpoint(state: ShardState | NDArray[np.uint8], metadata: dict[str, Any]) -> bytes:
    """Return the file content of a state, or of a solver's log, with facts in JSON."""
    if isinstance(state, np.ndarray):
        return _make_archive({"log": state}, metadata)
    arrays: dict[str, Any] = {
        "w": state.w,
        **{f"slot_{name}": slot_array for name, slot_array in state.opt_state.items()},
    }
    if state.average is not None:
        arrays["average"] = state.average
    if state.ids is not None:
        arrays["ids"] = state.ids
    if state.held is not None:
        arrays["held_ids"] = state.held.ids
        arrays |= {
            f"held_slot_{name}": slot_array for name, slot_array in state.held.opt_state.items()
        }
    counters = {
        "step": state.step,
        "rows_seen": state.rows,
        "n_averaged": state.n_averaged,
        "n_meetings": state.n_outer_steps,
        "held_step": 0 if state.held is None else state.held.step,
    }
    return _make_archive(arrays, {**metadata, **counters})


def _make_archive(arrays: dict[str, Any], metadata: dict[str, Any]) -> bytes:
    """Return an archive of arrays, facts and checksums, as bytes."""
    metadata = {
        **metadata,
        "format": _FORMAT,
        "written_by": __version__,
        "checksums": _compute_checksums(arrays),
    }
    # Built in memory, so that it is written in one call.
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.array(json.dumps(metadata)), **arrays)
    return buffer.getvalue()


def decode_state(data: bytes, name: str) -> tuple[ShardState, dict[str, Any]]:
    """Return the state and facts of a file."""
    state, facts = decode_checkpoint(data, name)
    if not isinstance(state, ShardState):
        raise CheckpointError(
            f"{name} belongs to a fit by a round solver. Name another file, or set resume=False "
            "to start again."
        )
    return state, facts


def decode_solver_log(data: bytes, name: str) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Return a round solver's log, and the facts, of a file."""
    log, facts = decode_checkpoint(data, name)
    if isinstance(log, ShardState):
        raise CheckpointError(
            f"{name} belongs to a fit by gradient steps. Name another file, or set resume=False "
            "to start again."
        )
    return log, facts


def decode_checkpoint(
    data: bytes, name: str
) -> tuple[ShardState | NDArray[np.uint8], dict[str, Any]]:
    """Return the state, or a round solver's log, and the facts of a file."""
    try:
        arrays = {key: _read_array(content) for key, content in _read_members(data).items()}
        facts = json.loads(str(arrays.pop("facts")))
        file_format = facts["format"]
    except Exception as error:
        # NumPy's own message is not shown: it suggests to load an unknown file with pickle.
        raise DamagedError(
            f"{name} is not a complete checkpoint: it is truncated, was changed, or is another "
            f"kind of file ({type(error).__name__})."
        ) from error
    if file_format != _FORMAT:
        raise CheckpointError(
            f"The checkpoint {name} has format {file_format!r}, written by daskml_dist "
            f"{facts.get('written_by', '0.1.0')}; this version reads format {_FORMAT}. Use that "
            "version, or set resume=False to start again."
        )
    # Bits that changed on the disk would become wrong parameters without an error.
    if _compute_checksums(arrays) != facts.get("checksums"):
        raise DamagedError(f"{name} is not a complete checkpoint: an array's checksum is wrong.")
    if arrays.keys() == {"log"} and arrays["log"].dtype == np.uint8:
        return arrays["log"], facts
    if problem := _describe_problem(arrays, facts):
        raise DamagedError(f"{name} is not a complete checkpoint: {problem}.")
    opt_state = {
        key.removeprefix("slot_"): array for key, array in arrays.items() if key.startswith("slot_")
    }
    state = ShardState(
        arrays["w"], opt_state, facts["step"], facts["rows_seen"],
        arrays.get("average"), facts["n_averaged"], facts.get("n_meetings", 0),
        arrays.get("ids"), _find_held_rows(arrays, facts),
    )  # fmt: skip
    return state, facts


def _find_held_rows(arrays: dict[str, NDArray[Any]], metadata: dict[str, Any]) -> HeldRows | None:
    """Return the rows that trainers held with their own optimizer; None if there are none."""
    ids, prefix = arrays.get("held_ids"), "held_slot_"
    if ids is None:
        return None
    opt_state = {
        key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)
    }
    w = arrays["w"][np.searchsorted(arrays["ids"], ids)]
    return HeldRows(ids, w, opt_state, metadata["held_step"], 0)


def _read_members(data: bytes) -> dict[str, bytes]:
    """Return the members of an archive, none of them larger than its bytes in the file."""
    # A compressed member could expand to any size ("zip bomb"); np.savez stores members
    # uncompressed.
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        stored = all(
            m.compress_type == zipfile.ZIP_STORED and m.file_size == m.compress_size
            for m in members
        )
        if not stored or sum(m.file_size for m in members) > len(data):
            raise ValueError("members that unfold")
        names = {m.filename.removesuffix(".npy") for m in members}
        if not len(names) == len(members) <= _MOST_ARRAYS:
            raise ValueError("other members than a checkpoint's")
        return {m.filename.removesuffix(".npy"): archive.read(m) for m in members}


def _read_array(content: bytes) -> NDArray[Any]:
    """Return the array of a member, which must have as many bytes as it announces."""
    stream = io.BytesIO(content)
    shape, by_columns, dtype = _HEADERS[npy.read_magic(stream)](stream)
    start = stream.tell()
    # Parameters are floats, ids are integers, the facts are text, and a solver's log is bytes.
    if dtype.kind not in "fUui" or math.prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError("no array of a checkpoint")
    # A copy, since an array over a bytes object is read-only.
    flat = np.frombuffer(content, dtype, offset=start)
    return flat.reshape(shape, order="F" if by_columns else "C").copy(order="K")


def _describe_problem(arrays: dict[str, NDArray[Any]], metadata: dict[str, Any]) -> str:
    """Return why arrays and facts are not a valid state; empty if they are."""
    w, average = arrays.get("w"), arrays.get("average")
    if w is None or w.ndim != 2 or w.dtype.kind != "f":
        return "it has no parameters"
    # Parameters, average and optimizer state must match: one dtype, one number of rows.
    ids = arrays.get("ids")
    if ids is not None:
        if ids.dtype != np.int64 or ids.shape != w.shape[:1]:
            return "its ids do not belong to its parameters"
        if len(ids) and (ids[0] < 0 or not (ids[1:] > ids[:-1]).all()):
            return "its ids are not sorted"
    held_ids = arrays.get("held_ids")
    if held_ids is not None and (
        held_ids.dtype != np.int64
        or ids is None
        or held_ids.ndim != 1
        or not np.isin(held_ids, ids).all()
    ):
        return "the rows that trainers held are none of its own"
    for key, array in arrays.items():
        if key in ("ids", "held_ids"):
            continue
        if key.startswith("held_slot_"):
            if held_ids is None or array.dtype != w.dtype or array.shape[:1] != held_ids.shape:
                return f"{key} does not belong to the rows that trainers held"
            continue
        if array.dtype != w.dtype or array.shape[:1] != w.shape[:1]:
            return f"{key} does not belong to its parameters"
        if np.isnan(array).any() or (key in ("w", "average") and np.isinf(array).any()):
            return f"{key} is not finite"
    if average is not None and average.shape != w.shape:
        return "its average has another shape than its parameters"
    counts = (
        metadata.get("step"), metadata.get("n_averaged"), metadata.get("n_meetings", 0),
        metadata.get("held_step", 0),
    )  # fmt: skip
    if not all(map(is_count_fact, counts)):
        return "its steps are no numbers of steps"
    if average is None and metadata["n_averaged"]:
        return "it has no average"
    rows: Any = metadata.get("rows_seen")
    if not (is_number_fact(rows) and 0 <= rows < math.inf):
        return "its rows are no number of rows"
    return ""


def is_count_fact(value: Any) -> bool:
    """Return whether a fact is a count."""
    return type(value) is int and 0 <= value < 1 << 63


def is_number_fact(value: Any) -> bool:
    """Return whether a fact is a number, infinity included."""
    return type(value) in (int, float) and not math.isnan(value)


def _compute_checksums(arrays: dict[str, NDArray[Any]]) -> dict[str, str]:
    """Return dtype, shape and CRC-32 of each array."""
    # dtype and shape are included, since another header would give the same bytes other values.
    return {
        name: f"{array.dtype.str} {array.shape} {zlib.crc32(np.ascontiguousarray(array).data):08x}"
        for name, array in arrays.items()
    }
