"""Reader of a lane: turns the rows drawn for each step into batches of arrays.

A batch is either pieces of rows (`BatchRows`) that are copied together, or a function that adds the
gradient of rows without copying them (a backend's gather).
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend, SparseRows
from daskml_dist.backends.devices import device_memory, get_backend, stored_dtype
from daskml_dist.backends.namespace import is_host, namespace, scalar, total
from daskml_dist.backends.row_slices import Draw
from daskml_dist.data.batches import LaneRows, RowRuns
from daskml_dist.data.blocks import Block, check_finite_rows, encode_small
from daskml_dist.data.conversion import copy_to_host, find_device
from daskml_dist.data.keyed.cut import KeyedBlock
from daskml_dist.data.streamed_blocks import BlockStream
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows, LinearForm
from daskml_dist.solvers.base import Statistic
from daskml_dist.training.spec import FitSpec


@dataclass
class ReadyBlock:
    """Block in the form that models read: on the device, targets encoded, weights scaled.

    For sums over all rows, dense features stay on the host unconverted until a statistic needs
    more: copying a block costs more than many sums.

    Attributes
    ----------
    unchecked : int or None
        Number of the block until X has been checked for NaN and infinity; None afterwards.
    """

    X: Any
    y: Any
    weight: Any | None
    unchecked: int | None = None

    def prepare_for_statistic(self, statistic: Statistic) -> None:
        """Convert X to the form that a statistic reads, before its first sum.

        Features on a GPU were converted when they were moved.
        """
        if not statistic.in_parts and is_host(self.X):
            self.X = get_backend("cpu").to_device(self.X)

    def check(self) -> None:
        """Raise if X contains NaN or infinity, unless it was checked before."""
        if self.unchecked is not None:
            check_finite_rows(self.X, self.unchecked)
            self.unchecked = None


def get_fit_backend(fit: FitSpec) -> Backend:
    """Return the backend of a fit in this process."""
    # Steps that touch few of many parameters use indices that the host draws; a GPU would wait for
    # the host at each step.
    on_host = fit.work.on_host or (fit.run.device == "auto" and fit.work.coordinates)
    return get_backend("cpu" if on_host else fit.run.device)


def sums_backend_of(fit: FitSpec) -> Backend:
    """Return the backend on which sums over the rows of a fit may be.

    It is that of the rows. But a solver on its own rows, which has their targets in host memory,
    may have sums on the GPU.
    """
    on_device = fit.work.loop == "own_rows"
    return get_backend(fit.run.device) if on_device else get_fit_backend(fit)


def prepare_block(block: Block, fit: FitSpec) -> ReadyBlock:
    """Check a block for NaN and infinity, encode its targets, compute its weights, and move it.

    Dense features of a round solver that stay on the host are checked at the first sum, and only
    if the sum does not show that they are finite.
    """
    if isinstance(block, KeyedBlock):
        return ReadyBlock(block.aligned(), None, None)
    backend = get_fit_backend(fit)
    rows = fit.rows
    stays_in_place = _stays_in_place(block, fit, backend)
    X = _prepare_features(block, fit, backend, stays_in_place)
    y: Any = None if block.target is None else _encode_target(block, fit, backend)
    weight: Any = rows.weights(block)
    if fit.work.privacy is not None:
        weight = fit.steps.model.bound_slopes(X)
    lies_there = find_device(X) == "gpu"
    # On a GPU, the error names the block that did not fit.
    with explain_memory_errors(backend, f"Block {block.index} of {block.nbytes / 2**20:,.0f} MiB"):
        X = X if stays_in_place or lies_there else backend.to_device(X)
        y, weight = (None if a is None else backend.to_device(a) for a in (y, weight))
    return ReadyBlock(X, y, weight, block.index if stays_in_place else None)


def _encode_target(block: Block, fit: FitSpec, backend: Backend) -> Any:
    """Return the targets that the model's loss reads: for labels indices, signs or one-hot rows."""
    model, rows = fit.work.model, fit.rows
    goes_to_gpu = backend.device == "gpu" or find_device(block.target) == "gpu"
    codes = encode_small(block, rows.classes) if goes_to_gpu else None
    if codes is None or rows.classes is None:
        assert block.y is not None
        return model.encode(block.y, rows.classes, rows.dtype)
    # Each class is encoded once; only the codes of the rows, one byte each, are moved.
    table = backend.to_device(model.encode(rows.classes, rows.classes, rows.dtype))
    codes = backend.to_device(codes) if backend.device == "gpu" else copy_to_host(codes)
    return namespace(table).take(table, codes, axis=0)


def _stays_in_place(block: Block, fit: FitSpec, backend: Backend) -> bool:
    """Return whether features may stay unconverted until a sum needs them."""
    if backend.device != "cpu" or fit.work.loop != "solver" or fit.rows.streaming is not None:
        return False
    X = block.X
    return isinstance(X, np.ndarray) and X.dtype.kind == "f" and X.flags.c_contiguous


def _prepare_features(block: Block, fit: FitSpec, backend: Backend, lies: bool) -> Any:
    """Return the checked features of a block, in their final place or on the host.

    With `lies` they are left in place, and checked later.
    """
    on_gpu = _find_lying_features(block, fit, backend)
    if on_gpu is not None:
        X = fit.work.model.prepare(on_gpu, fit.rows.dtype)
        if not fit.work.model.takes_missing:
            check_finite_rows(X, block.index)
        return X
    # Aligned before anything else reads it: NumPy is several times slower on unaligned arrays.
    X = block.X.astype(fit.rows.rows_dtype, copy=False)
    # Converted to a layout that kernels read: contiguous, sorted CSR.
    X = X if lies else get_backend("cpu").to_device(X)
    with np.errstate(over="ignore"):  # the check below finds infinite values
        X = fit.work.model.prepare(X, fit.rows.dtype)
    if lies:
        return X
    if not fit.work.model.takes_missing:
        check_finite_rows(X, block.index)
    floats = isinstance(X, np.ndarray) and X.dtype.kind == "f"
    if fit.rows.compute_dtype and backend.device == "gpu" and floats:
        X = _to_compute_dtype(X, fit.rows.compute_dtype, block.index)
    return X


def _find_lying_features(block: Block, fit: FitSpec, backend: Backend) -> Any | None:
    """Return features that already are on the fit's GPU in the form it reads, else None."""
    on_gpu = block.on_device
    if on_gpu is None or fit.rows.compute_dtype or on_gpu.dtype != fit.rows.rows_dtype:
        return None
    # A solver on its own rows has targets and weights in host memory, and features where they are.
    reads_there = backend.device == "gpu" or sums_backend_of(fit).device == "gpu"
    return on_gpu if reads_there else None


def _to_compute_dtype(X: NDArray[Any], dtype: str, index: int) -> NDArray[Any]:
    """Return features in a GPU's smaller storage dtype; raise if they overflow it."""
    with np.errstate(over="ignore"):
        # Infinite values are detected below, and reported with the largest value.
        converted = X.astype(stored_dtype(dtype))
    if not np.isfinite(converted).all():
        number = converted.dtype.type
        largest = float(np.nextafter(number(np.inf), number(0)))
        raise InvalidDataError(
            f"Block {index}: X holds {np.abs(X).max():g}, and compute_dtype={dtype!r} holds "
            f"{largest:g} at most. Scale the features first (StandardScaler), or use "
            "compute_dtype=None."
        )
    return converted


def explain_memory_errors(backend: Backend, description: str) -> AbstractContextManager[None]:
    """Translate a device's out-of-memory error into one that names the data that did not fit."""
    if backend.device == "cpu":
        return nullcontext()
    return device_memory(
        description,
        'Stream the blocks: memory_budget="8GiB", or less than the GPU has; or use smaller '
        'chunks, X of float32, or device="cpu".',
    )


Blocks = Mapping[int, ReadyBlock] | BlockStream[ReadyBlock]
#: Block number of each row, and the row's position in that block.
RowsInTurn = tuple[NDArray[np.intp], NDArray[np.intp]]
#: Entries in a streamed lane's pass from which compiling its gather pays immediately: copies would
#: take longer than loading numba.
_GATHER_AT_ONCE_ENTRIES = 1 << 22
#: Bytes of a large batch's rows that a linear model processes at a time: they stay in the L2 cache
#: for both products.
_PIECE_BYTES = 1 << 20
#: Rows of a batch: for each block, by its number, a slice or an array of row numbers.
Drawn = list[tuple[Any, Any]]


@dataclass(slots=True)
class LaneBatch:
    """Rows of one gradient.

    Parameters
    ----------
    pieces : iterable of BatchRows
        Read one by one if the batch is large.
    n_rows : int
        Number of rows; for a private fit, its mean.
    index : ndarray of int64 or None
        Parameter rows that the batch touches (coordinates only).
    add_gradient : callable or None
        Adds the gradient of rows without copying them; see `Backend.gather`. There are no pieces in
        this case.
    """

    pieces: Iterable[BatchRows]
    n_rows: int
    index: NDArray[np.int64] | None
    add_gradient: Callable[[Any, Any], Any] | None = None


class BatchReader:
    """Batches of a lane, one after the other. Used by one thread.

    Parameters
    ----------
    lane : int
    fit : FitSpec
    rows : LaneRows
    blocks : mapping of int to ReadyBlock, or BlockStream
    backend : Backend
    """

    def __init__(
        self, lane: int, fit: FitSpec, rows: LaneRows, blocks: Blocks, backend: Backend
    ) -> None:
        self._fit = fit
        self._rows = rows
        self._blocks = blocks
        #: Blocks from which held-out rows are read, whose weights are never divided.
        self._held_out_blocks = blocks
        self._backend = backend
        self._linear = fit.work.linear
        #: First numbers in the keys of random streams.
        self._stream = fit.work.seed, lane
        self._clock = 0
        self._draws: Iterator[Drawn] = iter(())
        self._ready_batches: deque[LaneBatch] = deque()
        # A batch of whole blocks is not copied, and sparse rows are read in place. If the batch
        # touches few parameters, their indices are determined from all pieces before any piece is
        # read.
        at_once = self._linear is None and fit.work.micro_batch is None
        self._in_arrays = fit.work.n_steps > 1 and (at_once or not fit.work.coordinates)
        self._batch_memory = _BatchMemory()
        privacy = fit.work.privacy
        self._mean_rows = None if privacy is None else privacy.expect_rows(rows.n_rows)

    def seek(self, clock: int) -> None:
        """Move to a clock: the next batch is that of step ``clock % n_steps``."""
        self._clock = clock
        self._draws = _iterate_draws(self._fit, self._rows, self._blocks, clock)
        self._ready_batches.clear()

    def draw_batch_runs(self, count: int) -> tuple[list[Draw], list[int]]:
        """Return the rows of the next batches as runs, for a gather, and how many each has."""
        drawn = [next(self._draws) for _ in range(count)]
        self._clock += count
        return [_to_runs(draw) for draw in drawn], [
            self._count_reported_rows(draw) for draw in drawn
        ]

    def _count_reported_rows(self, drawn_rows: Drawn) -> Any:
        """Return the number of rows of a batch, for steps and records.

        For a private fit it is the mean number: the drawn number would reveal something about the
        rows.
        """
        return count_batch_rows(drawn_rows) if self._mean_rows is None else self._mean_rows

    def sum_weights(self) -> float:
        """Return the sum of the weights of the training rows, which are in memory."""
        sums = 0.0
        for number, positions in self._rows.training:
            rows = self._backend.row_numbers(positions)
            weight = self._backend.rows(cast(Any, self._blocks[number].weight), rows)
            sums += float(scalar(total(weight, dtype=namespace(weight).float64)))
        return sums

    def divide_weights(self, divisor: float) -> None:
        """Divide the weights of the training rows, before the first step."""
        numbers = {number for number, _ in self._rows.training}
        blocks = {number: self._blocks[number] for number in numbers}
        self._blocks = {
            number: replace(block, weight=cast(Any, block.weight) / divisor)
            for number, block in blocks.items()
        }
        # On a GPU a gather exists by now, made to find out where the replica will be.
        for name in ("kept", "gather"):
            vars(self).pop(name, None)

    @functools.cached_property
    def kept(self) -> list[ReadyBlock]:
        """Return the prepared blocks; empty if they are streamed."""
        if isinstance(self._blocks, BlockStream):
            return []
        numbers = set(itertools.chain.from_iterable(self._rows.blocks(1)))
        return [self._blocks[number] for number in sorted(numbers)]

    def next_rows_in_turn(self, count: int) -> list[RowsInTurn]:
        """Return block and position of each row of the next batches."""
        drawn = [next(self._draws) for _ in range(count)]
        self._clock += count
        return [_flatten_draw(draw) for draw in drawn]

    def block(self, block_number: int) -> ReadyBlock:
        """Return a block of the batch that was drawn last."""
        return self._blocks[block_number]

    def next(self, may_gather: bool) -> LaneBatch:
        """Return the next batch, whose arrays are valid until the next call.

        `may_gather` allows the use of a gather.
        """
        # A gather draws several batches in one call and returns a function for each.
        gather = self.gather if may_gather and self._in_arrays else None
        if gather is None and not self._ready_batches:
            drawn = next(self._draws)
            self._clock += 1
            return self._make_batch(drawn, self._clock - 1)
        if not self._ready_batches:
            assert gather is not None
            draws, counts = self.draw_batch_runs(gather.max_batches)
            for add_gradient, n_rows in zip(gather(draws), counts, strict=True):
                self._ready_batches.append(
                    LaneBatch([], n_rows, None, add_gradient if n_rows else None)
                )
        return self._ready_batches.popleft()

    def _make_batch(self, drawn_rows: Drawn, clock: int) -> LaneBatch:
        """Return the batch of the rows drawn for a step."""
        n_rows = count_batch_rows(drawn_rows)
        blocks_read: Blocks = self._blocks
        if self._in_arrays:
            # Streamed blocks are available once, in order, so all blocks of the batch are held
            # first.
            blocks_read = {number: self._blocks[number] for number, _ in drawn_rows}
            # Dense rows: copied side by side into the lane's memory.
            if all(isinstance(block.X, np.ndarray) for block in blocks_read.values()):
                blocks = [
                    (blocks_read[number], positions)
                    for number, positions in _to_positions(drawn_rows)
                ]
                key, cut = (*self._stream, clock), cut_blocks if self._linear else cut_evenly_sized
                pieces = self._batch_memory.gather(blocks, n_rows, self._piece_rows, key, cut)
                return LaneBatch(
                    pieces, self._count_reported_rows(drawn_rows), self._touched_parameters(pieces)
                )
        # Full batches of streamed rows never fit in memory, so pieces are made when they are read.
        elif self._fit.work.n_steps == 1 and self._fit.rows.streaming is not None:
            return LaneBatch(
                _RepeatableIterable(lambda: self._iterate_pieces(drawn_rows, clock, blocks_read)),
                n_rows,
                None,
            )
        batch_rows = list(self._iterate_pieces(drawn_rows, clock, blocks_read))
        if self._in_arrays and self._linear is None and self._piece_rows is None:
            batch_rows = _join_if_dense(batch_rows)
        return LaneBatch(
            batch_rows, self._count_reported_rows(drawn_rows), self._touched_parameters(batch_rows)
        )

    @functools.cached_property
    def _piece_rows(self) -> int | None:
        """Return the most rows that the model gets at a time: as set, or as fit in a cache."""
        if self._fit.work.micro_batch is not None or self._linear is None:
            return self._fit.work.micro_batch
        width = self._linear.n_features * np.dtype(self._fit.rows.dtype).itemsize
        return max(1, _PIECE_BYTES // max(width, 1))

    def _iterate_pieces(self, drawn_rows: Drawn, clock: int, blocks: Blocks) -> Iterator[BatchRows]:
        """Yield the rows of each block, or of fewer at a time."""
        parts = cut_blocks(_to_positions(drawn_rows), self._fit.work.micro_batch)
        for piece, ((number, positions),) in enumerate(parts):
            first = positions.start or 0 if isinstance(positions, slice) else 0
            block = number if isinstance(positions, slice) else -1
            # Keys of a piece's random numbers: derived from seed, lane, clock and piece.
            key = (*self._stream, clock, piece)
            yield BatchRows(*self._take_rows(blocks[number], positions), key, block, first)

    def _take_rows(self, block: ReadyBlock, positions: Any) -> tuple[Any, Any, Any]:
        """Return X, y and weights of some rows of a block."""
        rows, positions = self._backend.rows, self._backend.row_numbers(positions)
        y, weight = (None if a is None else rows(a, positions) for a in (block.y, block.weight))
        return rows(block.X, positions), y, weight

    def _touched_parameters(self, pieces: Iterable[BatchRows]) -> NDArray[np.int64] | None:
        """Return the parameter rows that a batch touches; None for dense steps."""
        if not self._fit.work.coordinates:
            return None
        if not (pieces := list(pieces)):
            return np.empty(0, np.int64)
        return self._fit.steps.model.touched(pieces, self._backend)

    def held_out(self) -> Iterator[BatchRows]:
        """Yield the rows of the validation set, block by block."""
        for number, positions in self._rows.held_out:
            blocks = self._held_out_blocks
            block = (
                blocks.read_out_of_order(number)
                if isinstance(blocks, BlockStream)
                else blocks[number]
            )
            yield BatchRows(*self._take_rows(block, positions), (*self._stream, 0, 0))

    @functools.cached_property
    def gather(self) -> Any | None:
        """Return the backend's gather, which copies no rows; None if it has none for this fit."""
        if self._linear is None or not self._rows.n_rows or self._fit.work.n_steps == 1:
            return None
        if self._fit.work.micro_batch is not None:
            return None
        rule = self._fit.steps.rule
        # A gather of sparse rows must make whole steps: the host does not know which parameters
        # they touch.
        is_supported = (
            rule.steps_alone if self._backend.device == "cpu" else rule.can_run_in_kernels
        )
        if rule.coordinates and (not is_supported or isinstance(self._blocks, BlockStream)):
            return None
        if isinstance(self._blocks, BlockStream):
            return self._make_stream_gather(self._linear, self._blocks)
        # The gather gets the arrays of all blocks once, and afterwards only row numbers.
        numbers = sorted(set(itertools.chain.from_iterable(self._rows.blocks(1))))
        ready = zip(numbers, self.kept, strict=True)
        blocks = {n: (block.X, block.y, block.weight) for n, block in ready}
        shape, max_rows = self._fit.steps.shape, self._most_batch_rows
        with explain_memory_errors(self._backend, f"What gathers batches of {max_rows:,} rows"):
            return self._backend.gather(
                self._linear.loss, shape, blocks, max_rows, rule.coordinates,
                clips=self._fit.work.privacy is not None,
            )  # fmt: skip

    def _make_stream_gather(
        self, linear: LinearForm, blocks: BlockStream[ReadyBlock]
    ) -> Any | None:
        """Return the gather of streamed blocks, which takes a few steps in one call."""
        fit = self._fit
        streaming = fit.rows.streaming
        if streaming is None or not streaming.dense or fit.steps.shape[1] > 1:
            return None

        def find(block_number: int) -> tuple[Any, Any, Any]:
            block = blocks[block_number]
            return block.X, block.y, block.weight

        # Steps per call: a call keeps the blocks of its steps, a quarter of a group on average,
        # besides the next group.
        max_steps = fit.work.n_steps // (4 * max(1, len(self._rows.blocks(1))))
        kind = np.dtype(fit.rows.dtype)
        rows = self._most_batch_rows
        return self._backend.stream_gather(
            linear.loss, linear.n_features, kind, find, rows, max_steps
        )

    @functools.cached_property
    def steps_copied(self) -> int:
        """Return the number of initial steps whose rows are copied, until a gather pays."""
        if self._linear is None:
            return self._backend.steps_copied(None, 0)
        if self._fit.work.coordinates and self._backend.device == "cpu":
            return 0  # all code that reads sparse rows is compiled
        # Compiling takes about half a second; the first steps are faster with NumPy's copies.
        n_entries = self._most_batch_rows * self._linear.n_features
        if (
            isinstance(self._blocks, BlockStream)
            and n_entries * self._fit.work.n_steps >= _GATHER_AT_ONCE_ENTRIES
        ):
            return 0
        return self._backend.steps_copied(self._linear.dense_kernel, n_entries)

    @property
    def _most_batch_rows(self) -> int:
        """Return the most rows of a batch."""
        return -(-self._rows.n_rows // self._rows.n_batches)


def _iterate_draws(fit: FitSpec, rows: LaneRows, blocks: Blocks, clock: int) -> Iterator[Drawn]:
    """Yield the drawn rows of each step from a clock on, then empty batches without end.

    Not a method: the reader holds this generator, which is never exhausted. If it held the reader,
    the blocks would stay until Python's garbage collector runs.
    """
    passes, step = divmod(clock, fit.work.n_steps)
    # A stream reads ahead in the order in which blocks will be drawn.
    if isinstance(blocks, BlockStream):
        blocks.seek(passes + 1)
    while passes < fit.work.stopping.max_iter:
        # The rest of the first pass, then whole passes.
        yield from rows.batches(passes + 1, step)
        passes, step = passes + 1, 0
    # Loops draw one batch ahead, even after the last pass.
    while True:
        yield []


def _to_runs(drawn_rows: Drawn) -> Draw:
    """Return the rows of a batch as runs of neighbours."""
    return [
        (number, positions.starts, positions.counts)
        if isinstance(positions, RowRuns)
        else (number, positions, None)
        for number, positions in drawn_rows
    ]


def _to_positions(drawn_rows: Drawn) -> Drawn:
    """Return the rows of a batch as positions or slices."""
    return [
        (number, positions.row_numbers if isinstance(positions, RowRuns) else positions)
        for number, positions in drawn_rows
    ]


def _flatten_draw(drawn_rows: Drawn) -> RowsInTurn:
    """Return the block and position of each row, in the order drawn."""
    parts = []
    for block, positions in drawn_rows:
        rows = (
            np.arange(positions.start or 0, positions.stop)
            if isinstance(positions, slice)
            else positions
        )
        parts.append((np.full(len(rows), block) if isinstance(block, int) else block, rows))
    if len(parts) == 1:
        return parts[0]
    no_rows: list[NDArray[np.intp]] = [np.empty(0, np.intp)]
    return (
        np.concatenate([block for block, _ in parts] or no_rows),
        np.concatenate([rows for _, rows in parts] or no_rows),
    )


def _join_if_dense(pieces: list[BatchRows]) -> list[BatchRows]:
    """Join dense rows of several blocks, since a model may use its batch as a whole."""
    if len(pieces) < 2 or isinstance(pieces[0].X, SparseRows):
        return pieces
    return [join_batch_pieces(pieces)]


def join_batch_pieces(pieces: Sequence[BatchRows]) -> BatchRows:
    """Join the dense rows of pieces of a batch."""
    joined = join_batch_targets(pieces)
    joined.X = namespace(pieces[0].X).concat([piece.X for piece in pieces])
    return joined


def join_batch_targets(pieces: Sequence[BatchRows]) -> BatchRows:
    """Join the targets and weights of pieces of a batch."""

    def join(name: str) -> Any:
        arrays = [getattr(piece, name) for piece in pieces]
        return None if arrays[0] is None else namespace(arrays[0]).concat(arrays)

    return BatchRows(None, join("y"), join("weight"), pieces[0].key)


class _BatchMemory:
    """Memory into which a lane copies the dense rows of its batches, allocated once."""

    def __init__(self) -> None:
        self._arrays: tuple[Any, Any, Any] | None = None

    def gather(
        self,
        blocks: list[tuple[ReadyBlock, Any]],
        n_rows: int,
        max_rows: int | None,
        key: tuple[int, ...],
        cut: Callable[[Drawn, int], Iterator[Any]],
    ) -> Iterable[BatchRows]:
        """Return all rows as one piece; of a larger batch, pieces that are made when read."""
        if n_rows == 0:
            return []
        if max_rows is None or n_rows <= max_rows:
            X, y, weight = self._copy_rows(blocks, n_rows)
            return [BatchRows(X, y, weight, (*key, 0))]
        # Copying a large batch as a whole would write it to main memory, and take three times as
        # long.
        drawn = [(i, positions) for i, (_, positions) in enumerate(blocks)]
        return _RepeatableIterable(lambda: self._iterate_cut(blocks, cut(drawn, max_rows), key))

    def _iterate_cut(
        self,
        blocks: list[tuple[ReadyBlock, Any]],
        drawn_parts: Iterator[Drawn],
        key: tuple[int, ...],
    ) -> Iterator[BatchRows]:
        """Yield pieces of a large batch, each copied as it is read."""
        for piece, part in enumerate(drawn_parts):
            share = [(blocks[i][0], positions) for i, positions in part]
            yield BatchRows(*self._copy_rows(share, count_batch_rows(part)), (*key, piece))

    def _copy_rows(self, blocks: list[tuple[ReadyBlock, Any]], n_rows: int) -> tuple[Any, Any, Any]:
        """Copy rows of blocks into the memory; return views of them."""
        if self._arrays is None or len(self._arrays[0]) < n_rows:
            first = blocks[0][0]
            self._arrays = tuple(  # type: ignore[assignment]
                None if a is None else np.empty((n_rows, *a.shape[1:]), a.dtype)
                for a in (first.X, first.y, first.weight)
            )
        assert self._arrays is not None
        X, y, weight = self._arrays
        start = 0
        for block, positions in blocks:
            stop = start + len(positions)
            # NumPy checks the range of indices unless the mode is "clip".
            block.X.take(positions, axis=0, out=X[start:stop], mode="clip")
            if y is not None:
                block.y.take(positions, axis=0, out=y[start:stop], mode="clip")
            if weight is not None:
                assert block.weight is not None
                block.weight.take(positions, axis=0, out=weight[start:stop], mode="clip")
            start = stop
        return (
            X[:n_rows],
            None if y is None else y[:n_rows],
            None if weight is None else weight[:n_rows],
        )


class _RepeatableIterable:
    """Iterable that makes its pieces again each time it is iterated."""

    def __init__(self, make_iterator: Callable[[], Iterator[BatchRows]]) -> None:
        self._make_iterator = make_iterator

    def __iter__(self) -> Iterator[BatchRows]:
        return self._make_iterator()


def count_batch_rows(drawn_rows: Drawn) -> int:
    """Return the number of rows of a batch."""
    return sum(
        positions.stop - positions.start if isinstance(positions, slice) else len(positions)
        for _, positions in drawn_rows
    )


def cut_blocks(drawn_rows: Drawn, max_rows: int | None) -> Iterator[Drawn]:
    """Yield the rows of each block, at most `max_rows` at a time."""
    for number, positions in drawn_rows:
        if max_rows is None:
            yield [(number, positions)]
        elif isinstance(positions, slice):
            for start in range(positions.start or 0, positions.stop, max_rows):
                yield [(number, slice(start, min(start + max_rows, positions.stop)))]
        else:
            for start in range(0, len(positions), max_rows):
                yield [(number, positions[start : start + max_rows])]


def cut_evenly_sized(drawn_rows: Drawn, max_rows: int) -> Iterator[Drawn]:
    """Yield shares of the drawn rows, at most `max_rows` each and of nearly the same size."""
    n_rows, remaining = count_batch_rows(drawn_rows), list(reversed(drawn_rows))
    n_shares = -(-n_rows // max_rows)
    for n in range(n_shares):
        n_wanted, share = n_rows * (n + 1) // n_shares - n_rows * n // n_shares, []
        while n_wanted:
            number, positions = remaining.pop()
            if len(positions) > n_wanted:
                remaining.append((number, positions[n_wanted:]))
            share.append((number, positions[:n_wanted]))
            n_wanted -= len(share[-1][1])
        yield share
