"""Folders as sources: each file is read once, in order, and none is lost silently."""

import os

import numpy as np
import pandas as pd
import pytest

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.streaming import folder
from daskml_dist.training.checkpoint import Checkpoint


def _write(at, name, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_normal((20, 3)), columns=list("abc"))
    frame["click"] = (frame["a"] > 0).astype(int)
    whole = frame.to_csv if ".csv" in name else frame.to_parquet
    whole(at / "unfinished", index=False)
    os.rename(at / "unfinished", at / name)


def test_new_files_are_read_once_and_in_order(tmp_path):
    _write(tmp_path, "2.parquet")
    _write(tmp_path, "1.parquet")
    found = []
    for batch in folder(tmp_path / "*.parquet", target="click", marker="_SUCCESS", poll=0):
        found.append(batch.position)
        assert list(batch.X.columns) == list("abc")
        assert batch.y.tolist() == (batch.X["a"] > 0).astype(int).tolist()
        if len(found) == 2:
            _write(tmp_path, "3.parquet")
            (tmp_path / "_SUCCESS").touch()
    assert found == ["1.parquet", "2.parquet", "3.parquet"]
    source = folder(tmp_path / "*.parquet", target="click", after="2.parquet", idle=0, poll=0)
    assert [batch.position for batch in source] == ["3.parquet"]


def test_a_stream_of_a_folder_resumes(tmp_path):
    checkpoint = Checkpoint(tmp_path / "m.npz", resume=True)
    for n in range(4):
        _write(tmp_path, f"{n}.csv", n)
        with SGDClassifier().stream(classes=[0, 1], checkpoint=checkpoint) as stream:
            source = folder(
                tmp_path / "*.csv", target="click", after=stream.position, idle=0, poll=0
            )
            (batch,) = source
            stream.learn(batch.X, batch.y, position=batch.position)
    assert (stream.n_rows, stream.position) == (80, "3.csv")


def test_files_may_be_ordered_by_time(tmp_path):
    for at, name in enumerate(["b.npy", "a.npy", "c.npy"]):
        np.save(tmp_path / name, np.eye(2))
        os.utime(tmp_path / name, ns=(at, at))

    def read(path):
        return np.load(path), [0, 1]

    source = folder(tmp_path / "*.npy", read=read, order="mtime", idle=0, poll=0)
    assert [batch.position for batch in source] == [[0, "b.npy"], [1, "a.npy"], [2, "c.npy"]]


def test_a_file_that_sorts_before_learned_ones_raises(tmp_path):
    _write(tmp_path, "2.csv")
    source = folder(tmp_path / "*.csv", target="click", idle=0, poll=0)
    assert next(source).position == "2.csv"
    _write(tmp_path, "1.csv")
    with pytest.raises(InvalidDataError, match="Name files so that they grow"):
        next(source)
    # Files present when the stream resumed had been learned; a later one had not.
    source = folder(tmp_path / "*.csv", target="click", after="2.csv", idle=60, poll=0)
    _write(tmp_path, "3.csv")
    assert next(source).position == "3.csv"
    _write(tmp_path, "0.csv")
    with pytest.raises(InvalidDataError, match=r"0\.csv came after"):
        next(source)


@pytest.mark.parametrize("name", ["1.csv", "1.parquet"])
def test_an_unreadable_file_raises_and_may_be_removed(tmp_path, name):
    _write(tmp_path, "0" + name[1:])
    _write(tmp_path, "2" + name[1:], 2)
    (tmp_path / name).touch()
    with SGDClassifier().stream(classes=[0, 1]) as stream:

        def learn():
            for batch in folder(
                tmp_path / f"*{name[1:]}", target="click", after=stream.position, idle=0
            ):
                stream.learn(batch.X, batch.y, position=batch.position)

        with pytest.raises(InvalidDataError, match=rf"{name} cannot be read"):
            learn()
        os.remove(tmp_path / name)
        learn()
    assert (stream.n_rows, stream.position) == (40, "2" + name[1:])


def test_a_file_without_rows_is_skipped(tmp_path):
    for name in ("0.csv", "2.csv"):
        (tmp_path / name).write_text("a,b,c,click\n")
    _write(tmp_path, "1.csv")
    with SGDClassifier().stream(classes=[0, 1]) as stream:
        for batch in folder(tmp_path / "*.csv", target="click", idle=0):
            stream.learn(batch.X, batch.y, position=batch.position)
    assert (stream.n_rows, stream.position) == (20, "2.csv")


def test_a_folder_is_listed_once_per_poll(tmp_path, monkeypatch):
    import glob

    for n in range(200):
        (tmp_path / f"{n:03}.x").touch()
    looks, real = [], glob.glob
    monkeypatch.setattr(glob, "glob", lambda *a, **k: looks.append(1) or real(*a, **k))
    source = folder(tmp_path / "*", read=lambda path: ([], []), marker="199.x", idle=0, poll=60)
    assert [batch.position for batch in source] == [f"{n:03}.x" for n in range(199)]
    assert len(looks) == 2


def test_invalid_parameters_are_refused(tmp_path):
    for how in (
        {},
        {"target": "y", "read": len},
        *({"target": "y", **one} for one in ({"order": "size"}, {"idle": -1}, {"poll": "1"})),
        {"target": "y", "marker": 3},
    ):
        with pytest.raises(InvalidParameterError):
            folder(tmp_path / "*.csv", **how)
    with pytest.raises(InvalidParameterError, match="give one pattern"):
        folder(["1.csv", "2.csv"], target="y")
    _write(tmp_path, "1.csv")
    for how in ({"read": len}, {"target": "click", "after": 5}):  # len returns no X and y
        with pytest.raises(InvalidParameterError):
            next(folder(tmp_path / "*.csv", **how))
    with pytest.raises(InvalidDataError, match="no column 'y'"):
        next(folder(tmp_path / "*.csv", target="y"))
