"""Group of ranks that run a user's function: collectives of any values, states, parameters.

A `RankGroup` wraps the `Communicator` of a fit's trainers. In each of its calls the ranks first
exchange which call they make (`Communicator.align`). So ranks that make different calls, or have
returned, raise `RankMismatchError` instead of waiting for each other or summing unrelated arrays.
`RankParameters` gives access to the parameters that servers hold for the function.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import cloudpickle
import numpy as np
from numpy.typing import ArrayLike, NDArray

from daskml_dist.backends.namespace import namespace
from daskml_dist.comm.base import Arrays, Communicator, ReusedMemory, WaitBound
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.data.conversion import copy_to_host, find_device
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    RankMismatchError,
    TrainingError,
    WaitTimeoutError,
    is_consequence,
)
from daskml_dist.models.base import Parameters

__all__ = [
    "PackedValue",
    "RankGroup",
    "RankParameters",
    "join_packed",
    "pack_value",
    "split_packed",
    "unpack_value",
]

#: Merges the values of two ranks, the lower rank's first.
Merge = Callable[[Any, Any], Any]
#: A sum, elementwise maximum or minimum, or a function that merges two ranks' arrays.
Reduction = Literal["sum", "max", "min"] | Merge
_MERGES: dict[Any, Merge] = {"max": np.maximum, "min": np.minimum}
#: Kinds of numbers that can be summed; booleans are counted.
_SUMMABLE = "biufc"

#: A value as bytes: the pickle, and the buffers of its arrays, which are not copied.
PackedValue = Arrays


def pack_value(value: Any) -> PackedValue:
    """Return a value of any type as arrays of bytes, without copying the arrays in it.

    Raise `InvalidTypeError` if the value cannot be pickled.
    """
    buffers: list[Any] = []
    try:
        text = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception as error:  # pickling runs methods of any class
        raise InvalidTypeError(
            f"A {type(value).__name__} cannot be sent to other processes, as results, saved states "
            f"and values for other ranks are ({error}). Use arrays, numbers, texts, or lists of "
            "these, and make locks, open files and generators on the rank that needs them."
        ) from error
    views = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return [np.frombuffer(text, np.uint8), *views]


def unpack_value(packed: PackedValue) -> Any:
    """Undo :func:`pack_value`; arrays in the returned value are writable."""
    text, *buffers = packed
    # Buffers that other ranks own, or that were received as bytes, may be read-only.
    writable = [array if array.flags.writeable else array.copy() for array in buffers]
    return cloudpickle.loads(text, buffers=writable)


def join_packed(packed: PackedValue) -> NDArray[np.uint8]:
    """Return a packed value as one array: the number of its parts, their sizes, then the parts."""
    sizes = np.array([len(packed), *map(len, packed)], np.int64)
    return np.concatenate([sizes.view(np.uint8), *packed])


def split_packed(joined: NDArray[np.uint8]) -> PackedValue:
    """Undo :func:`join_packed`."""
    n = int(joined[:8].copy().view(np.int64)[0])
    data_start = 8 * (n + 1)
    sizes = joined[8:data_start].copy().view(np.int64)
    bounds = data_start + np.concatenate([[0], np.cumsum(sizes)])
    return [joined[a:b] for a, b in pairwise(bounds.tolist())]


class RankGroup:
    """Group of ranks that run a function together, for collective calls within it.

    Every rank makes the same calls in the same order. Results of collectives are the same to the
    bit on all ranks, unless their documentation states otherwise.

    Parameters
    ----------
    communicator : Communicator
    workers : sequence of str
        Address of each rank's Dask worker; empty without a cluster.
    wait : WaitBound
    n_threads : int
        Threads that the rank may compute with.
    generation : int
        Number of times that the function was restarted.
    save : callable
        Takes the state with which the function would restart, as `join_packed` makes it.
    parameters : RankParameters or None

    Attributes
    ----------
    rank, size : int
        Number of this rank, from 0, and of all ranks.
    hosts : tuple of str
        Host of each rank.
    workers : tuple of str
        Dask address of each rank's worker; empty without a cluster.
    n_threads : int
        Threads that this rank may compute with.
    generation : int
        Number of times that the function was restarted, after losses and changes of the cluster.
    parameters : RankParameters or None
        Parameters that servers hold, if `run_together` was given a server.

    Examples
    --------
    >>> from daskml_dist.collective import run_together
    >>> run_together(None, lambda group, blocks, state: (group.rank, group.allgather("here")))
    [(0, ['here'])]
    """

    def __init__(
        self,
        communicator: Communicator,
        workers: Sequence[str],
        wait: WaitBound,
        n_threads: int,
        generation: int,
        save: Callable[[NDArray[np.uint8]], None],
        parameters: RankParameters | None = None,
    ) -> None:
        self.rank, self.size = communicator.rank, communicator.size
        self.workers = tuple(workers)
        self.hosts = tuple(_name_host(address) for address in workers) or ("localhost",)
        self.n_threads = n_threads
        self.generation = generation
        self.parameters = parameters
        self._communicator = communicator
        self._wait = wait
        self._save = save
        self._memory = ReusedMemory()
        self._n_calls = 0
        #: Error that broke the group; all later calls raise it again.
        self.failure: TrainingError | None = None

    def __repr__(self) -> str:
        return f"RankGroup(rank={self.rank}, size={self.size}, generation={self.generation})"

    @property
    def own_host(self) -> str:
        """Return the host name at which other ranks reach this one."""
        return self.hosts[self.rank] if self.workers else "127.0.0.1"

    @property
    def timeout(self) -> float:
        """Return the seconds that this rank waits for the others in one call."""
        return self._wait.timeout

    @property
    def has_ended(self) -> bool:
        """Return whether the ranks must restart or end; may be called from any thread.

        Calls of the group then raise; code that waits by other means must check this.
        """
        return self.failure is not None or self._wait.is_aborted() or self._wait.is_renewed()

    # -- collectives ---------------------------------------------------------------------------

    def allreduce(self, array: ArrayLike, op: Reduction = "sum") -> Any:
        """Return the sum, maximum or minimum of all ranks' arrays, on every rank.

        Parameters
        ----------
        array : array-like of numbers
            Of the same shape and dtype on all ranks. A CuPy array comes back as one.
        op : {"sum", "max", "min"} or callable, default="sum"
            A function merges the arrays of two neighbouring ranks, the lower rank's first, into one
            of the same kind.

        Raises
        ------
        RankMismatchError
            The ranks make different calls, or their arrays differ in shape or dtype.
        InvalidDataError
            The array holds no numbers.
        """
        original, numbers = array, _as_numbers(array)
        if numbers.dtype.kind == "b" and op == "sum":
            numbers = numbers.astype(np.int64)
        name = op if isinstance(op, str) else "function"
        if isinstance(op, str) and op not in ("sum", *_MERGES):
            raise InvalidParameterError(f'op={op!r} must be "sum", "max", "min" or a function.')
        self._align_calls(f"allreduce of {_describe_array(numbers.dtype, numbers.shape)} by {name}")
        if not numbers.size:
            reduced = numbers
        elif op == "sum":
            flat = np.ascontiguousarray(numbers).reshape(-1)
            # Memory of the group, reused once no reference to the sum is left: new pages cost as
            # much as the sum itself.
            out = self._memory.empty(flat.nbytes).view(flat.dtype)
            total = self._run(lambda: self._communicator.allreduce(flat, out))
            reduced = np.asarray(total).reshape(numbers.shape)
        else:
            merge = _MERGES[op] if isinstance(op, str) else op
            (total,) = self._run(
                lambda: self._communicator.reduce(
                    [numbers], lambda a, b: [np.asarray(merge(a[0], b[0]), numbers.dtype)]
                )
            )
            reduced = np.array(total).reshape(numbers.shape)
        return namespace(original).asarray(reduced) if find_device(original) == "gpu" else reduced

    def reduce_scatter(self, array: ArrayLike) -> Any:
        """Return this rank's share of the sum of all ranks' arrays, along the first axis.

        Rank r gets rows ``n * r // size`` to ``n * (r + 1) // size`` of `n`.

        Parameters
        ----------
        array : array-like of numbers of shape (n, ...)
            Of the same shape and dtype on all ranks.
        """
        numbers = np.ascontiguousarray(_as_numbers(array))
        if not numbers.ndim:
            raise InvalidDataError("A single number cannot be scattered: use allreduce.")
        self._align_calls(f"reduce_scatter of {_describe_array(numbers.dtype, numbers.shape)}")
        row_size = int(np.prod(numbers.shape[1:]))
        bounds = [bound * row_size for bound in self._communicator.bounds(len(numbers))]
        flat = numbers.reshape(-1)
        own_sum = self._run(lambda: self._communicator.reduce_scatter(flat, bounds))
        return np.array(own_sum).reshape(-1, *numbers.shape[1:])

    def allgather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank; each may be anything that can be pickled."""
        packed = pack_value(value)
        self._align_calls("allgather")
        gathered = self._run(lambda: self._communicator.allgather(packed))
        return [
            value if r == self.rank else unpack_value(packed_value)
            for r, packed_value in enumerate(gathered)
        ]

    def alltoall(self, values: Sequence[Any]) -> list[Any]:
        """Send each rank the value at its index in `values`; return what each sent to this one."""
        if len(values) != self.size:
            raise InvalidParameterError(
                f"alltoall takes one value for each of the {self.size} ranks, not {len(values)}."
            )
        packed = [join_packed(pack_value(value)) for value in values]
        self._align_calls("alltoall")
        received = self._run(lambda: self._communicator.alltoall(packed))
        return [unpack_value(split_packed(received_bytes)) for received_bytes in received]

    def allgather_bytes(self, data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return the bytes of all ranks, by rank: :meth:`allgather` for libraries' own messages."""
        self._align_calls("allgather_bytes")
        gathered = self._run(lambda: self._communicator.allgather([data]))
        return [array for (array,) in gathered]

    def alltoall_bytes(self, data: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """Send each rank its bytes, and return those for this one: :meth:`alltoall` of bytes."""
        self._align_calls("alltoall_bytes")
        received: list[NDArray[np.uint8]] = self._run(
            lambda: self._communicator.alltoall(list(data))
        )
        return received

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the value of rank `root` on all ranks; the values of other ranks are ignored."""
        if not 0 <= root < self.size:
            raise InvalidParameterError(f"root={root} is not one of the {self.size} ranks.")
        self._align_calls(f"broadcast from rank {root}")
        is_root = self.rank == root
        if root:
            packed_value = pack_value(value) if is_root else []
            packed = self._run(lambda: self._communicator.allgather(packed_value))[root]
            return value if is_root else unpack_value(packed)
        joined = join_packed(pack_value(value)) if is_root else np.empty(0, np.uint8)
        data = self._run(lambda: self._communicator.broadcast_bytes([joined.data]))
        return value if is_root else unpack_value(split_packed(data))

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self._align_calls("barrier")

    # -- what outlives a loss ------------------------------------------------------------------

    def save(self, state: Any) -> None:
        """Save a state, which is passed to the function as `state` if it restarts after a loss.

        All ranks call it; rank 0's state is the one that counts, and every rank keeps a copy of
        its bytes.

        Parameters
        ----------
        state : object
            Anything that can be pickled.
        """
        self._align_calls("save")
        joined = join_packed(pack_value(state)) if self.rank == 0 else np.empty(0, np.uint8)
        data = self._run(lambda: self._communicator.broadcast_bytes([joined.data]))
        self._save(joined if self.rank == 0 else data)

    def end(self) -> None:
        """Wait until the function has returned on all ranks; called once by the engine."""
        self._align_calls("return")

    # -- checking the calls --------------------------------------------------------------------

    def _align_calls(self, call: str) -> None:
        """Wait for all ranks, and check that they make the same call."""
        if self.failure is not None:
            raise self.failure
        self._n_calls += 1
        # Ranks that are always on time never wait, and would miss the end of the run or a new
        # generation.
        self._run(lambda: self._wait.check(time.monotonic(), "the other ranks"))
        code = np.array([self._n_calls, zlib.crc32(call.encode())], np.int64)
        codes = self._run(lambda: self._communicator.align(code), call)
        if (codes == codes[0]).all():
            return
        # All ranks see the same codes, so on a mismatch all of them exchange their calls.
        gathered = self._run(lambda: self._communicator.allgather([_as_bytes(call)]))
        calls = [bytes(arrays[0]).decode() for arrays in gathered]
        self.failure = RankMismatchError(_describe_mismatch(calls, codes[:, 0].tolist()))
        raise self.failure

    def _run(self, work: Callable[[], Any], call: str = "") -> Any:
        """Run a step of a collective; remember an error that breaks the group."""
        try:
            return work()
        except WaitTimeoutError as error:
            ranks = ", ".join(map(str, self._communicator.find_missing_ranks())) or "another"
            self.failure = WaitTimeoutError(
                f"Rank {self.rank} waited {self._wait.timeout:g} s for rank {ranks} in call "
                f"{self._n_calls} of its group ({call or 'its data'}). Does the function sleep "
                "or compute for longer than that there, or wait for something else? Raise the "
                "limit with run_together(timeout=seconds)."
            )
            raise self.failure from error
        except TrainingError as error:
            if is_consequence(error):
                self.failure = error
            raise


class RankParameters:
    """Access of one rank's function to the parameters that servers hold.

    Parameters
    ----------
    layout : Parameters
        Places of the named arrays in the matrix that the servers hold.
    dtype : str
    connection : ShardedConnection
    lanes : tuple of int
        Lanes that the rank represents.
    clock : int
        Pushes that the servers have counted.

    Attributes
    ----------
    clock : int
        Number of this rank's pushes that are counted.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.collective import ParameterServer, run_together
    >>> server = ParameterServer({"w": np.zeros(1)}, learning_rate=0.5, policy="sync")
    >>> def push_once(group, blocks, state):
    ...     group.parameters.push({"w": [-2.0]})
    ...     return group.parameters.pull()["w"].tolist(), group.parameters.clock
    >>> run_together(None, push_once, server=server)
    [([1.0], 1)]
    """

    def __init__(
        self, layout: Parameters, dtype: str, connection: ShardedConnection,
        lanes: tuple[int, ...], clock: int,
    ) -> None:  # fmt: skip
        self.clock = clock
        self._layout = layout
        self._dtype = dtype
        self._connection = connection
        self._lanes = lanes

    def pull(self) -> dict[str, NDArray[Any]]:
        """Return the parameters by name, once the policy allows it; read-only.

        Under ``"sync"`` it waits until all ranks have pushed as often as this one, under ``"ssp"``
        until this rank is within the bound of the slowest one.
        """
        self._connection.send(self._lanes, self.clock)
        pulled = self._connection.receive(self._lanes[0])
        self.clock = max(self.clock, pulled.clock)
        views = self._layout.views(pulled.w)
        for view in views.values():
            view.flags.writeable = False
        return views

    def push(self, gradients: Mapping[str, ArrayLike], rows: float = 1.0) -> None:
        """Push gradients, which the servers apply according to the policy.

        Parameters
        ----------
        gradients : mapping of str to array-like
            SUM of the gradients over `rows`, for every parameter or some of them; those left out
            are 0.
        rows : float, default=1.0
            Rows in the sum, by which the servers divide the sum of all ranks' gradients.
        """
        total = np.zeros(self._layout.shape, self._dtype)
        views = self._layout.views(total)
        if unknown := sorted(set(gradients) - set(views)):
            raise InvalidParameterError(
                f"No parameters are named {unknown}: the server has {sorted(views)}."
            )
        for name, gradient in gradients.items():
            values = np.asarray(copy_to_host(gradient))
            if values.shape != views[name].shape:
                raise InvalidParameterError(
                    f"The gradient of {name!r} has the shape {values.shape}; the parameters have "
                    f"{views[name].shape}."
                )
            views[name][...] = values
        self.clock += 1
        self._connection.send(self._lanes, self.clock, float(rows), total, pull=False)

    def leave(self) -> None:
        """Let the other ranks continue without this one; called once by the engine."""
        self._connection.call_all("leave", lanes=list(self._lanes))


def _as_numbers(array: Any) -> NDArray[Any]:
    """Return an array of numbers in host memory."""
    numbers = np.asarray(copy_to_host(array) if hasattr(array, "shape") else array)
    if numbers.dtype.kind not in _SUMMABLE:
        raise InvalidDataError(
            f"An array of {numbers.dtype} cannot be reduced: it does not hold numbers. Use "
            "allgather for other values."
        )
    return numbers


@lru_cache
def _describe_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return the dtype and shape of an array, as error messages show them."""
    return f"{dtype}{list(shape)}"


def _as_bytes(text: str) -> NDArray[np.uint8]:
    """Return a text as an array of bytes."""
    return np.frombuffer(text.encode(), np.uint8)


def _name_host(address: str) -> str:
    """Return the host of a worker's address; "localhost" for a worker within this process."""
    _, _, host_and_port = address.rpartition("://")
    if address.startswith("inproc"):
        return "localhost"
    return host_and_port.rpartition(":")[0].strip("[]") or host_and_port


def _describe_mismatch(calls: Sequence[str], call_numbers: Sequence[int]) -> str:
    """Return the error message for ranks that make different calls."""
    by_rank = "; ".join(
        f"rank {rank} " + ("has returned" if call == "return" else f"is at {call}")
        + f" (call {number})"
        for rank, (call, number) in enumerate(zip(calls[:8], call_numbers, strict=False))
    )  # fmt: skip
    return (
        f"The ranks of a function make different calls: {by_rank}. Every rank must make the same "
        "calls of its group in the same order, with arrays of the same shape and dtype, until "
        "it returns, whatever blocks it has."
    )
