"""Files that the sessions of one test run build once and share, such as emulated CUDA kernels.

The first process of a run creates a folder, whose name the sessions that it starts inherit.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["build_once", "open_shared_folder"]

_VARIABLE = "DASKML_DIST_TESTS_SHARED"


@contextmanager
def open_shared_folder() -> Iterator[None]:
    """Create the folder of a test run, unless the parent process has already done so."""
    if _VARIABLE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="daskml-dist-tests-") as folder:
        os.environ[_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[_VARIABLE]


def build_once(name: str, build: Callable[[Path], object]) -> Path:
    """Return a file of the shared folder, built by the first session that needs it.

    Other sessions wait until it is built. A failed build leaves no file, so each session that needs
    it tries again and reports the error.
    """
    path = Path(os.environ[_VARIABLE]) / name
    with open(f"{path}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if not path.exists():
            # Renamed only after it is complete, since a process may end during a build.
            partial = path.with_name(f"partial-{path.name}")
            build(partial)
            partial.rename(path)
    return path
