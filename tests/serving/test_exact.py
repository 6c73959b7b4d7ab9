"""Served predictions equal the model's bit for bit, whatever other requests share a batch."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import ensemble as their_ensemble
from sklearn import linear_model as their_linear
from sklearn import neural_network as their_networks
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

pytest.importorskip("msgspec", reason="the extra serve is not installed")

from daskml_dist.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from daskml_dist.inference import Predictor
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.neural_network import MLPClassifier, TorchClassifier
from daskml_dist.serving.app import App
from daskml_dist.serving.model_interface import METHODS_SERVED
from daskml_dist.serving.protocol.binary_tensors import JSON_LENGTH_HEADER
from daskml_dist.serving.protocol.requests import decode_request, find_datatype, make_question
from tests.inference.formats import firsts, found
from tests.quick import in_turn
from tests.serving.stand_ins import Metrics, Models, Reply, ask_async, tensor

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_quantiles", "ignore:.*failed to converge"),
    pytest.mark.filterwarnings("ignore:.*Stochastic Optimizer"),
    pytest.mark.filterwarnings("ignore:divide by zero", "ignore:.*valid feature names"),
]
#: Estimators of texts, dicts or categories, whose rows are not tensors.
NOT_SERVED = {
    "CountVectorizer", "TfidfVectorizer", "HashingVectorizer", "FeatureHasher", "LabelEncoder",
    "DummyEncoder", "FieldHasher", "NamespaceHasher", "pipeline of texts",
    "AdaptiveConformalInference",
}  # fmt: skip
#: Estimators of users and items, without column names.
OF_PAIRS = {"ALS", "MatrixFactorization", "TwoTower"}
#: Wide enough for BLAS to round a row differently depending on its neighbours.
WIDE = np.random.default_rng(0).normal(size=(300, 28)).astype(np.float32)
LABELS = np.digitize(WIDE[:, 0] - WIDE[:, 1] ** 2, [-1, 0])
BINARY = {"parameters": {"binary_data_output": True}}
FEW: dict[str, Any] = {"max_iter": 2, "tol": None, "random_state": 0}


def _net() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(28, 64), torch.nn.Linear(64, 3)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x).relu())

    return Net


MADE: dict[str, Any] = {
    "logistic": lambda: LogisticRegression(max_iter=3),
    "network": lambda: MLPClassifier((64, 32), **FEW),
    "boosting": lambda: HistGradientBoostingRegressor(max_iter=5),
    "forest": lambda: RandomForestClassifier(5, random_state=0),
    "torch": lambda: TorchClassifier(_net(), batch_size=100, **FEW),
    "linear of scikit-learn": lambda: their_linear.LogisticRegression(max_iter=3),
    "network of scikit-learn": lambda: their_networks.MLPClassifier(
        (64, 32), max_iter=2, random_state=0
    ),
    "forest of scikit-learn": lambda: their_ensemble.RandomForestClassifier(5, random_state=0),
    "pipeline": lambda: make_pipeline(
        StandardScaler(), PolynomialFeatures(2), their_linear.LogisticRegression(max_iter=3)
    ),
}


@cache
def _wide(name: str) -> Any:
    return MADE[name]().fit(WIDE, LABELS)


def _inputs(rows: Any) -> list[dict[str, Any]]:
    """Return the tensors of a matrix, or of columns if these are not numeric."""
    values = np.asarray(rows)
    if values.dtype != object or isinstance(rows, np.ndarray):
        return [tensor(values, find_datatype(values.dtype))]
    columns = {str(name): rows[name].to_numpy() for name in rows.columns}
    return [tensor(one, find_datatype(one.dtype), name) for name, one in columns.items()]


def _own(model: Any, method: str, rows: Any) -> np.ndarray[Any, Any]:
    answers = getattr(model, method)(rows)
    return np.asarray(answers.toarray() if sparse.issparse(answers) else answers)


def _values_of(reply: Reply) -> np.ndarray[Any, Any]:
    """Return the values of the only output; JSON has neither NaN nor infinity."""
    at = int(reply.headers[JSON_LENGTH_HEADER])
    request = decode_request(reply.body[:at].replace(b'"outputs"', b'"inputs"'))
    (values,) = make_question(request, memoryview(reply.body)[at:]).tensors
    return values[1]


def _check_at_once(model: Any, rows: Any, **settings: Any) -> None:
    """Check replies to requests of various sizes in one iteration of the event loop."""
    rng = np.random.default_rng(1)
    methods = [one for one in METHODS_SERVED if hasattr(model, one)]
    sizes = [1, 1, 3, 1, 17, 1, 2, 1, 300]
    chosen = [rng.integers(len(rows), size=n) for _ in methods for n in sizes]
    names = [method for method in methods for _ in sizes]
    parts = [rows.iloc[at] if isinstance(rows, pd.DataFrame) else rows[at] for at in chosen]

    async def run() -> Any:
        app = App(Models(m=Predictor(model)), Metrics(), **settings)
        waiting = [
            ask_async(
                app,
                "/v2/models/m/infer",
                {"inputs": _inputs(part), "outputs": [{"name": name}], **BINARY},
            )
            for part, name in zip(parts, names, strict=True)
        ]
        try:
            return await asyncio.gather(*waiting)
        finally:
            app.batcher.close()

    for part, name, reply in zip(parts, names, asyncio.run(run()), strict=True):
        assert reply.status == 200, (name, reply.body)
        truth, values = _own(model, name, part), _values_of(reply)
        assert values.shape == truth.shape, name
        if values.dtype == object:  # texts
            truth = truth.astype(str)
        else:
            assert values.dtype == truth.dtype, name
        np.testing.assert_array_equal(values, truth, f"{name} of {len(part)}")


@pytest.mark.parametrize("name", [one for one in firsts() if one.values[0] not in NOT_SERVED])
def test_every_estimator_is_served_exactly(name: str) -> None:
    model, rows = found(name)
    _check_at_once(model, rows.iloc[:, :2].to_numpy() if name in OF_PAIRS else rows)


@pytest.mark.parametrize(
    ("name", "how"),
    in_turn(
        MADE,
        [
            (np.float32, {}),
            (np.float64, {"max_delay": 0.0}),
            (np.float64, {}),
            (np.float32, {"max_delay": 0.0}),
        ],
    ),
)
def test_wide_rows_are_served_exactly(name: str, how: tuple[Any, dict[str, Any]]) -> None:
    """For either dtype, in the event loop and in a thread."""
    dtype, settings = how
    _check_at_once(_wide(name), WIDE.astype(dtype), **settings)


@pytest.mark.parametrize(
    ("name", "settings", "calls"),
    [
        ("forest", {}, 1),
        ("forest", {"max_delay": 0.0}, 1),
        ("logistic", {}, 4),
        ("logistic", {"together": True}, 1),
        ("pipeline", {}, 4),
        ("pipeline", {"max_delay": 0.0}, 4),
        ("pipeline", {"max_delay": 0.001}, 1),
        ("pipeline", {"max_delay": {"m": 0.001}}, 1),
        ("pipeline", {"max_delay": {"other": 0.001}}, 4),
        ("pipeline", {"together": True}, 1),
        ("pipeline", {"together": True, "max_delay": 0.0}, 1),
    ],
)
def test_which_requests_share_a_call(name: str, settings: dict[str, Any], calls: int) -> None:
    predictor = Predictor(_wide(name))
    predictor._function = Mock(wraps=predictor._function)

    async def run() -> Any:
        app = App(Models(m=predictor), Metrics(), **settings)
        bodies = [{"inputs": _inputs(WIDE[:n])} for n in (1, 2, 1, 3)]
        found = await asyncio.gather(*(ask_async(app, "/v2/models/m/infer", one) for one in bodies))
        app.batcher.close()
        return found

    assert [reply.status for reply in asyncio.run(run())] == [200] * 4
    assert predictor._function.call_count == calls
