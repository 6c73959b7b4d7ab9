"""Steps of a team in one loop: its members sum each step's gradient in shared memory.

Synchronising two processes through Python takes more than a hundred microseconds, whatever they
sum. Here a member writes the gradient of its lanes' rows to shared memory, raises its flag, waits
for the flags of the others, adds up all gradients in order, and applies the sum to its own copy of
the parameters, which is therefore the same in every member.

A member that has waited for a while leaves the loop with its progress, sleeps, and enters it again.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import ReplicaSteps, Step
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.host_update import compile_update, list_step_numbers
from daskml_dist.backends.intrinsics import (
    array_at,
    hint_waiting,
    monotonic_nanoseconds,
    pointer,
    raise_flag,
    read_flag,
    ring_bell,
    yield_processor,
)
from daskml_dist.backends.row_slices import Draw
from daskml_dist.backends.shared_buffer import SharedBuffer

#: Polls of a flag between two reads of the clock.
_LOOKS_PER_CLOCK_READ = 32


# Placeholders for functions of `host_gather`, `host_update` and this file.
def _batch_gradient(
    blocks: Any, segments: Any, p: Any, w: Any, grad: Any, parameters: Any, n_features: Any
) -> Any: ...
def _update_state(
    state: Any,
    grad: Any,
    rows: Any,
    rate: Any,
    l1: Any,
    l2: Any,
    n_penalised: Any,
    coefficients: Any,
) -> None: ...


def _announce_turn(own_flag: Any, turn: Any, other_members: Any) -> None: ...
def _await_others(turn: Any, other_members: Any, patience: Any, yields: Any) -> Any: ...


_update_at_rest = _update_state  # used if the learning rate is 0


def _set_own_gradients(
    addresses: Any, scratch: Any, counts: Any, losses: Any, busy: Any, blocks: Any, segments: Any,
    p: Any, w: Any, parameters: Any, n_features: Any,
) -> Any:  # fmt: skip
    """Write the gradients of the own lanes' batches, or their sum if there is one place for all.

    Also set their losses; return where the next batches begin.
    """
    since = monotonic_nanoseconds()
    for lane in range(len(counts)):
        # One place per lane, or one for all: then later lanes are added to the first one's
        # gradient.
        place = array_at(pointer(addresses[min(lane, len(addresses) - 1)]), len(w), w.dtype)
        first = lane < len(addresses)
        grad, losses[lane] = place if first else scratch, 0.0
        if counts[lane] == 0:
            grad[:] = 0
        else:
            losses[lane], p = _batch_gradient(blocks, segments, p, w, grad, parameters, n_features)
        if not first:
            for j in range(len(w)):
                place[j] += grad[j]
        now = monotonic_nanoseconds()
        busy[lane] += now - since
        since = now
    return p


def announce_turn(own_flag: Any, turn: Any, other_members: Any) -> None:
    """Raise the own flag after writing gradients; the last member to arrive wakes sleeping ones."""
    # Release order: a member that sees the flag also sees the gradients.
    raise_flag(own_flag, turn)
    for i in range(len(other_members)):
        if read_flag(other_members[i, 0]) < turn:
            return
    for i in range(len(other_members)):
        # A sleeping member waits at a pipe.
        if read_flag(other_members[i, 1]) != 0:
            ring_bell(other_members[i, 2])


def await_others(turn: Any, other_members: Any, patience: Any, yields: Any) -> bool:
    """Wait for the others' gradients; return False if `patience` (nanoseconds) runs out."""
    end, looks = np.int64(0), 0
    for i in range(len(other_members)):
        # Spin first: others mostly arrive within microseconds, and a system call costs several.
        while read_flag(other_members[i, 0]) < turn:
            hint_waiting()
            looks += 1
            # Reading the clock costs more than polling the flag.
            if looks % _LOOKS_PER_CLOCK_READ == 0:
                now = monotonic_nanoseconds()
                if end == 0:
                    end = now + patience
                if now > end:
                    return False
                if yields:
                    yield_processor()
    return True


def _sum_gradients(addresses: Any, total: Any) -> None:
    """Add up all gradients in order."""
    for k in range(len(addresses)):
        grad = array_at(pointer(addresses[k]), len(total), total.dtype)
        if k == 0:
            for j in range(len(total)):
                total[j] = grad[j]
        else:
            for j in range(len(total)):
                total[j] += grad[j]


def _take_team_steps(
    progress: Any, blocks: Any, segments: Any, batches: Any, state: Any, scratch: Any, penalty: Any,
    model: Any, first: Any, meeting: Any,
) -> bool:  # fmt: skip
    """Take steps; return False if others are not ready, and the loop must be entered again.

    Parameters
    ----------
    progress : int64 (6,)
        Steps made, position in `segments`, and whether the own gradients of the next step are
        written; the others are used by `csr_team`.
    blocks, segments
        As in `host_gather`; batches are sorted by step, and within a step by own lane.
    batches : tuple
        counts, int64 (n_steps, n_own): rows of each batch. losses, float64 (n_steps, n_own): set.
        busy, int64 (n_own,): the nanoseconds used for gradients are added. rows, rates, float64
        (n_steps,): rows of all lanes, and learning rate. numbers, (n_steps, n) floats: coefficients
        of the optimizer.
    state : tuple of (n_parameters,) floats
        w and the optimizer's state.
    scratch : (n_parameters,) floats
    penalty : tuple
        n_penalised (leading parameters), l1, l2.
    model : tuple
        parameters of the loss, n_features.
    first : int
        Turn of the first step.
    meeting : tuple
        `SharedBuffer.numbers`.
    """
    counts, losses, busy, rows, rates, numbers = batches
    n_penalised, l1, l2 = penalty
    parameters, n_features = model
    own, own_at, all_at, others, patience, yields = meeting
    w = state[0]
    number = w.dtype.type
    while progress[0] < len(rows):
        b = progress[0]
        turn = first + b
        # Own gradients of this step; not repeated if the loop was left while waiting.
        if progress[2] == 0:
            progress[1] = _set_own_gradients(
                own_at[turn & 1], scratch, counts[b], losses[b], busy, blocks, segments,
                progress[1], w, parameters, n_features,
            )  # fmt: skip
            _announce_turn(own, turn, others)
            progress[2] = 1
        if not _await_others(turn, others, patience, yields):
            return False
        # Places of even and odd turns alternate: no member overwrites data that another may still
        # read.
        if rows[b] > 0:
            _sum_gradients(all_at[turn & 1], scratch)
            n, rate, at_step = number(rows[b]), number(rates[b]), numbers[b]
            if rate > 0:
                _update_state(state, scratch, n, rate, l1, l2, n_penalised, at_step)
            else:
                _update_at_rest(state, scratch, n, rate, l1, l2, n_penalised, at_step)
        progress[0], progress[2] = b + 1, 0
    return True


class TeamSteps(ReplicaSteps):
    """Steps of a replica on the gradients of a whole team, many in one call.

    Parameters
    ----------
    gathers : list of HostGather, CSRGather or None
        One for each own lane, all of one loss and dtype; None for a lane without rows.
    optimizer : Optimizer
        Optimizer with an `elementwise_update`.
    step : Step
        One of the steps, without a gradient.
    board : SharedBuffer
        For gradients as long as the parameters.
    """

    def __init__(
        self, gathers: Sequence[Any | None], optimizer: Any, step: Step, board: SharedBuffer
    ) -> None:
        active_gathers = [gather for gather in gathers if gather is not None]
        first = active_gathers[0]
        #: Maximum steps made together.
        self.max_steps = max(
            1, min(gather.max_steps for gather in active_gathers) // len(active_gathers)
        )
        super().__init__(optimizer, step)
        self._gathers, self._board = gathers, board
        self._loop, self._fixed_arguments = self._bind(first, step)

    def _bind(self, gather: Any, step: Step) -> tuple[Any, tuple[Any, ...]]:
        """Return the compiled loop, and its arguments after the replica's arrays."""
        noisy = step.noise is not None
        loops = [compile_update(self._optimizer, step.l1, rate, noisy) for rate in (1.0, 0.0)]
        loop = compiled_with(
            _take_team_steps,
            _set_own_gradients=compiled_with(_set_own_gradients, _batch_gradient=gather.gradient),
            _announce_turn=compiled_with(announce_turn),
            _await_others=compiled_with(await_others),
            _sum_gradients=compiled_with(_sum_gradients),
            _update_state=loops[0],
            _update_at_rest=loops[1],
        )
        number = step.w.dtype.type
        penalty = np.int64(step.n_penalised), number(step.l1), number(step.l2)
        scratch = np.empty(len(step.w), step.w.dtype)
        return loop, (scratch, penalty, (gather.parameters, gather.n_features))

    def __call__(
        self, lanes: Sequence[Sequence[Draw]], counts: NDArray[np.int64], steps: Sequence[Step]
    ) -> TeamRun:
        """Return steps to be made by :meth:`TeamRun.run`."""
        loop_arguments = *self._arrays(steps[0]), *self._fixed_arguments
        parts = self._locate_segments(lanes)
        # Only now, since streamed blocks change.
        where = np.concatenate([gather.where for gather in self._gathers if gather is not None])
        return self._run(
            self._loop,
            self._board,
            where,
            parts,
            counts,
            self._list_step_values(steps),
            loop_arguments,
        )

    def _list_step_values(self, steps: Sequence[Step]) -> tuple[Any, ...]:
        """Return the numbers of each step."""
        rows = np.array([step.rows for step in steps], np.float64)
        rates = np.array([step.lr for step in steps], np.float64)
        return rows, rates, list_step_numbers(self._optimizer, steps)

    def _arrays(self, step: Step) -> tuple[Any, ...]:
        """Return the arrays that the loop changes."""
        return (tuple(array.reshape(-1) for array in self._state),)

    def _run(self, *arguments: Any) -> TeamRun:
        """Return the steps that begin now."""
        return TeamRun(*arguments)

    def _locate_segments(self, lanes: Sequence[Sequence[Draw]]) -> NDArray[np.int64]:
        """Return the batches' runs of all own lanes, sorted by step."""
        blocks, lane_parts = 0, list[NDArray[np.int64]]()
        for place, (gather, batches) in enumerate(zip(self._gathers, lanes, strict=True)):
            if gather is None:
                continue
            parts = gather.locate_segments(batches)
            # Batches are numbered by step and then by lane; blocks are numbered across all gathers.
            parts[:, 0] = parts[:, 0] * len(lanes) + place
            parts[:, 1] += blocks
            blocks += len(gather.where)
            lane_parts.append(parts)
        if len(lane_parts) == 1:
            return lane_parts[0]
        joined = np.concatenate(lane_parts)
        return joined[np.argsort(joined[:, 0], kind="stable")]


class TeamRun:
    """Some steps of a team, in progress.

    Attributes
    ----------
    made : int
        Number of steps made.
    losses : ndarray of float64 of shape (n_steps, n_own)
        The summed loss of each own batch before its step.
    seconds : list of float
        Seconds used for the gradients of each own lane.
    """

    def __init__(
        self,
        loop: Any,
        board: SharedBuffer,
        where: NDArray[np.int64],
        segments: NDArray[np.int64],
        counts: NDArray[np.int64],
        of_steps: Sequence[Any],
        loop_arguments: Sequence[Any],
    ) -> None:
        self.losses = np.zeros(counts.shape)
        self._loop, self._board = loop, board
        self._progress = np.zeros(6, np.int64)
        self._busy = np.zeros(counts.shape[1], np.int64)
        batches = counts, self.losses, self._busy, *of_steps
        self._arguments = self._progress, where, segments, batches, *loop_arguments

    def run(self) -> None:
        """Make the steps."""
        board = self._board
        first = board.last_turn + 1
        try:
            # The loop returns False if the others were not ready in time: sleep at the pipe, and
            # enter again.
            while not self._loop(*self._arguments, first, board.loop_arguments):
                board.wait(first + self.turns - 1)
        finally:
            board.count_turns(self.turns, self.n_bytes_written)

    @property
    def turns(self) -> int:
        """Return the number of turns whose own part is written."""
        return self.n_steps_made + int(self._progress[2])

    @property
    def n_bytes_written(self) -> int | None:
        """Return the bytes written in these turns; None: a whole place in each."""
        return None

    @property
    def n_steps_made(self) -> int:
        """Return the number of steps made."""
        return int(self._progress[0])

    @property
    def seconds(self) -> list[float]:
        """Return the seconds for which each lane computed."""
        seconds: list[float] = (self._busy * 1e-9).tolist()
        return seconds
