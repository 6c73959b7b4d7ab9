"""Memory of a process, measured by itself."""

from __future__ import annotations

import resource
import sys

__all__ = ["forget_peak", "memory_now", "memory_peak"]


def memory_now() -> int:
    """Return the number of bytes that this process has in memory."""
    return _read_status("VmRSS")


def memory_peak() -> int:
    """Return the largest number of bytes that this process has had in memory.

    `getrusage` would include the parent's memory in a spawned process.
    """
    return _read_status("VmHWM")


def forget_peak() -> None:
    """Reset the peak of this process to its current memory, if the system can."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def _read_status(name: str) -> int:
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith(name))
        return 1024 * int(line.split()[1])
    except OSError:  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
