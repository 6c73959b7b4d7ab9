"""Models of rows that are no vectors of floats: images of bytes, and tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.base import BaseClassifier, BaseRounds, BaseSteps
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.models import BatchRows, Model, Parameters, Part, StepModel
from daskml_dist.solvers import Statistic
from daskml_dist.solvers.base import SinglePassSolver
from tests.quick import quick

N_ROWS, SIDE, N_TOKENS, LENGTH = 1_200, 8, 30, 12


@cache
def make_classes() -> tuple[type[BaseSteps], type[BaseSteps]]:
    """Return estimators of images and of tokens, as local classes that are pickled by value."""

    class Softmax(StepModel):
        """Softmax over features of :meth:`inner`, to which the gradient is propagated back."""

        def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
            return np.searchsorted(classes, y)

        def prepare(self, X: Any, dtype: Any) -> Any:
            return X

        def init(self, seed: int, dtype: Any) -> Any:
            rng = np.random.default_rng(seed)
            return rng.normal(scale=0.1, size=self.parameters.shape).astype(dtype)

        def raw(self, w: Any, X: Any) -> Any:
            return self.inner(w, X) @ self.parameters.views(w)["out"]

        def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Any) -> float:
            inner, p = self.inner(w, rows.X), self.parameters.views(w)
            raw = inner @ p["out"]
            g = np.exp(raw - raw.max(axis=1, keepdims=True))
            g /= g.sum(axis=1, keepdims=True)
            at = np.arange(len(g)), rows.y
            loss = -np.log(g[at]).sum(dtype=np.float64)
            g[at] -= 1
            to = self.parameters.views(out)
            to["out"] += inner.T @ g
            self.back(rows.X, inner, g @ p["out"].T, to)
            return float(loss)

        def identity(self) -> dict[str, Any]:
            return {"parts": [part.shape for part in self.parameters.parts]}

    class Images(Softmax):
        """Hidden layer over pixels, which stay bytes until a batch is processed."""

        def __init__(self, shape: tuple[int, ...], n_classes: int, dtypes: list[Any]) -> None:
            size = int(np.prod(shape))
            self.shape, self.dtypes = shape, dtypes
            self.parameters = Parameters((Part("in", (size, 12)), Part("out", (12, n_classes))))

        def pixels(self, X: Any, dtype: Any) -> Any:
            return X.reshape(len(X), -1).astype(dtype) / 255

        def inner(self, w: Any, X: Any) -> Any:
            if (str(X.dtype), X.shape[1:]) != ("uint8", self.shape):
                raise TypeError(f"the model got {X.dtype} of shape {X.shape}")
            self.dtypes.append((X.dtype, w.dtype))
            return np.maximum(self.pixels(X, w.dtype) @ self.parameters.views(w)["in"], 0)

        def back(self, X: Any, inner: Any, g: Any, to: Any) -> None:
            to["in"] += self.pixels(X, g.dtype).T @ (g * (inner > 0))

    class Tokens(Softmax):
        """The mean of the embeddings of a sequence."""

        def __init__(self, n_classes: int) -> None:
            self.parameters = Parameters(
                (Part("embedding", (N_TOKENS, 6)), Part("out", (6, n_classes)))
            )

        def inner(self, w: Any, X: Any) -> Any:
            assert X.dtype == np.int32
            return self.parameters.views(w)["embedding"][X].mean(axis=1)

        def back(self, X: Any, inner: Any, g: Any, to: Any) -> None:
            g = np.repeat(g[:, None, :] / X.shape[1], X.shape[1], axis=1)
            np.add.at(to["embedding"], X, g)

    class Classifier(BaseClassifier, BaseSteps):
        _tensors = True

        def __init__(
            self,
            dtype: Any = None,
            learning_rate: Any = 0.02,
            policy: Any = "allreduce",
            max_iter: int = 5,
            batch_size: Any = 32,
            random_state: Any = 0,
            warm_start: bool = False,
            run: Any = None,
        ) -> None:
            self.dtype = dtype
            self.learning_rate = learning_rate
            self.policy = policy
            self.max_iter = max_iter
            self.batch_size = batch_size
            self.random_state = random_state
            self.warm_start = warm_start
            self.run = run

        def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
            self.w_, self.model_, self.classes_ = w, model, rows.classes

        def _raw_prediction(self) -> Callable[[Any], Any]:
            w, model = self.w_, self.model_
            return lambda X: model.raw(w, X)

    class ImageClassifier(Classifier):
        def _model(self, rows: Any, last: Any) -> StepModel:
            self.summary_, self.seen_ = rows.summary, []
            return Images(rows.summary.row_shape, len(rows.classes), self.seen_)

    class TokenClassifier(Classifier):
        def _model(self, rows: Any, last: Any) -> StepModel:
            return Tokens(len(rows.classes))

    return ImageClassifier, TokenClassifier


def _images() -> tuple[Any, Any]:
    """Return images labelled by their brightest quarter."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 160, size=(N_ROWS, SIDE, SIDE), dtype=np.uint8)
    y = rng.integers(4, size=N_ROWS)
    half = SIDE // 2
    for quarter in range(4):
        rows, columns = (slice(half * i, half * (i + 1)) for i in divmod(quarter, 2))
        X[y == quarter, rows, columns] += 60
    return X, np.array(list("abcd"))[y]


def _tokens() -> tuple[Any, Any]:
    """Return sequences labelled by the majority class of their tokens."""
    X = np.random.default_rng(0).integers(N_TOKENS, size=(N_ROWS, LENGTH)).astype(np.int32)
    return X, (X < N_TOKENS // 2).mean(axis=1) > 0.5


def _images_of(**params: Any) -> Any:
    return make_classes()[0](run=Run(n_lanes=2, deterministic=True), **params)


def _chunked(X: Any, chunks: Any) -> Any:
    return da.from_array(X, chunks=chunks)


def _chunks_of_unknown_size(X: Any) -> Any:
    """Return chunks of unknown sizes."""
    lazy = _chunked(X, (400, *(5,) * (X.ndim - 1)))
    return lazy[da.from_array(np.ones(len(X), bool), chunks=400)]


def _delayed(X: Any) -> Any:
    return [dask.delayed(X[i : i + 400]) for i in range(0, len(X), 400)]


LAZY = {
    "rows": lambda X: _chunked(X, (400, *X.shape[1:])),
    "every dimension": lambda X: _chunked(X, (400, *(5,) * (X.ndim - 1))),
    "unknown": _chunks_of_unknown_size,
    "delayed": _delayed,
}


@pytest.fixture(scope="module")
def fitted() -> Any:
    """Return estimators fitted to arrays in this process, without a cluster."""
    return _images_of().fit(*_images())


@pytest.fixture(scope="module")
def alone() -> Any:
    """Return estimators fitted to chunks in this process, without a client."""
    return _images_of().fit(*map(LAZY["rows"], _images()))


def test_images_stay_bytes(fitted: Any) -> None:
    X, y = _images()
    (info,) = fitted.summary_.infos
    assert info.dtype == "uint8"
    assert info.nbytes == X.nbytes + y.nbytes
    assert set(fitted.seen_) == {(np.dtype("uint8"), np.dtype("float32"))}
    assert fitted.w_.dtype == np.float32
    assert (fitted.n_features_in_, fitted.row_shape_) == (SIDE, (SIDE, SIDE))
    assert fitted.score(X, y) > 0.95


def test_images_in_memory_are_sent_to_workers(client: Client) -> None:
    found = _images_of().fit(*_images())
    assert {info.dtype for info in found.summary_.infos} == {"uint8"}
    assert len(found.summary_.infos) == 2
    assert found.score(*_images()) > 0.95


@pytest.mark.parametrize("kind", quick(LAZY, "every dimension", "unknown"))
def test_lazy_images_give_the_same_fit(alone: Any, client: Client, kind: str) -> None:
    """Results do not depend on how Dask holds the blocks, nor on where they are computed."""
    X, y = _images()
    lazy, labels = LAZY[kind](X), LAZY[kind](y)
    found = _images_of().fit(lazy, labels)
    assert {(i.dtype, i.row_shape) for i in found.summary_.infos} == {("uint8", (SIDE, SIDE))}
    np.testing.assert_array_equal(found.w_, alone.w_)
    predicted = found.predict(lazy)
    assert isinstance(predicted, da.Array)
    np.testing.assert_array_equal(predicted.compute(), found.predict(X))
    assert found.score(lazy, labels) == found.score(X, y) > 0.95


def test_rows_that_cannot_be_concatenated_are_refused(fitted: Any) -> None:
    X = LAZY["every dimension"](_images()[0])
    some = X[:, da.from_array(np.ones(SIDE, bool), chunks=5)]
    with pytest.raises(InvalidDataError, match=r"unknown sizes .* Call X.compute_chunk_sizes"):
        fitted.predict(some)


def test_streamed_images_give_the_same_fit(client: Client) -> None:
    """Blocks are counted and read again as bytes."""
    size, chunks = (N_ROWS, SIDE, SIDE), (200, SIDE, SIDE)
    lazy = da.random.default_rng(0).integers(0, 255, size=size, dtype=np.uint8, chunks=chunks)
    labels = lazy[:, :4].sum(axis=(1, 2)) > lazy[:, 4:].sum(axis=(1, 2))
    found, in_memory = (
        make_classes()[0](max_iter=4, run=Run(n_lanes=2, deterministic=True, memory_budget=budget))
        for budget in (N_ROWS * SIDE**2 // 3, N_ROWS * SIDE**2)
    )
    assert found.fit(lazy, labels).history_.extra["streamed"]
    assert not in_memory.fit(lazy, labels).history_.extra["streamed"]
    assert found.score(lazy, labels) > 0.9


def test_tokens_train_an_embedding(client: Client) -> None:
    X, y = _tokens()
    params = {"run": Run(n_lanes=2, deterministic=True), "learning_rate": 0.05}
    found = make_classes()[1](**params).fit(X, y)
    assert found.score(X, y) > 0.9
    lazy = make_classes()[1](**params).fit(*(_chunked(a, (400, *a.shape[1:])) for a in (X, y)))
    assert lazy.score(X, y) > 0.9
    frame = pd.DataFrame(X).add_prefix("t")
    np.testing.assert_array_equal(make_classes()[1](**params).fit(frame, y).w_, found.w_)


def test_dtype_of_the_parameters_is_the_estimators(fitted: Any) -> None:
    X, y = _images()
    found = _images_of(dtype=np.float64, warm_start=True, max_iter=1).fit(X, y)
    assert found.w_.dtype == np.float64
    assert found.fit(X, y).w_.dtype == np.float64
    with pytest.raises(InvalidParameterError, match='use "float32" or "float64"'):
        _images_of(dtype="uint8").fit(X, y)


def test_round_estimators_take_images(client: Client) -> None:
    class Mean(Statistic):
        def shape(self, model: Any) -> tuple[int, ...]:
            return (SIDE, SIDE)

        def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> float:
            assert rows.X.dtype == np.float32
            out += rows.X.sum(axis=0, dtype=np.float64)
            return 0.0

    class Pixels(Model):
        def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
            return y

    class MeanImage(BaseRounds):
        _tensors = True

        def _check_params(self) -> None:
            pass

        def _problem(self, rows: Any) -> tuple[Any, Any]:
            return Pixels(), SinglePassSolver(Mean())

        def _set_fitted(self, solution: Any, model: Any, rows: Any) -> None:
            self.mean_ = solution.w / rows.summary.n_rows

        def _raw_prediction(self) -> Callable[[Any], Any]:
            mean = self.mean_
            return lambda X: np.abs(X - mean).sum(axis=(1, 2))

    X, _ = _images()
    found = MeanImage().fit(LAZY["rows"](X), None)
    np.testing.assert_allclose(found.mean_, X.mean(axis=0), rtol=1e-12)
    assert found.row_shape_ == (SIDE, SIDE)


def test_chunks_of_several_dtypes_are_cast_to_one() -> None:
    X, y = _tokens()
    mixed = [dask.delayed(X[:600].astype(np.uint8)), dask.delayed(X[600:])]
    labels = [dask.delayed(y[:600]), dask.delayed(y[600:])]
    params = {"run": Run(n_lanes=2, deterministic=True)}
    found = make_classes()[1](**params).fit(mixed, labels)
    expected = make_classes()[1](**params).fit(*(_chunked(a, (600, *a.shape[1:])) for a in (X, y)))
    np.testing.assert_array_equal(found.w_, expected.w_)


def test_rows_of_another_shape_are_refused(fitted: Any) -> None:
    X, y = _images()
    other = X[:, :, :4]
    remedy = r"rows of shape \(8, 4\), but .* expecting rows of shape \(8, 8\)"
    lazy = fitted.predict([dask.delayed(other)])
    for ask in (
        lambda: fitted.predict(other),
        lambda: fitted.score(other, y),
        lambda: lazy.compute(scheduler="sync"),
        lambda: fitted.score([dask.delayed(other)], [dask.delayed(y)]),
    ):
        with pytest.raises(InvalidDataError, match=remedy):
            ask()
    with pytest.raises(InvalidDataError, match=remedy):
        _images_of(warm_start=True, max_iter=1).fit(X, y).fit(other, y)
    shapes = [dask.delayed(X[:600]), dask.delayed(other[600:])]
    with pytest.raises(InvalidDataError, match="rows of different shapes"):
        _images_of().fit(shapes, [dask.delayed(y[:600]), dask.delayed(y[600:])])


def test_non_numeric_rows_are_refused() -> None:
    X, y = _images()
    bad = X.astype(np.float32)
    bad[700, 3, 2] = np.nan
    with pytest.raises(InvalidDataError, match=r"NaN \(row 700 of the block, entry \(3, 2\)"):
        _images_of().fit(bad, y)
    with pytest.raises(InvalidDataError, match="not numeric"):
        _images_of().fit(X.astype("M8[s]"), y)
    with pytest.raises(InvalidDataError, match="Expected 2D array, got 1D array"):
        _images_of().fit(X[:, 0, 0], y)


@pytest.mark.parametrize("kind", [SGDClassifier, LogisticRegression])
def test_linear_models_accept_only_vectors(kind: Any) -> None:
    X, y = _images()
    fitted = kind(max_iter=100).fit(X.reshape(N_ROWS, -1)[:, :3] / 255.0, y)
    for rows in (X, LAZY["rows"](X)):
        for ask in (lambda X: kind().fit(X, y), fitted.predict):
            with pytest.raises(InvalidDataError, match="Expected 2D array, got 3D array instead"):
                ask(rows)
