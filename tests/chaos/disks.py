"""Disks that can be filled while a fit writes its checkpoints."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from daskml_dist.training import checkpoint

__all__ = ["Disk", "FillDisk", "small_disk"]


class Disk:
    """A small file system with limited space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Fill the disk completely."""
        with (
            open(self.folder / "ballast", "wb", buffering=0) as file,
            pytest.raises(OSError, match="No space left"),
        ):
            file.writelines(repeat(bytes(2**12)))

    def make_room(self) -> None:
        """Free the space again."""
        os.remove(self.folder / "ballast")


class _PretendedDisk(Disk):
    """Stand-in if mounting is not allowed: checkpoints are written through this object's `open`."""

    is_full = False

    def fill(self) -> None:
        self.is_full = True

    def make_room(self) -> None:
        self.is_full = False

    def open(self, name: str, mode: str = "r") -> Any:
        """Open a file; if the disk is full, only its first half is written."""
        file = open(name, mode)
        if self.is_full and "w" in mode:
            return _HalfFile(file)
        return file


class _HalfFile:
    """File that fills the disk."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> _HalfFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def small_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pretended: bool = False
) -> Iterator[Disk]:
    """Mount a small file system on a folder (needs root), or return a stand-in for it."""
    if pretended:
        disk = _PretendedDisk(folder)
        monkeypatch.setattr(checkpoint, "open", disk.open, raising=False)
        yield disk
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a file system (root may)")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class FillDisk:
    """Callback that fills the disk after a pass."""

    def __init__(self, disk: Disk, after_pass: int) -> None:
        self.disk = disk
        self.after_pass = after_pass

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == self.after_pass:
            self.disk.fill()
