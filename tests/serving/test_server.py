"""Servers: swaps and restarts under load, crashed processes, and shutdown; only on loopback."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, cast
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from daskml_dist.errors import (
    InvalidParameterError,
    InvalidTypeError,
    ModelFileError,
    ServingError,
)
from daskml_dist.serving import publish, serve, server_process
from daskml_dist.serving import server as module
from daskml_dist.serving.supervisor import ProcessSlot, Supervisor, _Child
from tests.serving.tiny import Load, Server, ask, server, until

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("uvloop", reason="needs the extra serve")

X = np.random.default_rng(0).normal(size=(60, 4))
#: Seconds for which an idle connection is kept, enough for clients on a busy machine.
LONG = 60.0


def model(number: int = 0) -> Any:
    return LogisticRegression(C=1.0 + number).fit(X, X[:, 0] > 0)


def swap_and_restart(
    found: Server, folder: Path, n_swaps: int, n_restarts: int, load: Load
) -> None:
    """Alternate swaps and restarts; each must show in replies or the log before the next."""
    for one in range(max(n_swaps, n_restarts)):
        if one < n_swaps:
            version = publish(model(one), folder, "m", keep=3)
            until(lambda version=version: load.answers[version])
        if one < n_restarts:
            found.tell(signal.SIGHUP)
            found.ready(2 + 2 * (one + 1))
            before = load.n
            until(lambda before=before: load.n > before + 20)


BODY = b'{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP64","data":[1,2,3,4]}]}'
INFER = {
    "request": b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "version": r'"model_version":"(\d+)"',
}


@pytest.mark.slow
def test_no_request_fails_in_a_hundred_swaps_and_ten_restarts(tmp_path: Path) -> None:
    """With the real application and requests for predictions."""
    pytest.importorskip("msgspec", reason="needs the extra serve")
    folder = tmp_path / "models"
    publish(model(), folder, "m")
    with server(tmp_path, folder, app=None, workers=2, watch=0.05, keep_alive=LONG) as found:
        found.ready(2)
        with Load(found.port, 16, 0.0, **INFER) as load:
            until(lambda: load.n > 20)
            swap_and_restart(found, folder, 100, 10, load)
        print(f"{load.n} requests, of {len(load.answers)} versions; failures: {load.failures}")
        assert load.failures == []
        assert set(load.answers) == {str(one + 1) for one in range(101)}


def test_no_request_fails_in_a_swap_a_restart_and_a_crash(tmp_path: Path) -> None:
    """During a swap, a restart, a crash and the shutdown; counts are summed over processes."""
    n_swaps = n_restarts = 1
    folder = tmp_path / "models"
    publish(model(), folder, "m")
    with server(tmp_path, folder, workers=2, watch=0.05, keep_alive=LONG) as found:
        first = found.ready(2)
        with Load(found.port, 4, 0.005) as load:
            until(lambda: load.n > 20)
            swap_and_restart(found, folder, n_swaps, n_restarts, load)
            # Counts are summed over all processes, including ended ones.
            versions = {str(one + 1) for one in range(n_swaps + 1)}
            until(lambda: set(_counted(found.port)) == versions)
        assert load.failures == []
        until(lambda: not any(map(_is_alive, first)))
        # A crashed process is replaced.
        latest = found.ready(2 + 2 * n_restarts)[-1]
        os.kill(latest, signal.SIGKILL)
        found.ready(3 + 2 * n_restarts)
        assert f"Process {latest} was killed by signal 9" in found.log
        found.tell(signal.SIGTERM)
        assert found.ended() == 0
        with pytest.raises(ConnectionRefusedError):
            ask(found.port)


def _counted(port: int) -> dict[str, int]:
    lines = [one for one in ask(port, "/metrics").splitlines() if "requests_total{" in one]
    return {one.split('version="')[1].split('"')[0]: int(one.split()[-1]) for one in lines}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    """Without the parent nothing would replace or end the processes."""
    publish(model(), tmp_path / "models", "m")
    with server(tmp_path, tmp_path / "models", keep_alive=LONG) as found:
        found.ready(1)
        idle = socket.create_connection(("127.0.0.1", found.port))
        replies = idle.makefile("rb")
        idle.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert _answered(replies)[0] == b"HTTP/1.1 200 OK"
        found.process.kill()
        found.process.join()

        def is_gone() -> bool:
            try:
                ask(found.port)
            except OSError:
                return True
            return False

        until(is_gone)
        # An open connection gets its reply, marked as the last.
        idle.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"connection: close" in _answered(replies)
        assert replies.read() == b""
        replies.close()
        idle.close()


def test_a_process_that_is_orphaned_while_it_starts_ends() -> None:
    """Before its server has sockets to close."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "lifespan":
            message = await receive()
            # Other tasks have their turn before the server listens.
            await asyncio.sleep(0)
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def run() -> None:
        parent_end, life = os.pipe()
        from_child, to_parent = os.pipe()
        os.close(life)  # the parent has ended
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = server_process._configure_uvicorn(uvicorn, cast("Any", app), 5.0, 5.0)
            place = ProcessSlot(0, parent_end, to_parent)
            served = server_process._run_uvicorn(uvicorn, config, place, listener, 5.0, [])
            await asyncio.wait_for(served, 60)
        assert os.read(from_child, 9) == b"R"
        for one in (parent_end, from_child, to_parent):
            os.close(one)

    asyncio.run(run())


def _answered(connection: BinaryIO) -> list[bytes]:
    """Return the header lines of a reply, after reading its body."""
    head = []
    while line := connection.readline().strip():
        head.append(line)
    connection.read(int(next(one for one in head if one.startswith(b"content-length")).split()[1]))
    return head


def test_a_server_without_a_loadable_model_exits(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with server(tmp_path, tmp_path / "empty") as found:
        assert found.ended() == 1
        assert re.search(r"ServingError: .*empty contains no models: .* Publish one", found.log)
        assert "Serving at" not in found.log


def test_a_missing_path_exits_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "listen", Mock(side_effect=AssertionError))
    with pytest.raises(ModelFileError, match=r"no nothing\.skops\. Name a model file, or a reg"):
        serve("nothing.skops")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 70000}, "port=70000"),
        ({"workers": 0}, "workers=0"),
        ({"watch": -1.0}, "watch=-1.0"),
        ({"keep_alive": 0.0}, "keep_alive=0.0"),
        ({"head_seconds": float("nan")}, "head_seconds=nan"),
        ({"compress_from": 0}, "compress_from=0"),
        ({"compress_from": "x"}, "compress_from='x'"),
        ({"port": "8000"}, "port='8000'"),
        ({"workers": 1.5}, "workers=1.5"),
        ({"watch": "x"}, "watch='x'"),
        ({"end_within": None}, "end_within=None"),
        ({"max_bytes": -1}, "max_bytes=-1"),
        ({"max_waiting": 0}, "max_waiting=0"),
        ({"body_seconds": float("inf")}, "body_seconds=inf"),
        ({"max_delay": -0.1}, "max_delay=-0.1"),
        ({"max_delay": {"m": "x"}}, "max_delay='x'"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        serve("models", **options)


def test_the_error_of_an_unknown_setting_suggests_the_nearest_name() -> None:
    with pytest.raises(InvalidTypeError, match=r"'max_byte' is not .* Did you mean 'max_bytes'"):
        serve("models", max_byte=10)


@pytest.mark.parametrize("missing", ["uvicorn", "uvloop", "httptools", "msgspec"])
def test_missing_packages_are_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ServingError, match=rf"needs {missing}: pip install .*\[serve\]"):
        serve(".")


def test_an_address_in_use_and_running_threads_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(ServingError, match="Is another server using it"):
            serve(".", port=listener.getsockname()[1], app=dict)
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with pytest.raises(ServingError, match="a separate process"):
            Supervisor(lambda place: None, 1).run()
    finally:
        end.set()
        thread.join()


def test_messages_of_processes_are_read_with_many_open_descriptors() -> None:
    """`select` does not support descriptors from 1,024 on."""
    code = """if True:
        import os, resource, signal
        from daskml_dist.serving.supervisor import Supervisor
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        while os.dup(0) <= 1024:
            pass
        Supervisor(
            lambda slot: (slot.report_ready(), signal.pause()), 1,
            on_ready=lambda: os.kill(os.getpid(), signal.SIGTERM),
        ).run()
        print("ended")
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "ended\n"), ran.stderr


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a thousand silent clients would lock out all others."""
    resource = pytest.importorskip("resource")
    calls: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda *args: calls.append(args))
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ServingError):
        serve(".", port=listener.getsockname()[1], app=dict)
    assert calls == [(resource.RLIMIT_NOFILE, (4096, 4096))]


def test_replacement_of_crashing_processes_slows_down() -> None:
    """Processes that crash at their start are replaced with growing delays."""
    found = Supervisor(lambda place: None, 1)
    found._anyone_was_ready = True
    waits = []
    for _ in range(9):
        found._died(_Child(0, 0, 0, since=time.monotonic()), 1)
        waits.append(found._wait)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    found._died(_Child(0, 0, 0, since=time.monotonic() - 60), 1)
    assert found._wait == 0.0


def test_serve_lists_all_settings_of_the_application() -> None:
    """`serve` lists them without importing the application, which needs an extra."""
    from daskml_dist.serving.app import App

    parameters = inspect.signature(App).parameters.values()
    names = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert set(module._SETTINGS) == names - {"token", "cluster"}  # parameters of `serve` itself
