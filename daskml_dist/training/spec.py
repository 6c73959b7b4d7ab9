"""Specification of a fit: what the user asked for, and what the client sends to all trainers.

`RunSettings` (of every fit) and `Settings` (of a fit by gradient steps) are checked parameters, in
which nothing depends on the data. A `FitSpec` holds the rows (`RowsSpec`), the work (`FitWork`) and
the settings of the run (`RunSpec`); nothing in it depends on workers. A `TrainerSpec` adds what one
trainer needs in one generation: its lanes, its rank, and the addresses of the servers.

The work says what is computed: gradient steps of a model under a policy, or a solver's passes over
the rows. Servers, generations, recovery and reports use the interface of `FitWork` alone; the loop
that `FitWork.loop` names (`daskml_dist.training.worker.loops`) runs one subclass and knows its
fields.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import ConnectionSettings, Endpoint
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.compression import Compressor
from daskml_dist.data.batches import ClientSteps, LaneSpec, count_held_out_rows
from daskml_dist.data.blocks import Block
from daskml_dist.data.computing import configured_flag, configured_number, configured_timeout
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import LinearForm, Model, StepModel
from daskml_dist.optimizers.base import GroupOptions, Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies.base import ArrivalGate, Gate, Pipeline, Policy
from daskml_dist.privacy import DP, PrivateSteps
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardLayout, ShardState, StateParts
from daskml_dist.schedules import Schedule
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.keyed import KeyedSolver
from daskml_dist.solvers.own_rows import RowSolver
from daskml_dist.training.dataset_info import DataSummary


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
    #: Whether a pilot may choose the initial parameters and the rate.
    calibrates: bool = False
    #: Automatic rate in place of the optimizer's default; like that one, in units of the targets.
    own_rate: float | None = None
    clip: float | None = None
    micro_batch: int | None = None
    groups: Mapping[str, GroupOptions] | None = None
    dtype: str | None = None
    pipeline: Pipeline | None = None
    privacy: DP | None = None

    @property
    def state_names(self) -> set[str]:
        """Return the names of the optimizers' state arrays."""
        group_optimizers = [
            o.optimizer for o in (self.groups or {}).values() if o.optimizer is not None
        ]
        return {
            name
            for optimizer in (self.optimizer, *group_optimizers)
            for name in optimizer.state_names
        }

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
        None: one per worker thread.
    n_servers : int
    deterministic : bool
    compute_dtype : {"float16", "bfloat16"} or None
    memory_budget : int or None
        Bytes of blocks on one worker; None: a share of its memory.
    on_lost_data : {"raise", "skip"}
    shard : {"rows", "features"}
    compression : Compressor or None
    name : str
        Name of the estimator.
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
        Bytes of rows' state (`solvers.RowState`) that a lane keeps; the state of other rows is
        computed again in each pass.
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
        Dtype of the computation.
    rows_dtype : str
        Dtype to which all blocks are converted before the model prepares them.
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
        Type in which a GPU stores the features of dense rows; None: `dtype`.
    mean_weight : float
        Mean of the weights, scaled by `weight_scale`: the mean loss of a pass is divided by it.
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
    mean_weight: float = 1.0

    def unscaled(self) -> RowsSpec:
        """Return the same rows, whose weights are used as they are."""
        if self.weight_scale is None:
            return self
        return replace(self, weight_scale=1.0, mean_weight=self.mean_weight / self.weight_scale)

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
        with np.errstate(over="ignore"):
            rounded = weight.astype(self.dtype)
        # Only fits that use weights unscaled (trees) get here with weights of such a size.
        if not np.isfinite(rounded).all():
            raise InvalidDataError(
                f"sample_weight holds {weight.max():g}, which {self.dtype}, the dtype of the rows, "
                "cannot hold. Only the ratios of weights count: pass sample_weight / "
                "sample_weight.max()."
            )
        return rounded


def count_training_rows(lanes: Sequence[LaneSpec], held_out: float = 0.0) -> tuple[int, ...]:
    """Return the number of rows of each lane, without the share held out of each block."""
    # Each block holds out its own share, so that no block is left without training rows.
    return tuple(
        sum(len(s) - count_held_out_rows(s, held_out) for s in lane.segments) for lane in lanes
    )


#: Number of parameters assumed for a growing table where it matters whether there are many.
_TABLE_PARAMETERS = 2**20
#: Steps in a pass from which every pass ends with an uncompressed push. In shorter passes these
#: pushes would be a large share of all, so only the fit ends with one.
COMPRESSED_PASS_STEPS = 32


@dataclass(frozen=True)
class FunctionCall:
    """A user's function that the trainers run in place of a loop over rows.

    Parameters
    ----------
    packed : bytes
        The function and its initial state, pickled: each start unpickles a new copy of both.
    name : str
        Name of the function, for errors.
    is_single : bool
        Whether a block is a single value rather than a tuple of several.
    retries : int or None
        Number of restarts after losses; None: no limit while the function makes progress.
    timeout : float or None
        Seconds that a rank waits for the others in a call; None: the run's timeout.
    """

    packed: bytes = field(repr=False)
    name: str
    is_single: bool = False
    retries: int | None = None
    timeout: float | None = None


@dataclass
class RankResults(Solution):
    """Values that a function has returned on some ranks.

    Parameters
    ----------
    values : dict of int to list of ndarray of uint8
        By rank, the value as `comm.rank_group.pack_value` makes it.
    parameters : ShardState or None
        Parameters that the servers hold at the end.
    """

    values: dict[int, list[NDArray[np.uint8]]] = field(default_factory=dict)
    parameters: ShardState | None = None

    @classmethod
    def join(
        cls, rank_results: Iterable[RankResults], parameters: ShardState | None
    ) -> RankResults:
        """Return the values of all ranks, in rank order."""
        values = {rank: value for result in rank_results for rank, value in result.values.items()}
        return cls(np.empty(0), values=dict(sorted(values.items())), parameters=parameters)


class FitWork(ABC):
    """Base class of the work that the lanes of a fit do.

    Attributes
    ----------
    model : Model
    stopping : PassStoppingRule
        In its initial state.
    n_steps : int
        Steps of each lane in a pass.
    first_pass : int
        Number of passes made before, where the fit is a later part of a longer one.
    seed : int
        Seed of the order of the rows, the held-out rows, and all random draws.
    shuffle : bool
        Whether rows are shuffled before each pass.
    layout : ShardLayout
        Division of the parameters among servers.
    compression : Compressor or None
        Compression of the gradients that lanes push to servers.
    micro_batch : int or None
        Rows of a batch that the model gets at once; None: all of them, or as many as fit in a
        cache.
    step_callbacks : tuple of object
        Called after each step, in the process that makes the step.
    on_host : bool
        Whether rows are read in host memory, whatever the device, unless features lie on the fit's
        GPU already.
    call : FunctionCall or None
        Function that trainers run in place of a built-in loop.
    privacy : PrivateSteps or None
        How rows are drawn, clipped and hidden in noise; None: the fit is not private.
    """

    on_host: ClassVar[bool] = False
    call: FunctionCall | None = None
    privacy: PrivateSteps | None = None
    model: Model
    layout: ShardLayout
    stopping: PassStoppingRule
    n_steps: int
    first_pass: int
    seed: int
    shuffle: bool
    compression: Compressor | None
    micro_batch: int | None
    step_callbacks: tuple[Any, ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the work in the history."""

    @property
    @abstractmethod
    def loop(self) -> str:
        """Return the name of the loop that runs the work, a key of `LOOPS`."""

    @property
    def coordinates(self) -> bool:
        """Return whether a step reads and changes only rows of the parameters named by an index."""
        return False

    @property
    def passes_to_read(self) -> int:
        """Return the most passes over streamed blocks, up to which the next ones are read ahead."""
        return self.stopping.max_iter

    @property
    def planned_passes(self) -> int | None:
        """Return the most passes that the user asked for; None where only a solver bounds them."""
        return self.stopping.max_iter

    @property
    def steps_single_rows(self) -> bool:
        """Return whether each single row is a step."""
        return False

    @property
    def linear(self) -> LinearForm | None:
        """Return the form of a linear model, for compiled steps; None for other models."""
        return None

    @property
    def lockstep(self) -> bool:
        """Return whether all lanes are at the same clock at the end of each pass."""
        return True

    @property
    def keeps_lanes(self) -> bool:
        """Return whether trainers keep their lanes when other trainers are lost."""
        return False

    @property
    def delay_compensation(self) -> float:
        """Return how strongly servers correct gradients that are some updates old."""
        return 0.0

    @property
    def gradient_table(self) -> bool:
        """Return whether servers keep the gradients of all lanes, and step along their mean."""
        return False

    def applies(self, delay: int, n_lanes: int) -> bool:
        """Return whether servers apply a gradient that is `delay` updates old."""
        return True

    @property
    def uses_shards(self) -> bool:
        """Return whether the parameters live in server shards."""
        return False

    @property
    def trainers_communicate(self) -> bool:
        """Return whether trainers send messages to each other."""
        return True

    @property
    def uses_threads(self) -> bool:
        """Return whether a fit in one process uses one lane per compute thread."""
        return True

    @property
    def sends_in_pairs(self) -> bool:
        """Return whether trainers exchange messages in pairs, as pipelines do."""
        return False

    @property
    def remembers_course(self) -> bool:
        """Return whether every trainer holds a state from which the fit can be recovered."""
        return False

    @property
    @abstractmethod
    def carried_bytes(self) -> int:
        """Return the bytes of the initial parameters that travel with the specification."""

    def of_lane(self, lane: int) -> FitWork:
        """Return the work of a lane, by its number."""
        return self

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine that decides when a pass of all lanes is complete."""
        return ArrivalGate(lanes, clock)

    @property
    def clients(self) -> tuple[ClientSteps, ...]:
        """Return the steps of each lane in a round that draws it; empty: all make all steps."""
        return ()

    @property
    def score_names(self) -> tuple[str, ...]:
        """Return the keys of the scores that a loop reports with its passes."""
        return ()

    @property
    def first_clock(self) -> int:
        """Return the clock (steps of a lane) at which every lane starts."""
        return self.first_pass * self.n_steps

    def passes(self, clock: int) -> range:
        """Return the numbers (from 1) of the passes still to make or report, from a clock on.

        A pass that ends exactly at the clock is included: it may not have been reported yet.
        """
        # Ceiling division: the number of the pass that the clock is in, or at the end of.
        first = max(self.first_pass + 1, -(-clock // self.n_steps))
        return range(first, self.stopping.max_iter + 1)


@dataclass(frozen=True)
class StepWork(FitWork):
    """Gradient steps of a model under a policy.

    Parameters
    ----------
    model : StepModel
    policy : Policy
    rule : UpdateRule
    layout : ShardLayout
    stopping : PassStoppingRule
    n_steps : int
    seed : int
    shuffle : bool
    initial : ShardState or None
        Parameters, and optimizer state if any, to begin with (arrays, or `MostlyEqualRows`, of
        which `make_start_state` makes arrays); None: the model's initial parameters.
    first_pass : int, default=0
    single_rows : bool, default=False
        Whether each row of a batch is a step of its own.
    compression : Compressor or None
    micro_batch : int or None
    step_callbacks : tuple of object
    pipeline : Pipeline or None
        Division of the layers of a `StagedModel` into stages.
    columns : tuple of int, or None
        First column of each lane, and then the number of columns, where each lane has some columns
        of all rows (of a `ColumnModel`); None: each lane has all columns of some rows.
    call : FunctionCall or None
        A function that does its own pushes and pulls.
    clients : tuple of ClientSteps, default=()
        Steps of each lane in a pass (here a round) that draws it; empty: all lanes make all steps.
    privacy : PrivateSteps or None
    """

    model: StepModel
    policy: Policy
    rule: UpdateRule
    layout: ShardLayout
    stopping: PassStoppingRule
    n_steps: int
    seed: int
    shuffle: bool
    initial: ShardState | None
    first_pass: int = 0
    single_rows: bool = False
    compression: Compressor | None = None
    micro_batch: int | None = None
    step_callbacks: tuple[Any, ...] = ()
    pipeline: Pipeline | None = None
    columns: tuple[int, ...] | None = None
    call: FunctionCall | None = None
    clients: tuple[ClientSteps, ...] = ()
    privacy: PrivateSteps | None = None

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def loop(self) -> str:
        return self.policy.loop if self.call is None else "function"

    @property
    def coordinates(self) -> bool:
        return self.rule.coordinates

    @property
    def steps_single_rows(self) -> bool:
        return self.single_rows

    @property
    def linear(self) -> LinearForm | None:
        # Compiled steps read whole rows.
        return self.model.linear if self.columns is None else None

    @property
    def lockstep(self) -> bool:
        return self.policy.lockstep

    @property
    def uses_shards(self) -> bool:
        return self.policy.uses_shards

    @property
    def trainers_communicate(self) -> bool:
        return self.policy.trainers_communicate or self.call is not None

    @property
    def uses_threads(self) -> bool:
        return self.policy.uses_threads

    @property
    def sends_in_pairs(self) -> bool:
        return self.pipeline is not None

    @property
    def keeps_lanes(self) -> bool:
        return self.policy.keeps_lanes and self.call is None

    @property
    def delay_compensation(self) -> float:
        return self.policy.delay_compensation

    @property
    def gradient_table(self) -> bool:
        return self.policy.gradient_table

    def applies(self, delay: int, n_lanes: int) -> bool:
        return self.policy.applies(delay, n_lanes)

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        return self.policy.gate(lanes, clock)

    @property
    def server_rule(self) -> UpdateRule:
        """Return the rule by which servers apply the pushes of lanes."""
        return self.rule.of_averaging_servers if self.policy.averages_on_servers else self.rule

    @property
    def held_rule(self) -> UpdateRule:
        """Return the rule of the rows that trainers hold, under one policy per part of a model."""
        policy, rule = self.policy, self.rule
        (group,) = rule.groups
        # Trainers count the steps of all lanes together; servers count the steps of each lane.
        return replace(
            rule,
            groups=(replace(group, optimizer=policy.optimizer_of_dense or group.optimizer),),
            schedule=policy.dense_schedule or rule.schedule,
            steps_per_pass=float(self.n_steps),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the parameter matrix."""
        return self.model.parameters.shape

    @property
    def n_parameters(self) -> int:
        """Return the number of parameters; of a growing table, an assumed large number."""
        if self.model.table is not None:
            return _TABLE_PARAMETERS
        return math.prod(self.shape)

    @property
    def carried_bytes(self) -> int:
        """Return the bytes of the initial parameters that travel with the specification."""
        return _count_call_bytes(self.call) + (0 if self.initial is None else self.initial.w.nbytes)

    def rows_of(self, lane: int) -> slice:
        """Return the rows of the parameters that belong to a lane's columns."""
        assert self.columns is not None
        # The plan has checked that the model is a `ColumnModel`.
        # `columns` has one entry more than there are lanes: two neighbours bound a lane's columns.
        model: Any = self.model
        rows: slice = model.rows_of_columns(*self.columns[lane : lane + 2])
        return rows

    def of_lane(self, lane: int) -> StepWork:
        """Return the work of a lane: restricted to its columns where lanes hold columns."""
        if self.columns is None:
            return self
        model: Any = self.model
        part = model.of_columns(*self.columns[lane : lane + 2])
        # A lane steps the parameters of its own columns alone; `make_start_state` copies them.
        initial = None if self.initial is None else self.initial.view(self.rows_of(lane))
        # The loss of a step is counted by the last lane only, so only that lane calls the step
        # callbacks.
        callbacks = self.step_callbacks if lane == len(self.columns) - 2 else ()
        return replace(self, model=part, initial=initial, step_callbacks=callbacks)

    def pushes_uncompressed(self, clock: int) -> bool:
        """Return whether the push that ends a lane's step `clock` is sent without compression.

        This is at the end of each pass, or only of the last pass if a pass has few steps.
        """
        # Error feedback: compressors add the error of each push to the next one, so an uncompressed
        # push delivers everything that earlier pushes left out.
        passes, steps_of_pass = divmod(clock, self.n_steps)
        return steps_of_pass == 0 and (
            self.n_steps >= COMPRESSED_PASS_STEPS or passes >= self.stopping.max_iter
        )

    def make_start_state(self, dtype: Any, rows: slice = slice(None)) -> ShardState:
        """Return the initial state of some rows of the parameters, such as those of one server."""
        if self.initial is not None:
            return self.initial.slice_rows(rows)
        if self.model.table is not None:  # no id is known yet
            return ShardState(np.empty((0, self.shape[1]), dtype), {})
        # Drawn from the seed: each server creates its own rows, so none are sent.
        return ShardState(self.model.init_rows(rows, self.seed, dtype), {})

    def make_fresh_state(self, learned: ShardState, parameters: bool) -> ShardState:
        """Return a state without steps, of the learned parameters or (`parameters`) of new ones."""
        start = ShardState(learned.w, {}, ids=learned.ids)
        if parameters:
            start = replace(self, initial=None).make_start_state(learned.w.dtype)
        if "scale" in learned.opt_state:
            # The features keep their units, even if the parameters are learned again.
            opt_state = self.rule.init(start.w) | {"scale": learned.opt_state["scale"]}
            return replace(start, opt_state=opt_state)
        return start


class SolverWork(FitWork):
    """Base class of a solver's work: servers hold no parameters, only the ledger of passes."""

    # For the ledger, a pass is one step over all rows in order: there are no batches, and no
    # gradients are pushed.
    layout: ClassVar[ShardLayout] = ShardLayout(0, 0, 1)  # type: ignore[misc]
    n_steps: ClassVar[int] = 1  # type: ignore[misc]
    shuffle: ClassVar[bool] = False  # type: ignore[misc]
    compression: ClassVar[None] = None  # type: ignore[misc]
    micro_batch: ClassVar[None] = None  # type: ignore[misc]
    step_callbacks: ClassVar[tuple[Any, ...]] = ()  # type: ignore[misc]
    #: Every trainer runs the solver, or holds the log of its sums.
    remembers_course = True

    @property
    def planned_passes(self) -> int | None:
        """Return None: `max_passes` also counts line searches, and a fit rarely uses all."""
        return None

    @property
    def carried_bytes(self) -> int:
        return 0


@dataclass(frozen=True)
class FunctionWork(SolverWork):
    """A user's function that all trainers run together.

    Parameters
    ----------
    model : Model
        Unused by this work.
    stopping : PassStoppingRule
    call : FunctionCall
    seed : int, default=0
    """

    model: Model
    stopping: PassStoppingRule
    call: FunctionCall | None = None
    seed: int = 0
    first_pass: int = 0
    name = "function"
    loop = "function"

    @property
    def carried_bytes(self) -> int:
        """Return the bytes of the function and its initial state."""
        return _count_call_bytes(self.call)


def _count_call_bytes(call: FunctionCall | None) -> int:
    """Return the bytes of a function and its initial state; 0 if there is none."""
    return 0 if call is None else len(call.packed)


@dataclass(frozen=True, kw_only=True)
class ResumableWork(SolverWork):
    """Base class of a solver's work that can pause, be written to a checkpoint, and continue.

    Parameters
    ----------
    first_pass : int, default=0
        Number of passes already made, if the fit continues a longer one.
    log : ndarray of uint8, or None
        State after these passes, as the loop packs it; None at the start of a fit.
    pause_at : int or None
        Number of passes after which the fit pauses, so that it can be continued later.
    is_stopped : bool, default=False
        Whether the user has already ended the fit.
    """

    # Keyword-only (`kw_only`), so that subclasses can add fields without defaults after these.
    first_pass: int = 0
    log: NDArray[np.uint8] | None = None
    pause_at: int | None = None
    is_stopped: bool = False

    @property
    def carried_bytes(self) -> int:
        """Return the bytes of the log that travel with the specification."""
        return 0 if self.log is None else self.log.nbytes


@dataclass(frozen=True)
class RoundWork(ResumableWork):
    """Rounds of a solver, each of which needs one sum over all rows.

    Parameters
    ----------
    model : Model
    solver : Solver
    shape : tuple of int or None
        Shape of the parameters; None where the solver's result has no parameter matrix.
    start : ndarray or None
        Initial parameters; None: zeros if there is a shape.
    stopping : PassStoppingRule
    in_ranges : bool, default=False
        Whether each trainer holds a range of the solver's vectors.
    seed : int, default=0
        Seed of the random numbers that statistics draw.
    first_pass, log, pause_at, is_stopped
        As in `ResumableWork`; a pass is one sum, and the log is `SumLog.packed`.
    """

    model: Model
    solver: Solver
    shape: tuple[int, ...] | None
    start: NDArray[Any] | None
    stopping: PassStoppingRule
    in_ranges: bool = False
    seed: int = 0
    name = "rounds"

    @property
    def loop(self) -> str:
        return "ranges" if self.in_ranges else "solver"

    @property
    def carried_bytes(self) -> int:
        """Return the bytes of log and initial parameters that travel with the specification."""
        return super().carried_bytes + (0 if self.start is None else self.start.nbytes)

    def first(self) -> NDArray[np.float64] | None:
        """Return a new array of the initial parameters; None for solvers without parameters."""
        if self.start is not None:
            # A copy, since a solver may write to its start.
            return self.start.astype(np.float64)
        return None if self.shape is None else np.zeros(self.shape)


@dataclass(frozen=True)
class OwnRowsWork(ResumableWork):
    """Iterations of a solver that all trainers run together, each on its own rows.

    Parameters
    ----------
    model : Model
    solver : RowSolver
    stopping : PassStoppingRule
    first_rows : ndarray of int64 of shape (n_blocks,)
        Number of each block's first row among all rows.
    seed : int, default=0
    budget : float, default=inf
        Memory of one worker, in bytes, for blocks and the arrays that the solver makes of them.
    row_bytes : float, default=0
        Mean size of a row in blocks in memory, in bytes; 0 where blocks are streamed.
    first_pass, log, pause_at, is_stopped
        As in `ResumableWork`; passes are iterations.
    """

    model: Model
    solver: RowSolver
    stopping: PassStoppingRule
    first_rows: NDArray[np.int64]
    seed: int = 0
    budget: float = float("inf")
    row_bytes: float = 0.0
    #: The solver reads the rows again by seeking to their start.
    passes_to_read = 1
    name = "own rows"
    loop = "own_rows"

    @property
    def planned_passes(self) -> int:
        """Return the most iterations (trees, for boosting) of the solver."""
        return self.solver.max_passes

    @property
    def score_names(self) -> tuple[str, ...]:
        return self.solver.score_names

    # The solver reads rows on the host, and moves its own arrays to the device. Features that are
    # on a GPU stay there.
    on_host: ClassVar[bool] = True


@dataclass(frozen=True)
class KeyedWork(SolverWork):
    """Iterations of a solver over values of keys, which all trainers run together.

    Parameters
    ----------
    model : Model
    solver : KeyedSolver
    stopping : PassStoppingRule
    seed : int, default=0
    remote_key_bytes : int, optional
        Bytes that a trainer may use for copies of values that its entries touch and other trainers
        own, apart from copies in transit. Default: no limit.
    """

    model: Model
    solver: KeyedSolver
    stopping: PassStoppingRule
    seed: int = 0
    first_pass: int = 0
    remote_key_bytes: int | None = None
    name = "keys"
    loop = "keyed"


#: Share of `daskml_dist.lease` after which a connection without acknowledgements counts as silent:
#: 1 s of a lease of 3 s. In this time Linux sends a packet three times (again after 0.2 and 0.6 s).
_SILENCE_SHARE = 1 / 3


def configured_lease() -> float:
    """Return the seconds without a sign of life after which a worker counts as lost."""
    return configured_number("daskml_dist.lease", 3.0)


def configured_connections() -> ConnectionSettings:
    """Return the connection settings of a run, from the client's configuration."""
    return ConnectionSettings(
        configured_flag("daskml_dist.shared_memory", True),
        _SILENCE_SHARE * configured_lease(),
    )


@dataclass(frozen=True)
class RunSpec:
    """Settings of a fit's run.

    Parameters
    ----------
    deterministic : bool
        Whether sums are made in lane order, so that lanes may move between workers without changing
        a bit.
    device : {"auto", "cpu", "gpu"}
    timeout : float
        Most seconds that any wait may take.
    on_lost_data : {"raise", "skip"}
    connections : ConnectionSettings
    name : str
        Name of the estimator; trainers' tasks are named after it.
    memory_budget : int or None
        Bytes of blocks, and of rows of tables, on one worker; None: a share of its memory.
    """

    deterministic: bool
    device: str
    timeout: float
    on_lost_data: str = "raise"
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    name: str = "fit"
    memory_budget: int | None = None

    @classmethod
    def from_settings(cls, settings: RunSettings, summary: DataSummary) -> RunSpec:
        """Combine the user's settings with the device on which these rows may be trained."""
        # `dask.config` holds settings of the cluster, which are the same for all fits of a session.
        return cls(
            settings.deterministic,
            summary.device(settings.device, settings.deterministic),
            configured_timeout(),
            settings.on_lost_data,
            configured_connections(),
            settings.name,
            settings.memory_budget,
        )


@dataclass(frozen=True)
class FitSpec:
    """Specification of a fit: its rows, the work on them, and how it runs; independent of workers.

    Parameters
    ----------
    rows : RowsSpec
    work : FitWork
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
        """Return the initial state of a range of rows of the parameters."""
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
        # Frames carry slices of the parameter matrix, or reports only.
        layout = self.work.layout
        n_rows, width = layout.n_rows, layout.width
        # Without shards a server keeps only the ledger, and frames hold no parameters.
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
        Number of the trainer, the same in all generations.
    rank, n_trainers, generation : int
    lanes : tuple of LaneSpec
    clocks : tuple of int
        Clock from which each lane continues.
    n_threads : int
        Compute threads of the trainer.
    servers : tuple of Endpoint
    secret : bytes
        Secret shared by the sockets of the run.
    snapshot_every : int
        Steps between two snapshots of the state that trainers hold; 0: no snapshots are made.
    lane_rows : tuple of int
        Training rows of each lane; fewer than at first where blocks were lost for good.
    addresses : tuple of str, default=()
        Dask address of each rank's worker.
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
    addresses: tuple[str, ...] = ()

    def listener_key(self, rank: int) -> str:
        """Return the name of the listener of the trainer of a rank in this generation."""
        return f"{self.run_id}-trainer-{rank}-{self.generation}"


@dataclass(frozen=True)
class InterruptedState:
    """State that a trainer leaves behind when its fit is interrupted.

    Parameters
    ----------
    state : ShardState or Solution
        Average of the states of the trainer's lanes; or the last point that a solver kept.
    row_share : float
        The trainer's share of the fit's rows.
    rows : float
        Rows that the trainer has stepped on but not reported.
    """

    state: ShardState | Solution
    row_share: float = 1.0
    rows: float = 0.0


@dataclass
class TrainerResult:
    """Result of a trainer: the result of a solver, or the state where trainers hold it.

    Parameters
    ----------
    rank : int
    generation : int
        Generation in which the trainer ended.
    state : ShardState, StateParts, Solution or None
        From rank 0 only, except for the parts of the parameters that only this trainer holds.
    interrupted : bool, default=False
        Whether the client ended the fit before its end.
    interrupted_state : InterruptedState or None
        State of an interrupted fit, if the trainer holds any.
    moved : tuple of int
        Bytes sent to, and received from, other trainers since the last pass was reported.
    """

    rank: int
    generation: int
    state: ShardState | StateParts | Solution | None = None
    interrupted: bool = False
    interrupted_state: InterruptedState | None = None
    moved: tuple[int, int] = (0, 0)

    def is_whole(self, generation: int) -> bool:
        """Return whether the trainer has finished its whole part in a generation."""
        return not self.interrupted and self.generation == generation
