"""CUDA kernels on the host: compiled by g++ with `cuda_emulation.h`, run on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_backend import CupyBackend
from tests.shared_builds import build_once

PROBLEMS = {1: "not all threads reach a barrier", 2: "shared memory overrun", 3: "undefined"}


def _compile(*arguments):
    checks = "-fsanitize=alignment,bounds,signed-integer-overflow"
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        "-ffp-contract=off",
        "-U_FORTIFY_SOURCE",
        "-fPIC",
        "-Wno-unknown-pragmas",
        checks,
        *arguments,
    ]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@functools.cache
def _header():
    """Return the emulation's header; g++ prefers a compiled header beside it."""
    text = Path(__file__).with_name("cuda_emulation.h").read_text(encoding="utf-8")
    header = build_once("cuda_emulation.h", lambda path: path.write_text(text, encoding="utf-8"))
    build_once(f"{header.name}.gch", lambda path: _compile("-x", "c++-header", header, "-o", path))
    return header


def library_of(text, options):
    """Return the library of a source text; one session of the test run compiles it."""
    text = f'#include "{_header()}"\n{text}'
    defines = [option for option in options if option.startswith("-D")]
    name = hashlib.sha256("\n".join([*defines, text]).encode()).hexdigest()

    def compile_library(path):
        source = path.with_suffix(".cpp")
        source.write_text(text, encoding="utf-8")
        _compile("-shared", *defines, source, "-o", path)

    return ctypes.CDLL(str(build_once(f"{name}.so", compile_library)))


def build(name, options):
    """Return the source compiled for the host; the first thread that needs it compiles it."""
    with _BUILDING:
        return _built(name, options)


@functools.cache
def _built(name, options):
    entries = "".join(
        f'extern "C" int run_{function}(unsigned grid, unsigned x, unsigned y, size_t shared_bytes,'
        " void **arguments) {\n"
        f"    return emulation::launch({function}, grid, x, y, shared_bytes, arguments);\n}}\n"
        for function in kernels.FUNCTIONS[name]
    )
    return library_of(kernels.source(name) + entries, options)


def run(library, function, launch, *arguments):
    """Launch a kernel with arrays, None for a null pointer, ints and floats."""
    values = []
    for argument in arguments:
        if argument is None or isinstance(argument, np.ndarray):
            values.append(ctypes.c_void_p(None if argument is None else argument.ctypes.data))
        elif isinstance(argument, float):
            values.append(ctypes.c_double(argument))
        else:
            values.append(ctypes.c_longlong(argument))
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    sizes = (launch.grid, *launch.block, ctypes.c_size_t(launch.shared))
    problem = getattr(library, f"run_{function}")(*sizes, pointers)
    assert problem == 0, PROBLEMS[problem]


_BUILDING = threading.Lock()
#: The blocks and threads of the emulation are global variables.
_ONE_AT_A_TIME = threading.Lock()


class EmulatedCupy(CupyBackend):
    """The GPU backend's own code, on NumPy, SciPy and emulated kernels."""

    def __init__(self) -> None:
        super().__init__(_NUMPY_AS_CUPY, sparse)

    @staticmethod
    def _address(array: Any) -> int:
        return array.ctypes.data

    @staticmethod
    def _empty_pinned(n_bytes: int, dtype: Any) -> Any:
        return np.empty(n_bytes, dtype)


class _Device:
    """A small GPU."""

    id = 0
    attributes: ClassVar = {"MultiProcessorCount": 2}
    compute_capability = "80"
    #: Free bytes, and total bytes.
    mem_info = 1 << 30, 1 << 31


class _Graph:
    """Launches that were recorded."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def launch(self) -> None:
        for launch in self.launches:
            launch()


class _Stream:
    """Recorder of the launches of its thread between two calls."""

    #: Recordings that have begun and not yet ended.
    open: ClassVar = threading.local()

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking  # otherwise the default stream's work would be lost, or refused

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        assert getattr(self.open, "graph", None) is None

    def begin_capture(self) -> None:
        self.open.graph = _Graph()

    def end_capture(self) -> _Graph:
        graph, self.open.graph = self.open.graph, None
        return graph


class _NumpyAsCupy:
    """NumPy with additional functions of CuPy."""

    cuda = SimpleNamespace(
        Device=_Device,
        Stream=_Stream,
        get_current_stream=lambda: SimpleNamespace(ptr=0, synchronize=lambda: None),
        runtime=SimpleNamespace(
            memcpyAsync=lambda to, source, size, kind, stream: ctypes.memmove(to, source, size),
            memcpyHostToDevice=1,
        ),
    )

    @staticmethod
    def get_default_memory_pool() -> Any:
        return SimpleNamespace(free_bytes=lambda: 0)

    def __getattr__(self, name: str) -> Any:
        assert getattr(_Stream.open, "graph", None) is None, f"{name} while kernels are recorded"
        return np.asarray if name == "asnumpy" else getattr(np, name)

    @staticmethod
    def RawModule(code: str, options: tuple[str, ...]) -> Any:
        (name,) = (n for n in kernels.FUNCTIONS if kernels.source(n) == code)
        return _Module(build(name, options))


_NUMPY_AS_CUPY = _NumpyAsCupy()


class _Module:
    """Functions of a library as CuPy launches them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def get_function(self, name: str) -> Any:
        loaded = False

        def launch(grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
            nonlocal loaded
            at = kernels.Launch(*grid, block, shared_mem)

            def now() -> None:
                with _ONE_AT_A_TIME:
                    run(self._library, name, at, *arguments)

            graph = getattr(_Stream.open, "graph", None)
            if graph is None:
                loaded = True
                now()
            else:
                assert loaded, f"{name} is loaded while kernels are recorded"
                graph.launches.append(now)

        return launch
