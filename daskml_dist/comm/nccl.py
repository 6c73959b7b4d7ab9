"""NCCL between the GPUs of one host, in calls that never block.

CuPy and nccl4py are imported where they are used, so that this module loads without them.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from daskml_dist.comm.base import CHECK_SECONDS, WaitBound
from daskml_dist.errors import CommunicationError

#: Values of NCCL's ncclResult_t.
_SUCCESS, _IN_PROGRESS = 0, 7
#: Seconds for which a wait yields without sleeping, longer than a small all-reduce takes; and the
#: seconds of each sleep afterwards.
_SPIN_SECONDS, _NAP_SECONDS = 1e-3, 1e-4
#: Module of nccl4py that imports torch at the first call with an array (`_hide_torch_interop`).
_TORCH_DOOR = "nccl.core.interop.torch"
#: Seconds for NCCL to end a communicator before it is abandoned.
_GOODBYE_SECONDS = 5.0


class NcclGroup:
    """Group of GPUs that sum through NCCL, whose calls never block: each wait here has a bound.

    Parameters
    ----------
    communicator : nccl.core.Communicator
        Made with ``blocking=False``.
    size : int
    wait : WaitBound
    """

    def __init__(self, communicator: Any, size: int, wait: WaitBound) -> None:
        self.bytes_moved = 0
        self._communicator, self._size, self._wait = communicator, size, wait
        self._wait_until(self._is_settled, "the other GPUs of this host")

    @classmethod
    def connect(cls, rank: int, size: int, identifier: bytes, wait: WaitBound) -> NcclGroup:
        """Return the group of a host's ranks, once all have joined."""
        nccl = import_module("nccl.core")
        with _translate_errors():
            unique = nccl.UniqueId.from_bytes(identifier)
            # A blocking communicator could not be aborted when a worker of the group dies.
            config = nccl.NCCLConfig(blocking=False)
            communicator = nccl.Communicator.init(size, rank, unique, config)
        return cls(communicator, size, wait)

    def all_reduce(self, array: Any) -> Any:
        """Return the sum over the ranks, in place where `array` is contiguous.

        NCCL adds each part on one rank and copies the sum, so that all ranks get the same bits.
        """
        operation = import_module("nccl.core").SUM
        # A ring sends 2 (n - 1) / n of the array from each of n ranks.
        self.bytes_moved += 2 * (self._size - 1) * array.nbytes // self._size
        return self._call_and_wait(
            lambda group, a, s: group.allreduce(a, a, operation, stream=s), array
        )

    def broadcast(self, array: Any, root: int) -> Any:
        """Return the array of rank `root`, in place where `array` is contiguous."""
        self.bytes_moved += array.nbytes
        return self._call_and_wait(lambda group, a, s: group.broadcast(a, a, root, stream=s), array)

    def _call_and_wait(self, call: Callable[[Any, Any, int], None], array: Any) -> Any:
        """Call NCCL in the current stream, and wait until its work is done."""
        if not array.size:
            return array
        if self._communicator is None:
            raise CommunicationError(_describe_failure("its communicator was given up"))
        array, stream = _prepare_array(array)
        source = "a sum of the GPUs of this host"
        try:
            with _translate_errors(), _hide_torch_interop():
                call(self._communicator, array, stream)
            # Nothing else may enter the stream before NCCL has enqueued its work there.
            self._wait_until(self._is_settled, source)
            is_done = _record_event()
            self._wait_until(lambda: self._is_settled() and is_done(), source)
        except BaseException:
            self.abort()
            raise
        return array

    def _is_settled(self) -> bool:
        """Return whether NCCL has enqueued its work; raise if any rank reported an error."""
        result = int(self._communicator.get_async_error())
        if result not in (_SUCCESS, _IN_PROGRESS):
            raise CommunicationError(
                _describe_failure(self._communicator.get_last_error() or result)
            )
        return result == _SUCCESS

    def _wait_until(self, is_done: Callable[[], bool], source: str) -> None:
        """Wait until a condition holds, within the bound; abort the group on an error."""
        since = last_check = time.monotonic()
        try:
            with _translate_errors():
                while not is_done():
                    now = time.monotonic()
                    # The bound is checked rarely: a check costs more than testing the condition.
                    if now - last_check > min(CHECK_SECONDS, self._wait.timeout):
                        self._wait.check(since, source)
                        last_check = now
                    time.sleep(0 if now - since < _SPIN_SECONDS else _NAP_SECONDS)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Abandon pending operations; returns within seconds, even if NCCL hangs."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            _end_in_thread(communicator.abort)

    def close(self) -> None:
        """Let NCCL finish on all ranks; abandon it if that takes too long."""
        if self._communicator is None:
            return
        with contextlib.suppress(Exception):
            self._wait = WaitBound(_GOODBYE_SECONDS, self._wait.is_aborted, self._wait.is_renewed)
            self._communicator.finalize()
            self._wait_until(self._is_settled, "the end of the other GPUs of this host")
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            _end_in_thread(communicator.destroy)


@contextlib.contextmanager
def _hide_torch_interop() -> Iterator[None]:
    """Keep nccl4py from importing torch, which takes seconds, to check whether an array is torch's.

    A module that is None in `sys.modules` counts as missing; nccl4py then tries CuPy. If torch is
    loaded already, hiding it would save nothing.
    """
    if "torch" in sys.modules or _TORCH_DOOR in sys.modules:
        yield
        return
    sys.modules[_TORCH_DOOR] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(_TORCH_DOOR, None)


def _end_in_thread(end: Callable[[], None]) -> None:
    """End a communicator in a thread of its own, so that a hanging call cannot block a worker."""

    def run() -> None:
        with contextlib.suppress(Exception):
            end()

    thread = threading.Thread(target=run, name="daskml-nccl", daemon=True)
    thread.start()
    thread.join(_GOODBYE_SECONDS)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors of NCCL and CUDA; their bindings have no documented class."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith(("nccl.", "cuda.", "cupy")):
            raise CommunicationError(_describe_failure(error)) from error
        raise


def _describe_failure(error: object) -> str:
    """Return the message about a failure of NCCL."""
    return (
        f"NCCL failed between the GPUs of this host ({error}). A worker was probably closed or "
        "killed; look at the workers' logs, and set NCCL_DEBUG=WARN in their environment."
    )


def make_identifier() -> bytes:
    """Return a new identifier, by which the ranks of a host find each other."""
    with _translate_errors():
        return bytes(import_module("nccl.core").get_unique_id())


def find_gpu_and_nccl() -> tuple[str, int]:
    """Return the PCI address of the current GPU and NCCL's version; "" and 0 where none."""
    try:
        import cupy

        runtime = cupy.cuda.runtime
        gpu = str(runtime.deviceGetPCIBusId(runtime.getDevice()))
    except Exception:  # no CuPy, driver or device
        return "", 0
    try:
        library = import_module("nccl.core").get_version().libnccl
        major, minor, micro = itertools.islice((*library.version.release, 0, 0), 3)
    # Not installed; a library that cannot be loaded (OSError, RuntimeError); or an nccl4py whose
    # versions have another form (AttributeError). In each case sums go through host memory.
    except Exception:
        return gpu, 0
    return gpu, major * 10000 + minor * 100 + micro


def _prepare_array(array: Any) -> tuple[Any, int]:
    """Return the array in the form that NCCL needs, and the handle of the current stream."""
    import cupy

    return cupy.ascontiguousarray(array), int(cupy.cuda.get_current_stream().ptr)


def _record_event() -> Callable[[], bool]:
    """Return a function that reports whether all work now in the current stream is done."""
    import cupy

    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    return lambda: bool(event.done)
