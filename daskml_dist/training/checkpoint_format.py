"""Format of a checkpoint's file: a state and facts, as an archive of plain arrays and JSON.

Reading one believes nothing that the file says of itself. Members are stored as they are, so none
unfolds to more than the file has bytes; an array has as many bytes as its header announces; and
what comes out is a state that a fit can go on from, or an error.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from daskml_dist._version import __version__
from daskml_dist.errors import CheckpointError
from daskml_dist.ps.shard_state import ShardState

__all__ = ["DamagedError", "decode", "decode_any", "decode_log", "encode", "is_count", "is_number"]

_FORMAT = 2
#: Arrays of a file at most: parameters, average, facts, and an optimizer's state.
_MOST_ARRAYS = 64
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class DamagedError(CheckpointError):
    """A file is cut short, was changed, or never was a checkpoint."""


def encode(state: ShardState | NDArray[np.uint8], facts: dict[str, Any]) -> bytes:
    """The file of a state, or of the log of a round solver, with facts that JSON can hold."""
    if isinstance(state, np.ndarray):
        return _file({"log": state}, facts)
    arrays: dict[str, Any] = {
        "w": state.w,
        **{f"slot_{name}": slot for name, slot in state.opt_state.items()},
    }
    if state.average is not None:
        arrays["average"] = state.average
    course = {"step": state.step, "rows_seen": state.rows, "n_averaged": state.n_averaged}
    return _file(arrays, {**facts, **course})


def _file(arrays: dict[str, Any], facts: dict[str, Any]) -> bytes:
    facts = {
        **facts,
        "format": _FORMAT,
        "written_by": __version__,
        "checksums": _checksums(arrays),
    }
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.array(json.dumps(facts)), **arrays)
    return buffer.getvalue()


def decode(data: bytes, name: str) -> tuple[ShardState, dict[str, Any]]:
    """State and facts of the file `name`.

    Raises
    ------
    DamagedError
        It is not whole, or holds no state.
    CheckpointError
        It has another format version, or is of a round solver.
    """
    state, facts = decode_any(data, name)
    if not isinstance(state, ShardState):
        raise CheckpointError(
            f"{name} is of a fit by a round solver. Name another file, or set resume=False to "
            "begin anew."
        )
    return state, facts


def decode_log(data: bytes, name: str) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Log of a round solver, and facts, of the file `name`.

    Raises
    ------
    DamagedError, CheckpointError
        As :func:`decode`; it is of a fit by steps.
    """
    log, facts = decode_any(data, name)
    if isinstance(log, ShardState):
        raise CheckpointError(
            f"{name} is of a fit by steps. Name another file, or set resume=False to begin anew."
        )
    return log, facts


def decode_any(data: bytes, name: str) -> tuple[ShardState | NDArray[np.uint8], dict[str, Any]]:
    """State, or log of a round solver, and facts of the file `name`.

    Raises
    ------
    DamagedError
        It is not whole, or holds no state.
    CheckpointError
        It has another format version.
    """
    try:
        arrays = {key: _array(content) for key, content in _members(data).items()}
        facts = json.loads(str(arrays.pop("facts")))
        found = facts["format"]
    except Exception as error:
        # Not NumPy's words: they offer to load a strange file with pickle.
        raise DamagedError(
            f"{name} is no whole checkpoint: it is cut short, was changed, or holds something "
            f"else ({type(error).__name__})."
        ) from error
    if found != _FORMAT:
        raise CheckpointError(
            f"The checkpoint {name} has format {found!r}, written by daskml_dist "
            f"{facts.get('written_by', '0.1.0')}; this version reads format {_FORMAT}. Go on "
            "with that version, or set resume=False to begin anew."
        )
    if _checksums(arrays) != facts.get("checksums"):
        raise DamagedError(f"{name} is no whole checkpoint: an array's checksum is wrong.")
    if arrays.keys() == {"log"} and arrays["log"].dtype == np.uint8:
        return arrays["log"], facts
    if problem := _problem(arrays, facts):
        raise DamagedError(f"{name} is no whole checkpoint: {problem}.")
    opt_state = {
        key.removeprefix("slot_"): array for key, array in arrays.items() if key.startswith("slot_")
    }
    state = ShardState(
        arrays["w"], opt_state, facts["step"], facts["rows_seen"],
        arrays.get("average"), facts["n_averaged"],
    )  # fmt: skip
    return state, facts


def _members(data: bytes) -> dict[str, bytes]:
    """The members of an archive; none is larger than what it takes in the file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        stored = all(
            m.compress_type == zipfile.ZIP_STORED and m.file_size == m.compress_size
            for m in members
        )
        if not stored or sum(m.file_size for m in members) > len(data):
            raise ValueError("members that unfold")
        names = {m.filename.removesuffix(".npy") for m in members}
        if not len(names) == len(members) <= _MOST_ARRAYS:
            raise ValueError("other members than a checkpoint's")
        return {m.filename.removesuffix(".npy"): archive.read(m) for m in members}


def _array(content: bytes) -> NDArray[Any]:
    """The array of a member, which has as many bytes as it announces."""
    stream = io.BytesIO(content)
    shape, by_columns, dtype = _HEADERS[npy.read_magic(stream)](stream)
    start = stream.tell()
    # Parameters are floats, the facts text, and the log of a round solver bytes.
    if dtype.kind not in "fUu" or math.prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError("no array of a checkpoint")
    flat = np.frombuffer(content, dtype, offset=start)
    return flat.reshape(shape, order="F" if by_columns else "C").copy(order="K")


def _problem(arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> str:
    """Reason that arrays and facts are no state; empty where they are."""
    w, average = arrays.get("w"), arrays.get("average")
    if w is None or w.ndim != 2 or w.dtype.kind != "f":
        return "it has no parameters"
    for key, array in arrays.items():
        if array.dtype != w.dtype or array.shape[:1] != w.shape[:1]:
            return f"{key} does not belong to its parameters"
        if np.isnan(array).any() or (key in ("w", "average") and np.isinf(array).any()):
            return f"{key} is not finite"
    if average is not None and average.shape != w.shape:
        return "its average has another shape than its parameters"
    if not (is_count(facts.get("step")) and is_count(facts.get("n_averaged"))):
        return "its steps are no numbers of steps"
    if average is None and facts["n_averaged"]:
        return "it has no average"
    rows: Any = facts.get("rows_seen")
    if not (is_number(rows) and 0 <= rows < math.inf):
        return "its rows are no number of rows"
    return ""


def is_count(value: Any) -> bool:
    """Whether a fact is a number of things."""
    return type(value) is int and 0 <= value < 1 << 63


def is_number(value: Any) -> bool:
    """Whether a fact is a number, infinity included."""
    return type(value) in (int, float) and not math.isnan(value)


def _checksums(arrays: dict[str, NDArray[Any]]) -> dict[str, str]:
    return {
        name: f"{array.dtype.str} {array.shape} {zlib.crc32(np.ascontiguousarray(array).data):08x}"
        for name, array in arrays.items()
    }
