"""Memory of worker processes while something runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from distributed import Client


class Watch:
    """Sampler of the memory of worker processes, ten times per second.

    Attributes
    ----------
    whole, own : list of float
        Peaks of each worker, in MiB; `own` excludes pages of files, which the system reclaims when
        it needs memory.
    """

    def __init__(self, client: Client) -> None:
        pids = client.run(os.getpid).values()
        self._files = [Path(f"/proc/{pid}/status") for pid in pids]
        self.whole, self.own = ([0.0] * len(self._files) for _ in range(2))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            for i, file in enumerate(self._files):
                try:
                    lines = file.read_text().splitlines()
                except OSError:  # the worker was killed
                    continue
                of = dict(line.split(":", 1) for line in lines)
                if "VmRSS" not in of:  # the worker is exiting
                    continue
                kib = [float(of[name].split()[0]) for name in ("VmRSS", "RssAnon")]
                self.whole[i] = max(self.whole[i], kib[0] / 1024)
                self.own[i] = max(self.own[i], kib[1] / 1024)
