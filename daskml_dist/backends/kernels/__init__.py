"""CUDA kernels: their sources, compiler options and launch shapes.

Plain Python that needs neither CuPy nor a GPU. Each ``.cu`` file documents what it computes, and
the arguments of its kernels, in order; integers are passed as ``long long``, other numbers as
``double``, absent arrays as a null pointer. From CuPy these are Python's ints and floats, and 0 for
an array that is absent (None becomes another address, cupy/cupy#9046).

``python -m daskml_dist.backends.kernels.usage`` prints registers, shared memory and spills.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

__all__ = [
    "FUNCTIONS",
    "LARGEST_SHARED",
    "LOSSES",
    "N_STEP_VALUES",
    "TREE_LOSSES",
    "Launch",
    "has_kmeans_tiles",
    "launch",
    "optimizer_numbers",
    "options",
    "source",
]

#: The kernels of each source.
FUNCTIONS = {
    "gather_rows": ("gather_rows", "gather_csr_rows"),
    "linear_gradient": ("linear_gradient", "sum_partials"),
    "softmax_gradient": ("softmax_gradient",),
    "softmax_rows": ("softmax_rows",),
    "optimizer_updates": ("optimizer_update",),
    "csr_gradient": ("csr_gradient", "csr_clear"),
    "csr_adagrad": ("csr_adagrad",),
    "kmeans": ("kmeans",),
    "kmeans_tiles": ("kmeans_tiles",),
    "tree_bins": ("tree_bins", "tree_reach"),
    "tree_gradients": ("tree_gradients", "tree_quantise"),
    "tree_histograms": ("tree_histograms",),
    "tree_partition": ("tree_count", "tree_scan", "tree_part", "tree_back", "tree_answer"),
    "tree_splits": ("tree_splits", "tree_best"),
    "tree_predict": ("tree_predict",),
    "forest_lines": ("forest_count", "forest_draw", "forest_sums", "forest_part"),
    "forest_splits": ("forest_features", "forest_histograms", "forest_cuts", "forest_best"),
}

#: Names of the losses supported by the gradients of linear models.
# fmt: off
LOSSES = (
    "log_loss", "hinge", "squared_hinge", "modified_huber", "perceptron", "squared_error",
    "huber", "epsilon_insensitive", "squared_epsilon_insensitive", "quantile", "poisson", "gamma",
)
# fmt: on

#: Names of the losses supported by the gradients of boosting, in the order of tree_gradients.cu.
TREE_LOSSES = (
    "squared_error", "absolute_error", "quantile", "poisson", "gamma", "binomial", "multinomial",
)  # fmt: skip

#: Cached launches and options: a launch takes a few microseconds, but computing its shape takes
#: ten.
_MAX_CACHED_ANSWERS = 4096

#: Number of values that describe an optimizer's step, see :func:`optimizer_numbers`.
N_STEP_VALUES = 10

#: Threads of a block, unless a kernel's layout chooses differently, and its warps of 32 threads.
#: Eight warps give the scheduler a choice, and leave each multiprocessor room for several blocks.
_THREADS_PER_BLOCK = 256
_WARPS_PER_BLOCK = _THREADS_PER_BLOCK // 32
#: CUDA types by dtype; `Half` and `Bfloat16` are defined in numbers.cuh.
_CUDA_FLOATS = {"float32": "float", "float64": "double", "float16": "Half", "bfloat16": "Bfloat16"}
_CUDA_INTEGERS = {"int32": "int", "int64": "long long"}
#: Loads of a lane from one row, rounded up to one of these so that few versions are compiled.
_CHUNK_CHOICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: Maximum bytes of sums that a lane keeps in registers; its row can take as much again.
_SUM_BYTES = 256
#: Bytes of the widest load of a lane.
_LOAD_BYTES = 16
#: Rows in flight: bytes that a lane loads before it uses the first one.
_LOADED_BYTES = 128
#: Registers per thread for a block that has a multiprocessor alone.
_BLOCK_REGISTERS = 65536 // _THREADS_PER_BLOCK
#: Registers of a `softmax_rows` thread that hold 16-bit floats until they are converted.
_HALF_REGISTERS = 32
#: Maximum blocks of `linear_gradient` per multiprocessor: more leave too few registers for rows.
_MAX_BLOCKS = 4
#: Shared memory that a block has on every device by default.
_SHARED_BYTES = 48 * 1024
#: Shared memory that a block can request on every device from compute capability 8.0 on.
LARGEST_SHARED = 99 * 1024
#: Compute capability from which tensor cores support bfloat16.
_TENSOR_CORE_CAPABILITY = 80
#: Blocks of `kmeans_tiles` that fit in the registers of a multiprocessor, by groups of 8 centroids:
#: 8 products with the rows of a warp take 8 registers per lane.
_TILE_BLOCKS = {1: 4, 2: 4, 4: 3, 8: 2}
#: Warps of a block of `kmeans_tiles`, so that the registers of two hold the products of 64
#: centroids; columns of a step, and parts of a number; as in the source.
_TILE_WARPS, _TILE_STEP, _TILE_PARTS = 6, 16, 3
#: Rows of a block's tile, 32 per warp.
_TILE_ROWS = 32 * _TILE_WARPS
#: Maximum centroids of `kmeans_tiles`: their products with 32 rows fill half of a warp's registers.
_MAX_TILE_CENTROIDS = 64
#: Rows of X processed by a warp of `kmeans`.
_KMEANS_ROWS = 8
#: For kernels of trees: items per block, shared memory, blocks per multiprocessor.
_TREE_LAUNCHES = {
    "tree_bins": (1, 32 * 1024, 4),
    "tree_reach": (1, 32 * 1024, 4),
    "tree_gradients": (_THREADS_PER_BLOCK, 0, 8),
    "tree_quantise": (_THREADS_PER_BLOCK, 0, 8),
    "tree_count": (1, 4 * _WARPS_PER_BLOCK, 8),
    "tree_scan": (1, 4 * _THREADS_PER_BLOCK, 8),
    "tree_part": (1, 8 * _WARPS_PER_BLOCK, 8),
    "tree_back": (1, 0, 8),
    "tree_answer": (_THREADS_PER_BLOCK, 0, 8),
    "tree_histograms": (1, 32 * 1024, 6),
    "tree_splits": (_WARPS_PER_BLOCK, 3104 * _WARPS_PER_BLOCK, 8),
    "tree_best": (_WARPS_PER_BLOCK, 0, 8),
    "tree_predict": (_THREADS_PER_BLOCK, 0, 8),
    "forest_count": (_WARPS_PER_BLOCK, 0, 8),
    "forest_draw": (_WARPS_PER_BLOCK, 0, 8),
    "forest_sums": (_WARPS_PER_BLOCK, 0, 8),
    "forest_part": (_WARPS_PER_BLOCK, 0, 8),
    "forest_features": (_THREADS_PER_BLOCK, 0, 8),
    "forest_histograms": (_WARPS_PER_BLOCK, 0, 8),
    "forest_cuts": (_WARPS_PER_BLOCK, 0, 8),
    "forest_best": (_WARPS_PER_BLOCK, 0, 8),
}


@dataclass(frozen=True)
class Launch:
    """Launch of a kernel.

    Attributes
    ----------
    grid : int
        Blocks, in one dimension.
    block : tuple of int
        Threads of a block, in two dimensions.
    shared : int
        Bytes of dynamic shared memory of a block.
    """

    grid: int
    block: tuple[int, int]
    shared: int


@dataclass(frozen=True)
class _Teams:
    """Layout of rows on the lanes of a warp; named as in linear_gradient.cu."""

    vector: int
    lanes: int
    chunks: int
    rows: int
    threads: int
    blocks: int


def source(name: str) -> str:
    """Return the CUDA C++ text of a source, with its includes inlined."""
    included: set[str] = set()

    def read(file: str) -> str:
        text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
        included.add(file)
        lines = []
        for number, line in enumerate(text.splitlines(), 1):
            include = re.fullmatch(r'#include "(.*)"', line)
            # NVRTC gets one text: includes are inlined, once each, with #line for its messages.
            if include is None:
                lines.append("" if line == "#pragma once" else line)
            elif include[1] not in included:
                lines += [read(include[1]), f'#line {number + 1} "{file}"']
        return f'#line 1 "{file}"\n' + "\n".join(lines)

    return read(f"{name}.cu") + "\n"


@functools.lru_cache(_MAX_CACHED_ANSWERS)
def options(
    name: str,
    dtype: Any,
    *,
    d: int = 1,
    k: int = 1,
    loss: str = "squared_error",
    optimizer: str = "sgd",
    result: Any = "float64",
    index: Any = "int32",
    alignment: int = 16,
    capability: int = 90,
) -> tuple[str, ...]:
    """Return the options for NVRTC, except the architecture's."""
    stored = _dtype_name(dtype)
    arithmetic = _arithmetic_name(stored)
    macros = {
        "STORED": _CUDA_FLOATS[stored],
        "ARITHMETIC": _CUDA_FLOATS[arithmetic],
        "RESULT": _CUDA_FLOATS[_dtype_name(result)],
        "INDEX": _CUDA_INTEGERS[_dtype_name(index)],
    }
    flags: tuple[str, ...] = ("--std=c++17",)
    if name == "linear_gradient":
        # The layout is compiled in: loops over it are unrolled.
        teams = _plan_teams(d, stored, alignment, capability)
        if teams is None:
            raise ValueError(f"no kernel for rows of {d} features in {stored}")
        macros |= {key.upper(): str(value) for key, value in vars(teams).items()}
    elif name == "softmax_rows":
        softmax = _plan_softmax_teams(d, k, stored, alignment, capability)
        if softmax is None:
            raise ValueError(f"no kernel for rows of {d} features in {stored} and {k} classes")
        macros |= {key.upper(): str(value) for key, value in vars(softmax[0]).items()}
        macros |= {"CLASSES": str(k), "PADDED": str(_next_power_of_two(k))}
        macros["SPREAD"] = str(int(softmax[1] > 1))
    elif name == "softmax_gradient":
        macros["LANES"] = str(_softmax_lanes(k))
    elif name == "optimizer_updates":
        macros["OPTIMIZER"] = optimizer
        flags = (*flags, "--fmad=false")  # for NumPy's results
    elif name.startswith(("tree_", "forest_")):
        flags = (*flags, "--fmad=false")  # for the results of the CPU's loops
    elif name == "kmeans":
        macros["CENTROIDS"] = str(_centroids(k))
        macros["SHARED"] = str(int(_kmeans_shared_bytes(d, k, arithmetic)[1]))
    elif name == "kmeans_tiles":
        macros |= {
            "EIGHTS": str(_centroid_groups(k)),
            "BLOCKS": str(_TILE_BLOCKS[_centroid_groups(k)]),
        }
    if "gradient" in name and name not in ("softmax_gradient", "tree_gradients"):
        if loss not in LOSSES:
            raise ValueError(f"loss={loss!r}: use one of {LOSSES}")
        macros["LOSS"] = loss
    return (*flags, *(f"-D{key}={value}" for key, value in macros.items()))


@functools.lru_cache(_MAX_CACHED_ANSWERS)
def launch(
    function: str,
    n: int,
    d: int,
    dtype: Any,
    n_sms: int,
    *,
    k: int = 1,
    alignment: int = 16,
    capability: int = 90,
) -> Launch | None:
    """Return the launch of a kernel; None if there is no version for such rows."""
    stored = _dtype_name(dtype)
    arithmetic = _arithmetic_name(stored)
    threads, shared, most = (_THREADS_PER_BLOCK, 1), 0, 8 * n_sms
    if function == "linear_gradient":
        teams = _plan_teams(d, stored, alignment, capability)
        if teams is None:
            return None
        threads, warps = (teams.threads, 1), teams.threads // 32
        columns = teams.lanes * teams.chunks * teams.vector
        shared = 2 * 8 * warps + columns * np.dtype(arithmetic).itemsize
        # Several rounds for each warp, so that small batches do not mainly write partial sums.
        rows = 4 * warps * (32 // teams.lanes) * teams.rows
        most = teams.blocks * n_sms
    elif function == "sum_partials":
        threads = (32, 16)
        return Launch(-(-(d + 2) // 32), threads, 8 * threads[0] * threads[1])
    elif function == "softmax_rows":
        softmax = _plan_softmax_teams(d, k, stored, alignment, capability)
        if softmax is None:
            return None
        teams, spans = softmax
        shared = _softmax_shared_bytes(teams, k, np.dtype(arithmetic).itemsize, spans)
        rows = 4 * (_WARPS_PER_BLOCK // spans) * (32 // teams.lanes) * teams.rows
        most = teams.blocks * n_sms
    elif function == "softmax_gradient":
        rows = _THREADS_PER_BLOCK // _softmax_lanes(k)
    elif function in ("optimizer_update", "csr_clear"):
        rows = _THREADS_PER_BLOCK
    elif function in ("gather_rows", "gather_csr_rows", "csr_gradient", "csr_adagrad"):
        rows = _WARPS_PER_BLOCK
    elif function == "kmeans":
        shared, _ = _kmeans_shared_bytes(d, k, arithmetic)
        rows, most = _WARPS_PER_BLOCK * _KMEANS_ROWS, 2 * n_sms
    elif function == "kmeans_tiles":
        threads, shared = (32 * _TILE_WARPS, 1), _tiles_shared_bytes(d, k)
        blocks = min(_TILE_BLOCKS[_centroid_groups(k)], max(1, 2 * LARGEST_SHARED // shared))
        rows, most = _TILE_ROWS, blocks * n_sms
    elif function in _TREE_LAUNCHES:
        rows, shared, blocks = _TREE_LAUNCHES[function]
        most = blocks * n_sms
        if function == "tree_gradients":
            shared = 8 * k
    else:
        raise ValueError(f"function={function!r}: use one of {FUNCTIONS}")
    return Launch(max(1, min(most, -(-n // rows))), threads, shared)


def has_kmeans_tiles(
    d: int, k: int, dtype: Any, *, alignment: int = 16, capability: int = _TENSOR_CORE_CAPABILITY
) -> bool:
    """Return whether `kmeans_tiles` supports such rows; `kmeans` is used for others."""
    is_laid_out = _dtype_name(dtype) == "float32" and d % 4 == 0 and alignment >= 16
    fits = k <= _MAX_TILE_CENTROIDS and _tiles_shared_bytes(d, k) <= LARGEST_SHARED
    return is_laid_out and fits and capability >= _TENSOR_CORE_CAPABILITY


def optimizer_numbers(optimizer: Any, rows: float, lr: float, step: int) -> tuple[float, ...]:
    """Return the `N_STEP_VALUES` arguments of `optimizer_update` that change from step to step."""
    decay = optimizer.weight_decay if optimizer.name == "adamw" else 0.0
    coefficients = optimizer.coefficients(step)[: N_STEP_VALUES - 3]
    padded = (rows, lr, decay, *coefficients, *(0.0,) * (N_STEP_VALUES - 3 - len(coefficients)))
    return tuple(float(number) for number in padded)


def _dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, also of bfloat16, which NumPy lacks."""
    return "bfloat16" if str(dtype) == "bfloat16" else np.dtype(dtype).name


def _arithmetic_name(stored: str) -> str:
    """Return the dtype in which kernels compute with stored numbers."""
    return "float64" if stored == "float64" else "float32"


def _next_power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def _plan_teams(d: int, stored: str, alignment: int, capability: int = 90) -> _Teams | None:
    """Return how lanes of a warp share rows of d features; None for rows that are too wide."""
    itemsize = 2 if stored == "bfloat16" else np.dtype(stored).itemsize
    sum_size = np.dtype(_arithmetic_name(stored)).itemsize
    vector = max(1, min(_LOAD_BYTES, alignment) // itemsize)
    while d % vector:
        vector //= 2
    loads = d // vector
    # A lane reads 16 bytes of a row or more: fewer lanes per row exchange fewer sums.
    lanes = min(
        32, _next_power_of_two(loads if vector * itemsize >= _LOAD_BYTES else -(-loads // 2))
    )
    chunks = next((c for c in _CHUNK_CHOICES if c * lanes >= loads), None)
    if d < 1 or chunks is None or chunks * vector * sum_size > _SUM_BYTES:
        return None
    loaded = chunks * vector * itemsize
    rows = min(8, lanes, max(1, _LOADED_BYTES // loaded))
    rows = 1 << (rows.bit_length() - 1)
    # Sums and rows stay in registers; the remaining registers are an estimate that keeps every
    # version from spilling, as tests/backends/test_kernels.py checks.
    registers = (1 + rows) * chunks * vector * sum_size // 4 + (28 if sum_size == 4 else 40)
    if itemsize == 2 and vector in (1, 8):  # half-word loads, or eight conversions together
        registers += 4
    if capability >= 100:  # its compiler needs two fifths more
        registers += registers * 2 // 5
    # If an odd number of half-sized blocks fits, use these: whole blocks would waste one half.
    halves = max(2, min(2 * _MAX_BLOCKS, 2 * _BLOCK_REGISTERS // registers))
    threads, blocks = (
        (_THREADS_PER_BLOCK // 2, halves) if halves % 2 else (_THREADS_PER_BLOCK, halves // 2)
    )
    return _Teams(vector, lanes, chunks, rows, threads, blocks)


def _plan_softmax_teams(
    d: int, k: int, stored: str, alignment: int, capability: int
) -> tuple[_Teams, int] | None:
    """Return the layout of `softmax_rows`, and the warps that share a row: 1, or the block's."""
    teams = _plan_teams(d, stored, alignment, capability)
    if teams is None or k < 2:
        return None
    narrow = _plan_softmax_rows(teams, k, stored, capability)
    # Over a whole block, if at least half of its lanes have columns and one warp has too few
    # registers.
    vector = min(teams.vector, 4)
    loads = -(-d // vector)
    if 2 * loads >= _THREADS_PER_BLOCK and (narrow is None or narrow.blocks == 1):
        spread = replace(teams, vector=vector, lanes=32, chunks=-(-loads // _THREADS_PER_BLOCK))
        wide = _plan_softmax_rows(spread, k, stored, capability, _WARPS_PER_BLOCK)
        if wide is not None:
            return wide, _WARPS_PER_BLOCK
    return None if narrow is None else (narrow, 1)


def _plan_softmax_rows(
    teams: _Teams, k: int, stored: str, capability: int, spans: int = 1
) -> _Teams | None:
    """Return the layout with the most rows together that allows two blocks, or else one."""
    n_words = np.dtype(_arithmetic_name(stored)).itemsize // 4
    entries = teams.chunks * teams.vector
    for rows, blocks in ((4, 2), (2, 2), (4, 1), (2, 1), (1, 1)):
        # Sums for all classes; rows and their products with w; a lane's share of a row's classes.
        n_sums = max(1, _next_power_of_two(k) * rows // teams.lanes)
        registers = n_words * (k * entries + rows * (entries + k) + 2 * n_sums)
        registers += 28 if n_words == 1 else 44
        if capability >= 100:
            registers += registers * 2 // 5
        # 16-bit floats wait for conversion, if a block has all registers for itself.
        if blocks == 1 and stored in ("float16", "bfloat16"):
            registers += _HALF_REGISTERS
        if rows <= teams.lanes and registers <= _BLOCK_REGISTERS // blocks:
            layout = replace(teams, rows=rows, threads=_THREADS_PER_BLOCK, blocks=blocks)
            if _softmax_shared_bytes(layout, k, 4 * n_words, spans) <= _SHARED_BYTES:
                return layout
    return None


def _softmax_shared_bytes(teams: _Teams, k: int, size: int, spans: int) -> int:
    """Return the bytes of shared memory of `softmax_rows`, array by array as in the source."""
    padded = _next_power_of_two(k)
    doubles = 8 * (_WARPS_PER_BLOCK + _WARPS_PER_BLOCK * padded)
    columns = spans * teams.chunks * k * teams.lanes * teams.vector
    slopes = _WARPS_PER_BLOCK * (32 // teams.lanes) * teams.rows * (-(-k // 4) * 4)
    shares = 2 * _WARPS_PER_BLOCK * teams.rows * padded if spans > 1 else 0
    return doubles + size * (columns + slopes + padded + shares)


def _softmax_lanes(k: int) -> int:
    """Return the number of lanes of a warp that share a row of k raw predictions."""
    return min(32, _next_power_of_two(k))


def _centroids(k: int) -> int:
    """Return the number of centroids that each lane of a warp compares with a row."""
    return min(4, -(-k // 32))


def _kmeans_shared_bytes(d: int, k: int, arithmetic: str) -> tuple[int, bool]:
    """Return the bytes of shared memory, and whether it includes the sums."""
    size = np.dtype(arithmetic).itemsize
    tile = 32 * (32 * _centroids(k) + 1) * size
    sums = k * (d + 1) * size
    return (tile + sums, True) if tile + sums <= _SHARED_BYTES else (tile, False)


def _centroid_groups(k: int) -> int:
    """Return the groups of 8 centroids of `kmeans_tiles`, rounded to compile few versions."""
    return _next_power_of_two(-(-k // 8))


def _tiles_shared_bytes(d: int, k: int) -> int:
    """Return the bytes of shared memory of `kmeans_tiles`, array by array as in the source."""
    steps, eights = -(-d // _TILE_STEP), _centroid_groups(k)
    shift, halves_and_counts, sums = 4 * steps * _TILE_STEP, 2 * 4 * 8 * eights, 4 * k * d
    labels, lists = 4 * _TILE_ROWS, _TILE_WARPS * _TILE_ROWS
    factor = 8 * _TILE_PARTS * steps * eights * 32
    return shift + halves_and_counts + sums + labels + lists + factor
