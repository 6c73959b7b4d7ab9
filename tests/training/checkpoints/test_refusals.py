"""Errors before the first step: checkpoints of other fits, and paths without access."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.training import checkpoint as module
from daskml_dist.training.checkpoint import Checkpoint
from tests.training.checkpoints.saves import X, Y, expect_refusal, make_state


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
    expect_refusal(saved, match + ".*[Nn]ame another file, or set resume=False", **change)


def test_another_format_version(saved: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FORMAT", 3)
    expect_refusal(saved, r"has format 2, written by daskml_dist \S+; this version reads format 3")


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    expect_refusal(Checkpoint(tmp_path / "no" / "c"), "FileNotFoundError.*a folder that exists")
    expect_refusal(Checkpoint(tmp_path), "is a folder.*Name a file")
    (tmp_path / "file").touch()
    expect_refusal(Checkpoint(tmp_path / "file" / "c"), "Name a file in a folder that exists")


def _denied(*args: Any, **kwargs: Any) -> None:
    raise PermissionError("access denied")


def test_a_path_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Checkpoint(f"memory://{uuid.uuid4()}/c", resume=True)
    saved.save(make_state(1), {})
    monkeypatch.setattr(MemoryFileSystem, "cat_file", _denied)
    expect_refusal(saved, "Cannot read the checkpoint .*access denied.*Restore access to the file")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", _denied)
    expect_refusal(saved, "Cannot write .*access denied.*that you may write to")


def test_an_unknown_protocol() -> None:
    expect_refusal(Checkpoint("nosuch://bucket/c"), "Protocol not known: nosuch.*Use a local path")


def test_a_protocol_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    expect_refusal(Checkpoint("s3://bucket/c"), "pip install s3fs")


def test_parameters_are_checked(tmp_path: Path) -> None:
    for name in ("every", "keep"):
        for value in (0, 1.5, True):
            with pytest.raises(InvalidParameterError, match=f"{name}=.*integer >= 1"):
                Checkpoint(tmp_path / "c", **{name: value})
    with pytest.raises(InvalidParameterError, match="path or the URL"):
        Checkpoint(5)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"no checkpoint .*resume=False"):
        Checkpoint(tmp_path / "c").load()
