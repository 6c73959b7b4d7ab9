"""The application serves the model's predictions; refused requests do not affect others."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import StackingClassifier, StackingRegressor, VotingClassifier
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

pytest.importorskip("msgspec", reason="the extra serve is not installed")

from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from daskml_dist.inference import Predictor
from daskml_dist.inspection import shap_values
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.serving.app import App
from tests.serving.stand_ins import Metrics, Models, ask, ask_async, tensor

INFER = "/v2/models/m/infer"


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).standard_normal((40, 5))


@pytest.fixture(scope="module")
def model(rows):
    return LogisticRegression().fit(rows, np.where(rows[:, 0] > 0, "yes", "no"))


@pytest.fixture
def app(model):
    return App(Models(m=model), Metrics())


def body(rows, datatype="FP64", **more):
    return {"inputs": [tensor(rows, datatype)], **more}


@pytest.mark.parametrize("datatype", ["FP64", "FP32"])
def test_served_values_equal_predict_proba_bit_for_bit(app, model, rows, datatype):
    rows = rows.astype({"FP64": "float64", "FP32": "float32"}[datatype])
    for part in (rows, rows[:1], rows[3:10]):
        reply = ask(app, INFER, body(part, datatype, id="a"))
        assert reply.status == 200
        assert reply.headers[b"content-type"] == b"application/json"
        answer = reply.json
        (output,) = answer.pop("outputs")
        assert answer == {"model_name": "m", "model_version": "1", "id": "a"}
        truth = model.predict_proba(part)
        assert output["name"] == "predict_proba"
        assert output["shape"] == list(truth.shape)
        served = np.array(output["data"], truth.dtype).reshape(truth.shape)
        np.testing.assert_array_equal(served, truth)


def test_outputs_are_selected_by_name(app, model, rows):
    names = ["predict", "decision_function"]
    reply = ask(app, INFER, body(rows, outputs=[{"name": name} for name in names]))
    labels, scores = reply.json["outputs"]
    assert [labels["name"], labels["datatype"]] == ["predict", "BYTES"]
    assert labels["data"] == model.predict(rows).tolist()
    assert scores["data"] == model.decision_function(rows).tolist()


@pytest.mark.parametrize("kind", ["boosting", "forest"])
def test_contributions_beside_predictions(rows, kind):
    """One column for each feature and the base value, which sum to the raw prediction."""
    labels = np.digitize(rows[:, 0], [-0.5, 0.5])
    if kind == "boosting":
        model = HistGradientBoostingClassifier(max_iter=3).fit(rows, labels)
    else:
        model = RandomForestRegressor(3, random_state=0).fit(rows, labels)
    app = App(Models(m=model), Metrics())
    found = shap_values(model, rows)
    base = np.broadcast_to(found.base_values, found.values[:, :1].shape)
    truth = np.concatenate([found.values, base], axis=1)
    reply = ask(app, INFER, body(rows, parameters={"contributions": True}))
    first, second = reply.json["outputs"]
    assert first["name"] == ("predict_proba" if kind == "boosting" else "predict")
    assert second["name"] == "contributions"
    assert second["shape"] == list(truth.shape)
    np.testing.assert_array_equal(np.reshape(second["data"], truth.shape), truth)
    # By name, alone, and as raw bytes; a row's bits do not depend on other rows.
    sent = {"outputs": [{"name": "predict"}], "parameters": {"contributions": True}}
    assert [one["name"] for one in ask(app, INFER, body(rows[:1], **sent)).json["outputs"]] == [
        "predict",
        "contributions",
    ]
    reply = ask(app, INFER, body(rows[:1], outputs=[{"name": "contributions"}]))
    (alone,) = reply.json["outputs"]
    np.testing.assert_array_equal(np.reshape(alone["data"], truth[:1].shape), truth[:1])
    sent["parameters"]["binary_data_output"] = True
    reply = ask(app, INFER, body(rows, **sent))
    raw = np.frombuffer(reply.body[-truth.nbytes :]).reshape(truth.shape)
    np.testing.assert_array_equal(raw, truth)
    names = [one["name"] for one in ask(app, "/v2/models/m").json["outputs"]]
    assert "contributions" in names


def test_contributions_of_unsupported_models_are_refused(app, rows):
    for sent in ({"parameters": {"contributions": True}}, {"outputs": [{"name": "contributions"}]}):
        reply = ask(app, INFER, body(rows, **sent))
        assert reply.status == 422
        assert "has no contributions" in reply.json["error"]
    assert ask(app, INFER, body(rows, parameters={"contributions": False})).status == 200
    names = [one["name"] for one in ask(app, "/v2/models/m").json["outputs"]]
    assert "contributions" not in names


def test_numeric_labels_are_served_as_numbers(rows):
    model = LogisticRegression().fit(rows, np.digitize(rows[:, 0], [-0.5, 0.5]))
    reply = ask(App(Models(m=Predictor(model, "predict")), Metrics()), INFER, body(rows))
    (output,) = reply.json["outputs"]
    assert [output["datatype"], output["data"]] == ["INT64", model.predict(rows).tolist()]


def test_a_single_named_feature_is_accepted(rows):
    """The model has one named feature; a bare number is not accepted as its row."""
    one = LogisticRegression().fit(pd.DataFrame(rows[:, :1], columns=["a"]), rows[:, 0] > 0)
    app = App(Models(m=one), Metrics())
    truth = one.predict_proba(pd.DataFrame({"a": [0.5]})).ravel().tolist()
    for name, shape, data, status in [
        ("a", [1], [0.5], 200),
        ("a", [1, 1], [[0.5]], 200),
        ("a", [1], [[0.5]], 200),
        ("rows", [1, 1], [0.5], 200),
        ("a", [], [0.5], 422),
        ("a", [0], [], 422),
    ]:
        sent = {"name": name, "shape": shape, "datatype": "FP64", "data": data}
        reply = ask(app, INFER, {"inputs": [sent]})
        assert reply.status == status, sent
        assert status != 200 or reply.json["outputs"][0]["data"] == truth


def _changed(**changes):
    return {"inputs": [{**tensor(np.zeros((1, 5))), **changes}]}


#: Change of the request, status, and a word of the remedy.
REFUSED = {
    "not valid JSON": (b"\x00garbage", 400, "send a JSON object"),
    "no UTF-8": (b'{"inputs": [{"name": "\xff"}]}', 400, "send"),
    "cut off": (b'{"inputs": [', 400, "send"),
    "deep": (b'{"inputs": ' + b"[" * 100_000, 400, "send"),
    "not an inference request": ({"rows": [1]}, 400, "send"),
    "a list": ([1, 2], 400, "send"),
    "no inputs": ({"inputs": []}, 422, "no feature names"),
    "no data": ({"inputs": [{"name": "a", "shape": [1, 5], "datatype": "FP64"}]}, 400, "values"),
    "datatype": (_changed(datatype="FP99"), 400, "send one of FP32"),
    "strings": (_changed(data=["a"] * 5), 400, "values that are not FP64"),
    "too few values": (_changed(data=[1.0]), 400, "as many values"),
    "negative shape": (_changed(shape=[-1, 5]), 400, "as many values"),
    "huge shape": (_changed(shape=[2**62, 2**62]), 400, "as many values"),
    "many dimensions": (_changed(shape=[1] * 200), 400, "as many values"),
    "ragged": (_changed(data=[[1.0, 2.0], [3.0]]), 400, "as many values"),
    "transposed": (_changed(shape=[5, 2], data=[[1.0] * 5] * 2), 400, "nested as [2, 5]"),
    "uneven": (_changed(data=[[1.0, 2.0], [3.0, 4.0, 5.0]]), 400, "as many values"),
    "a text among lists": (_changed(datatype="BYTES", data=[["a"], "bcde"]), 400, "unevenly"),
    "an object among lists": (_changed(data=[[1.0], {"a": 1}]), 400, "unevenly"),
    "endless shape": (_changed(shape=[10**400] * 9), 400, "as many values"),
    "no dimension": ({"inputs": [{"name": "a", "shape": [], "datatype": "FP64", "data": [1]}]},
                     422, "send [rows, 5]"),
    "whole numbers": (_changed(datatype="INT8", data=[300] * 5), 400, "not INT8"),
    "booleans": (_changed(datatype="BOOL", data=[2] * 5), 400, "not BOOL"),
    "bytes that are not there": (
        {"inputs": [{"name": "a", "shape": [1, 5], "datatype": "FP64",
                     "parameters": {"binary_data_size": 40}}]}, 400, "Header-Content-Length",
    ),
    "too few features": (body(np.zeros((2, 4))), 422, "send shape [rows, 5]"),
    "one dimension": (body(np.zeros(5)), 422, "send [rows, 5]"),
    "three": (body(np.zeros((1, 5, 1))), 422, "send [rows, 5]"),
    "no rows": (body(np.zeros((0, 5))), 422, "send at least one"),
    "null": (_changed(data=[None, 1, 2, 3, 4]), 422, "NaN"),
    "infinite": (_changed(data=[1e300] * 5, datatype="FP32"), 422, "infinity"),
    "text": (_changed(data=["a"] * 5, datatype="BYTES"), 422, "send FP64"),
    "columns": ({"inputs": [tensor(np.zeros(1), name=n) for n in "ab"]}, 422, "no feature names"),
    "output": (body(np.zeros((1, 5)), outputs=[{"name": "fit"}]), 422, "ask for predict_proba"),
    "private": (body(np.zeros((1, 5)), outputs=[{"name": "__init__"}]), 422, "ask for"),
}  # fmt: skip


def test_refused_requests_do_not_affect_others(app, model, rows):
    """All are sent concurrently with valid requests, in one iteration of the event loop."""

    async def all_at_once():
        waiting = [ask_async(app, INFER, sent) for sent, _, _ in REFUSED.values()]
        good = [ask_async(app, INFER, body(rows[at : at + 1])) for at in range(10)]
        return await asyncio.gather(*waiting, *good)

    replies = asyncio.run(all_at_once())
    for (name, (_, status, word)), reply in zip(REFUSED.items(), replies, strict=False):
        assert reply.status == status, (name, reply)
        assert word in reply.json["error"], (name, reply)
        assert len(reply.body) < 1000, name
    for at, reply in enumerate(replies[len(REFUSED) :]):
        assert reply.status == 200
        np.testing.assert_array_equal(
            reply.json["outputs"][0]["data"], model.predict_proba(rows[at : at + 1])[0]
        )
    assert app.batcher.waiting == 0
    assert app.metrics.codes["m", "1", 200] == 10
    assert app.metrics.rows["m", "1"] == 10


def test_paths_and_methods(app):
    for path, method, status, word in [
        ("/", "GET", 404, "/v2/models"),
        ("/v2/models/", "GET", 404, "/v2/models"),
        ("/v2/models/m/versions/", "GET", 404, "/v2/models"),
        ("/v2/models/m/other/infer", "POST", 404, "/v2/models"),
        ("/v2/models/../../etc/infer", "POST", 404, "/v2/models"),
        ("/v2/models/other/infer", "POST", 404, "No model"),
        ("/v2/models/m/versions/7/infer", "POST", 404, "No model"),
        (INFER, "GET", 405, "send POST"),
        ("/v2", "DELETE", 405, "send GET"),
        ("/v2/health/live", "GET", 200, "true"),
        ("/v2/health/ready", "GET", 200, "true"),
        ("/v2/models/m/ready", "GET", 200, "true"),
        ("/v2", "GET", 200, "daskml_dist"),
        ("/metrics", "GET", 200, "counted 1"),
    ]:
        reply = ask(app, path, b"{}" if method == "POST" else None, method=method)
        assert reply.status == status, path
        assert word in reply.body.decode(), path
    assert ask(app, "/v2", method="HEAD").body == b""
    assert all(model in ("", "m") for model, _, _ in app.metrics.codes)


def test_content_types(app):
    for headers, word in [
        ({"content-type": "text/html"}, "send one of application/json"),
        ({"content-encoding": "br"}, "send gzip, deflate or none"),
    ]:
        reply = ask(app, INFER, body(np.zeros((1, 5))), headers)
        assert reply.status == 415
        assert word in reply.json["error"]
    fine = {"content-type": "Application/JSON; charset=utf-8"}
    assert ask(app, INFER, body(np.zeros((1, 5))), fine).status == 200


def test_readiness_without_models_is_503():
    reply = ask(App(Models(), Metrics()), "/v2/health/ready")
    assert reply.status == 503
    assert reply.headers[b"retry-after"] == b"1"


def test_requests_need_the_token(model):
    app = App(Models(m=model), Metrics(), token="secret")
    for authorization in (None, "Bearer", "Bearer wrong", "Basic secret", "Bearer sécret"):
        reply = ask(
            app, "/v2", headers=None if authorization is None else {"authorization": authorization}
        )
        assert reply.status == 401, authorization
        assert reply.headers[b"www-authenticate"] == b"Bearer"
    assert ask(app, "/v2", headers={"authorization": "Bearer secret"}).status == 200
    assert ask(app, "/v2/health/live").status == 200


def test_too_large_bodies_are_refused(model):
    app = App(Models(m=model), Metrics(), max_bytes=100)
    declared = ask(app, INFER, b"1" * 101)
    pieces = iter([b"1" * 60] * 3)

    async def in_pieces():
        body = next(pieces, None)
        return {"type": "http.request", "body": body or b"", "more_body": body is not None}

    undeclared = ask(app, INFER, b"", {"content-length": ""}, receive=in_pieces)
    for reply in (declared, undeclared):
        assert reply.status == 413
        assert reply.headers[b"connection"] == b"close"
        assert "fewer rows" in reply.json["error"]
    assert list(pieces) == []  # the rest is discarded, so that the client reads the reply


def test_total_size_of_concurrent_bodies_is_limited(model, rows):
    """The total size of bodies is limited over all connections."""
    app = App(Models(m=model), Metrics(), max_bytes=1000)

    async def run():
        ends = asyncio.Event()

        def begun():
            pieces = [{"type": "http.request", "body": b" " * 1000, "more_body": True}]

            async def receive():
                if pieces:
                    return pieces.pop()
                await ends.wait()
                return {"type": "http.request"}

            return asyncio.create_task(ask_async(app, INFER, b"{}", receive=receive))

        unfinished = [begun() for _ in range(64)]
        await asyncio.sleep(0)
        late = await ask_async(app, INFER, body(rows[:1]))
        ends.set()
        return late, await asyncio.gather(*unfinished), await ask_async(app, INFER, body(rows[:1]))

    late, others, after = asyncio.run(run())
    assert late.status == 503
    assert late.headers[b"retry-after"] == b"1"
    assert late.headers[b"connection"] == b"close"
    assert {one.status for one in others} == {400}  # blanks are no JSON
    assert after.status == 200  # memory is available again


def test_slow_bodies_time_out(model, rows):
    """A client that never finishes its body gets an error; others are answered meanwhile."""
    app = App(Models(m=model), Metrics(), body_seconds=0.05)
    first = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def slow():
        return first.pop() if first else await asyncio.Event().wait()

    async def both():
        late = asyncio.create_task(ask_async(app, INFER, b"{}", receive=slow))
        good = await ask_async(app, INFER, body(rows))
        return await late, good

    late, good = asyncio.run(both())
    assert late.status == 408
    assert late.headers[b"connection"] == b"close"
    assert good.status == 200


def test_no_reply_is_sent_to_a_disconnected_client(app):
    async def gone():
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError("nobody is there")

    scope = {"type": "http", "method": "POST", "path": INFER, "headers": []}
    asyncio.run(app(scope, gone, send))
    assert not app.metrics.codes


class Broken(Predictor):
    """Predictor whose model raises."""

    def __call__(self, X):
        raise KeyError("a secret")


def test_errors_of_the_model_are_not_disclosed(model, caplog):
    app = App(Models(m=Broken(model)), Metrics())
    with caplog.at_level(logging.ERROR, "daskml_dist.serving"):
        reply = ask(app, INFER, body(np.zeros((1, 5))))
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert "a secret" in caplog.text


def test_shadow_models_do_not_answer(model, rows):
    models = Models(m=model)
    models.put("m", Broken(LogisticRegression(C=0.01).fit(rows, rows[:, 1] > 0)))
    models.put("m", model)
    models.shadowed.add("m")
    app = App(models, Metrics())
    reply = ask(app, INFER, body(rows))
    np.testing.assert_array_equal(
        np.reshape(reply.json["outputs"][0]["data"], (-1, 2)), model.predict_proba(rows)
    )
    assert reply.json["model_version"] == "3"
    assert app.metrics.codes == {("m", "1", 200): 1, ("m", "2", 500): 1, ("m", "3", 200): 1}


def test_versions_are_selected_by_number(model, rows):
    models = Models(m=model)
    other = LogisticRegression(C=0.01).fit(rows, rows[:, 1] > 0)
    models.put("m", other)
    app = App(models, Metrics())
    for path, truth in [("/v2/models/m/versions/1/infer", model), (INFER, other)]:
        data = ask(app, path, body(rows)).json["outputs"][0]["data"]
        np.testing.assert_array_equal(np.reshape(data, (-1, 2)), truth.predict_proba(rows))


def test_numbers_for_text_columns_are_refused_with_a_hint():
    frame = pd.DataFrame({"age": [20.0, 30.0] * 9, "job": ["a", "b"] * 9})
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["job"]))
    served = make_pipeline(columns, LogisticRegression()).fit(frame, [0, 1] * 9)
    reply = ask(App(Models(m=served), Metrics()), INFER, body(np.ones((2, 2))))
    assert reply.status == 422
    assert "GET /v2/models/m lists its inputs" in reply.json["error"]


def test_access_log(model, caplog):
    app = App(Models(m=model), Metrics(), access_log=True)
    with caplog.at_level(logging.INFO, "daskml_dist.serving.access"):
        ask(app, '/v2/a"\nforged line')
    (line,) = (one.getMessage() for one in caplog.records if one.name.endswith("serving.access"))
    assert ' "GET /v2/a\\"\\nforged line" 404 ' in line


def test_lifespan(app):
    sent = []
    asks = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def run():
        async def receive():
            return asks.pop(0)

        async def send(message):
            sent.append(message["type"])

        await app({"type": "lifespan"}, receive, send)

    import gc

    try:
        asyncio.run(run())
    finally:
        gc.unfreeze()
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def _dropping(kind):
    """Return a fitted model of columns "age" and "job", whose ColumnTransformer drops "id"."""
    pipeline = make_pipeline(
        make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["job"])),
        LogisticRegression(),
    )
    wrappers = {
        "pipeline": lambda: pipeline,
        "positions": lambda: make_pipeline(
            make_column_transformer(
                (StandardScaler(), [1]), (OneHotEncoder(), slice(2, 3)), ("drop", ["id"])
            ),
            LogisticRegression(),
        ),
        "nested": lambda: make_pipeline(pipeline[:1], pipeline[1]),
        "search": lambda: GridSearchCV(pipeline, {"logisticregression__C": [1.0, 2.0]}, cv=2),
        "calibrated": lambda: CalibratedClassifierCV(pipeline, cv=2),
        "voting": lambda: VotingClassifier([("a", pipeline), ("b", pipeline)], voting="soft"),
        "stacking": lambda: StackingClassifier([("a", pipeline)], LogisticRegression(), cv=2),
    }
    return wrappers[kind]()


@pytest.mark.parametrize(
    "kind",
    ["pipeline", "positions", "nested", "search", "calibrated", "voting", "stacking"],
)
def test_dropped_columns_need_not_be_sent(kind):
    """Exactly the columns that `predict` reads are required."""
    ages = np.random.default_rng(0).standard_normal(40)
    frame = pd.DataFrame({"id": np.arange(40), "age": ages, "job": ["x", "y"] * 20})
    served = _dropping(kind).fit(frame, np.where(frame["age"] > 0, "old", "young"))
    app = App(Models(m=Predictor(served, "predict")), Metrics())
    id_, age, job = (
        tensor(frame["id"].to_numpy(), "INT64", "id"),
        tensor(frame["age"].to_numpy(), "FP64", "age"),
        tensor(frame["job"].to_numpy(), "BYTES", "job"),
    )
    expected = served.predict(frame[["age", "job"]]).tolist()
    for inputs in ([age, job], [job, age], [id_, age, job]):
        assert ask(app, INFER, {"inputs": inputs}).json["outputs"][0]["data"] == expected
    assert "'job' missing" in ask(app, INFER, {"inputs": [id_, age]}).json["error"]
    with pytest.raises(ValueError, match="missing"):
        served.predict(frame[["id", "age"]])
    names = [one["name"] for one in ask(app, "/v2/models/m").json["inputs"]]
    assert names == ["age", "job"]
    strange = ask(app, INFER, {"inputs": [age, job, {**age, "name": "size"}]})
    assert "'size' unknown" in strange.json["error"]


def test_a_stack_with_passthrough_needs_all_columns():
    frame = pd.DataFrame({"id": np.arange(40.0), "age": np.arange(40.0) % 7})
    scaled = make_pipeline(make_column_transformer((StandardScaler(), ["age"])), LinearRegression())
    stack = StackingRegressor([("a", scaled)], LinearRegression(), cv=2, passthrough=True)
    predictor = Predictor(stack.fit(frame, frame["id"]))
    assert predictor.needed == predictor.names == ["id", "age"]


# --- compressed bodies, and the index of models ----------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("GZIP", lambda data: gzip.compress(data[:40]) + gzip.compress(data[40:])),
        ("deflate", zlib.compress),
        ("identity", bytes),
    ],
)
def test_compressed_bodies_give_the_same_predictions(app, model, rows, encoding, compress):
    data = json.dumps(body(rows)).encode()
    found = ask(app, INFER, compress(data), {"content-encoding": encoding}).json
    assert found == ask(app, INFER, data).json


def test_compressed_bodies_that_are_refused(model, rows):
    app = App(Models(m=model), Metrics(), max_bytes=4096)
    bomb = gzip.compress(bytes(2**20))
    assert len(bomb) < 4096
    gone = gzip.compress(json.dumps(body(rows[:1])).encode())
    cases = [
        (bomb, "gzip", 413, "larger than 4096 bytes"),
        (gone[:-9], "gzip", 400, "ends too early"),
        (b"no", "gzip", 400, "Content-Encoding"),
        (b"", "deflate", 400, "ends too early"),
        (gone, "br", 415, "send gzip"),
    ]
    for data, encoding, status, words in cases:
        reply = ask(app, INFER, data, {"content-encoding": encoding})
        assert reply.status == status
        assert words in reply.json["error"]
    # Memory of refused bodies is released.
    assert app._bodies._free_bytes == 64 * 4096
    assert ask(app, INFER, gone, {"content-encoding": "gzip"}).status == 200


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        (None, False),
        ("gzip", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("*", True),
        ("br, deflate", False),
        ("gzip;q=0, *;q=0.0", False),
    ],
)
def test_large_replies_are_compressed_if_accepted(model, rows, accepted, is_compressed):
    app = App(Models(m=model), Metrics(), compress_from=400)
    headers = {} if accepted is None else {"accept-encoding": accepted}
    plain = ask(App(Models(m=model), Metrics()), INFER, body(rows), headers)
    assert b"content-encoding" not in plain.headers
    found = ask(app, INFER, body(rows), headers)
    assert found.headers[b"vary"] == b"accept-encoding"
    assert (found.headers.get(b"content-encoding") == b"gzip") == is_compressed
    data = gzip.decompress(found.body) if is_compressed else found.body
    assert data == plain.body
    assert int(found.headers[b"content-length"]) == len(found.body)
    # Small replies and errors are not compressed.
    for few, status in ((rows[:1], 200), (rows[:, :2], 422)):
        small = ask(app, INFER, body(few), headers)
        assert small.status == status
        assert b"content-encoding" not in small.headers


def test_the_index_lists_the_served_models(model):
    models = Models(a=model, b=model)
    found = ask(App(models, Metrics()), "/v2/repository/index", {"ready": True})
    ready = {"version": "1", "state": "READY", "reason": ""}
    assert found.json == [{"name": "a", **ready}, {"name": "b", **ready}]
    several = SimpleNamespace(names=lambda: ["a"], versions=lambda name: ["1", "3"])
    listed = ask(App(several, Metrics()), "/v2/repository/index").json
    assert [one["version"] for one in listed] == ["1", "3"]
    assert ask(App(models, Metrics(), token="t"), "/v2/repository/index").status == 401
