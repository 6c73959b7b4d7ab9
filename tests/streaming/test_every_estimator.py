"""Every estimator of gradient steps learns from streams; one table of cases for all of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier

from daskml_dist.base import BaseSteps
from daskml_dist.cluster import MiniBatchKMeans
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.neural_network import (
    MLPClassifier,
    MLPRegressor,
    TorchClassifier,
    TorchRegressor,
)
from daskml_dist.training.checkpoint import Checkpoint
from tests.contracts.subjects import SUBJECTS

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((300, 5)) + 2 * _RNG.integers(0, 3, (300, 1))
_RAW = (_X - _X.mean(axis=0)) @ _RNG.standard_normal(5)
_Y = {
    "two": (_RAW > 0).astype(int),
    "three": np.digitize(_RAW, [-1, 1]).astype(str),
    "labels": np.c_[_RAW > 0, _RAW > 1, _RAW < 0.5].astype(int),
    "number": _RAW + 3,
    "columns": np.c_[_RAW, 10 * _RAW + 5],
    "none": None,
}
#: Ends of calls of different sizes.
_ENDS = [80, 120, 200, 201, 300]


def _module(**params: Any) -> Any:
    """Return a small torch network with every kind of layer that has state between steps."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, n_out: int, norm: bool = False) -> None:
            super().__init__()
            nn = torch.nn
            self.first, self.drop = nn.Linear(5, 8), nn.Dropout(0.3)
            self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
            self.last = nn.Linear(8, n_out)

        def forward(self, x: Any) -> Any:
            return self.last(self.drop(torch.relu(self.norm(self.first(x)))))

    return {"module": Net, "dtype": "float32", **params}


@dataclass(frozen=True, eq=False)
class _Case:
    """Estimator, its targets, and equivalent calls of ``partial_fit``."""

    kind: Any
    target: str
    params: Callable[[], dict[str, Any]] = dict
    X: Any = field(default_factory=lambda: _X)
    one_step: dict[str, Any] = field(default_factory=lambda: {"batch_size": None})

    def make_estimator(self, **more: Any) -> Any:
        params = self.params()
        shuffle = {"shuffle": False} if "shuffle" in self.kind().get_params() else {}
        return self.kind(**{"random_state": 0, **shuffle, **params, **more})

    def batches(self) -> Iterator[tuple[Any, Any]]:
        for start, stop in zip([0, *_ENDS], _ENDS, strict=False):
            y = _Y[self.target]
            yield self.X[start:stop], None if y is None else y[start:stop]

    @property
    def classes(self) -> dict[str, Any]:
        if not is_classifier(self.make_estimator()):
            return {}
        y = _Y[self.target]
        return {"classes": np.unique(y) if y.ndim == 1 else np.arange(y.shape[1])}


def _small(**params: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"hidden_layer_sizes": (6,), **params}


_IN_BATCHES: dict[str, Any] = {"one_step": {}}
#: "auto" uses the units of the rows of each `partial_fit`, but of the first rows of a stream.
_RATE = {"learning_rate": 0.01}
_CASES = {
    "SGDClassifier": _Case(SGDClassifier, "two"),
    "SGDClassifier, three": _Case(SGDClassifier, "three"),
    "SGDRegressor": _Case(SGDRegressor, "number", lambda: _RATE),
    "SGDRegressor, columns": _Case(SGDRegressor, "columns", lambda: _RATE),
    "MLPClassifier": _Case(MLPClassifier, "three", _small()),
    "MLPClassifier, labels": _Case(MLPClassifier, "labels", _small(solver="sgd")),
    "MLPClassifier, sparse": _Case(MLPClassifier, "two", _small(), sparse.csr_matrix(_X)),
    "MLPRegressor": _Case(MLPRegressor, "number", _small(alpha=1.0)),
    "MLPRegressor, batches": _Case(
        MLPRegressor, "columns", _small(batch_size=32, alpha=1.0), **_IN_BATCHES
    ),
    "TorchClassifier": _Case(
        TorchClassifier,
        "three",
        lambda: _module(module__n_out=3, batch_size=32, micro_batch_size=10),
        **_IN_BATCHES,
    ),
    "TorchRegressor": _Case(TorchRegressor, "columns", lambda: _module(module__n_out=2)),
    "MiniBatchKMeans": _Case(MiniBatchKMeans, "none", lambda: {"n_clusters": 4}, one_step={}),
    "MiniBatchKMeans, sparse": _Case(
        MiniBatchKMeans,
        "none",
        lambda: {"n_clusters": 6, "init": "random", "reassignment_ratio": 0.5},
        sparse.random(300, 20, 0.3, format="csr", random_state=0),
        one_step={},
    ),
}


def _learned(model: Any) -> Any:
    return model._state.final


def test_the_table_contains_every_step_estimator() -> None:
    models = [subject.model for subject in SUBJECTS.values()]
    steps = {type(model).__name__ for model in models if isinstance(model, BaseSteps)}
    assert {"MLPClassifier", "MiniBatchKMeans"} <= steps
    elsewhere = {  # test_ratings.py, tests/recommender
        "DeepFMClassifier", "FactorizationMachineClassifier", "FactorizationMachineRegressor",
        "FieldAwareFMClassifier", "MatrixFactorization", "TwoTower", "WideAndDeepClassifier",
    }  # fmt: skip
    assert steps <= {case.kind.__name__ for case in _CASES.values()} | elsewhere


@pytest.mark.parametrize("name", _CASES)
def test_stream_equals_partial_fit_and_reports_progressive_losses(name: str) -> None:
    case = _CASES[name]
    ours, theirs = case.make_estimator(), case.make_estimator(**case.one_step)
    total = 0.0
    with ours.stream(**case.classes) as stream:
        for X, y in case.batches():
            loss = stream.learn(X, y)
            total += loss * X.shape[0]
            theirs.partial_fit(X, y, **case.classes)
            assert np.array_equal(_learned(ours), _learned(theirs))
            if hasattr(theirs, "history_") and len(theirs.history_.records) == 1:
                assert loss == pytest.approx(theirs.history_.records[0]["loss"], rel=1e-6)
    assert stream.progressive_loss == pytest.approx(total / 300)
    assert (stream.n_rows, ours.t_) == (300, 300)


@pytest.mark.parametrize("name", _CASES)
def test_a_resumed_stream_equals_an_uninterrupted_one(name: str, tmp_path: Any) -> None:
    case = _CASES[name]
    whole, parts = case.make_estimator(), [case.make_estimator(), case.make_estimator()]
    with whole.stream(**case.classes) as truth:
        for X, y in case.batches():
            truth.learn(X, y)
    found: list[Any] = []
    path = tmp_path / "stream.npz"
    checkpoint = Checkpoint(path, every=100)
    with parts[0].stream(
        **case.classes, checkpoint=checkpoint, publish=found.append, publish_every=1
    ) as stream:
        for number, (X, y) in enumerate(case.batches()):
            if number < 2:
                stream.learn(X, y, position=number)
    resuming = Checkpoint(path, every=100, resume=True)
    with parts[1].stream(checkpoint=resuming) as stream:
        assert np.array_equal(_learned(parts[1]), _learned(parts[0]))
        learned = [
            stream.learn(X, y, position=number) is not None
            for number, (X, y) in enumerate(case.batches())
        ]
    assert learned == [False] * 2 + [True] * 3
    assert np.array_equal(_learned(parts[1]), _learned(whole))
    assert stream.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-12)
    # A published copy is fitted and does not change.
    first, last = (model.predict(case.X[:50]) for model in (found[0], found[-1]))
    assert np.array_equal(last, parts[0].predict(case.X[:50]))
    assert first.shape == last.shape
    assert not np.array_equal(_learned(found[0]), _learned(found[-1]))


@pytest.mark.parametrize("name", _CASES)
def test_an_open_stream_allows_copies_and_refuses_invalid_rows(name: str) -> None:
    case = _CASES[name]
    model, batches = case.make_estimator(), list(case.batches())
    X, y = batches[0]
    with model.stream(**case.classes) as stream:
        wrong = X.copy()
        wrong[1, 2] = np.nan
        with pytest.raises(InvalidDataError, match="NaN"):
            stream.learn(wrong, y)
        stream.learn(X, y)
        before = _learned(model).copy()
        copied = [clone(model), copy.deepcopy(model)]
        if "Torch" not in name:  # its class is defined in this test
            copied.append(pickle.loads(pickle.dumps(model)))
        assert not hasattr(copied[0], "_state")
        stream.learn(*batches[1])
        for one in copied[1:]:
            assert np.array_equal(_learned(one), before)
            assert one.predict(X).shape[0] == X.shape[0]
        before = _learned(model).copy()
        for rows, target in ((wrong, y), (X[:, :4], y), (X, None if y is None else y[:-1])):
            if rows is X and y is None:
                continue
            with pytest.raises(InvalidDataError):
                stream.learn(rows, target)
        assert np.array_equal(_learned(model), before)
        assert stream.n_rows == 120


def test_resumed_streams_reassign_centroids_at_the_same_calls(
    tmp_path: Any,
) -> None:
    case = _CASES["MiniBatchKMeans, sparse"]
    whole, ends = case.make_estimator(), [50, 80, 110, 150, 170, 240, 300]
    calls = [case.X[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    with whole.stream() as stream:
        for X in calls:
            stream.learn(X)
    for X in calls:  # each call in a separate stream
        part = case.make_estimator()
        with part.stream(checkpoint=Checkpoint(tmp_path / "m.npz", resume=True)) as stream:
            stream.learn(X)
    assert np.array_equal(_learned(part), _learned(whole))


def test_lanes_on_workers_learn_networks(client: Any) -> None:
    case = _CASES["MLPRegressor"]
    ours, theirs = case.make_estimator(policy="sync"), case.make_estimator()
    with ours.stream(client=client) as stream, theirs.stream() as truth:
        for at in range(0, 300, 100):
            stream.learn(_X[at : at + 100], _RAW[at : at + 100])
            truth.learn(_X[at : at + 100], _RAW[at : at + 100])
    np.testing.assert_allclose(_learned(ours), _learned(theirs), rtol=1e-9, atol=1e-12)
    assert stream.progressive_loss == pytest.approx(truth.progressive_loss)


def test_unsupported_settings_in_a_stream_are_refused() -> None:
    for model, message in (
        (MLPClassifier(solver="lbfgs"), "adam"),
        (MLPClassifier(early_stopping=True), "early_stopping=False"),
    ):
        with pytest.raises(InvalidParameterError, match=message), model.stream(classes=[0, 1]):
            pass


def test_attributes_of_an_earlier_fit_are_updated_by_the_first_call() -> None:
    model = MLPRegressor(hidden_layer_sizes=(4,), random_state=0, max_iter=2, tol=None).fit(
        _X, _RAW
    )
    before = model.coefs_[0].copy()
    with model.stream() as stream:
        stream.learn(_X, _RAW)
        assert not np.array_equal(model.coefs_[0], before)


def test_calls_too_small_for_batch_normalisation_are_refused() -> None:
    case = _Case(TorchClassifier, "three", lambda: _module(module__n_out=3, module__norm=True))
    model = case.make_estimator()
    (X, y), *_ = case.batches()
    with model.stream(**case.classes) as stream:
        stream.learn(X, y)
        with pytest.raises(InvalidDataError, match="Pass more rows"):
            stream.learn(X[:1], y[:1])
        assert stream.n_rows == 80
