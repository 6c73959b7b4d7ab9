"""Streams of k-means on a cluster: lanes sum rows, the client reassigns small clusters.

The fixture `client` checks that nothing is left on the cluster.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from daskml_dist import Run
from daskml_dist.cluster import MiniBatchKMeans
from daskml_dist.cluster._stream_steps import ReassignmentSchedule
from daskml_dist.policies import POLICIES, LocalSGD
from daskml_dist.training.checkpoint import Checkpoint
from tests.quick import quick
from tests.streaming.troubles import cut_off_next, lose_some

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((300, 5)) + 2 * _RNG.integers(0, 3, (300, 1))
_WEIGHT = _RNG.integers(0, 4, 300).astype(float)
_SPARSE = sparse.random(300, 20, 0.3, format="csr", random_state=0)
#: Ends of calls; only some are followed by a check for small clusters.
_ENDS = [0, 50, 80, 110, 150, 170, 240, 300]
#: Settings under which centroids are reassigned repeatedly.
_FEW = {"n_clusters": 6, "init": "random", "reassignment_ratio": 0.5, "random_state": 0}


def _calls(X: Any = _X, weight: Any = None) -> list[tuple[Any, Any]]:
    ends = [slice(a, b) for a, b in itertools.pairwise(_ENDS)]
    return [(X[at], None if weight is None else weight[at]) for at in ends]


def _learned(model: Any, calls: Any, client: Any = None, **how: Any) -> Any:
    with model.stream(client=client, **how) as stream:
        for number, (X, weight) in enumerate(calls):
            stream.learn(X, None, weight, position=number)
            if number == 3:
                assert len(model.counts_) == model.n_clusters  # reading changes nothing
    return stream


def _check_same(ours: Any, theirs: Any, found: Any, truth: Any) -> None:
    assert np.array_equal(ours.counts_, theirs.counts_)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-9)
    assert (ours.n_steps_, ours._n_since) == (theirs.n_steps_, theirs._n_since)
    assert found.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-9)
    assert (found.n_rows, found.position) == (truth.n_rows, truth.position)


@pytest.fixture
def reassignment_checks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record whether each check reassigned centroids."""
    found, real = [], ReassignmentSchedule.reassign_low_centroids

    def after(self: ReassignmentSchedule, state: Any, block: Any) -> Any:
        changed = real(self, state, block)
        found.append(changed is not None)
        return changed

    monkeypatch.setattr(ReassignmentSchedule, "reassign_low_centroids", after)
    return found


@pytest.mark.parametrize(
    ("X", "weight", "policy", "run"),
    [
        (_X, None, "sync", Run(n_lanes=3, n_servers=2)),
        (_X, _WEIGHT, "allreduce", Run(n_lanes=3, deterministic=True)),
        (_SPARSE, None, "sync", Run(n_lanes=2, deterministic=True)),
        (_SPARSE, None, "allreduce", Run()),
    ],
)
def test_synchronous_lanes_equal_one_process(
    client: Any, reassignment_checks: list[bool], X: Any, weight: Any, policy: str, run: Run
) -> None:
    theirs = MiniBatchKMeans(**_FEW)
    truth, alone = _learned(theirs, _calls(X, weight)), reassignment_checks.copy()
    reassignment_checks.clear()
    ours = MiniBatchKMeans(policy=policy, run=run, **_FEW)
    found = _learned(ours, _calls(X, weight), client)
    assert reassignment_checks == alone
    assert {True, False} == set(reassignment_checks) or sum(reassignment_checks) > 1
    _check_same(ours, theirs, found, truth)


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "allreduce", "async", "local"))
def test_every_policy_is_sequential_with_one_lane(client: Any, policy: str) -> None:
    theirs, ours = (
        MiniBatchKMeans(**_FEW),
        MiniBatchKMeans(policy=policy, run=Run(n_lanes=1), **_FEW),
    )
    truth, found = _learned(theirs, _calls()), _learned(ours, _calls(), client)
    _check_same(ours, theirs, found, truth)


def _assigned(w: Any, rows: Any) -> Any:
    """Return counts and sums of the rows nearest to each centroid."""
    centres = w[:, 1:] / w[:, :1]
    nearest = ((rows[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    found = np.zeros_like(w)
    np.add.at(found, nearest, np.c_[np.ones(len(rows)), rows])
    return found


@pytest.mark.parametrize("policy", [LocalSGD(sync_every=2), "average"])
def test_rows_of_independent_lanes_count_once(client: Any, policy: Any) -> None:
    one = {"n_clusters": 3, "init": _X[[0, 50, 100]], "n_init": 1, "reassignment_ratio": 0}
    begun = MiniBatchKMeans(**one)
    _learned(begun, [(_X, None)])
    w = np.c_[begun.counts_, begun.counts_[:, None] * begun.cluster_centers_]
    ours = MiniBatchKMeans(policy=policy, run=Run(n_lanes=2), **one)
    ours.partial_fit(_X)
    assert np.array_equal(ours.counts_, begun.counts_)
    lanes = [w.copy(), w.copy()]
    for number in range(6):
        for lane, lane_model in enumerate(lanes):
            half = slice(0, 20) if (lane + number) % 2 == 0 else slice(20, 40)
            lane_model += 2 * _assigned(lane_model, _X[40 * number :][half])
        if policy != "average" and number % 2:
            lanes = [np.mean(lanes, axis=0) for _ in lanes]
    _learned(ours, [(_X[40 * n : 40 * n + 40], None) for n in range(6)], client)
    truth = np.mean(lanes, axis=0)
    np.testing.assert_allclose(ours.counts_, truth[:, 0], rtol=1e-12)
    np.testing.assert_allclose(ours.cluster_centers_, truth[:, 1:] / truth[:, :1], rtol=1e-9)


@pytest.mark.parametrize("policy", quick(["async", "ssp", "hogwild"], "async", "hogwild"))
def test_free_running_lanes_count_each_row_once(client: Any, policy: str, tmp_path: Any) -> None:
    params = {"n_clusters": 3, "reassignment_ratio": 0, "random_state": 0}
    ours = MiniBatchKMeans(policy=policy, run=Run(n_lanes=2, n_servers=2), **params)
    path = tmp_path / "s.npz"
    _learned(ours, _calls(_X, _WEIGHT), client, checkpoint=Checkpoint(path, every=3))
    assert ours.counts_.sum() == _WEIGHT.sum()
    np.testing.assert_allclose(ours.counts_ @ ours.cluster_centers_, _WEIGHT @ _X, rtol=1e-9)
    resumed = MiniBatchKMeans(policy=policy, **params)
    with resumed.stream(client=client, checkpoint=Checkpoint(path, resume=True)) as stream:
        assert (stream.position, stream.n_rows) == (6, 300)
        assert np.array_equal(resumed.cluster_centers_, ours.cluster_centers_)


@pytest.mark.parametrize("policy", quick(["sync", "allreduce"], "sync"))
def test_stream_continues_after_losses_interrupts_and_ends(
    client: Any, policy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    theirs = MiniBatchKMeans(**_FEW)
    truth = _learned(theirs, _calls())
    fetches = lose_some(monkeypatch)
    for number, (X, _) in enumerate(_calls(_X.copy())):  # each call in a separate stream
        ours = MiniBatchKMeans(policy=policy, run=Run(n_lanes=2), **_FEW)
        checkpoint = Checkpoint(tmp_path / "m.npz", resume=True)
        with ours.stream(client=client, checkpoint=checkpoint) as found:
            if number == 5:
                cut_off_next(monkeypatch, "receive")
                with pytest.raises(KeyboardInterrupt):
                    found.learn(X, position=number)
                X[:] = np.nan  # the interrupted call was submitted and is learned
            assert (found.learn(X, position=number) is None) == (number == 5)
    assert len(fetches) > 4
    _check_same(ours, theirs, found, truth)
