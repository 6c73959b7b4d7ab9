"""What a fit is: the maths (`FitSpec`), and one trainer's part of it (`TrainerSpec`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Endpoint
from daskml_dist.comm.bounds import Bounds
from daskml_dist.compression import Compressor
from daskml_dist.data.batches import LaneSpec, held_out_rows
from daskml_dist.models.base import Model, StepModel
from daskml_dist.policies import Policy
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers import Solution, Solver

__all__ = ["FitSpec", "Left", "Streaming", "TrainerResult", "TrainerSpec"]

#: Steps of a pass from which on the last push of every pass is not compressed.
_MANY_STEPS = 32


@dataclass(frozen=True)
class Streaming:
    """How blocks that do not fit in memory together are read in each pass.

    Parameters
    ----------
    group : int
        Blocks of a lane that are in memory, and shuffled, together.
    ahead : int
        Blocks of a lane read ahead of these.
    states : int
        Bytes of the memory of rows (`solvers.RowState`) that a lane holds; of other rows it is made
        again in each pass.
    """

    group: int
    ahead: int
    states: int = 2**26


@dataclass(frozen=True)
class FitSpec:
    """The maths of a fit; nothing here depends on workers.

    Parameters
    ----------
    model : Model
    policy : Policy
    rule : UpdateRule
    layout : Layout
    stopping : StoppingRule
        In its initial state.
    dtype : {"float32", "float64"}
    seed : int
    lane_rows : tuple of int
        Training rows of each lane.
    n_steps : int
        Steps of each lane in a pass.
    shuffle : bool
    validation_fraction : float
        Rows held out; 0 without early stopping.
    deterministic : bool
        Sum in lane order, so that lanes may move between workers without changing a bit.
    device : {"auto", "cpu", "gpu"}
    classes : ndarray or None
        Sorted labels; None for regression.
    class_weight : ndarray of float64 of shape (n_classes,) or None
    weight_scale : float or None
        Factor that makes the mean weight 1; None where rows have no weights.
    initial : ShardState or None
        Whole state to go on from; None starts at zero.
    timeout : float
        Seconds that a wait may take.
    first_pass : int, default=0
        Passes made before, where the fit is a later part of a longer one.
    streaming : Streaming or None
        None where all blocks are kept in memory.
    on_lost_data : {"raise", "skip"}
    solver : Solver or None
        Whose questions the lanes answer, under the policy `Rounds`; None: they make steps.
    shared_memory : bool
        Whether processes of one host may talk through memory that they share.
    single_rows : bool, default=False
        Whether each row of a batch is an update of its own.
    compression : Compressor or None
        What pushes to servers are compressed with.
    compute_dtype : {"float16", "bfloat16"} or None
        How a GPU stores the features of dense rows; None: in `dtype`.
    micro_batch : int or None
        Rows of a batch that the model is given at once; None: all of them, or what a cache holds.
    step_callbacks : tuple of object
        Told of each step, where it is made.
    """

    model: Model
    policy: Policy
    rule: UpdateRule
    layout: Layout
    stopping: StoppingRule
    dtype: str
    seed: int
    lane_rows: tuple[int, ...]
    n_steps: int
    shuffle: bool
    validation_fraction: float
    deterministic: bool
    device: str
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None
    weight_scale: float | None
    initial: ShardState | None
    timeout: float
    first_pass: int = 0
    streaming: Streaming | None = None
    on_lost_data: str = "raise"
    solver: Solver | None = None
    shared_memory: bool = True
    single_rows: bool = False
    compression: Compressor | None = None
    compute_dtype: str | None = None
    micro_batch: int | None = None
    step_callbacks: tuple[Any, ...] = ()

    @property
    def step_model(self) -> StepModel:
        """The model of a fit by steps, which has gradients."""
        assert isinstance(self.model, StepModel)
        return self.model

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the parameters that servers hold; of no step model: nothing."""
        model = self.model
        return model.parameters.shape if isinstance(model, StepModel) else (0, 0)

    @property
    def first_clock(self) -> int:
        """Clock at which every lane starts."""
        return self.first_pass * self.n_steps

    def passes(self, clock: int) -> range:
        """Numbers of the passes to make at most, from a clock on.

        One that ends at the clock is among them: it may not have been reported yet.
        """
        first = max(self.first_pass + 1, -(-clock // self.n_steps))
        return range(first, self.stopping.max_iter + 1)

    def pushes_whole(self, clock: int) -> bool:
        """Whether the push that ends a lane's step `clock` goes without compression.

        It takes along all that was left out before: at the end of each pass, or, where a pass has
        few steps, of the last one.
        """
        passes, rest = divmod(clock, self.n_steps)
        return rest == 0 and (self.n_steps >= _MANY_STEPS or passes >= self.stopping.max_iter)

    def start_state(self, rows: slice = slice(None)) -> ShardState:
        """Fresh state of some rows of the parameters."""
        if self.initial is not None:
            return self.initial.part(rows)
        return ShardState(self.step_model.init(self.seed, self.dtype)[rows, :].copy(), {})

    def bounds(self, server: int) -> Bounds:
        """What frames to and from a server may hold."""
        n_rows, width = self.shape
        if self.policy.uses_shards:
            rows = self.layout.slices()[server]
            n_rows = rows.stop - rows.start
        return Bounds(self.dtype, n_rows, width, len(self.lane_rows))

    def rows_of(self, lanes: Sequence[LaneSpec]) -> tuple[int, ...]:
        """Training rows of each lane."""
        fraction = self.validation_fraction
        return tuple(
            sum(len(s) - held_out_rows(s, fraction) for s in lane.segments) for lane in lanes
        )


@dataclass(frozen=True)
class TrainerSpec:
    """One trainer's part of a fit.

    Parameters
    ----------
    run_id : str
    name : int
        Of the trainer, the same in all generations.
    rank, n_trainers, generation : int
    lanes : tuple of LaneSpec
    clocks : tuple of int
        Clock that each lane goes on from.
    n_threads : int
        Compute threads of the trainer.
    servers : tuple of Endpoint
    secret : bytes
        Shared by the sockets of the run.
    shadow_every : int
        Steps between two images of what trainers hold; 0: none are made.
    lane_rows : tuple of int
        Training rows of each lane; fewer than at first where blocks were lost for good.
    """

    run_id: str
    name: int
    rank: int
    n_trainers: int
    generation: int
    lanes: tuple[LaneSpec, ...]
    clocks: tuple[int, ...]
    n_threads: int
    servers: tuple[Endpoint, ...]
    secret: bytes = field(repr=False)
    shadow_every: int
    lane_rows: tuple[int, ...]

    def peer_key(self, rank: int) -> str:
        """Name of the listener of a trainer of this generation."""
        return f"{self.run_id}-trainer-{rank}-{self.generation}"


@dataclass(frozen=True)
class Left:
    """What a trainer leaves behind whose fit was interrupted.

    Parameters
    ----------
    state : ShardState or Solution
        Where its lanes have come to, averaged; the last point that a solver kept.
    share : float
        Its share of the fit's rows.
    rows : float
        Rows that it has stepped on and not reported.
    """

    state: ShardState | Solution
    share: float = 1.0
    rows: float = 0.0


@dataclass
class TrainerResult:
    """What a trainer hands back: what a solver found, or the state where trainers hold it.

    Parameters
    ----------
    rank : int
    generation : int
        The one that it ended in.
    state : ShardState, Solution or None
        From rank 0 alone.
    interrupted : bool, default=False
        Whether the client ended the fit before its end.
    left : Left or None
        Of an interrupted fit, where the trainer holds anything.
    """

    rank: int
    generation: int
    state: ShardState | Solution | None = None
    interrupted: bool = False
    left: Left | None = None
