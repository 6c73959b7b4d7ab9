"""Checkpoints: the same coefficients, resumed or not; whole files; errors before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.errors import CallbackError, CheckpointError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.policies import POLICIES
from daskml_dist.training.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 5))
Y = np.where(X[:, 0] + 0.5 * RNG.normal(size=400) > 0, "yes", "no")
PARAMS: dict[str, Any] = {"tol": None, "random_state": 0, "n_lanes": 2}


class Count:
    """Counts what it is told, and may raise or stop at a pass."""

    def __init__(self, raise_at: int = 0, stop_at: int = 0) -> None:
        self.told: list[Any] = []
        self.raise_at = raise_at
        self.stop_at = stop_at

    def on_fit_begin(self, run: Any) -> None:
        self.told.append("begin")

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.told.append(record["pass"])
        if record["pass"] == self.raise_at:
            raise ValueError("power cut")
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
    assert [path.name for path in tmp_path.iterdir()] == ["fit.npz"]


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
@pytest.mark.parametrize("average", [False, True])
def test_a_resumed_fit_equals_an_undisturbed_one(
    tmp_path: Path, policy: str, average: bool
) -> None:
    params = {**PARAMS, "policy": policy, "max_iter": 7, "average": average}
    undisturbed = SGDClassifier(**params).fit(X, Y)
    saved = Checkpoint(tmp_path / "fit.npz", every=2, resume=True)
    with pytest.raises(CallbackError):
        SGDClassifier(checkpoint=saved, callbacks=Count(raise_at=5), **params).fit(X, Y)
    resumed = SGDClassifier(checkpoint=saved, n_servers=2, **params).fit(X, Y)
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


def test_errors_before_the_first_step(tmp_path: Path) -> None:
    params = {**PARAMS, "max_iter": 2}
    with pytest.raises(CheckpointError, match="folder that exists"):
        SGDClassifier(checkpoint=Checkpoint(tmp_path / "no" / "c"), **params).fit(X, Y)
    saved = Checkpoint(tmp_path / "c", resume=True)
    SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    count = Count()
    params["callbacks"] = count
    with pytest.raises(CheckpointError, match="its shape is"):
        SGDClassifier(checkpoint=saved, **params).fit(X[:, :3], Y)
    with pytest.raises(CheckpointError, match="its dtype is"):
        SGDClassifier(checkpoint=saved, **params).fit(X.astype(np.float32), Y)
    with pytest.raises(CheckpointError, match="its loss is"):
        SGDRegressor(checkpoint=saved, **params).fit(X, X[:, 0])
    path = tmp_path / "c"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    assert count.told == []
    with pytest.raises(InvalidParameterError, match="integer >= 1"):
        Checkpoint(path, every=0)
