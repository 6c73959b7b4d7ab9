"""Checkpoint files: versions, permissions, full disks, and refusal of special files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from daskml_dist.errors import CheckpointError, DivergedError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.training.checkpoint import Checkpoint
from tests.training.checkpoints.saves import (
    PARAMS,
    Count,
    X,
    Y,
    check_whole,
    expect_refusal,
    make_state,
)


@pytest.mark.parametrize("keep", [1, 2, 4])
@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_versions_are_kept(tmp_path: Path, scheme: str, keep: int) -> None:
    saved = Checkpoint(f"{scheme}{tmp_path}/a b.npz", keep=keep)
    saved.check_writable()
    for step in range(7):
        saved.save(make_state(step), {"note": "n"})
    fs, path = fsspec.url_to_fs(f"{scheme}{tmp_path}")
    names = ["a b.npz", *(f"a b.npz.{i}" for i in range(1, keep))]
    assert sorted(name.rpartition("/")[2] for name in fs.ls(path, detail=False)) == names
    for i, name in enumerate(names):
        assert check_whole(Checkpoint(f"{scheme}{tmp_path}/{name}")) == 6 - i


def _no_space(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_full_disk_keeps_the_previous_version(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FillDisk(Count):
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            super().on_pass_end(run, record)
            if record["pass"] == 3:
                monkeypatch.setattr(os, "fsync", _no_space)
                monkeypatch.setattr(MemoryFileSystem, "pipe_file", _no_space)

    saved, count = Checkpoint(f"{scheme}{tmp_path}/c", resume=True), FillDisk()
    params = {**PARAMS, "max_iter": 6}
    with pytest.raises(CheckpointError, match=r"/c .*No space left.*Free space.*resume=True"):
        SGDClassifier(checkpoint=saved, callbacks=count, **params).fit(X, Y)
    assert count.events == ["begin", 1, 2, 3, "end"]
    monkeypatch.undo()
    fs, folder = fsspec.url_to_fs(f"{scheme}{tmp_path}")
    assert sorted(os.path.basename(name) for name in fs.ls(folder, detail=False)) == ["c", "c.1"]
    assert saved.load()[1]["passes"] == 2
    resumed = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    undisturbed = SGDClassifier(**params).fit(X, Y)
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-12)


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
def test_special_files_are_refused(
    tmp_path: Path, suffix: str, make: Callable[[Path], None], kind: str
) -> None:
    strange = tmp_path / f"c{suffix}"
    make(strange)
    expect_refusal(
        Checkpoint(tmp_path / "c", resume=True), f"is {kind}, but .*must be regular files"
    )
    saved = Checkpoint(tmp_path / "c")
    if suffix in ("", ".new"):
        with pytest.raises(CheckpointError, match="must be regular files"):
            saved.load()
        with pytest.raises(CheckpointError, match="must be regular files"):
            saved.save(make_state(1), {})
    assert strange.is_symlink() or not strange.is_file()


def test_a_device_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for change in ("replace", "remove", "rename", "unlink"):  # the only file system of this machine
        monkeypatch.setattr(os, change, None)
    expect_refusal(Checkpoint("/dev/null"), "is a device, but checkpoints must be regular files")
    with pytest.raises(CheckpointError, match="a device"):
        Checkpoint("/dev/null").save(make_state(1), {})


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    saved, other = Checkpoint(tmp_path / "c"), tmp_path / "other"
    umask = os.umask(0)
    try:
        for step in range(3):
            saved.save(make_state(step), {})
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    # An existing file under the new name is replaced, not written into.
    other.write_bytes(b"mine")
    os.link(other, tmp_path / "c.new")
    saved.save(make_state(3), {})
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
