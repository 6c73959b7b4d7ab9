"""Requests per second of services on one core, by wrk, compared with other installed servers.

wrk (``apt-get install wrk``) runs on another core: both are pinned if there are two. All serve the
same coefficients: ours the fitted model, the others its scikit-learn equivalent. With
``DASKML_DIST_SERVING=peers`` the second table, of other kinds of models, is left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import psutil

from benchmarks._common import logistic_rows, markdown
from benchmarks._serving_kinds import KINDS, command
from benchmarks._serving_peers import PEERS, Peer, found_in
from daskml_dist.linear_model import SGDClassifier

FEATURES, CONNECTIONS = 28, 64
INFER = "/v2/models/m/infer"


def run(tiny: bool = False) -> str:
    """Return the table."""
    needed = {
        name: find_spec(name) for name in ("msgspec", "uvicorn", "httptools", "uvloop", "skops")
    }
    missing = [name for name, found in needed.items() if found is None]
    missing += [] if shutil.which("wrk") else ["wrk"]
    if missing:
        return f"Services: not measured, as {', '.join(missing)} is not installed."
    X, y = logistic_rows(2_000, FEATURES)
    model = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    seconds = 1 if tiny else 5
    row, truth = X[0].tolist(), model.predict_proba(X[:1])
    rows, left_out = [], []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for title, more in (("bit-identical answers", []), ("answered together", ["--together"])):
            with _ours(model, folder, more) as (port, server):
                for kind, body, content_type in _bodies(X[0]):
                    said = json.loads(_asked(port, INFER, json_request(row)))
                    found = np.array(said["outputs"][0]["data"], truth.dtype)
                    np.testing.assert_array_equal(found, truth.ravel())
                    script = wrk_script(body, content_type, folder)
                    load = loaded(server, port, INFER, script, seconds)
                    rows.append([f"daskml_dist, {title}", kind, *load])
        twin = model.to_sklearn()
        for peer in () if tiny else PEERS:
            where = found_in(peer)
            if where is None:
                left_out.append(peer.name)
                continue
            try:
                with _served(peer, twin, where) as (port, place, server):
                    body = json.dumps(peer.body(row)).encode()
                    found = peer.probabilities(json.loads(_asked(port, peer.path, body)))
                    np.testing.assert_allclose(np.ravel(found), truth.ravel(), rtol=1e-4)
                    script = wrk_script(body, "application/json", place)
                    load = loaded(server, port, peer.path, script, seconds)
                    rows.append([peer.name, "JSON", *load])
            except (RuntimeError, OSError) as error:
                left_out.append(f"{peer.name} ({error})")
    title = (
        f"HTTP services of a linear model, {FEATURES} features, {CONNECTIONS} connections, one core"
    )
    head = ["", "body", "requests per CPU second", "requests/s", "p50, ms", "p99, ms", "failed"]
    table = markdown(title, head, rows)
    table += f"\n\nNot measured: {', '.join(left_out)}." if left_out else ""
    if os.environ.get("DASKML_DIST_SERVING") == "peers":
        return table
    return f"{table}\n\n{_kinds(X, y, tiny)}"


def _kinds(X: Any, y: Any, tiny: bool) -> str:
    """Return the table of kinds of models, with separate and with shared calls."""
    body = json_request(X[0].tolist())
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        script = wrk_script(body, "application/json", folder)
        for name in list(KINDS)[:1] if tiny else KINDS:
            row = [name]
            for together in (False, True):
                port, seconds = free_port(), 1 if tiny else 4
                serves = command(name, X, y, folder, port, together)
                with running_server(
                    serves, port, INFER, body, str(Path(__file__).parents[1])
                ) as server:
                    row += loaded(server, port, INFER, script, seconds)[:3]
            rows.append(row)
    columns = ("requests per CPU second", "requests/s", "p50, ms")
    head = ["", *(f"{way}{one}" for way in ("", "together: ") for one in columns)]
    return markdown(f"Kinds of models, {CONNECTIONS} connections, one row each", head, rows)


def loaded(server: int, port: int, path: str, script: Path, seconds: int) -> list[str]:
    """Return requests per CPU second of a server, then wrk's figures, after 2 s to warm up."""
    wrk_figures(port, path, script, 2)
    before = cpu_seconds(server)
    figures = wrk_figures(port, path, script, seconds)
    answered = float(figures[0].replace(",", "")) * seconds
    return [f"{answered / (cpu_seconds(server) - before):,.0f}", *figures]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a server's processes, independent of other load on its cores."""
    parent = psutil.Process(pid)
    family = [parent, *parent.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in family)


def json_request(row: list[float]) -> bytes:
    tensor = {"name": "rows", "shape": [1, FEATURES], "datatype": "FP32", "data": row}
    return json.dumps({"inputs": [tensor]}).encode()


def _bodies(row: Any) -> list[tuple[str, bytes, str]]:
    """Return the bodies for a row, with their kinds and content types."""
    return [
        ("JSON", json_request(row.tolist()), "application/json"),
        ("raw", row.astype("<f4").tobytes(), "application/octet-stream"),
    ]


def wrk_script(body: bytes, content_type: str, folder: Path) -> Path:
    """Return wrk's script that sends a body."""
    path = folder / "ask.lua"
    escaped = "".join(f"\\{byte:03d}" for byte in body)
    path.write_text(
        f'wrk.method = "POST"\nwrk.headers["content-type"] = "{content_type}"\n'
        f'wrk.body = "{escaped}"\n'
    )
    return path


@contextmanager
def _ours(model: Any, folder: Path, more: Sequence[str]) -> Iterator[tuple[int, int]]:
    model.save(str(folder / "m.skops"))
    port = free_port()
    command = [sys.executable, "-m", "daskml_dist", "serve", str(folder / "m.skops"), *more]
    with running_server(
        [*command, "--port", str(port)], port, INFER, json_request([0.0] * FEATURES), ""
    ) as server:
        yield port, server


@contextmanager
def _served(peer: Peer, model: Any, where: str) -> Iterator[tuple[int, Path, int]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        folder, port = Path(directory), free_port()
        joblib.dump(model, folder / "m.joblib")
        command = peer.prepare(folder, port, free_port)
        body = json.dumps(peer.body([0.0] * FEATURES)).encode()
        with running_server(command, port, peer.path, body, where, folder) as server:
            yield port, folder, server


@contextmanager
def running_server(
    command: list[str], port: int, path: str, body: bytes, where: str, folder: Path | None = None
) -> Iterator[int]:
    """Yield a server's process id once it answers; at the end, end all that it started."""
    paths = [*filter(None, [where, os.environ.get("PYTHONPATH")])]
    quiet = {"BENTOML_DO_NOT_TRACK": "True", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen([*_pinned(0), *command], stderr=subprocess.DEVNULL, cwd=folder,
                          stdout=subprocess.DEVNULL, env=environment,
                          start_new_session=True) as server:  # fmt: skip
        try:
            end = time.monotonic() + 60
            while True:
                with suppress(OSError):
                    _asked(port, path, body)
                    break
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("did not come to answer")
                time.sleep(0.1)
            yield server.pid
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(15)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def _asked(port: int, path: str, body: bytes) -> bytes:
    """Return the body of an answer; raise an OSError if there is no valid answer."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        found: bytes = reply.read()
    return found


def wrk_figures(port: int, path: str, script: Path, seconds: int) -> list[str]:
    """Return requests per second, p50 and p99, and the number of invalid answers."""
    url = f"http://127.0.0.1:{port}{path}"
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
    """Return a command prefix that keeps a command on one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or not shutil.which("taskset"):
        return []
    return ["taskset", "-c", str(cores[core])]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
