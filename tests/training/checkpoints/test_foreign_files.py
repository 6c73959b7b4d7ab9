"""Untrusted files: impossible metadata, invalid states, pickles and zip bombs."""

from __future__ import annotations

import dataclasses
import io
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskml_dist.errors import CheckpointError
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training import checkpoint as module
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.history import RECORD_KEYS
from tests.training.checkpoints.saves import expect_refusal


def _replaced(saved: Checkpoint, state: ShardState | None = None, **facts: Any) -> None:
    """Rewrite a complete checkpoint with changed metadata or another state."""
    old, found = saved.load()
    path = Path(saved.path)
    path.write_bytes(module.encode_checkpoint(old if state is None else state, {**found, **facts}))


def _record(number: int, **changed: Any) -> dict[str, Any]:
    return {**dict.fromkeys(RECORD_KEYS, 1), "pass": number, **changed}


@pytest.mark.parametrize(
    ("match", "facts"),
    [
        ("passes=1000000000, and has records of 2", {"passes": 10**9}),
        ("says passes=-1", {"passes": -1}),
        ("says passes=None", {"passes": None}),
        ("says passes=2.0", {"passes": 2.0}),
        ("says seed='0'", {"seed": "0"}),
        ("says stale_passes=True", {"stale_passes": True}),
        ("says best=nan", {"best": float("nan")}),
        ("says best=None", {"best": None}),
        ("has no records", {"records": None}),
        ("has no records", {"records": [_record(1), {"pass": 2}]}),
        ("has no records", {"records": [_record(1), _record(2, loss="low")]}),
        ("other passes than the first", {"records": [_record(1), _record(3)]}),
        ("its classes is None", {"classes": None}),
        ("its shape is", {"shape": {}}),
    ],
)
def test_impossible_metadata_is_refused(
    saved: Checkpoint, match: str, facts: dict[str, Any]
) -> None:
    _replaced(saved, **facts)
    expect_refusal(saved, match + ".*set resume=False")


def _with_state(state: ShardState, **changed: Any) -> ShardState:
    return dataclasses.replace(state, **changed)


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("and .'accumulator'. is needed", lambda s: _with_state(s, opt_state={})),
        (
            "and .'accumulator'. is needed",
            lambda s: _with_state(s, opt_state={**s.opt_state, "more": s.w}),
        ),
        (
            "accumulator in the shape",
            lambda s: _with_state(s, opt_state={"accumulator": s.w.repeat(2, 1)}),
        ),
        (
            "parameters of shape",
            lambda s: _with_state(s, w=s.w[1:], opt_state={"accumulator": s.w[1:]}),
        ),
        ("does not belong", lambda s: _with_state(s, opt_state={"accumulator": s.w[1:]})),
        ("does not belong", lambda s: _with_state(s, opt_state={"accumulator": s.w.astype("f4")})),
        (
            "and dtype float32",
            lambda s: _with_state(
                s, w=s.w.astype("f4"), opt_state={"accumulator": s.w.astype("f4")}
            ),
        ),
        ("w is not finite", lambda s: _with_state(s, w=s.w * np.nan)),
        ("w is not finite", lambda s: _with_state(s, w=s.w + np.inf)),
        (
            "slot_accumulator is not finite",
            lambda s: _with_state(s, opt_state={"accumulator": s.w * np.nan}),
        ),
        ("has no parameters", lambda s: _with_state(s, w=s.w[:, 0])),
        ("has no parameters", lambda s: _with_state(s, w=s.w.astype(int))),
        ("passes, and no step", lambda s: _with_state(s, step=0)),
        ("no numbers of steps", lambda s: _with_state(s, step=-1)),
        ("no numbers of steps", lambda s: _with_state(s, step="1")),
        ("no number of rows", lambda s: _with_state(s, rows=float("nan"))),
        ("it has no average", lambda s: _with_state(s, n_averaged=3)),
        (
            "average has another shape",
            lambda s: _with_state(s, average=s.w.repeat(2, 1), n_averaged=1),
        ),
    ],
)
def test_invalid_states_are_refused(
    saved: Checkpoint, match: str, change: Callable[[ShardState], ShardState]
) -> None:
    _replaced(saved, change(saved.load()[0]))
    expect_refusal(saved, match + ".*set resume=False")


def _archive(path: Path, members: dict[str, bytes], compression: int) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _npy(shape: tuple[int, ...], dtype: Any = "<f8", data: bytes = b"") -> bytes:
    header = io.BytesIO()
    descr = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
    np.lib.format.write_array_header_1_0(header, {**descr, "shape": shape})
    return header.getvalue() + data


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class _Trap:
    """Object that raises when unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('a pickle was loaded')",)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: _archive(path, {"w.npy": bytes(1 << 26)}, zipfile.ZIP_DEFLATED),
        lambda path: _archive(path, {"w.npy": _npy((1 << 50, 2))}, zipfile.ZIP_STORED),
        lambda path: _archive(path, {"w.npy": _npy((0, 1 << 62))}, zipfile.ZIP_STORED),
        lambda path: _archive(path, {"facts.npy": _npy((), "O", b"\x80")}, zipfile.ZIP_STORED),
        lambda path: _archive(path, {f"{i}.npy": b"" for i in range(999)}, zipfile.ZIP_STORED),
        lambda path: path.write_bytes(_npz(facts=np.array("[" * 100_000))),
        lambda path: path.write_bytes(_npz(facts=np.array("[]"))),
        lambda path: path.write_bytes(_npz(facts=np.array(_Trap(), dtype=object))),
        lambda path: path.write_bytes(pickle.dumps(_Trap())),
    ],
    ids=["bomb", "huge", "overflow", "objects", "many", "nested", "list", "trap", "pickle"],
)
def test_hostile_files_are_refused(saved: Checkpoint, make: Callable[[Path], Any]) -> None:
    """Reading must not unpickle, or decompress or allocate more than the file's size justifies."""
    make(Path(saved.path))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="not a complete checkpoint"):
            saved.load()
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


def test_a_file_larger_than_expected_is_refused(saved: Checkpoint) -> None:
    with open(saved.path, "r+b") as file:
        file.truncate(1 << 34)  # a sparse file, which takes no disk space
    expect_refusal(saved, "has 17179869184 bytes, but checkpoints of this fit have")
