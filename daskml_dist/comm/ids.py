"""Ids, numbers or texts, as bytes that hold data alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import pack, unpack

__all__ = ["pack_ids", "unpack_ids"]

Array = NDArray[Any]


def pack_ids(some: Sequence[Array]) -> NDArray[np.uint8]:
    """Several arrays of ids as bytes; of objects, these are all str or all bytes."""
    arrays: list[Array] = []
    for ids in some:
        plain = ids.astype(object) if ids.dtype.kind in "SU" else ids
        if plain.dtype.kind == "O":
            arrays += _of_texts(plain.tolist())
        else:
            data = np.ascontiguousarray(plain).view(np.uint8)
            arrays += [_name(plain.dtype.str), np.empty(0, np.int64), data]
    return np.frombuffer(pack(arrays), np.uint8)


def _of_texts(texts: list[Any]) -> list[Array]:
    """Name, lengths and bytes of some texts."""
    is_bytes = bool(texts) and isinstance(texts[0], bytes)
    parts = texts if is_bytes else [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array([len(part) for part in parts], np.int64)
    data = np.frombuffer(b"".join(parts), np.uint8)
    return [_name("bytes" if is_bytes else "str"), lengths, data]


def _name(text: str) -> Array:
    return np.frombuffer(text.encode(), np.uint8)


def unpack_ids(packed: NDArray[np.uint8]) -> list[Array]:
    """Undo `pack_ids`; texts are objects."""
    arrays = unpack(packed)
    found: list[Array] = []
    for name, lengths, data in zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True):
        kind = name.tobytes().decode()
        if kind in ("str", "bytes"):
            found.append(_texts(data.tobytes(), lengths, kind))
        else:
            found.append(data.copy().view(kind))
    return found


def _texts(whole: bytes, lengths: Array, kind: str) -> Array:
    parts: list[Any] = [whole[a:b] for a, b in pairwise([0, *np.cumsum(lengths).tolist()])]
    texts = np.empty(len(parts), object)
    texts[:] = parts if kind == "bytes" else [p.decode("utf-8", "surrogatepass") for p in parts]
    return texts
