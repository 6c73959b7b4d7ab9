"""XGBoost and LightGBM on the ranks of `run_together`, beside themselves in one process."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.metrics import log_loss, ndcg_score

from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from daskml_dist.errors import FunctionError, InvalidDataError, InvalidParameterError
from tests.lost_workers import wait_for_three

LIBRARIES = ["xgboost", "lightgbm"]
rng = np.random.default_rng(0)
X = rng.normal(size=(2_000, 6))
BINARY = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
CLASSES = np.clip((X[:, 0] * 2).astype(int) + 1, 0, 2)
TARGET = X[:, 0] * 2 + X[:, 1] ** 2


def _fit(library: str, kind: str, X: Any, y: Any, params: dict[str, Any], **how: Any) -> Any:
    """Fit a model of a library by its module of the package."""
    name = ("XGB" if library == "xgboost" else "LGBM") + kind
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    if library == "xgboost":
        from daskml_dist.integrations.xgboost import fit
    else:
        from daskml_dist.integrations.lightgbm import fit
    return fit(getattr(module, name)(**params), X, y, **how)


def _lazy(array: Any, n: int = 200) -> Any:
    return da.from_array(array, chunks=(n, *array.shape[1:]))


def _predict(found: Any) -> Any:
    """Return predictions of labels."""
    predictions = found.predict(X)
    if predictions.dtype.kind != "f":
        return predictions
    return predictions.argmax(axis=1) if predictions.ndim == 2 else (predictions > 0.5).astype(int)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("where", ["here", "cluster"])
@pytest.mark.parametrize("y", [BINARY, CLASSES], ids=["two", "three"])
def test_classes(library: str, where: str, y: Any, request: pytest.FixtureRequest) -> None:
    client = request.getfixturevalue("client") if where == "cluster" else "inline"
    rows = (_lazy(X), _lazy(y)) if where == "cluster" else (X, y)
    found = _fit(library, "Classifier", *rows, {"n_estimators": 20}, client=client)
    assert (_predict(found) == y).mean() > 0.95


LABELS = {
    "signs": np.array([-1, 1]),
    "from one": np.array([1, 2]),
    "text": np.array(["no", "yes"]),
    "objects": np.array(["no", "yes"], dtype=object),
    "bools": np.array([False, True]),
    "three, with a gap": np.array([0, 5, 7]),
    "three words": np.array(["a", "b", "c"]),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("where", ["here", "cluster"])
@pytest.mark.parametrize("labels", LABELS)
def test_labels_of_any_type(
    library: str, where: str, labels: str, request: pytest.FixtureRequest
) -> None:
    classes = LABELS[labels]
    client = request.getfixturevalue("client") if where == "cluster" else "inline"
    codes = BINARY if len(classes) == 2 else CLASSES
    # In order, so that most blocks have one label only.
    order = np.argsort(codes, kind="stable")
    rows, y = X[order], classes[codes[order]]
    arguments = (_lazy(rows), _lazy(y)) if where == "cluster" else (rows, y)
    eval_set = (rows[::7], y[::7])
    params = {"n_estimators": 10}
    found = _fit(library, "Classifier", *arguments, params, client=client, eval_set=eval_set)
    assert found.classes_.tolist() == (
        [0, 1] if labels == "bools" and library == "xgboost" else classes.tolist()
    )
    shares = found.predict(X) if library == "lightgbm" else found.predict_proba(X)
    shares = np.column_stack([1 - shares, shares]) if shares.ndim == 1 else shares
    assert shares.shape[1] == len(classes)
    assert (shares.argmax(axis=1) == codes).mean() > 0.9
    if where == "here":
        same = _fit(library, "Classifier", rows, codes[order], params, client=client)
        wanted = same.predict(X) if library == "lightgbm" else same.predict_proba(X)[:, -1]
        wanted = wanted[:, -1] if wanted.ndim == 2 else wanted
        np.testing.assert_allclose(shares[:, -1], wanted, rtol=1e-6)
    if library == "lightgbm":
        return
    unpickled = pickle.loads(pickle.dumps(copy.deepcopy(found)))
    for model in (found, unpickled):
        assert (model.predict(X) == classes[shares.argmax(axis=1)]).all()
        assert (model.classes_ == classes).all()
        assert model.predict(X, output_margin=True).dtype.kind == "f"
    assert isinstance(unpickled, pytest.importorskip("xgboost").XGBClassifier)
    fresh = clone(unpickled).set_params(n_estimators=3).fit(X, codes)
    assert fresh.predict(X).dtype.kind in "iu"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.where(BINARY, "a", None), "missing value"),
        (BINARY + 0.5, "Use a regressor"),
        (np.where(BINARY, np.nan, 1.0), "NaN or infinity"),
        (BINARY * 0, "only one class"),
        (np.array(["a", 1] * 1_000, dtype=object), "Convert all to strings"),
    ],
)
def test_what_are_no_labels(library: str, y: Any, words: str) -> None:
    with pytest.raises(FunctionError, match=words):
        _fit(library, "Classifier", X, y, {}, client="inline")
    with pytest.raises(FunctionError, match=r"\[7\] of eval_set are not in y"):
        _fit(library, "Classifier", X, BINARY, {}, client="inline", eval_set=(X[:1], [7]))


@pytest.mark.parametrize("options", ["balanced", {"no": 3.0, "yes": 0.5}])
def test_class_weights_of_lightgbm(options: Any, client: Client) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    y = np.where(X[:, 0] + rng.normal(size=len(X)) > 1.0, "yes", "no")
    params = {"n_estimators": 10, "class_weight": options}
    wanted = lightgbm.LGBMClassifier(**params, verbosity=-1).fit(X, y).predict_proba(X)[:, 1]
    alone = _fit("lightgbm", "Classifier", X, y, params, client="inline")
    np.testing.assert_allclose(alone.predict(X), wanted, rtol=1e-6)
    found = _fit("lightgbm", "Classifier", _lazy(X), _lazy(y), params, client=client)
    assert abs(found.predict(X) - wanted).mean() < 0.1
    assert abs(found.predict(X).mean() - np.mean(y == "yes")) > 0.05


@pytest.mark.parametrize("library", LIBRARIES)
def test_numbers_and_weights(library: str, client: Client) -> None:
    frame = pd.DataFrame(X, columns=list("abcdef"))
    weight = np.where(np.arange(len(X)) % 2, 1.0, 1e-6)
    y = np.where(np.arange(len(X)) % 2, TARGET, -TARGET)  # but for their weight, nothing to learn
    found = _fit(
        library, "Regressor", dd.from_pandas(frame, npartitions=8), _lazy(y, 250),
        {"n_estimators": 50}, sample_weight=_lazy(weight, 250), client=client,
    )  # fmt: skip
    assert np.corrcoef(found.predict(frame), TARGET)[0, 1] > 0.95


@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_within_queries(library: str, client: Client) -> None:
    qid = np.repeat(np.arange(100), 20)
    grade = np.clip((TARGET + 1).astype(int), 0, 3)
    found = _fit(
        library, "Ranker", _lazy(X), _lazy(grade), {"n_estimators": 20}, qid=_lazy(qid),
        client=client,
    )  # fmt: skip
    score = ndcg_score(grade.reshape(100, 20), found.predict(X).reshape(100, 20), k=5)
    assert score > 0.9


@pytest.mark.parametrize("library", LIBRARIES)
def test_early_stopping_with_an_eval_set(library: str, client: Client) -> None:
    name = "early_stopping_rounds" if library == "xgboost" else "early_stopping_round"
    params = {"n_estimators": 200, "learning_rate": 0.5, name: 3}
    noise = np.random.default_rng(1).normal(size=300)
    found = _fit(
        library, "Regressor", _lazy(X), _lazy(TARGET), params, client=client,
        eval_set=(X[:300], TARGET[:300] + 3 * noise),
    )  # fmt: skip
    assert 0 <= found.best_iteration < 150


@contextmanager
def _killing(client: Client, n_saved: int) -> Iterator[None]:
    """Kill the worker with the lowest address once its rank has saved a number of trees."""

    def count_saved() -> int:
        from daskml_dist.training.worker.kept_values import find_largest

        return find_largest("number")

    def kill() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            found = {a: n for a, n in client.run(count_saved, on_error="ignore").items() if n}
            if found and max(found.values()) >= n_saved:
                pid = client.run(os.getpid, workers=[min(found)])[min(found)]
                os.kill(pid, signal.SIGKILL)
                return

    killing = threading.Thread(target=kill)
    killing.start()
    yield
    killing.join(150)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_kill_costs_no_saved_tree(
    library: str, crew: LocalCluster, assert_clean: Callable[..., None]
) -> None:
    with Client(crew) as client:
        wait_for_three(client)
        rows = _lazy(np.tile(X, (10, 1)), 2_000).persist(), _lazy(np.tile(BINARY, 10), 2_000)
        with _killing(client, 10):
            found = _fit(library, "Classifier", *rows, {"n_estimators": 100}, client=client)
        n_trees = (
            found.get_booster().num_boosted_rounds() if library == "xgboost" else found.num_trees()
        )
        assert n_trees == 100
        assert (_predict(found) == BINARY).mean() > 0.98
        del rows
        assert_clean(client)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("eval_set", "error", "words"),
    [
        (3, InvalidParameterError, "one tuple of rows and targets"),
        ([(X, BINARY)], InvalidParameterError, "it is a list"),
        ([(X, BINARY), (X, BINARY)], InvalidParameterError, "it is a list"),
        ((X[:, :2], BINARY), InvalidDataError, "Select the same columns"),
        ((X, BINARY[:4]), InvalidDataError, "Pass a row for each target"),
    ],
)
def test_an_incompatible_eval_set_raises_before_training(
    library: str, eval_set: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        _fit(library, "Classifier", X, BINARY, {}, eval_set=eval_set)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_process_exits_normally_after_a_training_that_failed(library: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    kind = "XGBClassifier" if library == "xgboost" else "LGBMClassifier"
    script = (
        f"import numpy as np, {library}\n"
        f"from daskml_dist.integrations.{library} import fit\n"
        "try:\n"
        f"    fit({library}.{kind}(max_depth='x'), np.eye(4), np.arange(4) % 2)\n"
        "except RuntimeError:\n"
        "    print('done')\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (found.returncode, found.stdout.splitlines()[-1:]) == (0, [b"done"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_errors_name_the_remedy(library: str) -> None:
    with pytest.raises(InvalidDataError, match="X and y are both needed"):
        _fit(library, "Regressor", X, None, {})
    module = pytest.importorskip(library)
    fit = __import__(f"daskml_dist.integrations.{library}", fromlist=["fit"]).fit
    with pytest.raises(InvalidParameterError, match="not a model of"):
        fit(module, X, BINARY)


@pytest.mark.parametrize("classes", [False, True])
def test_vector_leaves_are_as_good_as_xgboosts(classes: bool) -> None:
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    y = np.column_stack([TARGET, X[:, 0] * X[:, 3], X[:, 1] ** 2])
    y += 0.5 * np.random.default_rng(1).normal(size=y.shape)
    y = y.argmax(axis=1) if classes else y
    ours = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    theirs = xgboost.XGBClassifier if classes else xgboost.XGBRegressor
    options = {"learning_rate": 0.1, "multi_strategy": "multi_output_tree"}
    mine = ours(
        max_iter=60, max_leaf_nodes=15, min_samples_leaf=1, l2_regularization=1.0,
        early_stopping=False, **options
    ).fit(X[:1_000], y[:1_000])  # fmt: skip
    # XGBoost doubles the second derivatives of classes: at twice the rate, and with twice the
    # penalty, its steps are the same.
    times = 2 if classes else 1
    other = theirs(
        n_estimators=60, max_leaves=15, max_depth=0, grow_policy="lossguide", max_bin=255,
        tree_method="hist", reg_lambda=1.0 * times, min_child_weight=1e-3, n_jobs=1,
        **{**options, "learning_rate": 0.1 * times},
    ).fit(X[:1_000], y[:1_000])  # fmt: skip

    def loss(model: Any) -> float:
        if classes:
            return float(log_loss(y[1_000:], model.predict_proba(X[1_000:])))
        return float(((model.predict(X[1_000:]) - y[1_000:]) ** 2).mean())

    assert loss(mine) == pytest.approx(loss(other), rel=0.05)
