"""Feature-sharded lanes make the same steps as one lane that holds all columns."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy import sparse
from sklearn.base import RegressorMixin

from daskml_dist import Run
from daskml_dist.base import BaseSteps, Supervised
from daskml_dist.data.collection import as_collection, cut_by_columns
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from daskml_dist.losses import get_loss
from daskml_dist.models.linear import LinearModel
from daskml_dist.neural_network import MLPClassifier, MLPRegressor
from daskml_dist.policies import LocalSGD, Pipeline, Synchronous
from daskml_dist.schedules import InverseScaling
from daskml_dist.training.checkpoint import Checkpoint

N_ROWS, N_FEATURES = 600, 21
FEATURES = Run(shard="features", n_lanes=3)
IN_ORDER = Run(shard="features", n_lanes=3, deterministic=True)


def rows(n_features: int = N_FEATURES) -> Any:
    return np.random.default_rng(0).normal(size=(N_ROWS, n_features))


def wide(n_features: int = 4_096) -> Any:
    """Sparse rows of many features; a step touches few columns."""
    return sparse.random(N_ROWS, n_features, 0.01, format="csr", random_state=0)


def labels(X: Any, n_classes: int) -> Any:
    raw = np.asarray(X.sum(axis=1)).ravel() + 0.1 * np.random.default_rng(1).normal(size=N_ROWS)
    return np.digitize(raw, np.quantile(raw, np.arange(1, n_classes) / n_classes))


def weights() -> Any:
    return np.random.default_rng(2).uniform(0, 2, N_ROWS)


def classifier(**params: Any) -> SGDClassifier:
    return SGDClassifier(**{"max_iter": 3, "tol": None, "random_state": 0} | params)


def regressor(**params: Any) -> SGDRegressor:
    return SGDRegressor(**{"max_iter": 3, "tol": None, "random_state": 0} | params)


def assert_same(found: Any, plain: Any, tolerance: float = 1e-12) -> None:
    """Assert that two fits have the same parameters and history, to the order of sums."""
    for name in ("coef_", "intercept_", "coefs_", "intercepts_"):
        if hasattr(plain, name):
            pairs = zip(getattr(found, name), getattr(plain, name), strict=True)
            for ours, theirs in pairs:
                assert np.abs(theirs).max() < 1e3
                np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(found.history_.records, plain.history_.records, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
        assert (ours["rows"], ours["steps"]) == (theirs["rows"], theirs["steps"])
        scores = [r["val_score"] for r in (ours, theirs) if r["val_score"] is not None]
        np.testing.assert_allclose(scores[:1], scores[1:], rtol=1e-12)


@pytest.mark.parametrize(
    ("X", "n_classes", "params"),
    [
        (rows(), 2, {"class_weight": "balanced"}),
        (rows(), 3, {"early_stopping": True, "average": True}),
        (rows(), 3, {"loss": "hinge", "penalty": "elasticnet", "optimizer": "adagrad"}),
        (rows(), 2, {"fit_intercept": False, "optimizer": "adam", "penalty": "l1"}),
        (rows(), 2, {"optimizer": "nag", "learning_rate": InverseScaling(0.5)}),
        (wide(), 3, {"penalty": "l1", "optimizer": "ftrl"}),
        (wide(), 2, {"early_stopping": True, "optimizer": "nag"}),
        (wide(200), 3, {"batch_size": None, "penalty": None}),
    ],
)
def test_feature_shards_equal_row_shards(X: Any, n_classes: int, params: Any) -> None:
    y = labels(X, n_classes)
    plain = classifier(**params).fit(X, y, weights())
    assert_same(classifier(**params, run=FEATURES).fit(X, y, weights()), plain)


@pytest.mark.parametrize("loss", ["squared_error", "huber", "poisson"])
def test_feature_shards_equal_row_shards_in_regression(loss: str) -> None:
    X = rows()
    y = np.abs(X[:, 0]) + 100
    for params in ({}, {"optimizer": "adam", "learning_rate": 0.01}):
        plain = regressor(loss=loss, **params).fit(X, y)
        assert_same(regressor(loss=loss, **params, run=FEATURES).fit(X, y), plain)


def make_several() -> Any:
    """An estimator of several targets, whose gradient's norm has a bound."""

    class Several(RegressorMixin, BaseSteps, Supervised):
        _multi_output = True

        def __init__(self, clip: Any = None, max_iter: int = 3, run: Any = None) -> None:
            self.clip, self.max_iter, self.run = clip, max_iter, run
            self.random_state, self.dtype = 0, "float64"

        def _model(self, rows: Any, last: Any) -> Any:
            summary = rows.summary
            loss = get_loss("squared_error", "regression")
            return LinearModel(loss, summary.n_features, 0, True, summary.n_targets)

        def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
            self.coef_, self.n_features_in_ = w, len(w) - 1

        def _raw_prediction(self) -> Any:
            raise NotImplementedError

    return Several


@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradient_norm_of_several_targets_is_over_all_columns(clip: Any) -> None:
    X, several = rows(), make_several()
    y = X[:, :2] @ np.ones((2, 3))
    plain = several(clip).fit(X, y)
    assert_same(several(clip, run=FEATURES).fit(X, y), plain)
    assert clip is None or np.abs(plain.coef_ - several().fit(X, y).coef_).max() > 1e-3


@pytest.mark.parametrize(
    ("make", "hidden", "target"),
    [
        (MLPClassifier, (8, 5), lambda X: labels(X, 3)),
        (MLPClassifier, (), lambda X: labels(X, 2)),
        (MLPRegressor, (8,), lambda X: X[:, :2]),
    ],
)
def test_feature_shards_of_a_first_layer(make: Any, hidden: tuple[int, ...], target: Any) -> None:
    X = rows()
    params = {"hidden_layer_sizes": hidden, "max_iter": 3, "tol": None, "random_state": 0}
    for X_ in (X, sparse.csr_matrix(np.where(X > 1, X, 0))):
        plain = make(**params, early_stopping=True).fit(X_, target(X))
        assert_same(make(**params, early_stopping=True, run=FEATURES).fit(X_, target(X)), plain)


@pytest.fixture(scope="module")
def alone() -> dict[int, Any]:
    """Reference fits of three lanes in this process, by number of features, without a client."""
    fits = {}
    for X in (wide(), wide(8_192)):
        fits[X.shape[1]] = classifier(run=IN_ORDER, batch_size=100).fit(X, labels(X, 3))
    return fits


def test_two_processes_equal_one(alone: dict[int, Any], client: Client) -> None:
    """To the bit where sums are made in the order of lanes; bytes do not grow with features."""
    moved = set()
    for n_features, plain in alone.items():
        X = wide(n_features)
        found = classifier(run=FEATURES, batch_size=100).fit(X, labels(X, 3), client=client)
        assert_same(found, plain)
        moved.add(sum(record["bytes_pushed"] for record in found.history_.records))
    assert found.history_.extra["n_lanes"] == 3
    found = classifier(run=IN_ORDER, batch_size=100).fit(X, labels(X, 3), client=client)
    assert_same(found, plain, 0)
    # Of each step the margins of 100 rows in 3 classes, of each of two processes; and reports.
    (sent,) = moved
    assert 0 <= sent - 3 * 6 * 2 * 100 * 3 * 8 < 1_000


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [(200, N_FEATURES), (600, 7), (150, 5)])
@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("of", [np.asarray, sparse.csr_matrix])
def test_chunks_of_any_shape(client: Client, chunks: Any, persist: bool, of: Any) -> None:
    """Cut along rows, along columns, and both; sparse ones too."""
    X = rows()
    lazy = da.from_array(X, chunks=chunks).map_blocks(of, meta=of(np.empty((0, 0))))
    lazy = lazy.persist() if persist else lazy
    y = da.from_array(labels(X, 3), chunks=chunks[0])
    plain = classifier(run=Run(n_lanes=1)).fit(lazy, y, weights(), client=client)
    for run in (Run(shard="features"), FEATURES, IN_ORDER):
        assert_same(classifier(run=run).fit(lazy, y, weights(), client=client), plain)
    np.testing.assert_array_equal(plain.predict(X).shape, (N_ROWS,))


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [None, "l2", "l1", "elasticnet"])
@pytest.mark.parametrize(
    "optimizer", ["sgd", "momentum", "nesterov", "adagrad", "nag", "adam", "ftrl"]
)
@pytest.mark.parametrize("X", [rows(), wide(200), wide()], ids=["dense", "sparse", "few"])
def test_every_optimizer_and_penalty(X: Any, optimizer: str, penalty: Any) -> None:
    y, params = labels(X, 2), {"optimizer": optimizer, "penalty": penalty, "max_iter": 8}
    assert_same(classifier(**params, run=FEATURES).fit(X, y), classifier(**params).fit(X, y))


@pytest.mark.slow
def test_every_loss() -> None:
    X = rows()
    for loss in ("log_loss", "hinge", "squared_hinge", "modified_huber", "perceptron"):
        for n_classes in (2, 3):
            y = labels(X, n_classes)
            plain = classifier(loss=loss).fit(X, y)
            assert_same(classifier(loss=loss, run=FEATURES).fit(X, y), plain)


# --- resuming -------------------------------------------------------------------------------------


def test_partial_fit_and_warm_start_continue() -> None:
    X, y = rows(), labels(rows(), 2)
    plain, found = classifier(), classifier(run=FEATURES)
    for _ in range(2):
        plain.partial_fit(X, y, classes=[0, 1])
        found.partial_fit(X, y, classes=[0, 1])
    assert_same(found, plain)
    plain, found = (m.set_params(warm_start=True).fit(X, y).fit(X, y) for m in (plain, found))
    assert_same(found, plain)


def test_fits_resume_from_checkpoints_bit_for_bit(tmp_path: Any) -> None:
    """Also as a row-sharded fit, since a checkpoint stores whole parameters."""
    X, y = rows(), labels(rows(), 3)
    undisturbed = classifier(max_iter=6, run=FEATURES).fit(X, y)
    checkpoint = Checkpoint(tmp_path / "fit", every=2, resume=True)
    classifier(max_iter=2, run=FEATURES, checkpoint=checkpoint).fit(X, y)
    going_on = classifier(max_iter=4, checkpoint=checkpoint).fit(X, y)
    assert len(going_on.history_.records) == 4
    found = classifier(max_iter=6, run=FEATURES, checkpoint=checkpoint).fit(X, y)
    assert_same(found, undisturbed)


class Kill:
    """Callback that ends a worker's process after some passes."""

    def __init__(self, client: Client) -> None:
        self.client, self.struck = client, False
        self.events: list[Any] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if not self.struck and record["pass"] >= 3:
            self.struck = True
            address = run.trainer_addresses[-1]
            (pid,) = self.client.run(os.getpid, workers=[address]).values()
            os.kill(pid, signal.SIGKILL)

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)


@pytest.mark.slow
@pytest.mark.parametrize("n_features", [N_FEATURES, 4_096])
def test_a_killed_trainer_changes_nothing(crew: LocalCluster, n_features: int) -> None:
    X = rows() if n_features == N_FEATURES else wide()
    params = {"max_iter": 150, "batch_size": 8, "penalty": "l1", "early_stopping": True}
    params |= {"run": IN_ORDER, "n_iter_no_change": 200}
    with Client(crew) as client:
        client.wait_for_workers(3)
        kill = Kill(client)
        y = labels(X, 3)
        struck = classifier(**params, callbacks=[kill]).fit(X, y, client=client)
        client.wait_for_workers(3)
        undisturbed = classifier(**params).fit(X, y, client=client)
    assert kill.events
    assert_same(struck, undisturbed, 0)


@pytest.mark.slow
def test_a_killed_trainer_of_a_first_layer(crew: LocalCluster) -> None:
    X, params = rows(), {"hidden_layer_sizes": (16,), "max_iter": 80, "batch_size": 8}
    params |= {"random_state": 0, "run": IN_ORDER, "tol": None}
    with Client(crew) as client:
        client.wait_for_workers(3)
        kill = Kill(client)
        struck = MLPClassifier(**params, callbacks=[kill]).fit(X, labels(X, 3), client=client)
        client.wait_for_workers(3)
        undisturbed = MLPClassifier(**params).fit(X, labels(X, 3), client=client)
    assert kill.events
    assert_same(struck, undisturbed, 0)


# --- where columns are placed ---------------------------------------------------------------------


def test_chunks_within_one_shard_are_not_copied() -> None:
    X = da.zeros((600, 24), chunks=(200, 8))
    cut = cut_by_columns(as_collection(X, da.zeros(600, chunks=200)), 3)
    assert cut.columns == (0, 8, 16, 24)
    assert [value.shape for part in cut.parts for value in (part[0].compute(),)] == [(200, 8)] * 9
    for part in cut.parts:
        graph = part[0].dask.layers[part[0].key[0]] if isinstance(part[0].key, tuple) else {}
        assert not any("getitem" in str(key) for key in graph)


def test_shard_boundaries_are_near_chunk_boundaries() -> None:
    X = da.zeros((600, 100), chunks=(300, (49, 51)))
    assert cut_by_columns(as_collection(X), 2).columns == (0, 49, 100)
    assert cut_by_columns(as_collection(X), 3).columns == (0, 33, 66, 100)
    parts = cut_by_columns(as_collection(X), 3).parts
    assert [part[0].compute().shape for part in parts] == [(300, 33)] * 4 + [(300, 34)] * 2


@pytest.mark.slow
def test_a_worker_holds_only_its_share_of_parameters(client: Client) -> None:
    """Memory of 16 million parameters and as many sums of squares, measured during steps."""
    at = np.sort(np.random.default_rng(0).integers(0, 1 << 22, (400, 40)), axis=1)
    entries = np.ones(at.size, np.float32), at.ravel(), np.arange(0, at.size + 1, 40)
    X = sparse.csr_matrix(entries, shape=(400, 1 << 22))
    y, grown = np.arange(400) % 4, []

    class Look:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            now = client.run(_resident)
            grown.append([now[address] - before[address] for address in now])

    params = {"optimizer": "adagrad", "batch_size": 20, "run": Run(shard="features")}
    classifier(**params).fit(X[:, :5_000], y, client=client)  # loaded libraries and compiled code
    before = client.run(_resident)
    clf = classifier(**params, max_iter=40, callbacks=[Look()]).fit(X, y, client=client)
    whole = 2 * clf.coef_.nbytes
    assert clf.coef_.size == 1 << 24
    # The last passes are reported while workers send their ranges, which needs a second copy.
    assert max(map(max, grown[: len(grown) // 2])) < 0.85 * whole


def _resident() -> int:
    """Bytes of memory that this process has."""
    import psutil

    found: int = psutil.Process().memory_info().rss
    return found


# --- unsupported combinations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run: classifier(policy="async", run=run), "'allreduce' or 'sync'"),
        (lambda run: classifier(policy="ssp", run=run), "'allreduce' or 'sync'"),
        (lambda run: classifier(policy="hogwild", run=run), "'allreduce' or 'sync'"),
        (lambda run: classifier(policy="average", run=run), "'allreduce' or 'sync'"),
        (lambda run: classifier(policy=LocalSGD(), run=run), "'allreduce' or 'sync'"),
        (lambda run: classifier(policy=Synchronous(1), run=run), "without backup workers"),
        (lambda run: LogisticRegression(run=run), "does not use shard"),
        (lambda run: MLPClassifier((5,), pipeline=Pipeline(), run=run), "pipeline=None"),
        (lambda run: MLPClassifier((5,), solver="lbfgs", run=run), "does not use shard"),
    ],
)
def test_unsupported_estimators_are_refused(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        make(Run(shard="features")).fit(rows(), labels(rows(), 2))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run(shard="columns"), "shard='columns'"),
        (Run(shard="features", n_servers=2), "n_servers|servers"),
        (Run(shard="features", on_lost_data="skip"), 'on_lost_data="raise"'),
        (Run(shard="features", n_lanes=N_FEATURES + 1), "n_lanes=21"),
    ],
)
def test_unsupported_runs_are_refused(run: Run, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        classifier(run=run).fit(rows(), labels(rows(), 2))


def test_rows_that_are_streamed_are_refused(client: Client) -> None:
    X, y = da.from_array(rows(), chunks=(100, -1)), da.from_array(labels(rows(), 2), chunks=100)
    run = Run(shard="features", memory_budget=12_000)
    with pytest.raises(InvalidParameterError, match="they do not fit"):
        classifier(run=run).fit(X, y, client=client)


def test_unsupported_rows_are_refused() -> None:
    import pandas as pd
    from dask.dataframe import from_pandas
    from dask.delayed import delayed

    frame = from_pandas(pd.DataFrame(rows()), npartitions=2)
    for X in (frame, [delayed(rows())]):
        with pytest.raises(InvalidDataError, match='shard="features"'):
            cut_by_columns(as_collection(X), 2)
