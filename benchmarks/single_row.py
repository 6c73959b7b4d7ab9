"""One row in memory: the estimator's own call, its `Predictor`, scikit-learn, ONNX Runtime."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline

from benchmarks._common import logistic_rows, markdown
from daskml_dist import cluster, ensemble, linear_model, naive_bayes, preprocessing, tree
from daskml_dist.errors import DaskMLDistError
from daskml_dist.inference import Predictor, to_onnx, to_sklearn
from daskml_dist.neural_network import MLPClassifier

FEATURES, ROWS = 28, 2000
_SGD: Any = {"learning_rate": 0.1, "max_iter": 3, "tol": None, "random_state": 0}


def run(tiny: bool = False) -> str:
    """Return the table."""
    X, y = logistic_rows(ROWS, FEATURES)
    X = X.astype(np.float64)
    targets = {2: y, 3: np.digitize(X[:, 0], [-0.5, 0.5]), 0: X[:, 1]}
    cases = _models()
    rows = []
    for name, (model, method, target) in list(cases.items())[: 2 if tiny else None]:
        fitted = model.fit(X, targets[target])
        rows.append([name, f"`{method}`", *_measured(fitted, method, X[:1], tiny)])
    title = (
        f"One row of {FEATURES} features in float64 (ONNX Runtime: float32), us per call, "
        "one thread"
    )
    columns = ["", "", "`Predictor`", "daskml_dist", "scikit-learn", "ONNX Runtime"]
    return markdown(title, columns, rows)


def _models() -> dict[str, tuple[Any, str, int]]:
    """Return models, methods, and numbers of classes; 0 for a number."""
    logistic = linear_model.LogisticRegression
    return {
        "logistic regression": (logistic(), "predict_proba", 2),
        "the same, 3 classes": (logistic(), "predict_proba", 3),
        "logistic regression, labels": (logistic(), "predict", 2),
        "the same, raw predictions": (logistic(), "decision_function", 2),
        "`SGDClassifier`, modified Huber": (
            linear_model.SGDClassifier("modified_huber", **_SGD), "predict_proba", 3
        ),
        "ridge": (linear_model.Ridge(), "predict", 0),
        "`StandardScaler`": (preprocessing.StandardScaler(), "transform", 2),
        "pipeline of both": (
            make_pipeline(preprocessing.StandardScaler(), logistic()), "predict_proba", 2
        ),
        "tree of depth 6": (tree.DecisionTreeClassifier(max_depth=6), "predict_proba", 2),
        "forest of 20 such trees": (
            ensemble.RandomForestClassifier(20, max_depth=6, random_state=0), "predict_proba", 2
        ),
        "boosting, 20 iterations": (
            ensemble.HistGradientBoostingClassifier(max_iter=20), "predict_proba", 2
        ),
        "naive Bayes": (naive_bayes.GaussianNB(), "predict_proba", 2),
        "k-means, 3 centres": (cluster.KMeans(3, random_state=0), "predict", 2),
        "network, 20 hidden units": (
            MLPClassifier((20,), solver="lbfgs", random_state=0), "predict_proba", 2
        ),
    }  # fmt: skip


def _measured(model: Any, method: str, row: NDArray[Any], tiny: bool) -> list[str]:
    twin = to_sklearn(model)
    calls = [Predictor(model, method), getattr(model, method), getattr(twin, method)]
    figures = [_microseconds(lambda call=call: call(row), tiny) for call in calls]
    session = _session(model, row)
    if session is None:
        return [*map(_text, figures), "-"]
    inputs = {session.get_inputs()[0].name: row.astype(np.float32)}
    return [*map(_text, figures), _text(_microseconds(lambda: session.run(None, inputs), tiny))]


def _text(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:.0f}"


def _microseconds(call: Callable[[], Any], tiny: bool) -> float:
    """Return the smallest mean of some rounds, each with as many calls as take 20 ms."""
    call()
    start = time.perf_counter()
    call()
    n = 1 if tiny else max(3, int(0.02 / (time.perf_counter() - start)))
    best = np.inf
    for _ in range(1 if tiny else 9):
        start = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - start) / n)
    return 1e6 * best


def _session(model: Any, row: NDArray[Any]) -> Any:
    """Return ONNX Runtime's session of a model, if installed and if the model can be converted."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "model.onnx")
        try:
            to_onnx(model, path, sample=row.astype(np.float32))
        except DaskMLDistError:
            return None
        return onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
