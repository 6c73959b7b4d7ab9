"""Locks of files between processes, with the functions of each operating system.

POSIX has ``flock``, Windows locks a range of bytes. A lock ends when its file is closed, however
the process ends.
"""

from __future__ import annotations

from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def try_lock_file(file: Any) -> bool:
    """Lock an open file for this process; return False if another process holds the lock.

    Raises
    ------
    OSError
        The file system, or the system, has no locks.
    """
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _lock_first_byte(file)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


def _lock_first_byte(file: Any) -> None:
    """Lock a file as Windows does: its first byte represents the whole file."""
    try:
        import msvcrt
    except ImportError as error:
        raise OSError("this system has no locks of files") from error
    windows: Any = msvcrt  # its functions are typed on Windows only
    file.seek(0)
    windows.locking(file.fileno(), windows.LK_NBLCK, 1)
