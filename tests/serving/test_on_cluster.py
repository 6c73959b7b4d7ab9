"""Requests predicted by workers of a cluster: the same replies, and nothing left there."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Security
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

pytest.importorskip("msgspec", reason="the extra serve is not installed")

from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.serving import Metrics, Models, publish, serve
from daskml_dist.serving import on_cluster as module
from daskml_dist.serving.app import App
from daskml_dist.serving.on_cluster import Cluster
from tests.serving.stand_ins import ask, ask_async, tensor
from tests.serving.tiny import server, until

INFER = "/v2/models/m/infer"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 5))
FRAME = pd.DataFrame({"kind": RNG.choice(["a", "b"], 300), "size": RNG.normal(size=300)})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a slow machine more time to connect."""
    monkeypatch.setattr(module, "_CONNECT", 60.0)


@contextmanager
def reached(address: str, models: Any, **options: Any) -> Iterator[tuple[App, Metrics]]:
    """Return an application that sends requests of many rows to a cluster."""
    metrics, cluster = Metrics(), Cluster(address, **{"min_rows": 100, **options})
    cluster.start(metrics)
    try:
        yield App(models, metrics, cluster=cluster), metrics
    finally:
        cluster.close()


def body(rows: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": [tensor(rows, "FP32" if rows.dtype == np.float32 else "FP64")], **more}


def keys(client: Client) -> set[str]:
    """Return the package's keys on the scheduler."""

    def user_log(dask_scheduler: Any) -> list[str]:
        return [key for key in dask_scheduler.tasks if str(key).startswith("daskml_dist-")]

    return set(client.run_on_scheduler(user_log))


def failures(client: Client) -> int:
    """Return the number of failed tasks in the workers' logs."""
    logs = client.get_worker_logs().values()
    return sum("Compute Failed" in message for log in logs for _, message in log)


def fitted(shift: float = 0.0) -> LogisticRegression:
    return LogisticRegression().fit(X[:200], X[:200, 0] + shift > 0)


def of_columns() -> Any:
    numbers = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    return make_pipeline(numbers, LogisticRegression()).fit(FRAME, FRAME["size"] > 0)


def test_cluster_replies_equal_those_of_the_process(client: Client) -> None:
    trees = HistGradientBoostingClassifier(max_iter=3).fit(X, X[:, 0] > 0)
    models = Models({"m": fitted(), "frames": of_columns(), "trees": trees})
    columns = {
        "inputs": [tensor(FRAME["size"].to_numpy(), name="size"),
                   tensor(FRAME["kind"].to_numpy(), "BYTES", name="kind")],
    }  # fmt: skip
    questions = [
        (INFER, body(X)),
        (INFER, body(X.astype(np.float32))),
        (INFER, body(X, outputs=[{"name": "predict"}, {"name": "decision_function"}])),
        ("/v2/models/frames/infer", columns),
        ("/v2/models/trees/infer", body(X, parameters={"contributions": True})),
    ]
    local_app = App(models, Metrics())
    with reached(client.scheduler.address, models) as (cluster_app, metrics):
        for path, question in questions:
            found, truth = ask(cluster_app, path, question), ask(local_app, path, question)
            assert (truth.status, found) == (200, truth)
        assert ask(cluster_app, INFER, body(X[:99])) == ask(local_app, INFER, body(X[:99]))
        user_log = metrics.render().decode()
        assert 'cluster_seconds_count{model="m",version="1"} 4\n' in user_log  # no small ones
        before = failures(client)
        wrong = body(X)
        wrong["inputs"][0]["data"][7] = None
        found, truth = ask(cluster_app, INFER, wrong), ask(local_app, INFER, wrong)
        assert (truth.status, found) == (422, truth)
        assert "NaN" in found.json["error"]
        assert failures(client) == before
    until(lambda: not keys(client))


def test_a_version_is_stored_once_on_the_cluster_until_its_swap(client: Client) -> None:
    models = Models({"m": fitted()})
    address = client.scheduler.address
    with reached(address, models) as (app, _), reached(address, models) as (other, _):

        async def many() -> Any:
            return await asyncio.gather(
                *(ask_async(one, INFER, body(X[:200])) for one in (app, other, app))
            )

        assert [reply.status for reply in asyncio.run(many())] == [200] * 3
        until(lambda: len(keys(client)) == 1)
        before = keys(client)
        models.put("m", fitted(0.5), "2")
        until(lambda: not keys(client))
        assert ask(app, INFER, body(X[:200])).json["model_version"] == "2"
        until(lambda: len(keys(client)) == 1)
        assert keys(client) != before


def test_a_model_that_workers_cannot_load_is_tried_again(
    client: Client, tmp_path: Path, user_log: Any
) -> None:
    class Fragile:
        """Model that a worker can load only if a file exists."""

        n_features_in_ = 5

        def predict(self, rows: Any) -> Any:
            return rows[:, 0]

        def __setstate__(self, state: dict[str, Any]) -> None:
            if not Path(state["path"]).exists():
                raise ModuleNotFoundError("no such module")

    model = Fragile()
    model.path = str(tmp_path / "there")  # type: ignore[attr-defined]
    with reached(client.scheduler.address, Models({"m": lambda: model})) as (app, _):
        reply = ask(app, INFER, body(X))
        assert (reply.status, reply.headers[b"retry-after"]) == (503, b"30")
        assert "install the same packages as on this server" in reply.json["error"]
        assert "cannot load model m" in user_log.text
        (tmp_path / "there").touch()
        assert ask(app, INFER, body(X)).json["outputs"][0]["data"] == X[:, 0].tolist()


def test_small_requests_are_served_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    with reached(address, Models({"m": fitted()}), max_waiting=2) as (app, metrics):

        async def all_at_once() -> Any:
            rows = (X, X[:99], X, X)
            return await asyncio.gather(*(ask_async(app, INFER, body(one)) for one in rows))

        large, small, second, third = asyncio.run(all_at_once())
        assert [one.status for one in (large, small, second, third)] == [503, 200, 503, 503]
        assert large.headers[b"retry-after"] == b"5"
        assert "is not reachable" in large.json["error"]
        assert "try again later, or send fewer rows" in large.json["error"]
        assert "2 requests are already on the cluster" in third.json["error"]
        assert 'requests_total{model="m",version="1",code="503"} 3\n' in metrics.render().decode()


def test_by_default_slow_requests_are_sent_to_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost is measured by a clock that the model's call sets forward."""
    now = 0.0
    monkeypatch.setattr(module, "_clock", lambda: now)

    def of_cost(seconds_a_row: float) -> Callable[[Any], Any]:
        def predictor(rows: Any) -> Any:
            nonlocal now
            now += seconds_a_row * len(rows)

        return predictor

    cluster, cheap, costly = Cluster("tcp://nowhere:1"), of_cost(1e-7), of_cost(5e-5)
    for one in (cheap, costly):
        one.names = None  # type: ignore[attr-defined]
    sizes = (999, 1000, 1999, 2001, 100_000)
    assert [cluster.takes(costly, np.zeros((n, 2))) for n in sizes] == [False] * 3 + [True] * 2
    assert [cluster.takes(cheap, np.zeros((n, 2))) for n in sizes] == [False] * 5
    assert not cluster.takes(lambda rows: 1 / 0, np.zeros((10**5, 2)))  # raised in process


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    for address, rows, words in (
        ("10.0.0.1:8786", None, "scheduler='10.0.0.1:8786': use the address"),
        ("tcp://10.0.0.1:8786", 0, "cluster_rows=0: use an integer"),
        (None, 5, "cluster_rows needs a scheduler"),
    ):
        with pytest.raises(InvalidParameterError, match=words):
            serve({"m": fitted}, scheduler=address, cluster_rows=rows)


# --- losses, and processes ---------------------------------------------------------------------


@pytest.mark.slow
def test_requests_of_a_lost_worker_are_repeated_elsewhere(
    crew: LocalCluster, tmp_path: Path, user_log: Any
) -> None:
    class Waiting:
        """Model that records its process and waits for a file."""

        n_features_in_ = 5

        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def predict(self, rows: Any) -> Any:
            import os
            import time

            (self.folder / f"{os.getpid()}.pid").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.01)
            return rows[:, 0]

    pids: Callable[[], set[int]] = lambda: {int(one.stem) for one in tmp_path.glob("*.pid")}  # noqa: E731
    models = Models({"m": lambda: Waiting(tmp_path)})
    with Client(crew) as client:
        with reached(crew.scheduler_address, models) as (app, _):

            async def lost() -> Any:
                waiting = asyncio.ensure_future(ask_async(app, INFER, body(X)))
                (pid,) = await asyncio.to_thread(until, pids)
                os.kill(pid, signal.SIGKILL)
                await asyncio.to_thread(until, lambda: len(pids()) > 1)
                (tmp_path / "go").touch()
                return await waiting

            reply = asyncio.run(lost())
            assert reply.json["outputs"][0]["data"] == X[:, 0].tolist()

            (tmp_path / "go").unlink()
            for one in tmp_path.glob("*.pid"):
                one.unlink()

            async def deadly() -> Any:
                """Rows that kill one worker after the other."""
                waiting = asyncio.ensure_future(ask_async(app, INFER, body(X)))
                killed: set[int] = set()
                while not waiting.done():
                    for pid in pids() - killed:
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
                    await asyncio.sleep(0.01)
                return waiting.result()

            reply = asyncio.run(deadly())
            assert reply.status == 503
            assert "died while predicting these rows" in reply.json["error"]
            client.restart()
            (tmp_path / "go").touch()
            assert ask(app, INFER, body(X)).status == 200
        until(lambda: not keys(client))


@pytest.mark.slow
def test_a_restarted_scheduler_is_reconnected(user_log: Any) -> None:
    """A new scheduler at the same address, with new workers."""

    def cluster(port: int = 0) -> LocalCluster:
        return LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1",
            scheduler_port=port, dashboard_address=":0",
        )  # fmt: skip

    first = cluster()
    address = first.scheduler_address
    with reached(address, Models({"m": fitted()})) as (app, _):
        truth = ask(app, INFER, body(X))
        assert truth.status == 200
        first.close()
        until(lambda: ask(app, INFER, body(X)).status == 503)
        assert ask(app, INFER, body(X[:99])).status == 200
        with cluster(int(address.rpartition(":")[2])) as second, Client(second) as client:
            until(lambda: ask(app, INFER, body(X)).status == 200)
            assert ask(app, INFER, body(X)) == truth
            until(lambda: len(keys(client)) == 1)


@pytest.mark.slow
def test_a_request_without_workers_times_out(user_log: Any) -> None:
    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as empty:
        with reached(empty.scheduler_address, Models({"m": fitted()}), within=0.5) as (app, _):
            reply = ask(app, INFER, body(X))
            assert reply.status == 503
            assert "No worker" in reply.json["error"]


@pytest.mark.slow
def test_a_cluster_with_certificates_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_log: Any
) -> None:
    """Certificates are from Dask's configuration; without them the cluster is unreachable."""
    pytest.importorskip("cryptography")
    security = Security.temporary()
    files = {}
    for name in ("ca_file", "client_cert", "client_key"):
        path = tmp_path / f"{name}.pem"
        path.write_text(getattr(security, f"tls_{name}"))
        files[name] = str(path)
    tls = {
        "distributed.comm.tls.ca-file": files["ca_file"],
        "distributed.comm.tls.client.cert": files["client_cert"],
        "distributed.comm.tls.client.key": files["client_key"],
    }
    models = Models({"m": fitted()})
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, host="tls://127.0.0.1",
        dashboard_address=":0", security=security,
    ) as cluster:  # fmt: skip
        with dask.config.set(tls), reached(cluster.scheduler_address, models) as (app, _):
            assert ask(app, INFER, body(X)).status == 200
        monkeypatch.setattr(module, "_CONNECT", 0.5)
        with reached(cluster.scheduler_address, models) as (app, _):
            assert ask(app, INFER, body(X)).status == 503


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sigterm", "killed"])
def test_a_server_leaves_nothing_behind(client: Client, tmp_path: Path, how: str) -> None:
    """Two processes share a model on the cluster."""
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    publish(fitted(), tmp_path / "models", "m")
    rows = X[:200].tobytes()
    head = (
        b'{"inputs":[{"name":"X","shape":[200,5],"datatype":"FP64",'
        b'"parameters":{"binary_data_size":8000}}]}'
    )
    request = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
        b"content-length: %d\r\n\r\n%s%s" % (len(head), len(head) + 8000, head, rows)
    )
    options = {"scheduler": client.scheduler.address, "cluster_rows": 100}
    with server(tmp_path, tmp_path / "models", app=None, workers=2, **options) as found:
        pids = found.ready(2)
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", found.port), timeout=60) as connection:
                connection.sendall(request)
                assert connection.recv(100).startswith(b"HTTP/1.1 200"), found.log
        assert len([one for one in keys(client) if "model" in one]) == 1
        if how == "killed":
            for pid in (found.process.pid, *pids):
                os.kill(pid or 0, signal.SIGKILL)
        else:
            found.tell(signal.SIGTERM)
            assert found.ended() == 0
        until(lambda: not keys(client))
