"""Without a GPU the client never calls CuPy, and a requested device is never replaced."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.backends import cupy_backend
from daskml_dist.backends.devices import gpu_problem
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import DeviceUnavailableError
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from tests.subprocesses import environment

PROBLEM = gpu_problem()

#: Stand-in for CuPy that can only be imported; Dask itself reads its array class.
UNUSABLE = """
class ndarray:
    def __new__(cls, *arguments):
        raise AssertionError("an array of CuPy was made where there is no GPU")

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise AssertionError(f"cupy.{name} was used where there is no GPU")
"""

CLIENT = """
import sys
import dask.array as da
import numpy as np
from sklearn.base import clone
import cupy
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.preprocessing import StandardScaler

device = sys.argv[1]
X = da.random.default_rng(0).normal(size=(300, 4), chunks=(100, 4)).astype("float32")
y = (X.sum(axis=1) > 0).astype(int)
scaled = StandardScaler().fit(X).transform(X)
for model in (LogisticRegression(device=device), SGDClassifier(device=device, max_iter=3)):
    model = clone(model).fit(scaled, y)
    assert type(model.coef_) is np.ndarray
    predicted = model.predict(scaled)
    assert isinstance(predicted, da.Array)
    assert (predicted.compute() == y.compute()).mean() > 0.8
    rows = scaled.compute()
    assert (model.fit(rows, y.compute()).predict(rows) == y.compute()).mean() > 0.8
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_the_client_and_the_cpu_never_call_cupy(tmp_path: Path, device: str) -> None:
    if device == "auto" and "no NVIDIA driver" not in (PROBLEM or ""):
        pytest.skip("with a driver, workers may ask CuPy whether there is a GPU")
    package = tmp_path / "cupy"
    package.mkdir()
    (package / "__init__.py").write_text(UNUSABLE)
    (tmp_path / "client.py").write_text(CLIENT)
    command = [sys.executable, str(tmp_path / "client.py"), device]
    # The script's folder is searched first.
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("done")


MODELS: dict[str, Callable[[], Any]] = {
    "server": lambda: SGDClassifier(device="gpu", policy="sync"),
    "replicas": lambda: SGDClassifier(device="gpu", policy="allreduce"),
    "rounds": lambda: LogisticRegression(device="gpu"),
    "one pass": lambda: Ridge(device="gpu"),
    "own rows": lambda: HistGradientBoostingClassifier(device="gpu"),
}
NEEDS_NONE = pytest.mark.skipif(PROBLEM is None, reason="there is a GPU here")


def _assert_refused(model: Any, X: Any, y: Any) -> None:
    start = time.monotonic()
    with pytest.raises(DeviceUnavailableError) as caught:
        model.fit(X, y)
    # Well before any wait of a fit times out (300 s), also on a busy machine.
    assert time.monotonic() - start < 60
    message = str(caught.value)
    assert 'device="gpu"' in message
    assert PROBLEM is not None
    assert PROBLEM.split(".")[0] in message
    assert 'device="auto"' in message  # the remedy
    assert not hasattr(model, "coef_")


@NEEDS_NONE
@pytest.mark.parametrize("model", list(MODELS))
def test_a_missing_gpu_raises_on_a_cluster(client: Client, model: str) -> None:
    """The fixture `client` fails if anything is left on the cluster."""
    X = da.from_array(np.eye(40, 4, dtype="float32"), chunks=(10, 4))
    y = da.from_array(np.arange(40) % 2, chunks=10)
    _assert_refused(MODELS[model](), X, y)
    # The cluster still works.
    SGDClassifier(device="auto", max_iter=1, tol=None).fit(X, y)


@NEEDS_NONE
@pytest.mark.parametrize("model", list(MODELS))
def test_a_missing_gpu_raises_without_a_cluster(model: str) -> None:
    _assert_refused(MODELS[model](), np.eye(40, 4, dtype="float32"), np.arange(40) % 2)


class _CudaError(RuntimeError):
    pass


class _DriverError(RuntimeError):
    pass


class _Cuda:
    """Stand-in for CUDA whose driver counts devices or fails; CuPy loads libraries lazily."""

    driver = SimpleNamespace(CUDADriverError=_DriverError)

    def __init__(self, found: Any, libraries: Any) -> None:
        self.runtime = SimpleNamespace(
            getDeviceCount=lambda: _found(found),
            runtimeGetVersion=lambda: 13000,
            CUDARuntimeError=_CudaError,
        )
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        return _found(self._libraries)


def _found(found: Any) -> Any:
    if isinstance(found, Exception):
        raise found
    return found


def _cupy(found: Any, libraries: Any = None, module: Any = None) -> Any:
    def RawModule(code: str) -> Any:
        return SimpleNamespace(compile=lambda: _found(module))

    return SimpleNamespace(cuda=_Cuda(found, libraries), RawModule=RawModule)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (1, None),
        (0, r"no CUDA device here\. Check nvidia-smi"),
        (
            _CudaError("cudaErrorInsufficientDriver: x"),
            r"too old for CUDA 13\. Update.*cupy-cuda12x",
        ),
        (_CudaError("cudaErrorNoDevice: x"), r"CUDA_VISIBLE_DEVICES.*CUDA says: cudaErrorNoDevice"),
    ],
)
def test_errors_of_the_driver_are_raised_with_a_remedy(
    found: Any, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = cupy_backend._find_problem.__wrapped__
    monkeypatch.setitem(sys.modules, "cupy", _cupy(found))
    monkeypatch.setattr(cupy_backend.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(cupy_backend.ctypes, "CDLL", lambda name: object())
    problem = look()
    assert problem is None if message is None else re.search(message, problem)
    monkeypatch.setenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    assert "Unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM" in look()


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        (
            {"libraries": ImportError('no "libcublas.so"\n  listdir')},
            r'CuPy says: no "libcublas.so"\)',
        ),
        ({"module": RuntimeError("Failed to find CUDA headers.")}, r"CuPy says: Failed to find"),
        ({"libraries": AttributeError("cublas")}, None),  # a path of another CuPy
        ({"module": _CudaError("cudaErrorDevicesUnavailable: x")}, "nvidia-smi.*CUDA says"),
        ({"module": _DriverError("CUDA_ERROR_OUT_OF_MEMORY: x")}, "nvidia-smi.*CUDA says"),
    ],
)
def test_a_cupy_without_libraries_raises_with_a_remedy(
    lacks: dict[str, Exception], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", _cupy(1, **lacks))
    monkeypatch.setattr(cupy_backend.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(cupy_backend.ctypes, "CDLL", lambda name: object())
    problem = cupy_backend._find_problem.__wrapped__()
    assert problem is None if message is None else re.search(message, problem)
    assert "CuPy says" not in str(problem) or 'pip install "cupy-cuda13x[ctk]"' in problem


def test_missing_packages_raise_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> Any:
        raise OSError(name)

    look = cupy_backend._find_problem.__wrapped__
    monkeypatch.setattr(cupy_backend.ctypes, "CDLL", no_library)
    monkeypatch.setattr(cupy_backend.importlib.util, "find_spec", lambda name: object())
    assert "no NVIDIA driver" in look()
    monkeypatch.setattr(cupy_backend.importlib.util, "find_spec", lambda name: None)
    assert 'pip install "daskml-dist[gpu]"' in look()
