"""The sequence of NCCL calls, recorded by a stand-in communicator."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from daskml_dist.comm import nccl
from daskml_dist.comm.base import WaitBound
from daskml_dist.comm.nccl import NcclGroup
from daskml_dist.errors import (
    CommunicationError,
    GenerationError,
    RunAbortedError,
    WaitTimeoutError,
)


class _Communicator:
    """Communicator that reports the given states in order and records its calls."""

    def __init__(self, *states: int) -> None:
        self.states, self.calls = list(states), list[str]()

    def get_async_error(self) -> int:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def get_last_error(self) -> str:
        return "remote process exited"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self.calls.append(name)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Results of successive queries whether the stream has finished."""
    left = [False, False, True]
    monkeypatch.setattr(nccl, "_prepare_array", lambda array: (array, 0))
    monkeypatch.setattr(
        nccl, "_record_event", lambda: lambda: left.pop(0) if len(left) > 1 else left[0]
    )
    monkeypatch.setattr(nccl, "_GOODBYE_SECONDS", 0.3)
    return left


def _reduce(group: NcclGroup, array: Any) -> Any:
    """Call allreduce without nccl4py's enumeration, which may not be installed."""
    return group._call_and_wait(
        lambda communicator, a, s: communicator.allreduce(a, a, stream=s), array
    )


def test_a_call_is_polled_until_it_is_done(done: list[bool]) -> None:
    communicator = _Communicator(7, 7, 0)
    group = NcclGroup(communicator, 2, WaitBound(110))
    communicator.states = [7, 7, 0]
    array = np.ones(4)
    assert group.broadcast(array, 0) is array
    assert done == [True]
    assert _reduce(group, array) is array
    assert group.broadcast(np.ones(0), 0).size == 0
    group.close()
    group.close()
    assert communicator.calls == ["broadcast", "allreduce", "finalize", "destroy"]


@pytest.mark.parametrize(
    ("states", "finished", "wait", "error"),
    [
        ([7], True, WaitBound(0.3), WaitTimeoutError),  # NCCL never starts the call
        ([0], False, WaitBound(0.3), WaitTimeoutError),  # the GPU never finishes it
        ([0], False, WaitBound(110, is_aborted=lambda: True), RunAbortedError),
        ([0], False, WaitBound(110, is_renewed=lambda: True), GenerationError),
        ([7, 6], False, WaitBound(110), CommunicationError),  # NCCL reports a remote error
    ],
)
def test_a_hanging_call_is_aborted(
    done: list[bool], states: list[int], finished: bool, wait: WaitBound, error: type[Exception]
) -> None:
    done[:] = [finished]
    communicator = _Communicator(0)
    group = NcclGroup(communicator, 2, wait)
    communicator.states = list(states)
    since = time.monotonic()
    with pytest.raises(error, match=r"workers' logs|stopped|membership"):
        _reduce(group, np.ones(4))
    assert time.monotonic() - since < 55
    assert communicator.calls == ["allreduce", "abort"]
    with pytest.raises(CommunicationError, match="given up"):
        _reduce(group, np.ones(4))
    group.abort()
    group.close()
    assert communicator.calls == ["allreduce", "abort"]


def test_a_rendezvous_without_all_ranks_times_out() -> None:
    communicator = _Communicator(7)
    with pytest.raises(WaitTimeoutError, match="the other GPUs"):
        NcclGroup(communicator, 2, WaitBound(0.3))
    assert communicator.calls == ["abort"]


def test_a_hanging_finalize_does_not_block(done: list[bool]) -> None:
    never = threading.Event()
    communicator = _Communicator(0)
    communicator.abort = never.wait  # type: ignore[attr-defined]
    group = NcclGroup(communicator, 2, WaitBound(110))
    communicator.states = [7]  # finalize does not end either
    since = time.monotonic()
    group.close()
    assert time.monotonic() - since < 55
    never.set()


def test_the_choice_needs_neither_nccl_nor_cupy() -> None:
    code = (
        "import sys\n"
        "sys.modules['cupy'] = sys.modules['nccl'] = None\n"
        "from daskml_dist.comm.devices import DevicePlace, choose_route\n"
        "from daskml_dist.backends import get_backend\n"
        "from daskml_dist.comm.nccl import find_gpu_and_nccl\n"
        "assert find_gpu_and_nccl() == ('', 0)\n"
        "here = DevicePlace.of_this_process(get_backend('cpu'))\n"
        "assert (here.gpu, here.nccl) == ('', 0)\n"
        "print(choose_route([here, here]).problem)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert "has no GPU" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "core", ["raise OSError('libnccl.so.2: cannot open shared object file')", "get_version = None"]
)
def test_a_broken_nccl_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core: str
) -> None:
    runtime = SimpleNamespace(getDevice=lambda: 0, deviceGetPCIBusId=lambda device: "0000:01:00.0")
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, cupy))
    _install_nccl(tmp_path, monkeypatch, core)
    assert nccl.find_gpu_and_nccl() == ("0000:01:00.0", 0)


def test_sums_do_not_import_torch(
    done: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_nccl(tmp_path, monkeypatch, "SUM = 0")
    door = "nccl.core.interop.torch"
    looks: list[bool] = []

    class Looking(_Communicator):
        """Stand-in that looks for torch at each call, as nccl4py does."""

        def allreduce(self, *_: Any, **__: Any) -> None:
            try:
                import_module(door)
            except ImportError:
                looks.append(False)
            else:
                looks.append(True)

    group = NcclGroup(Looking(0), 2, WaitBound(110))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    group.all_reduce(np.ones(4))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    group.all_reduce(np.ones(4))
    assert looks == [False, True]  # if torch is loaded, nccl4py may use it
    assert import_module(door).is_imported


def _install_nccl(folder: Path, monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    """Install a stand-in nccl4py with the given source lines until the test ends."""
    interop = folder / "nccl" / "core" / "interop"
    interop.mkdir(parents=True)
    (interop.parent / "__init__.py").write_text(core)
    (interop / "torch.py").write_text("is_imported = True")
    for name in [name for name in sys.modules if name.partition(".")[0] == "nccl"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("nccl", "nccl.core", "nccl.core.interop", "nccl.core.interop.torch"):
        # Modules imported by the test are removed afterwards.
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.gpu
def test_one_rank_of_nccl() -> None:
    cupy = pytest.importorskip("cupy")
    pytest.importorskip("nccl.core")
    gpu, version = nccl.find_gpu_and_nccl()
    assert gpu
    if not version:
        pytest.skip("libnccl is not installed")
    group = NcclGroup.connect(0, 1, nccl.make_identifier(), WaitBound(30))
    values = np.arange(12.0).reshape(3, 4)
    for array in (cupy.asarray(values), cupy.asfortranarray(cupy.asarray(values))):
        np.testing.assert_array_equal(cupy.asnumpy(group.all_reduce(array)), values)
        np.testing.assert_array_equal(cupy.asnumpy(group.broadcast(array, 0)), values)
    group.close()
    again = NcclGroup.connect(0, 1, nccl.make_identifier(), WaitBound(30))
    again.abort()
    with pytest.raises(CommunicationError):
        again.all_reduce(cupy.ones(3))
