"""Tools to measure GPUs: arrays on the GPU, its clock, and facts about it."""

from __future__ import annotations

import gc
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from daskml_dist.backends import get_backend, kernels

#: Smallest number of seconds of one timing, so that short kernels are called many times.
_LASTS = 5e-3
#: Seconds of work after which the clocks of an idle GPU have risen.
_WAKES = 0.5


class Device:
    """The GPU that is current in this thread; CuPy is imported when an object is made."""

    def __init__(self, tiny: bool) -> None:
        import cupy

        self.xp: Any = cupy
        self.backend = get_backend("gpu")
        self.tiny = tiny
        self._copy: float | None = None
        self._functions: dict[tuple[str, int], Any] = {}
        self._n_sms = int(cupy.cuda.Device().attributes["MultiProcessorCount"])

    def milliseconds(self, work: Callable[[], Any]) -> float:
        """Return the median time of a call on the GPU's own clock, after two calls to warm up."""
        work()
        times = max(1, int(_LASTS * 1e3 / max(self._together(work, 1), 1e-3)))
        return statistics.median(self._together(work, times) / times for _ in range(5))

    def _together(self, work: Callable[[], Any], times: int) -> float:
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end))

    @property
    def copy_bandwidth(self) -> float:
        """Return the bytes per second that a copy within the device's memory reads and writes."""
        if self._copy is None:
            source = self.xp.ones((1 << 20) if self.tiny else (1 << 29), dtype="float32")
            target = self.xp.empty_like(source)
            until = time.perf_counter() + (0 if self.tiny else _WAKES)
            while time.perf_counter() < until:
                self.xp.copyto(target, source)
                self.synchronize()
            taken = self.milliseconds(lambda: self.xp.copyto(target, source))
            self._copy = 2 * source.nbytes / taken * 1e3
        return self._copy

    def call_overhead(self) -> float:
        """Return the host's microseconds for one call of CuPy on a few numbers."""
        a = self.xp.ones(4, dtype="float32")
        self.xp.add(a, a, out=a)  # compiles
        self.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            self.xp.add(a, a, out=a)
        taken = time.perf_counter() - start
        self.synchronize()
        return taken * 1e3

    def synchronize(self) -> None:
        self.xp.cuda.Device().synchronize()

    def free(self) -> None:
        """Free the memory of earlier cases' arrays, so that worker processes can use it."""
        gc.collect()
        self.xp.get_default_memory_pool().free_all_blocks()

    def rows(self, n: int, d: int, dtype: str = "float32") -> tuple[Any, Any]:
        """Return random rows of a logistic model and their targets (-1 or +1), on the GPU."""
        rng = self.xp.random.default_rng(0)
        X = rng.standard_normal((n, d), dtype=dtype)
        raw = X @ self.xp.linspace(-1, 1, d, dtype=dtype)
        y = self.xp.where(raw + rng.standard_normal(n, dtype=dtype) > 0, 1, -1).astype(dtype)
        return X, y

    def launch(
        self, function: str, dtype: str, n: int, d: int, *arguments: Any, **chosen: Any
    ) -> None:
        """Launch a kernel that no backend calls; its source file has its name."""
        if (function, d) not in self._functions:
            text, options = (
                kernels.source(function),
                kernels.options(function, dtype, d=d, **chosen),
            )
            module = self.xp.RawModule(code=text, options=options)
            self._functions[function, d] = module.get_function(function)
        at = kernels.launch(function, n, d, dtype, self._n_sms, **chosen)
        assert at is not None
        self._functions[function, d]((at.grid,), at.block, arguments, shared_mem=at.shared)


def _name(cupy: Any) -> str:
    runtime = cupy.cuda.runtime
    name: str = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
    return name


def _driver(cupy: Any) -> str:
    """Return the driver's version, from Linux, and CUDA's version."""
    file = Path("/sys/module/nvidia/version")
    own = f"{file.read_text().strip()}, " if file.exists() else ""
    return own + _version(cupy.cuda.runtime.driverGetVersion())


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _commit(cupy: Any) -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    return done.stdout.strip()


#: Facts about the measured machine; each is a function of CuPy.
FACTS: dict[str, Callable[[Any], str]] = {
    "GPU": _name,
    "driver, newest supported CUDA": _driver,
    "CUDA runtime": lambda cupy: _version(cupy.cuda.runtime.runtimeGetVersion()),
    "CuPy": lambda cupy: str(cupy.__version__),
    "PyTorch": lambda cupy: version("torch"),
    "commit": _commit,
}


@dataclass
class Measured:
    """One row of the table.

    Parameters
    ----------
    milliseconds : float or None
    read : int
        Bytes that must be moved: for rows, the bytes read; for a step of an optimizer, the bytes
        read and written.
    difference : str
        Difference from float64, or from the same fit on the CPU.
    value : str
        Text shown instead of a time.
    """

    milliseconds: float | None = None
    read: int = 0
    difference: str = ""
    value: str = ""

    def cells(self, copy_bandwidth: float) -> list[str]:
        if self.milliseconds is None:
            return [self.value, "", "", self.difference]
        time = f"{self.milliseconds:,.3f} ms"
        if not self.read:
            return [time, "", "", self.difference]
        rate = self.read / self.milliseconds * 1e3
        return [time, f"{rate / 1e9:,.0f}", f"{rate / copy_bandwidth:.0%}", self.difference]


def largest_difference(one: Any, other: Any) -> str:
    """Return the largest difference of two arrays, and the largest entry of the second."""
    one, other = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    return f"{np.abs(one - other).max() / max(np.abs(other).max(), 1e-300):.1e}"


#: Function that measures one row of the table.
Case = Callable[[Device], Measured]
