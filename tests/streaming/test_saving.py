"""Checkpointed streams resume as if they had never ended, and learn each row once."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from daskml_dist.cluster import MiniBatchKMeans
from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.recommender import MatrixFactorization
from daskml_dist.streaming import PageHinkley
from daskml_dist.training.checkpoint import Checkpoint

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((400, 5))
_RAW = _X @ _RNG.standard_normal(5)
_FRAME = pd.DataFrame(_X, columns=list("abcde"))
_SPARSE = sparse.random(400, 3000, 0.01, format="csr", random_state=0)
_CASES = {
    "labels": (SGDClassifier(), _X, (_RAW > 0).astype(int)),
    "float32": (SGDClassifier(optimizer="sgd", learning_rate=0.1), _X.astype("f4"), _RAW > 0),
    "text, frame": (SGDClassifier(), _FRAME, np.digitize(_RAW, [-1, 1]).astype(str)),
    "batches": (SGDClassifier(batch_size=16, learning_rate="optimal"), _X, (_RAW > 0) * 1),
    "sparse": (SGDClassifier(), _SPARSE, (_RAW > 0).astype(int)),
    "few touched": (SGDClassifier(batch_size=10), _SPARSE, (_RAW > 0).astype(int)),
    "numbers": (SGDRegressor(), _X, 10 * _RAW + 3),
    "medians": (SGDRegressor(loss="epsilon_insensitive"), _X, 10 * _RAW + 3),
    "columns": (SGDRegressor(), _X, np.c_[_RAW, 100 * _RAW + 5]),
}


def _new(case):
    model, X, y = _CASES[case]
    classes = np.unique(y) if isinstance(model, SGDClassifier) else None
    batches = [(X[i : i + 50], y[i : i + 50], i) for i in range(0, 400, 50)]
    return type(model)(**model.get_params()), batches, classes


@pytest.mark.parametrize("case", _CASES)
def test_a_resumed_stream_equals_an_uninterrupted_one(case, tmp_path):
    whole, batches, classes = _new(case)
    with whole.stream(classes=classes) as truth:
        for X, y, _ in batches:
            truth.learn(X, y)
    path = tmp_path / "stream.npz"
    first, _, _ = _new(case)
    with first.stream(classes=classes, checkpoint=Checkpoint(path, every=100)) as stream:
        for X, y, at in batches[:3]:
            stream.learn(X, y, position=at)
    second, _, _ = _new(case)
    resuming = Checkpoint(path, every=100, resume=True)
    with second.stream(checkpoint=resuming) as stream:
        assert (stream.position, stream.n_rows) == (100, 150)
        assert np.array_equal(second.coef_, first.coef_)  # before any rows have arrived
        learned = [stream.learn(X, y, position=at) is not None for X, y, at in batches]
    assert learned == [False] * 3 + [True] * 5
    exact = (
        np.array_equal if case != "few touched" else np.allclose
    )  # pending penalties are applied at other steps
    assert exact(second.coef_, whole.coef_)
    assert exact(second.intercept_, whole.intercept_)
    assert stream.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-12)
    assert (stream.n_rows, second.t_) == (400, 400)


def test_checkpoints_are_saved_every_n_calls_and_at_the_end(tmp_path):
    model, batches, classes = _new("labels")
    positions = []
    with model.stream(
        classes=classes,
        checkpoint=Checkpoint(tmp_path / "s.npz", every=3),
        on_checkpoint=positions.append,
    ) as stream:
        for X, y, at in batches:
            stream.learn(X, y, position=("part", at))
    assert positions == [["part", 100], ["part", 250], ["part", 350]]
    assert stream.position == ["part", 350]


def test_an_error_between_calls_loses_nothing(tmp_path):
    model, batches, classes = _new("labels")
    checkpoint = Checkpoint(tmp_path / "s.npz", every=100, resume=True)

    def learn(stream):
        for X, y, at in batches[:2]:
            stream.learn(X, y, position=at)
        raise KeyError("of the source")

    with (
        pytest.raises(KeyError, match="of the source"),
        model.stream(classes=classes, checkpoint=checkpoint) as stream,
    ):
        learn(stream)
    resumed = SGDClassifier()
    with resumed.stream(checkpoint=checkpoint) as stream:
        assert stream.position == 50
    assert np.array_equal(resumed.coef_, model.coef_)


def test_partitions_resume_independently():
    model, batches, classes = _new("labels")
    X, y, _ = batches[0]
    with model.stream(classes=classes) as stream:
        for position, counts in (
            ({"a": 5}, True),
            ({"b": 3}, True),
            ({"a": 5}, False),
            ({"a": 6, "b": 4}, True),
        ):
            assert (stream.learn(X, y, position=position) is not None) == counts
        assert stream.position == {"a": 6, "b": 4}
        for position, message in (
            ({"a": 6, "b": 5}, "call of their own"),
            (7, "one kind"),
            (object(), "give a finite number"),
            ({"a": float("inf")}, "give a finite number"),
        ):
            with pytest.raises(InvalidParameterError, match=message):
                stream.learn(X, y, position=position)
        assert stream.n_rows == 150
    with SGDClassifier().stream(classes=classes) as stream:  # partitions in partitions
        for counts in (True, False):
            for position in ({"t": {"a": 5}}, {"t": {"b": 3}}):
                assert (stream.learn(X, y, position=position) is not None) == counts
        assert stream.position == {"t": {"a": 5, "b": 3}}


@pytest.mark.parametrize(
    ("params", "message"),
    [({"alpha": 1.0, "fit_intercept": False}, "another fit"), ({"loss": "hinge"}, "another fit")],
)
def test_another_streams_file_is_refused(params, message, tmp_path):
    model, batches, classes = _new("labels")
    checkpoint = Checkpoint(tmp_path / "s.npz", resume=True)
    with model.stream(classes=classes, checkpoint=checkpoint) as stream:
        stream.learn(*batches[0][:2])
    with (
        pytest.raises(CheckpointError, match=message),
        SGDClassifier(**params).stream(checkpoint=checkpoint),
    ):
        pass
    for other in (MiniBatchKMeans(2), MatrixFactorization(2)):
        with (
            pytest.raises(CheckpointError, match="another kind of estimator"),
            other.stream(checkpoint=checkpoint),
        ):
            pass
    SGDClassifier(checkpoint=Checkpoint(tmp_path / "f.npz"), max_iter=1, tol=None).fit(
        *batches[0][:2]
    )
    with (
        pytest.raises(CheckpointError, match="not of a stream"),
        SGDClassifier().stream(checkpoint=Checkpoint(tmp_path / "f.npz", resume=True)),
    ):
        pass


def test_copies_are_published_during_the_stream_and_at_its_end():
    model, batches, classes = _new("labels")
    found = []
    with model.stream(classes=classes, publish=found.append, publish_every=3) as stream:
        for X, y, _ in batches:
            stream.learn(X, y)
    assert len(found) == 3
    assert not np.array_equal(found[0].coef_, found[1].coef_)
    assert np.array_equal(found[2].coef_, model.coef_)
    assert found[0].predict(_X).shape == (400,)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"checkpoint": "s.npz"}, "give a Checkpoint"),
        ({"checkpoint": Checkpoint("s.npz"), "checkpoint_seconds": 0}, "positive"),
        ({"drift": 3}, "PageHinkley"),
        ({"drift": PageHinkley(), "on_drift": "x"}, "rate"),
        ({"on_drift": "rate"}, "without a detector"),
        ({"on_checkpoint": print}, "without a checkpoint"),
        ({"checkpoint_seconds": 5.0}, "without a checkpoint"),
        ({"publish": print, "publish_every": 0}, "integer >= 1"),
    ],
)
def test_invalid_arguments_of_a_stream_are_refused(how, message):
    with pytest.raises(InvalidParameterError, match=message):
        SGDClassifier().stream(**how)
