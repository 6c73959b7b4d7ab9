"""Registers, shared memory and spills of the kernels, from NVRTC, which needs no GPU.

``python -m daskml_dist.backends.kernels.usage`` prints the table of ``docs/kernels.md``. A kernel
that needs too many registers spills them to memory and is many times slower, without an error. A
test compiles the kernels for each architecture and compares the figures with bounds.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskml_dist.backends import kernels

#: Architectures of the table: Turing, Ampere, Hopper and Blackwell.
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")


@dataclass(frozen=True)
class KernelUsage:
    """Registers of a kernel's thread, and bytes of its stack frame and spills."""

    registers: int
    stack: int
    spills: int


@functools.cache
def compiler() -> Any | None:
    """Return the NVRTC library of the `nvidia-cuda-nvrtc` package, or None."""
    if importlib.util.find_spec("nvidia") is None:
        return None
    for folder in importlib.import_module("nvidia").__path__:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return ctypes.CDLL(str(path))
    return None


def usage(name: str, options: tuple[str, ...], architecture: str) -> dict[str, KernelUsage]:
    """Compile a source; return each kernel's registers, shared memory and spills."""
    nvrtc = compiler()
    if nvrtc is None:
        raise RuntimeError("NVRTC is not installed. pip install nvidia-cuda-nvrtc")
    program = ctypes.c_void_p()
    text = kernels.source(name).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None)
    # With -v, ptxas logs the usage of each kernel.
    every = [*options, f"-arch={architecture}", "--ptxas-options=-v"]
    arguments = (ctypes.c_char_p * len(every))(*(option.encode() for option in every))
    failed = nvrtc.nvrtcCompileProgram(program, len(every), arguments)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    messages = log.value.decode()
    if failed:
        raise RuntimeError(f"{name} {' '.join(every)}\n{messages}")
    return _parse(messages)


def _parse(log: str) -> dict[str, KernelUsage]:
    """Return the usage of each kernel from the log of ptxas."""
    usages = {}
    for part in log.split("Compiling entry function ")[1:]:
        name, *numbers = (
            re.search(pattern, part)[1]  # type: ignore[index]
            for pattern in (
                r"'(\w+)'",
                r"Used (\d+) registers",
                r"(\d+) bytes stack frame",
                r"(\d+) bytes spill stores",
                r"(\d+) bytes spill loads",
            )
        )
        registers, stack, stores, loads = map(int, numbers)
        usages[name] = KernelUsage(registers, stack, stores + loads)
    return usages


#: Rows of the table: source, dtype of X, features, classes or centroids. Widths on both sides of
#: each change of a kernel's layout.
_ROWS = (
    ("gather_rows", "float32", 1, 1),
    ("linear_gradient", "float32", 28, 1),
    ("linear_gradient", "float32", 100, 1),
    ("linear_gradient", "float32", 512, 1),
    ("linear_gradient", "float32", 513, 1),
    ("linear_gradient", "float32", 1024, 1),
    ("linear_gradient", "float32", 2048, 1),
    ("linear_gradient", "bfloat16", 512, 1),
    ("linear_gradient", "float16", 2048, 1),
    ("linear_gradient", "float64", 100, 1),
    ("linear_gradient", "float64", 1024, 1),
    ("softmax_gradient", "float32", 1, 10),
    ("softmax_rows", "float32", 100, 10),
    ("optimizer_updates", "float32", 1, 1),
    ("csr_gradient", "float32", 1, 1),
    ("csr_adagrad", "float32", 1, 1),
    ("kmeans", "float32", 100, 16),
    ("kmeans", "float32", 100, 64),
    ("kmeans", "float32", 100, 128),
    ("kmeans_tiles", "float32", 100, 64),
    ("tree_bins", "float32", 1, 1),
    ("tree_bins", "float64", 1, 1),
    ("tree_gradients", "float32", 1, 1),
    ("tree_histograms", "float32", 1, 1),
    ("tree_partition", "float32", 1, 1),
    ("tree_splits", "float32", 1, 1),
    ("tree_predict", "float32", 1, 1),
)


def _main() -> None:
    """Print the table, in Markdown."""
    heads = ("kernel", "X", "d", "k", "shared bytes", *ARCHITECTURES)
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, dtype, d, k in _ROWS:
        chosen = {"d": d, "k": k, "loss": "log_loss", "optimizer": "adam"}
        usages = {}
        for architecture in ARCHITECTURES:
            capability = int(architecture.removeprefix("sm_"))
            # Older tensor cores do not support bfloat16.
            if name == "kmeans_tiles" and not kernels.has_kmeans_tiles(
                d, k, dtype, capability=capability
            ):
                continue
            options = kernels.options(name, dtype, capability=capability, **chosen)
            usages[architecture] = usage(name, options, architecture)
        for function in kernels.FUNCTIONS[name]:
            # A million rows on an H100 (132 multiprocessors); shared memory depends on neither.
            launch = kernels.launch(function, 1 << 20, d, dtype, 132, k=k)
            assert launch is not None  # the rows above have versions
            cells = [
                f"{usages[arch][function].registers} / {usages[arch][function].spills}"
                if arch in usages
                else "none"
                for arch in ARCHITECTURES
            ]
            row = (f"`{function}`", dtype, str(d), str(k), str(launch.shared), *cells)
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    _main()
