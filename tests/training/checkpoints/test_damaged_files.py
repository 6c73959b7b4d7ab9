"""Truncated or corrupted files are refused, or the previous version is used."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import fsspec
import numpy as np
import pytest

from daskml_dist.errors import CheckpointError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint
from tests.training.checkpoints.saves import PARAMS, X, Y, check_whole, expect_refusal, make_state


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_damaged_file_is_replaced_by_the_previous_version(tmp_path: Path, scheme: str) -> None:
    saved = Checkpoint(f"{scheme}{tmp_path}/c", resume=True)
    params = {**PARAMS, "max_iter": 6}
    undisturbed = SGDClassifier(**params).fit(X, Y)
    SGDClassifier(checkpoint=saved, **{**params, "max_iter": 3}).fit(X, Y)
    fs, path = fsspec.url_to_fs(saved.path)
    fs.pipe_file(path, fs.cat_file(path)[:-50])
    with pytest.warns(
        UserWarning, match=r"c is not a complete checkpoint: .* Using the older .*c\.1"
    ):
        resumed = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    np.testing.assert_allclose(resumed.coef_, undisturbed.coef_, rtol=1e-12)
    for name in (path, f"{path}.1"):
        fs.pipe_file(name, b"")
    expect_refusal(
        saved, r"not a complete checkpoint.*No older intact one is kept \(keep=2\).*resume=False"
    )


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved: Checkpoint, cut: float) -> None:
    path = Path(saved.path)
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    expect_refusal(saved, "is not a complete checkpoint.*set resume=False to start again")


def test_flipped_bits_are_refused_or_change_nothing(tmp_path: Path) -> None:
    """Only bits that zip does not read, such as a time of day, may pass."""
    saved, path = Checkpoint(tmp_path / "c", keep=1), tmp_path / "c"
    saved.save(make_state(3), {})
    data, refused, rng = path.read_bytes(), 0, random.Random(0)
    for _ in range(400):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, about an unknown header
            try:
                assert check_whole(saved) == 3
            except CheckpointError:
                refused += 1
    assert refused > 300


def test_arrays_that_contradict_the_metadata_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Checkpoint(path).save(make_state(3), {})
    with np.load(path) as file:
        arrays = dict(file)
    arrays["w"][7] += 1
    with path.open("wb") as raw:
        np.savez(raw, **arrays)
    with pytest.raises(CheckpointError, match="an array's checksum is wrong"):
        Checkpoint(path).load()
    path.write_bytes(b"no zip")
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        Checkpoint(path).load()
