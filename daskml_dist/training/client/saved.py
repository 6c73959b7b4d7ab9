"""Copies that the client keeps of a fit for the day when all its workers are lost."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import dask

from daskml_dist.ps.snapshots import ServerSnapshot

__all__ = ["Saved", "SavedSnapshots"]

#: Snapshot and records of a server.
Saved = tuple[ServerSnapshot, list[Any]]


class SavedSnapshots:
    """The last snapshots: small ones in memory, large ones in a file that only this user can read.

    The file lies in Dask's ``temporary-directory``, where that is set, and goes with the fit.
    """

    def __init__(self) -> None:
        self._snapshots: list[Saved] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def put(self, snapshots: list[Saved], on_disk: bool) -> None:
        """Keep snapshots in place of those before.

        Raises
        ------
        OSError
            They cannot be written; those before are still there.
        """
        if not on_disk:
            self._snapshots = snapshots
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="daskml-dist-",
                dir=dask.config.get("temporary-directory", None),
                ignore_cleanup_errors=True,
            )
        new = self._file.with_suffix(".new")
        with new.open("wb") as file:
            pickle.dump(snapshots, file, protocol=pickle.HIGHEST_PROTOCOL)
        os.replace(new, self._file)

    def get(self) -> list[Saved]:
        """The last snapshots; empty where there are none."""
        if self._folder is None or not self._file.exists():
            return self._snapshots
        with self._file.open("rb") as file:
            snapshots: list[Saved] = pickle.load(file)
        return snapshots

    def close(self) -> None:
        """Forget them."""
        self._snapshots = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "snapshots"
