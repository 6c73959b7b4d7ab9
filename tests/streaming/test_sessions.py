"""Stream sessions equal sequential fits of the same batches and are fitted at any time."""

import copy
import pickle
import threading

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from daskml_dist.errors import (
    CheckpointError,
    DivergedError,
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    NotFittedError,
    TrainingError,
)
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.ps.shard import Shard
from daskml_dist.training.checkpoint import Checkpoint

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((600, 6))
_RAW = _X @ _RNG.standard_normal(6)
_SPARSE = sparse.random(600, 3000, 0.01, format="csr", random_state=0)
_TARGETS = {
    "two": (_RAW > 0).astype(int),
    "text": np.where(_RAW > 0, "yes", "no"),
    "three": np.digitize(_RAW, [-1, 1]),
    "numbers": _RAW + 3,
}


def _batches(X, y, rows=100):
    return [(X[i : i + rows], y[i : i + rows]) for i in range(0, X.shape[0], rows)]


def _classes(y):
    return {} if y.dtype.kind == "f" else {"classes": np.unique(y)}


@pytest.mark.parametrize(
    ("estimator", "rows", "target", "params"),
    [
        (SGDClassifier, "float64", "two", {}),
        (SGDClassifier, "float32", "two", {"optimizer": "sgd", "learning_rate": 0.1}),
        (SGDClassifier, "float32", "two", {"batch_size": 32}),
        (SGDClassifier, "float64", "text", {"penalty": "l1", "alpha": 1e-2}),
        (SGDClassifier, "pandas", "three", {}),
        (SGDClassifier, "sparse", "two", {"batch_size": 100}),
        (SGDClassifier, "sparse", "two", {"batch_size": 10, "penalty": None}),  # steps touch few
        (SGDRegressor, "float64", "numbers", {"optimizer": "sgd", "learning_rate": 0.01}),
    ],
)
def test_a_session_equals_sequential_fits_to_the_bit(estimator, rows, target, params):
    y = _TARGETS[target]
    X = _SPARSE if rows == "sparse" else _X
    if rows == "pandas":
        X, y = pd.DataFrame(_X, columns=list("abcdef")), pd.Series(y)
    elif rows != "sparse":
        X = X.astype(rows)
    ours = estimator(random_state=0, **params)
    theirs = estimator(random_state=0, shuffle=False, **{"batch_size": None, **params})
    with ours.stream(**_classes(y)) as stream:
        for batch in _batches(X, y):
            stream.learn(*batch)
    for batch in _batches(X, y):
        theirs.partial_fit(*batch, **_classes(y))
    assert np.array_equal(ours.coef_, theirs.coef_)
    assert np.array_equal(ours.intercept_, theirs.intercept_)
    assert (stream.n_rows, ours.t_) == (600, 600)


def test_a_stream_continues_a_fit_in_its_feature_units():
    y = _TARGETS["two"]
    ours = SGDClassifier(random_state=0, max_iter=2, tol=None, batch_size=None).fit(100 * _X, y)
    theirs = copy.deepcopy(ours)
    with ours.stream() as stream:
        for batch in _batches(_X, y):
            stream.learn(*batch)
            theirs.partial_fit(*batch)
    assert np.array_equal(ours.coef_, theirs.coef_)
    assert ours.t_ == theirs.t_


def test_the_progressive_loss_is_computed_before_learning():
    y, truth, total = _TARGETS["two"], SGDClassifier(batch_size=None), 0.0
    weights = _RNG.uniform(0.5, 2, 600)
    with SGDClassifier(optimizer="sgd", learning_rate=0.5).stream(classes=[0, 1]) as stream:
        for at in (slice(i, i + 100) for i in range(0, 600, 100)):
            weight = weights[at]
            raw = truth.decision_function(_X[at]) if stream.n_rows else np.zeros(100)
            losses = np.log1p(np.exp(-np.where(y[at] > 0, raw, -raw)))
            last = stream.learn(_X[at], y[at], weight)
            assert last == pytest.approx(losses @ weight / weight.sum(), rel=1e-12)
            total += losses @ weight
            truth = copy.deepcopy(stream.estimator)
    assert stream.progressive_loss == pytest.approx(total / weights.sum(), rel=1e-12)


def test_a_weight_scales_the_step():
    y, found = np.array([1]), {}
    for weight in (1.0, 3.0):
        model = SGDClassifier(optimizer="sgd", learning_rate=0.1, penalty=None)
        with model.stream(classes=[0, 1]) as stream:
            stream.learn(_X[:1], y, weight)
        found[weight] = model.coef_
    assert found[3.0] == pytest.approx(3 * found[1.0])
    by_class = SGDClassifier(
        optimizer="sgd", learning_rate=0.1, penalty=None, class_weight={0: 1.0, 1: 3.0}
    )
    with by_class.stream(classes=[0, 1]) as stream:
        stream.learn(_X[:1], y)
    assert by_class.coef_ == pytest.approx(found[3.0])


def test_the_estimator_is_fitted_at_any_time():
    model, y = SGDClassifier(), _TARGETS["two"]
    with model.stream(classes=[0, 1]) as stream:
        with pytest.raises(NotFittedError):
            model.predict(_X)
        stream.learn(_X, y)
        first, unpickled = model.coef_, pickle.loads(pickle.dumps(model))
        before = first.copy()
        stream.learn(_X, y)
        assert np.array_equal(first, before)  # arrays returned before do not change
        assert np.array_equal(unpickled.coef_, before)
        assert not np.array_equal(model.coef_, before)
        raw = _X @ model.coef_[0] + model.intercept_
        assert np.array_equal(model.predict(_X), raw > 0)
        with pytest.raises(AttributeError):
            model.feature_names_in_  # noqa: B018
    assert np.array_equal(model.coef_, pickle.loads(pickle.dumps(model)).coef_)
    with pytest.raises(InvalidParameterError, match="closed"):
        stream.learn(_X, y)
    model.partial_fit(_X, y)
    model.fit(_X, y)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.full((2, 6), np.nan), [0, 1], "NaN"),
        (_X[:2, :5], [0, 1], "5 features"),
        (_X[:2], np.array([0, 7]), "stream holds|classes of the stream"),
        (_X[:2], [0, 1, 1], "3"),
        (da.from_array(_X), [0, 1], "Dask collection"),
        ("rows.csv", [0, 1], "path that is read as one"),
    ],
)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_rows_that_cannot_be_learned_change_nothing(X, y, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savetxt("rows.csv", _X[:2], delimiter=",")
    model = SGDClassifier()
    with model.stream(classes=[0, 1]) as stream:
        stream.learn(_X, _TARGETS["two"])
        before = model.coef_.copy()
        with pytest.raises(InvalidDataError, match=message):
            stream.learn(X, y)
        assert np.array_equal(model.coef_, before)
        assert stream.n_rows == 600


@pytest.mark.parametrize(
    ("params", "how", "message"),
    [
        ({"early_stopping": True}, {"classes": [0, 1]}, "early_stopping=False"),
        ({"class_weight": "balanced"}, {"classes": [0, 1]}, "by label"),
        ({"device": "gpu"}, {"classes": [0, 1]}, "CPU"),
        ({}, {}, "classes must be passed"),
        ({}, {"classes": [0, 1], "client": "somewhere"}, "distributed.Client"),
    ],
)
def test_unsupported_settings_in_a_stream_are_refused(params, how, message):
    with (
        pytest.raises(InvalidParameterError, match=message),
        SGDClassifier(**params).stream(**how) as stream,
    ):
        stream.learn(_X, _TARGETS["two"])


def test_an_estimator_has_one_stream_at_a_time():
    model = SGDClassifier()
    with (
        model.stream(classes=[0, 1]),
        pytest.raises(InvalidParameterError, match="already"),
        model.stream(classes=[0, 1]),
    ):
        pass
    with model.stream(classes=[0, 1]):
        pass


def test_divergence_raises_and_is_not_saved(tmp_path):
    model = SGDRegressor(optimizer="sgd", learning_rate=1e6)
    checkpoint = Checkpoint(tmp_path / "m.npz", every=1000)

    def learn_all(stream):
        try:
            for _ in range(100):
                stream.learn(_X, _TARGETS["numbers"])
        finally:
            with pytest.raises(CheckpointError, match="last checkpoint"):
                stream.save()

    with (
        pytest.raises(DivergedError, match="learning_rate"),
        model.stream(checkpoint=checkpoint) as stream,
    ):
        learn_all(stream)
    assert stream.n_rows < 60_000
    assert not (tmp_path / "m.npz").exists()


def test_an_interrupted_call_ends_the_stream(monkeypatch, tmp_path):
    y, checkpoint = _TARGETS["two"], Checkpoint(tmp_path / "s.npz", every=1)
    real = Shard.apply

    def cut(shard, *args):
        real(shard, *args)
        raise KeyboardInterrupt

    model = SGDClassifier()
    with model.stream(classes=[0, 1], checkpoint=checkpoint) as stream:
        stream.learn(_X, y, position=0)
        monkeypatch.setattr(Shard, "apply", cut)
        with pytest.raises(KeyboardInterrupt):
            stream.learn(_X, y, position=1)
        monkeypatch.undo()
        with pytest.raises(TrainingError, match="interrupted"):
            stream.learn(_X, y, position=1)
        with pytest.raises(CheckpointError, match="interrupted"):
            stream.save()
        assert (stream.n_rows, stream.position) == (600, 0)
    resumed = SGDClassifier()
    checkpoint = Checkpoint(tmp_path / "s.npz", resume=True)
    with resumed.stream(checkpoint=checkpoint) as stream:
        assert (stream.position, stream.n_rows, resumed._state.step) == (0, 600, 1)
        stream.reset(parameters=True)  # afterwards the stream may continue
        assert stream.learn(_X, y) == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    "do",
    [
        lambda model: model.fit(_X, _TARGETS["two"]),
        lambda model: model.partial_fit(_X, _TARGETS["two"]),
        lambda model: model.set_params(loss="hinge"),
    ],
)
def test_other_methods_are_refused_while_a_stream_is_open(do):
    model = SGDClassifier()
    with model.stream(classes=[0, 1]) as stream:
        stream.learn(_X, _TARGETS["two"])
        before = model.coef_
        with pytest.raises(InvalidParameterError, match="while this estimator learns"):
            do(model)
        do(copy.copy(model))
        assert np.array_equal(before, model.coef_)
    assert np.array_equal(before, model.coef_)
    do(model)


def test_classes_must_be_a_list():
    for classes in (5, "ab", [[0, 1]]):
        with pytest.raises(InvalidParameterError, match="list of all labels"):
            SGDClassifier().partial_fit(_X, _TARGETS["two"], classes=classes)


def test_a_stream_that_has_ended_changes_nothing_any_more():
    model, y = SGDClassifier(), _TARGETS["two"]
    with model.stream(classes=[0, 1]) as stream:
        stream.learn(_X, y)
    before = model.coef_
    for use in (stream.__enter__, stream.reset, lambda: stream.learn(_X, y)):
        with pytest.raises(InvalidParameterError, match=r"with clf\.stream"):
            use()
    assert model.coef_ is before


class _Meanwhile:
    """Detector that lets another thread use the stream during a call."""

    drift_detected = False

    def __init__(self):
        self.uses, self.errors = [], []

    def update(self, x):
        for use in self.uses:
            thread = threading.Thread(target=self._ask, args=(use,))
            thread.start()
            thread.join()

    def _ask(self, use):
        with pytest.raises(InvalidParameterError, match="one thread") as caught:
            use()
        self.errors.append(caught)


def test_concurrent_use_of_a_stream_by_another_thread_is_refused():
    model, y, other = SGDClassifier(), _TARGETS["two"], _Meanwhile()
    with model.stream(classes=[0, 1], drift=other) as stream:
        other.uses = [lambda: stream.learn(_X, y), lambda: model.coef_]
        stream.learn(_X, y)
    assert len(other.errors) == 2
    assert stream.n_rows == len(_X)


@pytest.mark.parametrize("rows", [np.empty((0, 5)), pd.DataFrame(columns=list("abcde")), []])
def test_a_call_without_rows_only_moves_the_position(rows):
    y = _TARGETS["two"]
    with SGDClassifier().stream(classes=[0, 1]) as stream:
        for position in (1, 3):  # before the first rows, too
            assert np.isnan(stream.learn(rows, [], position=position))
            assert stream.learn(_X, y, position=position + 1) > 0
        assert (stream.n_rows, stream.position) == (2 * len(_X), 4)
        with pytest.raises(InvalidDataError):
            stream.learn(_X[:0], y)
        with pytest.raises(InvalidDataError, match="2D"):
            stream.learn(_X[0], y[:1])
        with pytest.raises(InvalidTypeError, match="1d"):
            stream.learn(_X[:1], y[0])
