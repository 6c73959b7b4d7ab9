"""Specification of a fit: what the user asked for, and what the client sends to all trainers.

`RunSettings` (of every fit) and `Settings` (of a fit by gradient steps) are checked parameters, in
which nothing depends on the data. A `FitSpec` holds the rows (`RowsSpec`), the work
(`daskml_dist.training.work`) and the settings of the run (`RunSpec`); nothing in it depends on
workers. A `TrainerSpec` adds what one trainer needs in one generation: its lanes, its rank, and the
addresses of the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import dask
import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Endpoint
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.compression import Compressor
from daskml_dist.data.batches import LaneSpec, count_held_out_rows
from daskml_dist.data.blocks import Block
from daskml_dist.optimizers.base import GroupOptions, Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies.base import Pipeline, Policy
from daskml_dist.ps.shard_state import ShardState, StateParts
from daskml_dist.schedules import Schedule
from daskml_dist.solvers.base import Solution
from daskml_dist.training.dataset_info import DataSummary
from daskml_dist.training.work import FitWork, KeyedWork, OwnRowsWork, RoundWork, StepWork


@dataclass(frozen=True)
class Settings:
    """Checked settings of a fit by gradient steps."""

    penalty: Penalty
    optimizer: Optimizer
    schedule: Schedule
    policy: Policy
    max_iter: int
    tol: float | None
    n_iter_no_change: int
    shuffle: bool
    batch_size: int | Literal["auto"] | None
    validation_fraction: float
    average: int | None
    class_weight: Any
    seed: int
    run: RunSettings
    auto_rate: bool = False
    #: Whether a pilot may tell the start and the rate.
    calibrates: bool = False
    #: Automatic rate in place of the optimizer's own; in units of the targets as that is.
    own_rate: float | None = None
    clip: float | None = None
    micro_batch: int | None = None
    groups: Mapping[str, GroupOptions] | None = None
    dtype: str | None = None
    pipeline: Pipeline | None = None

    @property
    def state_names(self) -> set[str]:
        """Return the names of the optimizers' state arrays."""
        own = [o.optimizer for o in (self.groups or {}).values() if o.optimizer is not None]
        return {name for optimizer in (self.optimizer, *own) for name in optimizer.state_names}

    def dtype_of(self, summary: DataSummary) -> str:
        """Return the dtype of the parameters of a fit to the rows of a summary."""
        return "float32" if self.run.compute_dtype else self.dtype or summary.dtype


@dataclass(frozen=True)
class RunSettings:
    """Checked settings of how a fit runs.

    Parameters
    ----------
    device : {"auto", "cpu", "gpu"}
    n_lanes : int or None
        None: one a worker thread.
    n_servers : int
    deterministic : bool
    compute_dtype : {"float16", "bfloat16"} or None
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory.
    on_lost_data : {"raise", "skip"}
    shard : {"rows", "features"}
    compression : Compressor or None
    name : str
        Of the estimator.
    """

    device: str = "auto"
    n_lanes: int | None = None
    n_servers: int = 1
    deterministic: bool = False
    compute_dtype: str | None = None
    memory_budget: int | None = None
    on_lost_data: str = "raise"
    shard: str = "rows"
    compression: Compressor | None = None
    name: str = "fit"


@dataclass(frozen=True)
class Streaming:
    """Buffer sizes for blocks that do not fit in memory together and are read again in each pass.

    Parameters
    ----------
    group : int
        Blocks of a lane that are in memory, and shuffled, together.
    ahead : int
        Blocks of a lane read ahead of these.
    states : int
        Bytes of the memory of rows (`solvers.RowState`) that a lane holds; of other rows it is made
        again in each pass.
    dense : bool
        Whether no block is sparse.
    """

    group: int
    ahead: int
    states: int = 2**26
    dense: bool = False


@dataclass(frozen=True)
class RowsSpec:
    """Facts about the rows of a fit, by which each trainer prepares its blocks.

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Of the maths.
    rows_dtype : str
        That all blocks are brought to before the model prepares them.
    lane_rows : tuple of int
        Training rows of each lane.
    classes : ndarray or None
        Sorted labels; None for regression.
    class_weight : ndarray of float64 of shape (n_classes,) or None
    weight_scale : float or None
        Factor that makes the mean weight 1; None where rows have no weights.
    streaming : Streaming or None
        None where all blocks are kept in memory.
    validation_fraction : float
        Rows held out; 0 without early stopping.
    compute_dtype : {"float16", "bfloat16"} or None
        How a GPU stores the features of dense rows; None: in `dtype`.
    """

    dtype: str
    rows_dtype: str
    lane_rows: tuple[int, ...]
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None
    weight_scale: float | None
    streaming: Streaming | None = None
    validation_fraction: float = 0.0
    compute_dtype: str | None = None

    def weights(self, block: Block) -> NDArray[Any] | None:
        """Return the weights of a block's rows, class weights included; None where all are 1."""
        if self.weight_scale is None:
            return None
        # The weights multiply: the factor that makes their mean 1, the row's own, and its class's.
        weight = np.full(block.n_rows, self.weight_scale)
        if block.sample_weight is not None:
            weight *= block.sample_weight
        if self.class_weight is not None and self.classes is not None and block.y is not None:
            weight *= self.class_weight[np.searchsorted(self.classes, block.y)]
        return weight.astype(self.dtype)

    def count_lane_rows(self, lanes: Sequence[LaneSpec]) -> tuple[int, ...]:
        """Return the number of training rows of each lane."""
        return count_training_rows(lanes, self.validation_fraction)


def count_training_rows(lanes: Sequence[LaneSpec], held_out: float = 0.0) -> tuple[int, ...]:
    """Return the number of rows of each lane, without the share held out of each block."""
    # Each block holds out its own share, so that no block is left without training rows.
    return tuple(
        sum(len(s) - count_held_out_rows(s, held_out) for s in lane.segments) for lane in lanes
    )


@dataclass(frozen=True)
class RunSpec:
    """Settings of a fit's run.

    Parameters
    ----------
    deterministic : bool
        Sum in lane order, so that lanes may move between workers without changing a bit.
    device : {"auto", "cpu", "gpu"}
    timeout : float
        Seconds that a wait may take.
    on_lost_data : {"raise", "skip"}
    shared_memory : bool
        Whether processes of one host may talk through memory that they share.
    name : str
        Of the estimator; trainers' tasks are named after it.
    """

    deterministic: bool
    device: str
    timeout: float
    on_lost_data: str = "raise"
    shared_memory: bool = True
    name: str = "fit"

    @classmethod
    def of(cls, settings: RunSettings, summary: DataSummary) -> RunSpec:
        """Combine the user's settings with the device on which these rows may be trained."""
        # `dask.config` holds the settings of the cluster: they are the same for every fit of a
        # session.
        return cls(
            settings.deterministic,
            summary.device(settings.device, settings.deterministic),
            float(dask.config.get("daskml_dist.timeout", 300.0)),
            settings.on_lost_data,
            bool(dask.config.get("daskml_dist.shared_memory", True)),
            settings.name,
        )


@dataclass(frozen=True)
class FitSpec:
    """Specification of a fit: its rows, the work on them, and how it runs; independent of workers.

    Parameters
    ----------
    rows : RowsSpec
    work : StepWork, RoundWork, OwnRowsWork or KeyedWork
    run : RunSpec
    """

    rows: RowsSpec
    work: FitWork
    run: RunSpec

    @property
    def steps(self) -> StepWork:
        """Return the work of a fit by gradient steps; used by the loops of steps only."""
        return cast(StepWork, self.work)

    @property
    def rounds(self) -> RoundWork:
        """Return the work of a fit by a round solver; used by the loops of rounds only."""
        return cast(RoundWork, self.work)

    @property
    def keyed_work(self) -> KeyedWork:
        """Return the work of a fit over keys; used by the loop over keys only."""
        return cast(KeyedWork, self.work)

    @property
    def own_rows_work(self) -> OwnRowsWork:
        """Return the work of a solver that trainers run on their own rows."""
        return cast(OwnRowsWork, self.work)

    def make_start_state(self, rows: slice = slice(None)) -> ShardState:
        """Return the state that a range of rows of the parameters begins with."""
        return self.steps.make_start_state(self.rows.dtype, rows)

    def of_lane(self, lane: int) -> FitSpec:
        """Return the fit as one lane sees it: with that lane's columns where lanes hold columns."""
        work = self.work.of_lane(lane)
        # Most work is the same for every lane; then no copy is made.
        return self if work is self.work else replace(self, work=work)

    def replace_work(self, **changes: Any) -> FitSpec:
        """Return a copy of the fit with some fields of its work replaced."""
        return replace(self, work=replace(cast(Any, self.work), **changes))

    def bounds(self, server: int) -> MessageBounds:
        """Return the largest sizes that frames to and from a server may announce."""
        # Frames carry slices of the parameter matrix, or nothing but reports.
        layout = self.work.layout
        n_rows, width = layout.n_rows, layout.width
        # Without shards a server keeps the ledger alone, and frames hold no parameters.
        if self.work.uses_shards:
            rows = layout.slices()[server]
            n_rows = rows.stop - rows.start
        return MessageBounds(self.rows.dtype, n_rows, width, len(self.rows.lane_rows))


@dataclass(frozen=True)
class TrainerSpec:
    """Part of one trainer in one generation of a fit.

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
    snapshot_every : int
        Steps between two snapshots of what trainers hold; 0: none are made.
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
    snapshot_every: int
    lane_rows: tuple[int, ...]

    def listener_key(self, rank: int) -> str:
        """Return the name of the listener of the trainer of a rank in this generation."""
        return f"{self.run_id}-trainer-{rank}-{self.generation}"


@dataclass(frozen=True)
class InterruptedState:
    """State that a trainer leaves behind when its fit is interrupted.

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
    """Result of a trainer: what a solver found, or the state where trainers hold it.

    Parameters
    ----------
    rank : int
    generation : int
        The one that it ended in.
    state : ShardState, StateParts, Solution or None
        From rank 0 alone, but for the parts of the parameters that a trainer holds alone.
    interrupted : bool, default=False
        Whether the client ended the fit before its end.
    left : InterruptedState or None
        Of an interrupted fit, where the trainer holds anything.
    """

    rank: int
    generation: int
    state: ShardState | StateParts | Solution | None = None
    interrupted: bool = False
    left: InterruptedState | None = None
