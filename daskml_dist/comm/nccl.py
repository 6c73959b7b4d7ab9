"""NCCL between the GPUs of one host, in calls that never block.

CuPy and nccl4py are imported where they are used, so that this module loads where there are none.
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
#: seconds of each sleep after that.
_SPIN_SECONDS, _NAP_SECONDS = 1e-3, 1e-4
#: Module of nccl4py that imports torch at the first call with an array (`_hide_torch_interop`).
_TORCH_DOOR = "nccl.core.interop.torch"
#: Seconds for NCCL to end a communicator, before it is given up.
_GOODBYE_SECONDS = 5.0


class NcclGroup:
    """Group of GPUs that sum by NCCL, whose calls never block: each wait here has a bound.

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
    def make(cls, rank: int, size: int, identifier: bytes, wait: WaitBound) -> NcclGroup:
        """Return the group of a host's ranks, once all have met."""
        nccl = import_module("nccl.core")
        with _translate_errors():
            unique = nccl.UniqueId.from_bytes(identifier)
            # A blocking communicator could not be given up when a worker of the group dies.
            config = nccl.NCCLConfig(blocking=False)
            communicator = nccl.Communicator.init(size, rank, unique, config)
        return cls(communicator, size, wait)

    def all_reduce(self, array: Any) -> Any:
        """Return the sum over the ranks, in place where `array` is contiguous.

        NCCL adds each part on one rank and copies the sum, so that all get the same bits.
        """
        operation = import_module("nccl.core").SUM
        # A ring sends 2 (n - 1) / n of the array from each rank.
        self.bytes_moved += 2 * (self._size - 1) * array.nbytes // self._size
        return self._call_and_wait(
            lambda own, a, s: own.allreduce(a, a, operation, stream=s), array
        )

    def broadcast(self, array: Any, root: int) -> Any:
        """Return the array of rank `root`, in place where `array` is contiguous."""
        self.bytes_moved += array.nbytes
        return self._call_and_wait(lambda own, a, s: own.broadcast(a, a, root, stream=s), array)

    def _call_and_wait(self, call: Callable[[Any, Any, int], None], array: Any) -> Any:
        """Call NCCL in the current stream, and wait for what it does."""
        if not array.size:
            return array
        if self._communicator is None:
            raise CommunicationError(_describe_failure("its communicator was given up"))
        array, stream = _prepare_array(array)
        what = "a sum of the GPUs of this host"
        try:
            with _translate_errors(), _hide_torch_interop():
                call(self._communicator, array, stream)
            # Nothing else may go to the stream before NCCL has put its work there.
            self._wait_until(self._is_settled, what)
            is_done = _record_event()
            self._wait_until(lambda: self._is_settled() and is_done(), what)
        except BaseException:
            self.abort()
            raise
        return array

    def _is_settled(self) -> bool:
        """Return whether NCCL has taken up its work; raise an error of any rank."""
        result = int(self._communicator.get_async_error())
        if result not in (_SUCCESS, _IN_PROGRESS):
            raise CommunicationError(
                _describe_failure(self._communicator.get_last_error() or result)
            )
        return result == _SUCCESS

    def _wait_until(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, within the bound; abort the group where it does not."""
        since = looked = time.monotonic()
        try:
            with _translate_errors():
                while not is_done():
                    now = time.monotonic()
                    # The bound is checked now and then: a check costs more than a look.
                    if now - looked > min(CHECK_SECONDS, self._wait.timeout):
                        self._wait.check(since, what)
                        looked = now
                    time.sleep(0 if now - since < _SPIN_SECONDS else _NAP_SECONDS)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up what is under way; returns within seconds, whatever NCCL does."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            _end_in_thread(communicator.abort)

    def close(self) -> None:
        """Let NCCL finish with the others; where it does not soon, give it up."""
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
    """Keep nccl4py from importing torch, which takes seconds, to look whether an array is its.

    A module that is None among those loaded counts as missing; nccl4py then asks CuPy. Where torch
    is loaded already there is nothing to save.
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
    """Let NCCL end a communicator in a thread of its own: no call of it may hold up a worker."""

    def run() -> None:
        with contextlib.suppress(Exception):
            end()

    thread = threading.Thread(target=run, name="daskml-nccl", daemon=True)
    thread.start()
    thread.join(_GOODBYE_SECONDS)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Make errors of NCCL and CUDA the package's own; its bindings have no documented class."""
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
    except Exception:  # no CuPy, no driver or no device: all say the same here
        return "", 0
    try:
        found = import_module("nccl.core").get_version().libnccl
        major, minor, micro = itertools.islice((*found.version.release, 0, 0), 3)
    # Not installed; a library that cannot be loaded (OSError, RuntimeError); or another nccl4py,
    # whose versions have another form (AttributeError): sums go through host memory in each case.
    except Exception:
        return gpu, 0
    return gpu, major * 10000 + minor * 100 + micro


def _prepare_array(array: Any) -> tuple[Any, int]:
    """Return the array as NCCL takes it, and the handle of the current stream."""
    import cupy

    return cupy.ascontiguousarray(array), int(cupy.cuda.get_current_stream().ptr)


def _record_event() -> Callable[[], bool]:
    """Return a function that tells whether all work in the current stream now is done."""
    import cupy

    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    return lambda: bool(event.done)
