"""Hosts whose wall clocks differ, and are changed while a fit runs."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from benchmarks._hosts import Host

__all__ = ["HostClocks"]


class HostClocks:
    """Wall clocks of hosts, as read by Python; the monotonic clock is the machine's.

    Parameters
    ----------
    folder : Path
        Folder with a file for each host's clock.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_ahead(self, host: Host, seconds: float) -> None:
        """Set a host's clock a number of seconds ahead of the machine's."""
        # Written in place, since processes of the host have mapped the file.
        file = os.open(self._folder / host.name, os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, struct.pack("d", seconds), 0)
        os.close(file)

    def environ(self, host: Host) -> dict[str, str]:
        """Return the variables with which a host's processes find their clock."""
        if not (self._folder / host.name).exists():
            self.put_ahead(host, 0.0)
        path = [str(Path(__file__).parent / "shifted"), os.environ.get("PYTHONPATH", "")]
        clock = str(self._folder / host.name)
        return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "HOST_CLOCK": clock}
