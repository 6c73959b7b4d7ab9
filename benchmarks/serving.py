"""Requests a second of services on one core, by wrk, beside MLServer where it is installed.

wrk (``apt-get install wrk``) runs on another core: both are pinned where there are two.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import logistic_rows, markdown
from daskml_dist.linear_model import SGDClassifier

FEATURES, CONNECTIONS = 28, 64
INFER = "/v2/models/m/infer"
#: As little of a runtime as MLServer has: the same probabilities by two lines of NumPy.
RUNTIME = """
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Model(MLModel):
    async def load(self):
        held = np.load(self.settings.parameters.uri)
        self.coef, self.intercept = held["coef"], held["intercept"]
        return True

    async def predict(self, payload):
        X = NumpyCodec.decode_input(payload.inputs[0])
        p = 1 / (1 + np.exp(-(X @ self.coef.T + self.intercept)))
        out = NumpyCodec.encode_output("predict_proba", np.hstack([1 - p, p]))
        return InferenceResponse(model_name=self.name, outputs=[out])
"""


def run(tiny: bool = False) -> str:
    """The table."""
    needed = {
        name: find_spec(name) for name in ("msgspec", "uvicorn", "httptools", "uvloop", "skops")
    }
    missing = [name for name, found in needed.items() if found is None]
    missing += [] if shutil.which("wrk") else ["wrk"]
    if missing:
        return f"Services: not measured, as {', '.join(missing)} is not installed."
    X, y = logistic_rows(2_000, FEATURES)
    model = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    seconds = 1 if tiny else 6
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        bodies = _bodies(X[0], place)
        with _ours(model, place) as port:
            truth = model.predict_proba(X[:1])
            _same(port, X[:1], truth, exactly=True)
            rows += [["daskml_dist", kind, *_load(port, body, seconds)] for kind, body in bodies]
        if find_spec("mlserver") and not tiny:
            with _mlserver(model, place) as port:
                _same(port, X[:1], truth, exactly=False)
                rows.append(["MLServer", "JSON", *_load(port, bodies[0][1], seconds)])
    title = f"Services of a linear model, {FEATURES} features, {CONNECTIONS} connections, one core"
    return markdown(title, ["", "body", "requests/s", "p50, ms", "p99, ms", "failed"], rows)


def _bodies(row: Any, folder: Path) -> list[tuple[str, Path]]:
    """wrk's scripts, by the kind of body that they send."""
    tensor = {"name": "rows", "shape": [1, FEATURES], "datatype": "FP32", "data": row.tolist()}
    kinds = {
        "JSON": ("application/json", json.dumps({"inputs": [tensor]}).encode()),
        "raw": ("application/octet-stream", row.astype("<f4").tobytes()),
    }
    found = []
    for kind, (content_type, body) in kinds.items():
        path = folder / f"{kind}.lua"
        escaped = "".join(f"\\{byte:03d}" for byte in body)
        path.write_text(
            f'wrk.method = "POST"\nwrk.headers["content-type"] = "{content_type}"\n'
            f'wrk.body = "{escaped}"\n'
        )
        found.append((kind, path))
    return found


@contextmanager
def _ours(model: Any, folder: Path) -> Iterator[int]:
    model.save(str(folder / "m.skops"))
    port = _free_port()
    command = [sys.executable, "-m", "daskml_dist", "serve", str(folder / "m.skops")]
    with _running([*command, "--port", str(port)], port):
        yield port


@contextmanager
def _mlserver(model: Any, folder: Path) -> Iterator[int]:
    port = _free_port()
    np.savez(folder / "m.npz", coef=model.coef_, intercept=model.intercept_)
    (folder / "runtime.py").write_text(RUNTIME)
    ports = {"http_port": port, "grpc_port": _free_port(), "metrics_port": _free_port()}
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
    (folder / "settings.json").write_text(json.dumps(settings))
    parameters = {"uri": str(folder / "m.npz")}
    told = {"name": "m", "implementation": "runtime.Model", "parameters": parameters}
    (folder / "model-settings.json").write_text(json.dumps(told))
    main = "import sys; from mlserver.cli import main; sys.argv[0] = 'mlserver'; main()"
    with _running([sys.executable, "-c", main, "start", str(folder)], port):
        yield port


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    """A server, once it is ready and until the end."""
    with subprocess.Popen([*_pinned(0), *command], stderr=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL) as server:  # fmt: skip
        try:
            end = time.monotonic() + 60
            while not _ready(port):
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{command} is not ready.")
                time.sleep(0.05)
            yield
        finally:
            server.terminate()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m/ready") as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _same(port: int, X: Any, truth: Any, *, exactly: bool) -> None:
    """What is compared is the same answer."""
    tensor = {"name": "rows", "shape": list(X.shape), "datatype": "FP32", "data": X[0].tolist()}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{INFER}",
        json.dumps({"inputs": [tensor]}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        (output,) = json.load(reply)["outputs"]
    served = np.array(output["data"], truth.dtype).reshape(truth.shape)
    if exactly:
        np.testing.assert_array_equal(served, truth)
    else:
        np.testing.assert_allclose(served, truth, rtol=1e-5)


def _load(port: int, script: Path, seconds: int) -> list[str]:
    """Requests a second, p50 and p99, and how many answers were no answer."""
    url = f"http://127.0.0.1:{port}{INFER}"
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(script)]
    said = subprocess.run(
        [*_pinned(1), *command, url], check=True, capture_output=True, text=True
    ).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    spread = [re.search(rf"{part}%\s+([\d.]+)(us|ms|s)", said) for part in (50, 99)]
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    broken = re.search(r"Socket errors: (.*)", said)
    if rate is None or None in spread:
        raise RuntimeError(said)
    unit = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    times = [f"{float(found[1]) * unit[found[2]]:.1f}" for found in spread if found]
    return [f"{float(rate[1]):,.0f}", *times, broken[1] if broken else failed[1] if failed else "0"]


def _pinned(core: int) -> list[str]:
    """A prefix that keeps a command on one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or not shutil.which("taskset"):
        return []
    return ["taskset", "-c", str(cores[core])]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
