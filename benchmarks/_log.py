"""Raw logs of benchmarks: the command, the machine, the versions, and the output."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

import psutil

from benchmarks._common import machine

__all__ = ["RunLog"]

#: Packages whose versions a log contains, if they are installed.
PACKAGES = (
    "numpy", "scipy", "numba", "dask", "distributed", "scikit-learn", "pandas", "pyarrow",
    "cupy-cuda12x", "dask-ml", "faiss-cpu", "implicit", "lightgbm", "mpi4py", "pyspark", "skorch",
    "torch", "vowpalwabbit", "xgboost", "xgboost-cpu", "opacus", "dp-accounting", "shap", "mapie",
    "crepes",
)  # fmt: skip
#: Prefixes of variables that select the work of a benchmark.
CHOICES = ("DASKML_DIST_", "NETWORKS", "OMP_NUM_THREADS")


class RunLog:
    """One run of a benchmark, from its start."""

    def __init__(self, name: str, tiny: bool) -> None:
        self._name, self._tiny = name, tiny
        self._begin, self._load = time.perf_counter(), psutil.getloadavg()[0]
        # Read now, since clusters leave variables of their workers behind.
        self._choices = _choices()
        self._date = datetime.datetime.now(datetime.UTC)

    def write(self, folder: Path, text: str) -> None:
        """Write FOLDER/NAME.txt, replacing the log of an earlier run."""
        seconds = time.perf_counter() - self._begin
        memory = psutil.virtual_memory().total / 2**30
        command = f"{self._choices}python -m benchmarks {self._name}{' --tiny' * self._tiny}"
        head = [
            f"command: {command}",
            f"begun: {self._date:%Y-%m-%d %H:%M} UTC, {seconds:.0f} s",
            f"commit: {_commit()}",
            f"machine: {machine()}, {memory:.0f} GiB, {platform.system()} {platform.release()}",
            # Other load on the machine: if it was below 0.5 before a run, the machine was quiet.
            f"load average: {self._load:.2f} before, {psutil.getloadavg()[0]:.2f} after",
            f"python {platform.python_version()}, {', '.join(_versions())}",
        ]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self._name}.txt").write_text("\n".join([*head, "", text, ""]))


def _choices() -> str:
    """Return the assignments before the command; for a folder, only that it was set."""
    chosen = {k: v for k, v in sorted(os.environ.items()) if k.startswith(CHOICES)}
    return "".join(f"{k}={'FOLDER' if os.path.isabs(v) else v} " for k, v in chosen.items())


def _commit() -> str:
    where = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=where, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _versions() -> list[str]:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
