"""Answers of a server to tritonclient, as JSON, in a separate process because of its gevent."""

from __future__ import annotations

import json
import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

OUTPUTS = ("predict_proba", "predict")


def main(port: str) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    metadata = client.get_model_metadata("m")
    results = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model": client.is_model_ready("m"),
        "other": client.is_model_ready("other"),
        "server": client.get_server_metadata()["name"],
        "inputs": metadata["inputs"],
        "answers": [],
        "errors": [],
    }
    X = np.random.default_rng(0).standard_normal((30, 3))
    rows = triton.InferInput("X", X.shape, "FP64")
    for sent in (True, False):
        rows.set_data_from_numpy(X, binary_data=sent)
        for wanted in (True, False, None):
            outputs = None
            if wanted is not None:
                outputs = [triton.InferRequestedOutput(n, binary_data=wanted) for n in OUTPUTS]
            answer = client.infer("m", [rows], outputs=outputs, request_id="7")
            assert answer.get_response()["id"] == "7"
            results["answers"].append(
                [answer.as_numpy(n).tolist() for n in OUTPUTS[: 1 + bool(outputs)]]
            )
    for coding in ("gzip", "deflate"):
        answer = client.infer("m", [rows], request_compression_algorithm=coding)
        results["answers"].append([answer.as_numpy(OUTPUTS[0]).tolist()])
    short = triton.InferInput("X", [1, 2], "FP64").set_data_from_numpy(X[:1, :2])
    for name, tensor, more in [
        ("other", rows, {}),
        ("m", short, {}),
        ("m", rows, {"model_version": "7"}),
    ]:
        try:
            client.infer(name, [tensor], **more)
        except InferenceServerException as error:
            results["errors"].append([error.status(), error.message()])
    print(json.dumps(results, default=lambda one: one.decode()))


if __name__ == "__main__":
    main(sys.argv[1])
