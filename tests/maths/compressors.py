"""Compressors of the package and a custom one, and their promised sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.compression import (
    COMPRESSORS,
    Compressor,
    Packed,
    get_compressor,
)
from daskml_dist.policies import POLICIES

COMPRESSING = [name for name, policy in POLICIES.items() if policy().compresses]


class Signs(Compressor):
    """Custom compressor: signs and the mean absolute value (1-bit SGD with one scale)."""

    def compress(self, array: NDArray[Any]) -> Packed:
        size = np.abs(array).mean() if len(array) else 0.0
        return Packed((np.array([size], array.dtype), np.packbits(array > 0)))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        (size,), bits = packed.arrays
        out[:] = np.where(np.unpackbits(bits, count=len(out)), size, -size)


ALL: list[Any] = [*COMPRESSORS, Signs()]


def policies_of(compression: Any) -> list[str]:
    """Return the policies that support a compressor."""
    compressor = get_compressor(compression)
    assert compressor is not None
    return [
        name
        for name in COMPRESSING
        if (name == "allreduce" or not compressor.needs_allreduce)
        and (name != "average" or compressor.keeps_all_entries)
    ]


#: Bytes of a compressed vector divided by those of the vector.
PROMISED = {
    ("fp16", "float32"): 1 / 2,
    ("fp16", "float64"): 1 / 4,
    ("8bit", "float32"): 1 / 4 + 1 / 256,
    ("8bit", "float64"): 1 / 8 + 1 / 256,
    ("4bit", "float32"): 1 / 8 + 1 / 64,
    ("4bit", "float64"): 1 / 16 + 1 / 64,
    ("1bit", "float32"): 1 / 32 + 1 / 1024,
    ("1bit", "float64"): 1 / 64 + 1 / 1024,
    ("topk", "float32"): 0.01 * 2,
    ("topk", "float64"): 0.01 * 1.5,
}
