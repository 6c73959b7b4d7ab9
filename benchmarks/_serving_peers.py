"""Other model servers, each with scikit-learn's model and its own JSON, as in its documentation.

Their dependencies conflict, so each is first looked for in a separate folder: ``pip install
--target PEERS/bentoml bentoml``, with PEERS in the environment variable DASKML_DIST_PEERS;
otherwise among the installed packages.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

__all__ = ["PEERS", "Peer", "found_in"]


class Peer(NamedTuple):
    """A server, and the form of its requests."""

    name: str
    modules: tuple[str, ...]
    prepare: Callable[[Path, int, Callable[[], int]], list[str]]
    """Writes what it needs into a folder, which holds ``m.joblib``, for a port and others; the
    command that starts it there."""
    path: str
    body: Callable[[list[float]], Any]
    probabilities: Callable[[Any], NDArray[Any] | list[Any]]
    """Those of its answer, in any shape."""


def found_in(peer: Peer) -> str | None:
    """Return the Python path that a peer needs, or None if it is not installed."""
    root = os.environ.get("DASKML_DIST_PEERS")
    folder = Path(root or ".") / peer.modules[0]
    if root and all((folder / name).exists() for name in peer.modules):
        return str(folder)
    return "" if all(find_spec(name) for name in peer.modules) else None


def _tensor(row: list[float]) -> dict[str, Any]:
    return {"name": "rows", "shape": [1, len(row)], "datatype": "FP32", "data": row}


def _rows(row: list[float]) -> dict[str, Any]:
    return {"rows": [row]}


def _mlserver(
    implementation: str, parameters: dict[str, Any]
) -> Callable[[Path, int, Callable[[], int]], list[str]]:
    def prepare(folder: Path, port: int, free: Callable[[], int]) -> list[str]:
        ports = {"http_port": port, "grpc_port": free(), "metrics_port": free()}
        settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "runtime.py").write_text(_RUNTIME)
        model_settings = {
            "name": "m",
            "implementation": implementation,
            "parameters": {"uri": str(folder / "m.joblib"), **parameters},
        }
        (folder / "model-settings.json").write_text(json.dumps(model_settings))
        main = "import sys; from mlserver.cli import main; sys.argv[0] = 'mlserver'; main()"
        return [sys.executable, "-c", main, "start", str(folder)]

    return prepare


#: The smallest possible runtime for MLServer: the same probabilities in two lines of NumPy.
_RUNTIME = """
import joblib
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Model(MLModel):
    async def load(self):
        held = joblib.load(self.settings.parameters.uri)
        self.coef, self.intercept = held.coef_, held.intercept_
        return True

    async def predict(self, payload):
        X = NumpyCodec.decode_input(payload.inputs[0])
        p = 1 / (1 + np.exp(-(X @ self.coef.T + self.intercept)))
        out = NumpyCodec.encode_output("predict_proba", np.hstack([1 - p, p]))
        return InferenceResponse(model_name=self.name, outputs=[out])
"""

_BENTOML = """
import bentoml
import joblib
import numpy as np

@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Service:
    def __init__(self):
        self.model = joblib.load("m.joblib")

    @bentoml.api
    def predict(self, rows: np.ndarray) -> np.ndarray:
        return self.model.predict_proba(rows)
"""


def _bentoml(folder: Path, port: int, free: Callable[[], int]) -> list[str]:
    (folder / "service.py").write_text(_BENTOML)
    arguments = ["serve", "service:Service", "--host", "127.0.0.1", "--port", str(port)]
    return [sys.executable, "-m", "bentoml", *arguments]


_LITSERVE = """
import sys
import joblib
import litserve
import numpy as np

class Api(litserve.LitAPI):
    def setup(self, device):
        self.model = joblib.load("m.joblib")

    def decode_request(self, request):
        return np.array(request["rows"])

    def predict(self, rows):
        return self.model.predict_proba(rows)

    def encode_response(self, found):
        return {"probabilities": found.tolist()}

if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False,
               log_level="error")
"""


def _litserve(folder: Path, port: int, free: Callable[[], int]) -> list[str]:
    (folder / "lit.py").write_text(_LITSERVE)
    return [sys.executable, "lit.py", str(port)]


_RAY = """
import signal
import sys
import joblib
import numpy as np
import ray
from ray import serve

@serve.deployment(max_ongoing_requests=100)
class Service:
    def __init__(self, path):
        self.model = joblib.load(path)

    async def __call__(self, request):
        rows = np.array((await request.json())["rows"])
        return {"probabilities": self.model.predict_proba(rows).tolist()}

ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1",
         _temp_dir=sys.argv[3])
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Service.bind(sys.argv[2]), route_prefix="/predict")
try:
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
finally:
    serve.shutdown()
    ray.shutdown()
"""


def _ray(
    flags: tuple[str, ...] = (),
) -> Callable[[Path, int, Callable[[], int]], list[str]]:
    def prepare(folder: Path, port: int, free: Callable[[], int]) -> list[str]:
        (folder / "on_ray.py").write_text(_RAY)
        arguments = [str(port), str(folder / "m.joblib"), str(folder / "r")]
        return ["env", *flags, sys.executable, "on_ray.py", *arguments]

    return prepare


#: A model for KServe's SDK that calls scikit-learn like KServe's own server for it, which is not in
#: any package index: input and answer are made by the SDK's functions.
_KSERVE = """
import sys
import joblib
from kserve import Model, ModelServer
from kserve.utils.utils import get_predict_input, get_predict_response

class SklearnModel(Model):
    def __init__(self, name, path):
        super().__init__(name)
        self.model = joblib.load(path)
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        rows = get_predict_input(payload)
        return get_predict_response(payload, self.model.predict_proba(rows), self.name)

if __name__ == "__main__":
    server = ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1,
                         access_log_format=None, enable_docs_url=False)
    server.start([SklearnModel("m", "m.joblib")])
"""


def _kserve(folder: Path, port: int, free: Callable[[], int]) -> list[str]:
    (folder / "on_kserve.py").write_text(_KSERVE)
    return [sys.executable, "on_kserve.py", str(port)]


_INFER = "/v2/models/m/infer"
PEERS = (
    Peer(
        "MLServer, scikit-learn runtime",
        ("mlserver", "mlserver_sklearn"),
        _mlserver("mlserver_sklearn.SKLearnModel", {"extra": {"predict_fn": "predict_proba"}}),
        _INFER,
        lambda row: {"inputs": [_tensor(row)]},
        lambda reply: reply["outputs"][0]["data"],
    ),
    Peer(
        "MLServer, runtime of two lines of NumPy",
        ("mlserver",),
        _mlserver("runtime.Model", {}),
        _INFER,
        lambda row: {"inputs": [_tensor(row)]},
        lambda reply: reply["outputs"][0]["data"],
    ),
    Peer("BentoML", ("bentoml",), _bentoml, "/predict", _rows, lambda reply: reply),
    Peer("LitServe", ("litserve",), _litserve, "/predict", _rows, lambda t: t["probabilities"]),
    Peer("Ray Serve", ("ray",), _ray(), "/predict", _rows, lambda reply: reply["probabilities"]),
    Peer(
        "Ray Serve with its throughput flags",
        ("ray",),
        _ray(("RAY_SERVE_THROUGHPUT_OPTIMIZED=1", "RAY_SERVE_ENABLE_HA_PROXY=1")),
        "/predict",
        _rows,
        lambda reply: reply["probabilities"],
    ),
    Peer(
        "KServe's SDK, scikit-learn model",
        ("kserve",),
        _kserve,
        _INFER,
        lambda row: {"inputs": [_tensor(row)]},
        lambda reply: reply["outputs"][0]["data"],
    ),
)
