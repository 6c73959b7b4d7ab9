"""Bytes of model files, local or on any file system of fsspec; written completely or not at all.

A local file is written under another name in the same folder, flushed to the disk, and renamed,
which is atomic. Object stores show a file only once it is complete.
"""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from typing import Any

from daskml_dist.errors import InvalidTypeError, ModelFileError


def path_to_text(path: Any) -> str:
    """Return a path as text; raise if it is neither a text nor a path."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise InvalidTypeError(
            f"path is a {type(path).__name__}. Pass the name of a file: a str, a path or a URL."
        )
    return os.fsdecode(path)


def write_bytes(path: str, data: bytes) -> None:
    """Write a file; a reader finds the previous file or this one, never a part."""
    fs, name, is_local = _open_file_system(path)
    try:
        if not is_local:
            fs.pipe_file(name, data)
            return
        # The target of a symbolic link is replaced, not the link.
        name = os.path.realpath(name)
        # Random, rather than a process's number, which threads share, and other machines may have.
        new = f"{name}.{uuid.uuid4().hex[:12]}.new"
        try:
            with open(new, "xb") as file:
                # Keep the permissions of the previous file, if there is one.
                with suppress(OSError, AttributeError):  # Windows has no fchmod
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(name).st_mode))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, name)
        except BaseException:
            with suppress(OSError):
                os.remove(new)
            raise
    except Exception as error:
        raise ModelFileError(
            f"Cannot write {path} ({type(error).__name__}: {error}). Name a file in a folder that "
            "exists and that you may write to, on a disk with room."
        ) from error


def read_bytes(path: str) -> bytes:
    """Return the content of a file; a pipe or a device, which may have no end, is refused."""
    fs, name, is_local = _open_file_system(path)
    try:
        if is_local and not stat.S_ISREG(os.stat(name).st_mode):
            raise OSError("it is not a regular file")
        return bytes(fs.cat_file(name))
    except Exception as error:
        raise ModelFileError(
            f"Cannot read {path} ({type(error).__name__}: {error}). Name a file that save() wrote."
        ) from error


def _open_file_system(path: str) -> tuple[Any, str, bool]:
    """Return a path's file system, its name there, and whether that is this machine's own."""
    # Packages of other file systems are imported by fsspec, and may be missing.
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
        from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

        fs, name = url_to_fs(path)
    except Exception as error:
        raise ModelFileError(
            f"Cannot open the file system of {path} ({type(error).__name__}: {error}). Name a "
            "local path, or install the package of that file system."
        ) from error
    return fs, name, isinstance(fs, LocalFileSystem)
