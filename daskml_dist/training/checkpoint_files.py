"""The files of a checkpoint, on any file system: written whole, moved up, and never a device.

Only regular files are read, written and replaced. A link, a folder, a device or a pipe under one of
the names is refused, so that whoever may write to the folder cannot turn a save or a read aside.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from daskml_dist.errors import CheckpointError
from daskml_dist.errors.outside import outside
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.checkpoint_format import DamagedError, decode, decode_any

__all__ = ["Files", "why"]

T = TypeVar("T")

#: Other systems than POSIX have no such flags, nor what they are against.
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _SAFELY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


@dataclass(frozen=True)
class Files:
    """The files of one checkpoint.

    Parameters
    ----------
    fs : fsspec file system
    path : str
    keep : int
        Versions that are kept.
    """

    fs: Any
    path: str
    keep: int

    @classmethod
    def of(cls, url: str, keep: int) -> Files:
        """Files of a path or URL.

        Raises
        ------
        CheckpointError
            The file system is unknown, or not installed.
        """
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            fs, path = url_to_fs(url)
        except Exception as error:
            raise CheckpointError(
                f"Cannot open the file system of the checkpoint {url} ({why(error)}). "
                f"{_remedy(error)}"
            ) from error
        return cls(fs, path, keep)

    @property
    def new(self) -> str:
        """Name of the one that is being written."""
        return f"{self.path}.new"

    @property
    def versions(self) -> list[str]:
        """Names from the newest to the oldest."""
        return [self.path, *(f"{self.path}.{i}" for i in range(1, self.keep))]

    @property
    def _local(self) -> bool:
        from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

        return isinstance(self.fs, LocalFileSystem)

    def check_regular(self, name: str) -> bool:
        """Whether there is a file of that name.

        Raises
        ------
        CheckpointError
            There is something else: a link, a folder, a device.
        """
        kind = self._kind(name)
        if kind not in ("", "a file"):
            raise CheckpointError(
                f"{name} is {kind}, and checkpoints are regular files alone. Name a file (of a "
                "link, the one that it points to) in a folder of your own."
            )
        return bool(kind)

    def _kind(self, name: str) -> str:
        """Kind of the thing under a name, in words; empty for nothing."""
        try:
            if self._local:
                mode = os.lstat(name).st_mode
                return "a file" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")
            found = self.fs.info(name)["type"]
        except FileNotFoundError:
            return ""
        return {"file": "a file", "directory": "a folder"}.get(found, f"of the kind {found!r}")

    def read(self, name: str, most: int | None = None) -> bytes | None:
        """Content, or None where there is no such file.

        Parameters
        ----------
        name : str
        most : int or None
            Bytes that it may have; None: any number.

        Raises
        ------
        CheckpointError
            It is larger, no regular file, or cannot be read.
        """
        try:
            if not self.check_regular(name):
                return None
            if most is not None and (size := self.fs.info(name).get("size") or 0) > most:
                raise CheckpointError(
                    f"The checkpoint {name} has {size} bytes, and this fit's cannot have more than "
                    f"{most}. Name another file, or set resume=False to begin anew."
                )
            return _read(name) if self._local else bytes(self.fs.cat_file(name))
        except FileNotFoundError:
            return None
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot read the checkpoint {name} ({why(error)}). Mend access to the file, or "
                "set resume=False to begin anew."
            ) from error

    def is_whole(self, name: str) -> bool:
        """Whether there is a whole checkpoint of that name."""
        with suppress(CheckpointError):
            data = self.read(name)
            return data is not None and bool(decode_any(data, name))
        return False

    def newest(self, most: int | None = None) -> tuple[ShardState, dict[str, Any]] | None:
        """The newest whole checkpoint, as `newest_by`, of a fit by steps."""
        return self.newest_by(decode, most)

    def newest_by(self, decode: Callable[[bytes, str], T], most: int | None = None) -> T | None:
        """Result of `decode` for the newest whole checkpoint, of so many bytes.

        None where there is no file.

        Raises
        ------
        CheckpointError
            None is whole, or it has another format version.
        """
        damaged = ""
        for name in (self.new, *self.versions):
            try:
                data = self.read(name, most)
                found = None if data is None else decode(data, name)
            except DamagedError as error:
                # A damaged path.new is a save that a crash cut short: what it is for.
                damaged = damaged or ("" if name == self.new else str(error))
                continue
            if found is not None:
                if damaged:
                    warnings.warn(
                        f"{damaged} Taking the older {name}.", UserWarning, stacklevel=outside()
                    )
                return found
        if damaged:
            raise CheckpointError(
                f"{damaged} No older whole one is kept (keep={self.keep}). Restore the file from "
                "a copy, or set resume=False to begin anew."
            )
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file to the disk; what an error leaves of it is removed.

        Only its owner may read it.
        """
        exists = self.check_regular(name)
        try:
            if self._local:
                if exists:
                    os.remove(name)
                _write(name, data)
            else:
                self.fs.pipe_file(name, data)
        except FileExistsError:  # somebody else's
            raise
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
            if self.check_regular(names[i]):
                self._move(names[i], names[i + 1])
        if self._local:
            _sync_folder(os.path.dirname(self.path))

    def _move(self, source: str, target: str) -> None:
        self.check_regular(target)
        if self._local:
            os.replace(source, target)
            return
        with suppress(FileNotFoundError):  # some file systems do not move onto a file
            self.fs.rm_file(target)
        self.fs.mv(source, target)

    def probe(self) -> None:
        """Try to write, move and remove a small file, under names that are free for ours."""
        for name in (*self.versions, self.new):
            self.check_regular(name)
        before, after = f"{self.path}.probe", f"{self.path}.probed"
        self.write(before, b"daskml_dist")
        self._move(before, after)
        self.fs.rm_file(after)


def _read(name: str) -> bytes:
    """Content of a local file that is a regular one also by now."""
    with open(os.open(name, _READ), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no regular file")
        return file.read()


def _write(name: str, data: bytes) -> None:
    """Write a local file that was not there."""
    with open(os.open(name, _WRITE, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: str) -> None:
    """Make moves in a folder outlast a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(handle)
    finally:
        os.close(handle)


def why(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"


def _remedy(error: Exception) -> str:
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if isinstance(missing, ModuleNotFoundError) and missing.name:
        return f"pip install {missing.name}"
    return 'Use a local path, or the URL of an fsspec file system such as "s3://bucket/fit.npz".'
