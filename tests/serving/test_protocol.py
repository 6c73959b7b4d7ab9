"""The codecs: raw bytes, Arrow, named columns; compared with predictions for the same rows."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.linear_model import LogisticRegression as SKLogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

pytest.importorskip("msgspec", reason="the extra serve is not installed")

from daskml_dist.feature_extraction.text import CountVectorizer as OurVectorizer
from daskml_dist.inference import Predictor
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.serving.app import App
from daskml_dist.serving.protocol import CODECS, arrow_stream
from daskml_dist.serving.protocol.requests import DATATYPES
from tests.serving.stand_ins import Metrics, Models, ask, tensor

INFER = "/v2/models/m/infer"
ARROW = "application/vnd.apache.arrow.stream"
RAW = "application/octet-stream"


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 60, 60),
            "hours": rng.standard_normal(60),
            "job": rng.choice(["chef", "clerk", "köchin"], 60),
        }
    )


@pytest.fixture(scope="module")
def pipeline(frame):
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["job"]), remainder="passthrough"
    )
    y = (frame["hours"] > 0) ^ (frame["job"] == "chef")
    return make_pipeline(columns, LogisticRegression()).fit(frame, y)


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 4)).astype("float32")
    return LogisticRegression().fit(X, X[:, 0] > 0)


def binary(inputs, raw, **more):
    """Return body and headers of the binary extension."""
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + b"".join(raw), {"inference-header-content-length": str(len(head))}


def strings(values):
    return b"".join(len(v.encode()).to_bytes(4, "little") + v.encode() for v in values)


def columns_in_json(frame):
    return [
        tensor(frame["age"].to_numpy(), "INT64", "age"),
        tensor(frame["hours"].to_numpy()[:, None], "FP64", "hours"),
        tensor(frame["job"].to_numpy(object), "BYTES", "job"),
    ]


def columns_raw(frame):
    raw = [
        frame["age"].to_numpy("<i8").tobytes(),
        frame["hours"].to_numpy("<f8").tobytes(),
        strings(frame["job"]),
    ]
    inputs = [
        {k: v for k, v in one.items() if k != "data"} | {"parameters": {"binary_data_size": len(r)}}
        for one, r in zip(columns_in_json(frame), raw, strict=True)
    ]
    return inputs, raw


def arrow(table, options=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def test_columns_are_matched_by_name(pipeline, frame):
    """Columns may come in any order and encoding."""
    app, truth = App(Models(m=pipeline), Metrics()), pipeline.predict_proba(frame)
    inputs = columns_in_json(frame)
    bodies = {
        "JSON": ({"inputs": inputs[::-1]}, {}),
        "raw": binary(*columns_raw(frame)),
        "Arrow": (arrow(pa.Table.from_pandas(frame[["job", "age", "hours"]])), ARROW),
        "dictionary": (arrow(pa.Table.from_pandas(frame.astype({"job": "category"}))), ARROW),
    }
    for name, (body, headers) in bodies.items():
        if headers == ARROW:
            headers = {"content-type": ARROW}
        reply = ask(app, INFER, body, headers)
        assert reply.status == 200, (name, reply)
        if headers.get("content-type") == ARROW:
            table = pa.ipc.open_stream(reply.body).read_all()
            served = np.vstack(table["predict_proba"].to_numpy(zero_copy_only=False))
            assert table.schema.metadata[b"model_name"] == b"m"
        else:
            served = np.reshape(reply.json["outputs"][0]["data"], truth.shape)
        np.testing.assert_array_equal(served, truth, name)


def test_wrong_columns_are_refused(pipeline, frame):
    app = App(Models(m=pipeline), Metrics())
    age, hours, job = columns_in_json(frame)
    for inputs, word in [
        ([age, hours], "'job' missing"),
        ([age], "'hours', 'job' missing"),
        ([age, hours, job, {**age, "name": "height"}], "'height' unknown"),
        ([age, hours, job, job], "each feature once"),
        ([age, hours, {**job, "shape": [59], "data": job["data"][1:]}], "59, 60 rows"),
        ([age, hours, {**job, "shape": [20, 3]}], "send one feature as [rows]"),
        ([{**age, "datatype": "BYTES", "data": ["x"] * 60}, hours, job], "not numeric"),
        ([age, hours, {**job, "data": ["pilot"] * 60}], "pilot"),
        ([{**age, "name": f"x{i}" * 99} for i in range(300)], "and 295 more"),
    ]:
        reply = ask(app, INFER, {"inputs": inputs})
        assert reply.status == 422, (word, reply)
        assert word in reply.json["error"], reply


def test_strings_instead_of_numbers_are_refused(frame):
    """A model that stores the dtypes of its features names them in the error."""
    numbers = frame[["age", "hours"]]
    app = App(Models(m=LogisticRegression().fit(numbers, frame["job"])), Metrics())
    age, hours, _ = columns_in_json(frame)
    assert ask(app, INFER, {"inputs": [age, hours]}).status == 200
    reply = ask(app, INFER, {"inputs": [{**age, "datatype": "BYTES", "data": ["x"] * 60}, hours]})
    assert reply.status == 422
    assert "send INT64" in reply.json["error"]
    inputs = ask(app, "/v2/models/m").json["inputs"]
    assert [(one["name"], one["datatype"]) for one in inputs] == [
        ("age", "INT64"),
        ("hours", "FP64"),
    ]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_datatypes_round_trip(datatype):
    """JSON and raw bytes are equivalent and lossless in both directions."""

    class Echo:
        method, names, n_features, dtypes, classes = "echo", None, 2, None, None

        def __call__(self, X):
            return X

    dtype = DATATYPES[datatype]
    if datatype == "BYTES":
        values = np.array([["", "ü"], ["a" * 300, "0"]], object)
    elif datatype == "BOOL":
        values = np.array([[True, False], [False, True]])
    else:
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        values = np.array([[limits.max, limits.min], [0, 1]], dtype)
    raw = strings(values.ravel()) if datatype == "BYTES" else values.tobytes()
    head = {"name": "x", "shape": [2, 2], "datatype": datatype}
    size = {"parameters": {"binary_data_size": len(raw)}}
    app = App(Models(m=Echo()), Metrics())
    for body, headers in [
        ({"inputs": [tensor(values, datatype)]}, {}),
        ({"inputs": [{**head, "data": values.tolist()}]}, {}),  # nested
        binary([{**head, **size}], [raw]),
    ]:
        reply = ask(app, INFER, body, headers)
        (output,) = reply.json["outputs"]
        assert output["datatype"] == datatype
        np.testing.assert_array_equal(np.array(output["data"], dtype).reshape(2, 2), values)
    asked_raw = {"parameters": {"binary_data_output": True}}
    reply = ask(app, INFER, *binary([{**head, **size}], [raw], **asked_raw))
    length = int(reply.headers[b"inference-header-content-length"])
    (output,) = json.loads(reply.body[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": len(raw)}
    assert reply.body[length:] == raw


def test_outputs_have_the_requested_encoding(model):
    """Each output has the requested encoding."""
    X = np.ones((3, 4), "float32")
    body = {
        "inputs": [tensor(X, "FP32")],
        "outputs": [
            {"name": "predict"},
            {"name": "predict_proba", "parameters": {"binary_data": True}},
        ],
    }
    reply = ask(App(Models(m=model), Metrics()), INFER, body)
    length = int(reply.headers[b"inference-header-content-length"])
    labels, _ = json.loads(reply.body[:length])["outputs"]
    assert labels["data"] == model.predict(X).tolist()
    assert reply.body[length:] == model.predict_proba(X).tobytes()


def test_bare_rows_are_accepted(model):
    """A body that contains only rows, in the model's dtype."""
    app, X = App(Models(m=model), Metrics()), np.ones((3, 4), "<f4")
    reply = ask(app, INFER, X.tobytes(), {"content-type": RAW})
    length = int(reply.headers[b"inference-header-content-length"])
    assert reply.body[length:] == model.predict_proba(X).tobytes()
    reply = ask(app, INFER, X.tobytes()[:-1], {"content-type": RAW})
    assert reply.status == 400
    assert "4 values of FP32 a row" in reply.json["error"]


def test_damaged_bytes_are_refused(model):
    app = App(Models(m=model), Metrics())
    head = {"name": "x", "shape": [1, 4], "datatype": "FP32"}

    def of_size(size, **more):
        return {**head, "parameters": {"binary_data_size": size}, **more}

    table = arrow(pa.table({"a": [1.0]}))
    for body, headers, word in [
        (*binary([of_size(16)], [b"0" * 15]), "15 bytes"),
        (*binary([of_size(16)], [b"0" * 17]), "1 bytes"),
        (*binary([of_size(-1)], [b"0" * 16]), "16 bytes"),
        (*binary([of_size(15)], [b"0" * 15]), "4 bytes a value"),
        (*binary([of_size(12)], [b"0" * 12]), "as many values"),
        (*binary([of_size(9, datatype="BYTES")], [b"\xff" * 9]), "not BYTES"),
        (*binary([of_size(4, datatype="BOOL")], [b"\0\1\7\1"]), "0 or 1"),
        (*binary([of_size(16, data=[1.0] * 4)], [b"0" * 16]), "send one of them"),
        (b"{}", {"inference-header-content-length": "7"}, "the body has 2 bytes"),
        (b"{}", {"inference-header-content-length": "-1"}, "the body has 2 bytes"),
        (b"{}", {"inference-header-content-length": "1_0"}, "the body has 2 bytes"),
        (b"{}", {"inference-header-content-length": "2"}, "not an inference request"),
        (b"garbage", {"content-type": ARROW}, "not a complete Arrow stream"),
        (table[:-100], {"content-type": ARROW}, "not a complete Arrow stream"),
        (b"", {"content-type": ARROW}, "not a complete Arrow stream"),
        (arrow(pa.table({"a": [[1.0]]})), {"content-type": ARROW}, "send numbers"),
    ]:
        reply = ask(app, INFER, body, headers)
        assert reply.status == 400, (word, reply)
        assert word in reply.json["error"], reply


def test_arrow_rows_need_no_names(model):
    X = np.ones((3, 4), "float32")
    table = pa.table({f"c{at}": X[:, at] for at in range(4)})
    reply = ask(App(Models(m=model), Metrics()), INFER, arrow(table), {"content-type": ARROW})
    served = pa.ipc.open_stream(reply.body).read_all()["predict_proba"]
    np.testing.assert_array_equal(
        np.vstack(served.to_numpy(zero_copy_only=False)), model.predict_proba(X)
    )


def test_inconsistent_arrow_streams_are_refused(model, pipeline, frame):
    """Offsets, indices and sizes beyond the message, which Arrow itself does not check."""
    app = App(Models(m=model, p=pipeline), Metrics())
    many = np.zeros(2**20)
    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    offsets = pa.py_buffer(np.array([0, 2**30, 3], "i4"))
    text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abc"))
    true_length, lie = (n.to_bytes(8, "little") for n in (12345, 10**9))
    no_text = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 1], "i4")), pa.py_buffer(b"\xff")
    )
    index = pa.DictionaryArray.from_arrays(pa.array([7]), pa.array(["a"]), safe=False)
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 64), pa.array(["a" * 2**20]))
    chunks = pa.chunked_array([long.slice(at, 1) for at in range(64)])
    for name, table, status, options in [
        ("offsets", {"job": text}, 400, None),
        ("rows", {"age": many[:12345]}, 400, None),
        ("no UTF-8", {"job": no_text}, 400, None),
        ("index", {"job": index}, 400, None),
        ("compressed", {f"c{at}": many for at in range(4)}, 413, packed),
        ("a dictionary again and again", {"job": chunks}, 413, None),
    ]:
        for path in (INFER, INFER.replace("m/", "p/")):
            body = arrow(pa.table(table), options).replace(true_length, lie)
            reply = ask(app, path, body, {"content-type": ARROW})
            assert reply.status == status, (name, reply)
            assert "send" in reply.json["error"], name
            assert b"connection" not in reply.headers
    # Small values are unpacked, and a long text is stored once for all its rows.
    X = frame.astype({"job": "category"})
    X.loc[3, "job"] = None
    for options in (None, packed):
        table = pa.Table.from_pandas(X)
        reply = ask(app, INFER.replace("m/", "p/"), arrow(table, options), {"content-type": ARROW})
        assert reply.status == 422  # the model's own error about missing columns
        reply = ask(
            app, INFER.replace("m/", "p/"), arrow(table[4:], options), {"content-type": ARROW}
        )
        served = pa.ipc.open_stream(reply.body).read_all()["predict_proba"]
        np.testing.assert_array_equal(
            np.vstack(served.to_numpy(zero_copy_only=False)), pipeline.predict_proba(frame[4:])
        )
    read = arrow_stream.read(arrow(pa.table({"job": long})), {}, Predictor(pipeline))
    ((_, column),) = read.tensors
    assert {id(one) for one in column} == {id(column[0])}


def test_metadata_describes_inputs_and_outputs(model, pipeline):
    app = App(Models(m=model, p=pipeline), Metrics())
    metadata = ask(app, "/v2/models/m").json
    assert metadata["inputs"] == [{"name": "rows", "datatype": "FP32", "shape": [-1, 4]}]
    assert metadata["versions"] == ["1"]
    outputs = [(one["name"], one["datatype"], one["shape"]) for one in metadata["outputs"]]
    assert outputs == [
        ("predict_proba", "FP32", [-1, 2]),
        ("predict", "BOOL", [-1]),
        ("decision_function", "FP32", [-1]),
        ("predict_log_proba", "FP32", [-1, 2]),
    ]
    metadata = ask(app, "/v2/models/p/versions/1").json  # zeros are no valid "job"
    assert metadata["name"] == "p"
    assert metadata["outputs"][0] == {"name": "predict_proba", "datatype": "FP64", "shape": [-1, 2]}


def test_metadata_of_a_pipeline_without_dtypes(frame):
    """The inputs named by the metadata are accepted, texts as texts."""
    frame = frame.assign(said=np.where(frame["hours"] > 0, "well done", "oh no"))
    columns = make_column_transformer(
        (StandardScaler(), ["age", "hours"]),
        (OneHotEncoder(), ["job"]),
        (CountVectorizer(), "said"),
    )
    model = make_pipeline(columns, SKLogisticRegression()).fit(frame, frame["hours"] > 0)
    app = App(Models(m=model), Metrics())
    inputs = ask(app, "/v2/models/m").json["inputs"]
    assert [(one["name"], one["datatype"]) for one in inputs] == [
        ("age", "FP64"), ("hours", "FP64"), ("job", "BYTES"), ("said", "BYTES"),
    ]  # fmt: skip
    sent = [tensor(frame[one["name"]].to_numpy(), one["datatype"], one["name"]) for one in inputs]
    reply = ask(app, INFER, {"inputs": sent})
    served = np.reshape(reply.json["outputs"][0]["data"], (-1, 2))
    np.testing.assert_array_equal(served, model.predict_proba(frame))


@pytest.mark.parametrize("kind", [CountVectorizer, HashingVectorizer, OurVectorizer])
def test_the_input_of_a_model_of_texts_is_a_column_of_texts(frame, kind):
    """The metadata must not ask clients of a text model for numbers."""
    texts = np.where(frame["hours"] > 0, "well done", "oh no").astype(object)
    model = make_pipeline(kind(), SKLogisticRegression()).fit(texts, frame["hours"] > 0)
    app = App(Models(m=model), Metrics())
    (metadata,) = ask(app, "/v2/models/m").json["inputs"]
    assert (metadata["datatype"], metadata["shape"]) == ("BYTES", [-1])
    reply = ask(app, INFER, {"inputs": [tensor(texts, metadata["datatype"], metadata["name"])]})
    served = np.reshape(reply.json["outputs"][0]["data"], (-1, 2))
    np.testing.assert_array_equal(served, model.predict_proba(texts))


def test_codecs_are_found_by_their_types():
    assert set(CODECS) == {"application/json", RAW, ARROW}
    assert all(callable(codec.read) and callable(codec.write) for codec in CODECS.values())
