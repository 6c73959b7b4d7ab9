"""Wall clock that differs from the machine's: Python imports this first if it is on the path.

The file named by ``HOST_CLOCK`` holds the seconds (a double) by which the clock is ahead.
"""

import mmap
import os
import struct
import time


def _set_apart(name: str) -> None:
    """Shift the wall clock by the number in a file, which is read each time."""
    with open(name, "rb") as file:
        ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    read, wall, wall_ns = struct.Struct("d").unpack_from, time.time, time.time_ns
    # Before other imports: modules keep the function that they find.
    time.time = lambda: wall() + read(ahead)[0]
    time.time_ns = lambda: wall_ns() + int(read(ahead)[0] * 1e9)


if "HOST_CLOCK" in os.environ:
    _set_apart(os.environ["HOST_CLOCK"])
