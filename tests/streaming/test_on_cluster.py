"""Streams on a cluster: summing policies equal one process, and no row is learned twice.

The fixture `client` checks that nothing is left on the cluster.
"""

import numpy as np
import pytest
from scipy import sparse

from daskml_dist import Run
from daskml_dist.errors import (
    CheckpointError,
    InvalidDataError,
    InvalidParameterError,
    TrainingError,
)
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.models.mlp import MLP
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import POLICIES, BoundedStaleness, LocalSGD, Synchronous
from daskml_dist.streaming import PageHinkley
from daskml_dist.streaming.cluster.steps import ClusterSteps, StreamActors
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.client.run_actors import WorkerUnreachableError

_SLOW = pytest.mark.slow
_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((240, 5))
_RAW = _X @ _RNG.standard_normal(5)
_Y = (_RAW > 0).astype(int)
_SPARSE = sparse.random(240, 3000, 0.01, format="csr", random_state=0)
_PLAIN = {"optimizer": "sgd", "learning_rate": 0.5, "penalty": None, "random_state": 0}


def _batches(X=_X, y=_Y, rows=40):
    return [(X[i : i + rows], y[i : i + rows]) for i in range(0, X.shape[0], rows)]


def _learned(model, batches, client=None, **how):
    if "Classifier" in type(model).__name__:
        how["classes"] = [0, 1]
    with model.stream(client=client, **how) as stream:
        losses = [stream.learn(*one, position=n) for n, one in enumerate(batches[:2])]
        assert np.isfinite(_weights(model)).all()  # reading the coefficients changes nothing
        losses += [stream.learn(*one, position=n) for n, one in enumerate(batches[2:], 2)]
        assert (stream.n_rows, stream.position) == (240, len(batches) - 1)
    return stream, losses


def _weights(model):
    return model.coefs_[0] if hasattr(model, "coefs_") else model.coef_


@pytest.mark.parametrize(
    ("kind", "X", "y", "params", "run"),
    [
        (SGDClassifier, _X, _Y, {"policy": "sync"}, {"n_servers": 2}),
        (SGDClassifier, _X, _Y, {"policy": "sync", "batch_size": 15}, {"n_lanes": 3}),
        (SGDRegressor, _X, _RAW + 3, {"policy": "allreduce", "optimizer": "sgd"}, {}),
        (MLPClassifier, _X, _Y, {"policy": "sync", "hidden_layer_sizes": (3,)}, {"n_servers": 2}),
        (SGDClassifier, _SPARSE, _Y, {"policy": "sync", "batch_size": 10}, {"n_servers": 2}),
        (SGDClassifier, _SPARSE, _Y, {"policy": "allreduce", "batch_size": 10}, {"n_lanes": 3}),
    ],
)
def test_summing_policies_equal_one_process(client, kind, X, y, params, run):
    ours = kind(random_state=0, run=Run(**run), **params)
    theirs = kind(random_state=0, **params)
    found, losses = _learned(ours, _batches(X, y), client)
    truth, expected = _learned(theirs, _batches(X, y))
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    np.testing.assert_allclose(_weights(ours), _weights(theirs), rtol=1e-9, atol=1e-12)
    assert found.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-9)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_is_sequential_with_one_lane(client, policy):
    ours = SGDClassifier(policy=policy, run=Run(n_lanes=1), **_PLAIN)
    theirs = SGDClassifier(**_PLAIN)
    found, _ = _learned(ours, _batches(), client)
    truth, _ = _learned(theirs, _batches())
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-12)
    assert found.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-12)


@pytest.mark.parametrize("policy", ["async", "hogwild"])
def test_sparse_lanes_pull_the_updates_of_others(client, policy):
    ours = SGDClassifier(policy=policy, run=Run(n_lanes=2, n_servers=2), **_PLAIN)
    theirs = SGDClassifier(**_PLAIN)
    with ours.stream(client=client, classes=[0, 1]) as stream, theirs.stream(classes=[0, 1]) as one:
        for X, y in _batches(_SPARSE, rows=10):
            stream.learn(X, y)
            one.learn(X, y)
            assert np.isfinite(ours.coef_).all()  # reading waits for the servers
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("policy", [LocalSGD(sync_every=2), "average"])
def test_independent_lanes_are_averaged(client, policy):
    ours = SGDClassifier(policy=policy, run=Run(n_lanes=2), **_PLAIN)
    _learned(ours, _batches(), client)
    lanes = [SGDClassifier(shuffle=False, batch_size=None, **_PLAIN) for _ in range(2)]
    for number, (X, y) in enumerate(_batches()):
        for lane, lane_model in enumerate(lanes):
            half = slice(0, 20) if (lane + number) % 2 == 0 else slice(20, 40)
            lane_model.partial_fit(X[half], y[half], classes=[0, 1], client="inline")
        if policy != "average" and number % 2:
            mean = np.mean([lane_model.coef_ for lane_model in lanes], axis=0)
            between = np.mean([lane_model.intercept_ for lane_model in lanes], axis=0)
            for lane_model in lanes:
                lane_model.coef_, lane_model.intercept_ = mean.copy(), between.copy()
    np.testing.assert_allclose(ours.coef_, np.mean([o.coef_ for o in lanes], axis=0), rtol=1e-9)


def test_independent_lanes_are_combined_by_an_outer_step(client):
    policy = LocalSGD(2, outer="adam", outer_rate=0.1)
    ours = SGDClassifier(policy=policy, run=Run(n_lanes=2), **_PLAIN)
    _learned(ours, _batches(), client)
    lanes = [SGDClassifier(shuffle=False, batch_size=None, **_PLAIN) for _ in range(2)]
    w, m, v = np.zeros(6), np.zeros(6), np.zeros(6)
    for number, (X, y) in enumerate(_batches()):
        for lane, lane_model in enumerate(lanes):
            half = slice(0, 20) if (lane + number) % 2 == 0 else slice(20, 40)
            lane_model.partial_fit(X[half], y[half], classes=[0, 1], client="inline")
        if number % 2:
            t = number // 2 + 1
            ends = [np.append(lane_model.coef_, lane_model.intercept_) for lane_model in lanes]
            progress = w - np.mean(ends, axis=0)
            m, v = 0.9 * m + 0.1 * progress, 0.99 * v + 0.01 * progress**2
            w = w - 0.1 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.99**t)) + 1e-3)
            for lane_model in lanes:
                lane_model.coef_, lane_model.intercept_ = w[None, :5].copy(), w[5:].copy()
    np.testing.assert_allclose(ours.coef_[0], w[:5], rtol=1e-9)


@pytest.mark.parametrize("policy", ["async", BoundedStaleness(0), "hogwild"])
def test_free_running_lanes_learn_each_row_once(client, policy, tmp_path):
    model = SGDClassifier(policy=policy, run=Run(n_lanes=2, n_servers=2), random_state=0)
    published, saved = [], []
    _, losses = _learned(
        model, _batches(rows=10), client,
        checkpoint=Checkpoint(tmp_path / "s.npz", every=7), on_checkpoint=saved.append,
        publish=lambda one: published.append(one.t_), publish_every=10,
    )  # fmt: skip
    assert np.isfinite(model.coef_).all()
    assert saved == [6, 13, 20, 23]
    assert published == [100, 200, 240]
    assert len(losses) == 24
    other = SGDClassifier(policy=policy, random_state=0)
    resuming = Checkpoint(tmp_path / "s.npz", resume=True)
    with other.stream(client=client, checkpoint=resuming) as stream:
        assert (stream.position, stream.n_rows) == (23, 240)
        assert stream.learn(_X, _Y, position=23) is None
        assert np.array_equal(other.coef_, model.coef_)


@pytest.mark.parametrize(
    "policy", ["local", *(pytest.param(one, marks=_SLOW) for one in ("sync", "allreduce"))]
)
def test_runs_are_reproducible_bit_for_bit(client, policy):
    run = Run(n_lanes=3, deterministic=True)
    models = [SGDClassifier(policy=policy, run=run, random_state=0) for _ in range(2)]
    for model in models:
        _learned(model, _batches(), client)
    assert np.array_equal(models[0].coef_, models[1].coef_)


@pytest.mark.parametrize(
    "policy", ["sync", *(pytest.param(one, marks=_SLOW) for one in ("local", "async"))]
)
def test_calls_since_the_last_state_are_repeated_after_a_loss(client, policy, monkeypatch):
    lost, real = [], StreamActors.receive

    def receive(crew):
        loss = real(crew)
        if crew.n_learned in {2, 4} and len(lost) < 3:
            lost.append(crew.n_learned)
            raise WorkerUnreachableError("", "a test")
        return loss

    monkeypatch.setattr(StreamActors, "receive", receive)
    # Under "async" only a single lane has a defined order to compare with.
    run = Run(n_lanes=1 if policy == "async" else 2)
    ours, theirs = (SGDClassifier(policy=policy, run=run, random_state=0) for _ in range(2))
    found, losses = _learned(ours, _batches(), client)
    assert lost == [2, 2, 2]
    monkeypatch.undo()
    truth, expected = _learned(theirs, _batches(), client)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-12)
    assert found.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-12)
    if policy != "async":  # whose calls report losses of earlier calls
        np.testing.assert_allclose(losses, expected, rtol=1e-12)


def _drifting(model, **how):
    """Learn a task whose labels flip; only an interrupt ends it."""
    watch = {"drift": PageHinkley(min_calls=10, threshold=3), "on_drift": "reset"}
    with model.stream(classes=[0, 1], **watch, **how) as stream:
        for number in range(30):
            stream.learn(_X, _Y if number < 20 else 1 - _Y)
        with pytest.raises(InvalidDataError, match="classes"):
            stream.learn(_X, _Y + 7)
        assert stream.n_rows == 30 * 240
        model.drifts = stream.drifts
        raise KeyboardInterrupt


def test_a_stream_stays_usable_after_drifts_and_errors(client):
    ours = SGDClassifier(policy="async", run=Run(n_lanes=1), **_PLAIN)
    theirs = SGDClassifier(**_PLAIN)
    with pytest.raises(KeyboardInterrupt):
        _drifting(ours, client=client)
    with pytest.raises(KeyboardInterrupt):
        _drifting(theirs)
    # Up to the first drift the losses equal those of one process.
    assert ours.drifts[0] == theirs.drifts[0] == 21 * 240
    assert np.isfinite(ours.coef_).all()


class _Fifth:
    """Detector that reports a drift in the fifth call."""

    n = 0

    @property
    def drift_detected(self):
        return self.n == 5

    def update(self, x):
        self.n += 1


def test_a_checkpoint_saved_on_a_drift_matches_its_position(client, tmp_path):
    path, batches = tmp_path / "m.npz", _batches(rows=10)

    def save(stream):
        stream.save()
        path.rename(tmp_path / "then.npz")

    model = SGDClassifier(policy="async", run=Run(n_lanes=1), **_PLAIN)
    how = {"drift": _Fifth(), "on_drift": save, "checkpoint": Checkpoint(path, every=99)}
    _learned(model, batches, client, **how)
    ours, theirs = SGDClassifier(**_PLAIN), SGDClassifier(**_PLAIN)
    with ours.stream(checkpoint=Checkpoint(tmp_path / "then.npz", resume=True)) as stream:
        at = stream.position  # including the calls in flight
    with theirs.stream(classes=[0, 1]) as stream:
        for one in batches[: at + 1]:
            stream.learn(*one)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)


def test_an_interrupted_call_is_not_saved(client, tmp_path, monkeypatch):
    def interrupt(steps):
        raise KeyboardInterrupt

    def cut_off(stream):
        with stream:
            stream.learn(_X, _Y)
            monkeypatch.setattr(ClusterSteps, "wait_until_learned", interrupt)

    path = tmp_path / "m.npz"
    model = SGDClassifier(policy="async", **_PLAIN)
    stream = model.stream(classes=[0, 1], client=client, checkpoint=Checkpoint(path, every=9))
    with pytest.raises(KeyboardInterrupt):
        cut_off(stream)
    with pytest.raises(CheckpointError, match="last checkpoint"):
        stream.save()
    assert not path.exists()
    assert model.coef_.shape == (1, 5)  # as last known


def test_row_counts_after_an_interrupt_match_the_last_known_state(client, monkeypatch):
    def interrupt(steps):
        raise KeyboardInterrupt

    def cut_off(stream):
        with stream:
            stream.learn(_X[:40], _Y[:40])
            assert model.t_ == 40  # the state is fetched here
            stream.learn(_X[40:100], _Y[40:100])
            assert stream.n_rows == 100
            stream.learn(_X[100:], _Y[100:])
            monkeypatch.setattr(ClusterSteps, "wait_until_learned", interrupt)

    model = SGDClassifier(policy="async", **_PLAIN)
    with pytest.raises(KeyboardInterrupt):
        cut_off(model.stream(classes=[0, 1], client=client))
    assert (model.t_, model._state.rows) == (40, 40)


def test_feature_units_are_sent_with_the_rows(client):
    first = SGDClassifier(optimizer="nag", learning_rate=0.5, random_state=0, max_iter=2, tol=None)
    first.fit(_X, _Y, client="inline")
    ours, theirs = (SGDClassifier(**first.get_params()).fit(_X, _Y, client="inline") for _ in "ab")
    ours.run = Run(n_servers=2)
    _learned(ours, _batches(3 * _X), client)
    _learned(theirs, _batches(3 * _X))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"policy": Synchronous(backup_workers=1)}, "backup"),
        ({"run": Run(compression="int8")}, "compression"),
    ],
)
def test_unsupported_settings_on_a_cluster_are_refused(client, params, message):
    with (
        pytest.raises(InvalidParameterError, match=message),
        SGDClassifier(**params).stream(client=client, classes=[0, 1]),
    ):
        pass


def test_errors_of_a_lane_are_raised_in_the_caller(client, tmp_path):
    def break_lanes():
        from daskml_dist.streaming.cluster.worker import CallReader

        def put(self, number, *rows):
            raise RuntimeError("no such shape")

        CallReader.whole, CallReader.put = CallReader.put, put

    def mend_lanes():
        from daskml_dist.streaming.cluster.worker import CallReader

        CallReader.put = CallReader.whole
        del CallReader.whole

    model = SGDClassifier(random_state=0)
    client.run(break_lanes)
    try:
        checkpoint = Checkpoint(tmp_path / "m.npz")
        with model.stream(classes=[0, 1], client=client, checkpoint=checkpoint) as stream:
            for message in ("no such shape", "have failed"):
                with pytest.raises(TrainingError, match=message):
                    stream.learn(_X, _Y)
            with pytest.raises(CheckpointError, match="last checkpoint"):
                stream.save()
            assert stream.n_rows == 0
    finally:
        client.run(mend_lanes)


def test_a_lane_with_too_few_rows_changes_nothing(client, monkeypatch):
    monkeypatch.setattr(MLP, "fewest_rows", 2, raising=False)  # as with a batch normalisation
    model = MLPClassifier(hidden_layer_sizes=(2,), run=Run(n_lanes=2), policy="sync")
    with model.stream(client=client, classes=[0, 1]) as stream:
        stream.learn(_X, _Y)
        with pytest.raises(InvalidDataError, match="fewer lanes"):
            stream.learn(_X[:3], _Y[:3], position=1)
        stream.learn(_X[:4], _Y[:4], position=1)
        assert stream.n_rows == 244
