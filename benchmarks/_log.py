"""Raw logs of benchmarks: what was run, on which machine, with which versions, and its text."""

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

#: Packages whose versions a log holds, where they are installed.
PACKAGES = (
    "numpy", "scipy", "numba", "dask", "distributed", "scikit-learn", "pandas", "pyarrow",
    "cupy-cuda12x", "dask-ml", "faiss-cpu", "implicit", "lightgbm", "mpi4py", "pyspark", "skorch",
    "torch", "vowpalwabbit", "xgboost", "xgboost-cpu", "opacus", "dp-accounting", "shap", "mapie",
    "crepes",
)  # fmt: skip
#: Variables that choose what a benchmark does.
CHOICES = ("DASKML_DIST_", "NETWORKS", "OMP_NUM_THREADS")


class RunLog:
    """One run of a benchmark, from its start on."""

    def __init__(self, name: str, tiny: bool) -> None:
        self._name, self._tiny = name, tiny
        self._begin, self._load = time.perf_counter(), psutil.getloadavg()[0]
        # Clusters leave variables of their workers behind.
        self._choices = _choices()
        self._date = datetime.datetime.now(datetime.UTC)

    def write(self, folder: Path, text: str) -> None:
        """Write FOLDER/NAME.txt; a log of an earlier run is replaced."""
        seconds = time.perf_counter() - self._begin
        memory = psutil.virtual_memory().total / 2**30
        command = f"{self._choices}python -m benchmarks {self._name}{' --tiny' * self._tiny}"
        head = [
            f"command: {command}",
            f"begun: {self._date:%Y-%m-%d %H:%M} UTC, {seconds:.0f} s",
            f"commit: {_commit()}",
            f"machine: {machine()}, {memory:.0f} GiB, {platform.system()} {platform.release()}",
            # Other work on the machine: below 0.5 before a run it was quiet.
            f"load average: {self._load:.2f} before, {psutil.getloadavg()[0]:.2f} after",
            f"python {platform.python_version()}, {', '.join(_versions())}",
        ]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self._name}.txt").write_text("\n".join([*head, "", text, ""]))


def _choices() -> str:
    """Assignments before the command; of a folder only that there was one."""
    told = {k: v for k, v in sorted(os.environ.items()) if k.startswith(CHOICES)}
    return "".join(f"{k}={'FOLDER' if os.path.isabs(v) else v} " for k, v in told.items())


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
