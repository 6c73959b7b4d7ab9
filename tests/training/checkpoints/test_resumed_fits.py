"""Fits in parts and fits resumed from a file equal an uninterrupted fit."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.losses import LogLoss
from daskml_dist.policies import POLICIES
from daskml_dist.training.checkpoint import Checkpoint
from tests.training.checkpoints.saves import PARAMS, Count, X, Y


@pytest.mark.parametrize("policy", POLICIES)
def test_fits_in_parts_equal_one_fit(tmp_path: Path, policy: str) -> None:
    count = Count()
    clf = SGDClassifier(
        max_iter=5,
        policy=policy,
        callbacks=count,
        checkpoint=Checkpoint(tmp_path / "fit.npz", every=2),
        **PARAMS,
    ).fit(X, Y)
    assert count.events == ["begin", 1, 2, 3, 4, 5, "end"]
    assert [record["pass"] for record in clf.history_.records] == [1, 2, 3, 4, 5]
    assert all(record["rows"] == len(X) for record in clf.history_.records)
    assert clf.score(X, Y) > 0.8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit.npz", "fit.npz.1"]


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
@pytest.mark.parametrize("average", [False, True])
def test_a_resumed_fit_equals_an_uninterrupted_one(
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
    refitted = SGDClassifier(checkpoint=saved, **params).fit(X, Y)
    np.testing.assert_array_equal(refitted.coef_, resumed.coef_)


def test_the_stopping_rule_keeps_its_state(tmp_path: Path) -> None:
    params: dict[str, Any] = {"random_state": 0, "max_iter": 200, "tol": 1e-2}
    whole = SGDClassifier(**params).fit(X, Y)
    parts = SGDClassifier(checkpoint=Checkpoint(tmp_path / "c", every=3), **params).fit(X, Y)
    assert parts.n_iter_ == whole.n_iter_ < 200


@pytest.mark.parametrize("stop_at", [3, 4])
def test_a_callback_stops_a_checkpointed_fit(tmp_path: Path, stop_at: int) -> None:
    saved = Checkpoint(tmp_path / "c", every=2)
    clf = SGDClassifier(max_iter=50, callbacks=Count(stop_at=stop_at), checkpoint=saved, **PARAMS)
    assert clf.fit(X, Y).n_iter_ <= stop_at + 1


def test_a_resumed_cluster_fit_equals_an_uninterrupted_one(client: Client, tmp_path: Path) -> None:
    rows, labels = da.from_array(X, chunks=(100, -1)), da.from_array(Y, chunks=100)
    params = {**PARAMS, "max_iter": 4}
    plain = SGDClassifier(**params).fit(rows, labels)
    saved = Checkpoint(tmp_path / "c", every=3)
    parts = SGDClassifier(checkpoint=saved, **params).fit(rows, labels)
    np.testing.assert_allclose(parts.coef_, plain.coef_, rtol=1e-9)


def _interrupted(path: Any, **params: Any) -> Checkpoint:
    """Return the checkpoint of a fit that Ctrl-C ended in pass 5; passes 1 to 4 are saved."""
    saved = Checkpoint(path, every=2, resume=True)
    count = Count(raise_at=5, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        SGDClassifier(checkpoint=saved, callbacks=count, **params).fit(X, Y)
    assert count.events[-1] == "end"
    assert saved.load()[1]["passes"] == 4
    return saved


@pytest.mark.parametrize("path", ["local", "memory"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_an_interrupted_sync_fit_resumes_to_equal_an_uninterrupted_one(
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
def test_a_fit_may_resume_with_other_lanes_and_policies(
    tmp_path: Path, changed: dict[str, Any], turned: bool
) -> None:
    """With full batches, every synchronous fit is gradient descent, however lanes are placed."""
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
def test_any_policy_resumes(tmp_path: Path, before: str, after: str) -> None:
    params = {**PARAMS, "max_iter": 8}
    saved = _interrupted(tmp_path / "c", policy=before, **params)
    several = params | {"run": Run(n_lanes=2, n_servers=2)}
    resumed = SGDClassifier(checkpoint=saved, policy=after, **several).fit(X, Y)
    assert [record["pass"] for record in resumed.history_] == list(range(1, 9))
    assert resumed.score(X, Y) > 0.8


def test_a_saved_average_is_dropped_if_average_is_false(tmp_path: Path) -> None:
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


def test_a_custom_loss_resumes(tmp_path: Path) -> None:
    class Own(LogLoss):
        __repr__ = object.__repr__

    saved = Checkpoint(tmp_path / "c", resume=True)
    for max_iter in (1, 2):
        clf = SGDClassifier(loss=Own(), checkpoint=saved, max_iter=max_iter, **PARAMS).fit(X, Y)
        assert clf.n_iter_ == max_iter
