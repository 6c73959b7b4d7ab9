"""Serving over a network: a server on one host, and requests predicted by workers of others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import dask.array as da
import numpy as np
import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")

from benchmarks._hosts import Host, HostCluster, HostNetwork, network_problem
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.serving import publish

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2_000, 6))
Y = (X[:, 0] > 0).astype(np.int64)
#: Rows from which a request is sent to the cluster, and sizes of requests below and above.
MANY, SOME = 500, 20


@pytest.fixture
def network() -> Iterator[HostNetwork]:
    """Provide three hosts."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    with HostNetwork(3) as network:
        yield network


@contextmanager
def served(host: Host, folder: Path, *options: str) -> Iterator[str]:
    """Run a server of a registry on a host; yield its address once it is ready."""
    command = [sys.executable, "-m", "daskml_dist", "serve", str(folder), *options]
    process = subprocess.Popen(
        host.command(*command, "--host", host.address, "--port", "8000"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "is ready" in line:
                break
        else:
            pytest.fail(f"the server ended: {process.wait()}")
        yield f"http://{host.address}:8000"
    finally:
        process.terminate()
        process.communicate()


def ask(address: str, rows: Any) -> tuple[int, Any]:
    """Return status and probabilities of a request for some rows."""
    tensor = {
        "name": "rows",
        "datatype": "FP64",
        "shape": rows.shape,
        "data": rows.ravel().tolist(),
    }
    body = json.dumps({"inputs": [tensor]}).encode()
    request = Request(f"{address}/v2/models/m/infer", body, {"content-type": "application/json"})
    with urlopen(request, timeout=120) as reply:
        output = json.load(reply)["outputs"][0]
        return reply.status, np.reshape(output["data"], output["shape"])


def counted(address: str) -> int:
    """Return the number of requests predicted by the cluster."""
    with urlopen(f"{address}/metrics", timeout=120) as reply:
        lines = reply.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("daskml_dist_cluster_seconds_count")]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)


def test_replies_equal_the_models_predictions(network: HostNetwork, tmp_path: Path) -> None:
    """The model is fitted on three hosts, served by one, and predicts there or on all workers."""
    with HostCluster(network) as client:
        data = da.from_array(X, chunks=(500, -1)), da.from_array(Y, chunks=500)
        model = SGDClassifier(max_iter=3, tol=None, random_state=0).fit(*data)
        truth = model.predict_proba(X)
        publish(model, tmp_path, "m")
        options = ["--scheduler", client.scheduler.address, "--cluster-rows", str(MANY)]
        with served(network.hosts[0], tmp_path, "--method", "predict_proba", *options) as address:
            for rows in (SOME, len(X)):
                status, found = ask(address, X[:rows])
                assert status == 200
                np.testing.assert_array_equal(found, truth[:rows])
            assert counted(address) == 1


def test_requests_survive_silent_hosts(network: HostNetwork, tmp_path: Path) -> None:
    """Small requests do not wait; large ones until Dask has given up the disconnected hosts."""
    with HostCluster(network) as client:
        model = SGDClassifier(max_iter=3, tol=None, random_state=0).fit(X, Y)
        publish(model, tmp_path, "m")
        options = ["--scheduler", client.scheduler.address, "--cluster-rows", str(MANY)]
        with served(network.hosts[0], tmp_path, "--method", "predict_proba", *options) as address:
            assert ask(address, X)[0] == 200
            for host in network.hosts[1:]:
                network.pull(host)
            status, found = ask(address, X[:SOME])
            assert status == 200
            np.testing.assert_array_equal(found, model.predict_proba(X[:SOME]))
            # One of the workers is on the server's host.
            status, found = ask(address, X)
            assert status == 200
            np.testing.assert_array_equal(found, model.predict_proba(X))
