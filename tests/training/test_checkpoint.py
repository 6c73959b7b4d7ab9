"""Checkpoints: the same coefficients, resumed or not; whole files; errors before the first step."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import pickle
import random
import subprocess
import sys
import tracemalloc
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import fsspec
import numpy as np
import pytest
from distributed import Client
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from daskml_dist import Run
from daskml_dist.errors import CheckpointError, DivergedError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.losses import LogLoss
from daskml_dist.policies import POLICIES
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training import checkpoint_format as module
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.history import RECORD_KEYS
from tests.subprocesses import ROOT, environment

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 5))
Y = np.where(X[:, 0] + 0.5 * RNG.normal(size=400) > 0, "yes", "no")
PARAMS: dict[str, Any] = {"tol": None, "random_state": 0, "run": Run(n_lanes=2)}


class Count:
    """Counts what it is told, and may raise or stop at a pass."""

    def __init__(
        self, raise_at: int = 0, stop_at: int = 0, error: type[BaseException] = ValueError
    ) -> None:
        self.told: list[Any] = []
        self.raise_at = raise_at
        self.stop_at = stop_at
        self.error = error

    def on_fit_begin(self, run: Any) -> None:
        self.told.append("begin")

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.told.append(record["pass"])
        if record["pass"] == self.raise_at:
            raise self.error("power cut")
        if record["pass"] == self.stop_at:
            run.stop()

    def on_fit_end(self, run: Any) -> None:
        self.told.append("end")


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_look_like_one_fit(tmp_path: Path, policy: str) -> None:
    count = Count()
    clf = SGDClassifier(
        max_iter=5,
        policy=policy,
        callbacks=count,
        checkpoint=Checkpoint(tmp_path / "fit.npz", every=2),
        **PARAMS,
    ).fit(X, Y)
    assert count.told == ["begin", 1, 2, 3, 4, 5, "end"]
    assert [record["pass"] for record in clf.history_.records] == [1, 2, 3, 4, 5]
    assert all(record["rows"] == len(X) for record in clf.history_.records)
    assert clf.score(X, Y) > 0.8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit.npz", "fit.npz.1"]


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
@pytest.mark.parametrize("average", [False, True])
def test_a_resumed_fit_equals_an_undisturbed_one(
    tmp_path: Path, policy: str, average: bool
) -> None:
    params = {**PARAMS, "policy": policy, "max_iter": 7, "average": average}
    undisturbed = SGDClassifier(**params).fit(X, Y)
    saved = Checkpoint(tmp_path / "fit.npz", every=2, resume=True)
    with pytest.raises(ValueError, match="power cut"):
        SGDClassifier(checkpoint=saved, callbacks=Count(raise_at=5), **params).fit(X, Y)
    several = params | {"run": Run(n_lanes=2, n_servers=2)}
    resumed = SGDClassifier(checkpoint=saved, **several).fit(X, Y)
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-9)
    assert resumed.n_iter_ == 7
    again = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    np.testing.assert_array_equal(again.coef_, resumed.coef_)


def test_the_stopping_rule_goes_on(tmp_path: Path) -> None:
    params: dict[str, Any] = {"random_state": 0, "max_iter": 200, "tol": 1e-2}
    whole = SGDClassifier(**params).fit(X, Y)
    parts = SGDClassifier(checkpoint=Checkpoint(tmp_path / "c", every=3), **params).fit(X, Y)
    assert parts.n_iter_ == whole.n_iter_ < 200


@pytest.mark.parametrize("stop_at", [3, 4])
def test_a_callback_may_stop_it(tmp_path: Path, stop_at: int) -> None:
    saved = Checkpoint(tmp_path / "c", every=2)
    clf = SGDClassifier(max_iter=50, callbacks=Count(stop_at=stop_at), checkpoint=saved, **PARAMS)
    assert clf.fit(X, Y).n_iter_ <= stop_at + 1


def test_on_a_cluster(client: Client, tmp_path: Path) -> None:
    rows, labels = da.from_array(X, chunks=(100, -1)), da.from_array(Y, chunks=100)
    params = {**PARAMS, "max_iter": 4}
    plain = SGDClassifier(**params).fit(rows, labels)
    saved = Checkpoint(tmp_path / "c", every=3)
    parts = SGDClassifier(checkpoint=saved, **params).fit(rows, labels)
    np.testing.assert_allclose(parts.coef_, plain.coef_, rtol=1e-9)


# --- going on otherwise than before ----------------------------------------------------------


def _interrupted(path: Any, **params: Any) -> Checkpoint:
    """The checkpoint of a fit that Ctrl-C ended in pass 5; passes 1 to 4 are saved."""
    saved = Checkpoint(path, every=2, resume=True)
    count = Count(raise_at=5, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        SGDClassifier(checkpoint=saved, callbacks=count, **params).fit(X, Y)
    assert count.told[-1] == "end"
    assert saved.load()[1]["passes"] == 4
    return saved


@pytest.mark.parametrize("path", ["local", "memory"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_after_an_interrupt_sync_equals_an_undisturbed_fit(
    tmp_path: Path, path: str, optimizer: str
) -> None:
    params = {**PARAMS, "max_iter": 8, "batch_size": 32, "optimizer": optimizer}
    undisturbed = SGDClassifier(**params).fit(X, Y)
    url = f"memory://{uuid.uuid4()}/fit.npz"
    saved = _interrupted(tmp_path / "fit.npz" if path == "local" else url, **params)
    resumed = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-12)
    np.testing.assert_allclose(resumed.intercept_, undisturbed.intercept_, rtol=1e-12)
    assert [record["pass"] for record in resumed.history_] == list(range(1, 9))


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": "allreduce"},
        {"run": Run(n_lanes=2, n_servers=3)},
        {"run": Run(n_lanes=5)},
        {"policy": "allreduce", "run": Run(n_lanes=1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_same_maths_goes_on_with_others(
    tmp_path: Path, changed: dict[str, Any], turned: bool
) -> None:
    """Full batches: every synchronous fit is gradient descent, however it is spread."""
    before: dict[str, Any] = {**PARAMS, "max_iter": 8, "batch_size": None, "optimizer": "momentum"}
    undisturbed = SGDClassifier(**before).fit(X, Y)
    after = {**before, **changed}
    if turned:
        before, after = after, before
    resumed = SGDClassifier(checkpoint=_interrupted(tmp_path / "c", **before), **after).fit(X, Y)
    assert resumed.n_iter_ == 8
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-10)


@pytest.mark.parametrize("after", POLICIES)
@pytest.mark.parametrize("before", ["sync", "async"])
def test_any_policy_goes_on(tmp_path: Path, before: str, after: str) -> None:
    params = {**PARAMS, "max_iter": 8}
    saved = _interrupted(tmp_path / "c", policy=before, **params)
    several = params | {"run": Run(n_lanes=2, n_servers=2)}
    resumed = SGDClassifier(checkpoint=saved, policy=after, **several).fit(X, Y)
    assert [record["pass"] for record in resumed.history_] == list(range(1, 9))
    assert resumed.score(X, Y) > 0.8


def test_an_average_is_left_behind_where_none_is_asked_for(tmp_path: Path) -> None:
    params = {**PARAMS, "max_iter": 8}
    undisturbed = SGDClassifier(**params).fit(X, Y)
    saved = _interrupted(tmp_path / "c", average=True, **params)
    resumed = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-12)


@pytest.mark.parametrize("labels", [np.datetime64("2026-01-01") + np.arange(2), np.array([0, 1])])
def test_labels_of_any_kind(tmp_path: Path, labels: Any) -> None:
    saved = Checkpoint(tmp_path / "c", resume=True)
    y = labels[(Y == "yes").astype(int)]
    for max_iter in (1, 2):
        fitted = SGDClassifier(checkpoint=saved, max_iter=max_iter, **PARAMS).fit(X, y)
        assert fitted.n_iter_ == max_iter


# --- errors before the first step ------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    """A checkpoint of a fit, the only one kept."""
    saved = Checkpoint(tmp_path / "fit.npz", resume=True, keep=1)
    SGDClassifier(checkpoint=saved, max_iter=2, **PARAMS).fit(X, Y)
    return saved


def _refused(saved: Checkpoint, match: str, rows: Any = X, labels: Any = Y, **params: Any) -> None:
    """Fit, and expect an error before the first step that names the file."""
    count = Count()
    face = SGDClassifier if labels.dtype.kind == "U" else SGDRegressor
    clf = face(checkpoint=saved, max_iter=9, callbacks=count, **{**PARAMS, **params})
    with pytest.raises(CheckpointError, match=match) as caught:
        clf.fit(rows, labels)
    assert str(saved.path).rpartition("://")[2] in str(caught.value)
    assert count.told == []


@pytest.mark.parametrize(
    ("match", "change"),
    [
        (r"its shape is \[6, 1\], here it is \[4, 1\]", {"rows": X[:, :3]}),
        ("its dtype is 'float64', here it is 'float32'", {"rows": X.astype(np.float32)}),
        (r"its loss is 'LogLoss\(\)', here it is 'Hinge\(\)'", {"loss": "hinge"}),
        ("its loss is", {"labels": X[:, 0]}),
        ("its optimizer is 'adagrad', here it is 'adam'", {"optimizer": "adam"}),
        (r"its classes is \['no', 'yes'\]", {"labels": np.where(Y == "no", "a", "b")}),
        (
            "its fit_intercept is True, here it is False",
            {"fit_intercept": False, "rows": np.hstack([X, X[:, :1]])},
        ),
    ],
)
def test_a_checkpoint_of_another_fit(saved: Checkpoint, match: str, change: Any) -> None:
    _refused(saved, match + ".*[Nn]ame another file, or set resume=False", **change)


def test_a_loss_of_the_user_s_own(tmp_path: Path) -> None:
    class Own(LogLoss):
        __repr__ = object.__repr__

    saved = Checkpoint(tmp_path / "c", resume=True)
    for max_iter in (1, 2):
        clf = SGDClassifier(loss=Own(), checkpoint=saved, max_iter=max_iter, **PARAMS).fit(X, Y)
        assert clf.n_iter_ == max_iter


def test_another_format_version(saved: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FORMAT", 3)
    _refused(saved, r"has format 2, written by daskml_dist \S+; this version reads format 3")


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    _refused(Checkpoint(tmp_path / "no" / "c"), "FileNotFoundError.*a folder that exists")
    _refused(Checkpoint(tmp_path), "is a folder.*Name a file")
    (tmp_path / "file").touch()
    _refused(Checkpoint(tmp_path / "file" / "c"), "Name a file in a folder that exists")


def _denied(*args: Any, **kwargs: Any) -> None:
    raise PermissionError("access denied")


def test_a_path_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Checkpoint(f"memory://{uuid.uuid4()}/c", resume=True)
    saved.save(_state(1), {})
    monkeypatch.setattr(MemoryFileSystem, "cat_file", _denied)
    _refused(saved, "Cannot read the checkpoint .*access denied.*Mend access to the file")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", _denied)
    _refused(saved, "Cannot write .*access denied.*that you may write to")


def test_an_unknown_protocol() -> None:
    _refused(Checkpoint("nosuch://bucket/c"), "Protocol not known: nosuch.*Use a local path")


def test_a_protocol_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    _refused(Checkpoint("s3://bucket/c"), "pip install s3fs")


def test_parameters_are_checked(tmp_path: Path) -> None:
    for name in ("every", "keep"):
        for value in (0, 1.5, True):
            with pytest.raises(InvalidParameterError, match=f"{name}=.*integer >= 1"):
                Checkpoint(tmp_path / "c", **{name: value})
    with pytest.raises(InvalidParameterError, match="path or the URL"):
        Checkpoint(5)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"no checkpoint .*resume=False"):
        Checkpoint(tmp_path / "c").load()


# --- files -----------------------------------------------------------------------------------


def _state(step: int, n: int = 50) -> ShardState:
    w = np.full((n, 2), float(step))
    return ShardState(w, {"m": np.asfortranarray(w)}, step, 10.0 * step, w.copy(), step)


def _check_whole(saved: Checkpoint) -> int:
    """The step of a checkpoint, once every array was seen to be of that step."""
    state, _ = saved.load()
    assert state.average is not None
    for array in (state.w, state.slots["m"], state.average):
        assert (array == state.step).all()
    return state.step


@pytest.mark.parametrize("keep", [1, 2, 4])
@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_versions_are_kept(tmp_path: Path, scheme: str, keep: int) -> None:
    saved = Checkpoint(f"{scheme}{tmp_path}/a b.npz", keep=keep)
    saved.check_writable()
    for step in range(7):
        saved.save(_state(step), {"note": "n"})
    fs, path = fsspec.url_to_fs(f"{scheme}{tmp_path}")
    names = ["a b.npz", *(f"a b.npz.{i}" for i in range(1, keep))]
    assert sorted(name.rpartition("/")[2] for name in fs.ls(path, detail=False)) == names
    for i, name in enumerate(names):
        assert _check_whole(Checkpoint(f"{scheme}{tmp_path}/{name}")) == 6 - i


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_damaged_file_gives_way_to_the_one_before(tmp_path: Path, scheme: str) -> None:
    saved = Checkpoint(f"{scheme}{tmp_path}/c", resume=True)
    params = {**PARAMS, "max_iter": 6}
    undisturbed = SGDClassifier(**params).fit(X, Y)
    SGDClassifier(checkpoint=saved, **{**params, "max_iter": 3}).fit(X, Y)
    fs, path = fsspec.url_to_fs(saved.path)
    fs.pipe_file(path, fs.cat_file(path)[:-50])
    with pytest.warns(UserWarning, match=r"c is no whole checkpoint: .* Taking the older .*c\.1"):
        resumed = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-12)
    for name in (path, f"{path}.1"):
        fs.pipe_file(name, b"")
    _refused(saved, r"no whole checkpoint.*No older whole one is kept \(keep=2\).*resume=False")


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short(saved: Checkpoint, cut: float) -> None:
    path = Path(saved.path)
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    _refused(saved, "is no whole checkpoint.*set resume=False to begin anew")


def test_flipped_bits_are_refused_or_change_nothing(tmp_path: Path) -> None:
    """Only bits that zip does not read, such as a time of day, may pass."""
    saved, path = Checkpoint(tmp_path / "c", keep=1), tmp_path / "c"
    saved.save(_state(3), {})
    data, refused, rng = path.read_bytes(), 0, random.Random(0)
    for _ in range(400):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, on a strange header
            try:
                assert _check_whole(saved) == 3
            except CheckpointError:
                refused += 1
    assert refused > 300


def test_arrays_that_are_not_those_of_the_facts(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Checkpoint(path).save(_state(3), {})
    with np.load(path) as file:
        arrays = dict(file)
    arrays["w"][7] += 1
    with path.open("wb") as raw:
        np.savez(raw, **arrays)
    with pytest.raises(CheckpointError, match="an array's checksum is wrong"):
        Checkpoint(path).load()
    path.write_bytes(b"no zip")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        Checkpoint(path).load()


def _no_space(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_full_disk(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class FillDisk(Count):
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            super().on_pass_end(run, record)
            if record["pass"] == 3:
                monkeypatch.setattr(os, "fsync", _no_space)
                monkeypatch.setattr(MemoryFileSystem, "pipe_file", _no_space)

    saved, count = Checkpoint(f"{scheme}{tmp_path}/c", resume=True), FillDisk()
    params = {**PARAMS, "max_iter": 6}
    with pytest.raises(CheckpointError, match=r"/c .*No space left.*Make room.*resume=True"):
        SGDClassifier(checkpoint=saved, callbacks=count, **params).fit(X, Y)
    assert count.told == ["begin", 1, 2, 3, "end"]
    monkeypatch.undo()
    fs, folder = fsspec.url_to_fs(f"{scheme}{tmp_path}")
    assert sorted(os.path.basename(name) for name in fs.ls(folder, detail=False)) == ["c", "c.1"]
    assert saved.load()[1]["passes"] == 2
    resumed = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    undisturbed = SGDClassifier(**params).fit(X, Y)
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-12)


# --- files that others made ------------------------------------------------------------------


def _replaced(saved: Checkpoint, state: ShardState | None = None, **facts: Any) -> None:
    """Write a whole checkpoint again with some facts, or another state."""
    old, found = saved.load()
    path = Path(saved.path)
    path.write_bytes(module.encode(old if state is None else state, {**found, **facts}))


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
def test_facts_that_cannot_be_true(saved: Checkpoint, match: str, facts: dict[str, Any]) -> None:
    _replaced(saved, **facts)
    _refused(saved, match + ".*set resume=False")


def _with(state: ShardState, **changed: Any) -> ShardState:
    return dataclasses.replace(state, **changed)


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("and .'accumulator'. is needed", lambda s: _with(s, slots={})),
        ("and .'accumulator'. is needed", lambda s: _with(s, slots={**s.slots, "more": s.w})),
        ("accumulator in the shape", lambda s: _with(s, slots={"accumulator": s.w.repeat(2, 1)})),
        ("parameters of shape", lambda s: _with(s, w=s.w[1:], slots={"accumulator": s.w[1:]})),
        ("does not belong", lambda s: _with(s, slots={"accumulator": s.w[1:]})),
        ("does not belong", lambda s: _with(s, slots={"accumulator": s.w.astype("f4")})),
        (
            "and dtype float32",
            lambda s: _with(s, w=s.w.astype("f4"), slots={"accumulator": s.w.astype("f4")}),
        ),
        ("w is not finite", lambda s: _with(s, w=s.w * np.nan)),
        ("w is not finite", lambda s: _with(s, w=s.w + np.inf)),
        ("slot_accumulator is not finite", lambda s: _with(s, slots={"accumulator": s.w * np.nan})),
        ("has no parameters", lambda s: _with(s, w=s.w[:, 0])),
        ("cut short, was changed", lambda s: _with(s, w=s.w.astype(int))),
        ("passes, and no step", lambda s: _with(s, step=0)),
        ("no numbers of steps", lambda s: _with(s, step=-1)),
        ("no numbers of steps", lambda s: _with(s, step="1")),
        ("no number of rows", lambda s: _with(s, rows=float("nan"))),
        ("it has no average", lambda s: _with(s, n_averaged=3)),
        ("average has another shape", lambda s: _with(s, average=s.w.repeat(2, 1), n_averaged=1)),
    ],
)
def test_states_that_a_fit_cannot_go_on_from(
    saved: Checkpoint, match: str, change: Callable[[ShardState], ShardState]
) -> None:
    _replaced(saved, change(saved.load()[0]))
    _refused(saved, match + ".*set resume=False")


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
    """Raises where somebody unpickles it."""

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
def test_hostile_files(saved: Checkpoint, make: Callable[[Path], Any]) -> None:
    """Nothing is unfolded, allocated or run that the file's own bytes do not hold."""
    make(Path(saved.path))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="no whole checkpoint"):
            saved.load()
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


def test_a_file_larger_than_the_fit_s_own(saved: Checkpoint) -> None:
    with open(saved.path, "r+b") as file:
        file.truncate(1 << 34)  # a hole: it takes no room on the disk
    _refused(saved, "has 17179869184 bytes, and this fit's cannot have more")


def _device(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("suffix", ["", ".1", ".new", ".probe", ".probed"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (os.mkdir, "a folder"),
        (_device, "a symbolic link"),
    ],
    ids=["pipe", "folder", "link"],
)
def test_only_regular_files(
    tmp_path: Path, suffix: str, make: Callable[[Path], None], kind: str
) -> None:
    strange = tmp_path / f"c{suffix}"
    make(strange)
    _refused(Checkpoint(tmp_path / "c", resume=True), f"is {kind}, and .* regular files alone")
    saved = Checkpoint(tmp_path / "c")
    if suffix in ("", ".new"):
        with pytest.raises(CheckpointError, match="regular files alone"):
            saved.load()
        with pytest.raises(CheckpointError, match="regular files alone"):
            saved.save(_state(1), {})
    assert strange.is_symlink() or not strange.is_file()


def test_a_device_is_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for change in ("replace", "remove", "rename", "unlink"):  # the machine has but this one
        monkeypatch.setattr(os, change, None)
    _refused(Checkpoint("/dev/null"), "is a device, and checkpoints are regular files alone")
    with pytest.raises(CheckpointError, match="a device"):
        Checkpoint("/dev/null").save(_state(1), {})


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    saved, other = Checkpoint(tmp_path / "c"), tmp_path / "other"
    umask = os.umask(0)
    try:
        for step in range(3):
            saved.save(_state(step), {})
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    # What lies under the name of a new one is written anew, not written into.
    other.write_bytes(b"mine")
    os.link(other, tmp_path / "c.new")
    saved.save(_state(3), {})
    assert other.read_bytes() == b"mine"


def test_a_diverged_fit_is_not_saved(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "c")
    reg = SGDRegressor(
        learning_rate=1e300,
        optimizer="sgd",
        batch_size=None,
        max_iter=9,
        checkpoint=saved,
        tol=None,
    )
    with pytest.raises(DivergedError):
        reg.fit(1e10 * X, X[:, 0])
    assert not (tmp_path / "c").exists() or np.isfinite(saved.load()[0].w).all()


# --- crashes ---------------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends."""


class FragileFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """No operation is atomic: the one that crashes does half its work, later ones do nothing."""

    protocol = "fragile"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    left: ClassVar[float] = float("inf")

    @classmethod
    def spend(cls, half: Callable[[], None]) -> None:
        cls.left -= 1
        if cls.left == 0:
            half()
        if cls.left <= 0:
            raise Crash

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        whole = super().pipe_file
        self.spend(lambda: whole(path, value[: len(value) // 2]))
        whole(path, value)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.pipe_file(path2, self.cat_file(path1))

    def rm_file(self, path: str) -> None:
        self.spend(lambda: None)
        super().rm_file(path)

    def rm(self, path: str, **kwargs: Any) -> None:
        self.rm_file(path)


@pytest.fixture
def fragile() -> Iterator[str]:
    fsspec.register_implementation("fragile", FragileFileSystem, clobber=True)
    FragileFileSystem.store.clear()
    yield "fragile://c"
    FragileFileSystem.left = float("inf")


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("second", range(1, 9, 3))
@pytest.mark.parametrize("first", range(1, 14))
def test_a_crash_at_any_operation(fragile: str, first: int, second: int, keep: int) -> None:
    """Also a second crash, in the save after the first."""
    saved = Checkpoint(fragile, keep=keep)
    for step in range(1, 5):
        saved.save(_state(step), {})
    last = 4
    for operations in (first, second):
        FragileFileSystem.left = operations
        with suppress(Crash):
            saved.save(_state(last + 1), {})
        FragileFileSystem.left = float("inf")
        assert _check_whole(saved) in (last, last + 1)
        last = _check_whole(saved)
    saved.save(_state(last + 1), {})
    assert _check_whole(saved) == last + 1


# Forks writers, kills each at a moment drawn from a seed, and looks at what it left.
KILLER = """
import os, random, signal, struct, sys, time
from tests.training.test_checkpoint import Checkpoint, _check_whole, _state

path, moments = sys.argv[1], random.Random(0)
for keep in (1, 2):
    saved, step = Checkpoint(path, keep=keep), 1
    for _ in range(10):
        done, tell = os.pipe()
        if not (child := os.fork()):
            while True:
                saved.save(_state(step, n=20_000), {})
                os.write(tell, struct.pack("q", step))
                step += 1
        os.read(done, 8)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(tell)
        told = [step, *(n for n, in struct.iter_unpack("q", os.read(done, 1 << 16)))]
        os.close(done)
        step = _check_whole(saved)
        assert told[-1] <= step <= told[-1] + 1, (told, step)
        print("whole", step, sorted(os.listdir(os.path.dirname(path))), flush=True)
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=environment(OPENBLAS_NUM_THREADS="1"),
    )
    assert killed.returncode == 0, killed.stderr
    assert killed.stdout.count("whole") == 20
