"""Interface of the engines that run a fit; the result of a fit; and the view of a running fit.

`InProcessEngine` trains in the calling process, `ClusterEngine` on Dask workers. Both run the same
`Trainer`, so both give the same digits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import Block, BlockInfo
from daskml_dist.data.collection import Collection
from daskml_dist.data.feature_scales import FeatureScales
from daskml_dist.data.row_checks import name_column_in_error
from daskml_dist.errors import InvalidParameterError
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers.base import Solution
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.interrupts import Interrupts, raise_interrupt
from daskml_dist.training.spec import FitSpec, Streaming


@dataclass
class FitResult:
    """Result of a fit.

    Parameters
    ----------
    state : ShardState or Solution
        Complete parameters and optimizer state; or the result of a solver.
    records : list of dict
        One per pass.
    stopping : PassStoppingRule
        Stopping rule in its state after the last pass.
    partial_rows : float
        Rows stepped on after the last whole pass (if lanes advance independently).
    dropped : int
        Pushes that came too late or twice, none of which was applied.
    lost_rows : int
        Rows that were permanently lost during the fit.
    events : list of dict
        Changes of membership, in time order.
    interrupted : KeyboardInterrupt or None
        Interrupt that ended the fit, still to be raised; the result is the state at that moment.
    """

    state: ShardState | Solution
    records: list[dict[str, Any]]
    stopping: PassStoppingRule
    partial_rows: float
    dropped: int = 0
    lost_rows: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    interrupted: KeyboardInterrupt | None = None

    def raise_if_interrupted(self, n_passes: int) -> None:
        """Raise the interrupt that ended the fit, once the estimator holds the fit's result."""
        if self.interrupted is not None:
            raise_interrupt(self.interrupted, n_passes)


class RunView:
    """View of a running fit, the `run` argument of callbacks.

    Attributes
    ----------
    run_id : str
    policy_name : str
    max_iter : int or None
        Most passes, if that is known; None in fits by most solvers.
    n_lanes, n_servers : int
        Lanes, and shards of the parameter server.
    trainer_addresses, server_addresses : list of str
        Dask worker addresses of the trainers and of the fit's actors; empty without a cluster.
    lane_addresses : dict of int to str
        Dask worker address of each lane, once it is assigned; empty without a cluster.
    client : distributed.Client or None
        Client of the cluster.
    n_passes : int
        Number of passes that count so far; after a loss this may be fewer than callbacks have seen.
    """

    def __init__(
        self,
        run_id: str,
        fit: FitSpec,
        trainer_addresses: list[str],
        server_addresses: list[str],
        stop: Any,
        client: Any = None,
    ) -> None:
        self.run_id = run_id
        self.policy_name = fit.work.name
        self.max_iter = fit.work.planned_passes
        self.n_lanes = len(fit.rows.lane_rows)
        self.n_servers = len(fit.work.layout.slices()) if fit.work.uses_shards else 0
        self.trainer_addresses = trainer_addresses
        self.server_addresses = server_addresses
        self.lane_addresses: dict[int, str] = {}
        self.client = client
        self.n_passes = fit.work.first_pass
        self.stopped = False
        self._stop = stop
        self._state: ShardState | None = None
        self._fitted: Callable[[ShardState], Any] | None = None
        #: Error that ends the fit, while ``on_fit_end`` is called.
        self.error: BaseException | None = None
        #: Final parameters that a callback has set; None: the last ones of the fit.
        self.ending: NDArray[Any] | None = None

    def stop(self) -> None:
        """End the fit after the current pass; the result counts as a complete fit."""
        self.stopped = True
        self._stop()

    def parameters(self) -> NDArray[Any]:
        """Return a copy of the parameters after the last pass, as the model holds them."""
        if self._state is None:
            raise InvalidParameterError(
                "The parameters of this fit are on its trainers until it ends. Set "
                "needs_parameters = True on the callback that needs them, and use an estimator "
                "trained by gradient steps."
            )
        # Callbacks may change the returned array; the fit's own state must not change.
        return np.copy(self._state.final)

    def estimator(self) -> Any:
        """Return a copy of the estimator, fitted with the parameters after the last pass."""
        w = self.parameters()
        assert self._state is not None
        assert self._fitted is not None
        return self._fitted(self._state.with_final_parameters(w))

    def end_with(self, w: NDArray[Any]) -> None:
        """Replace the final parameters of the fit; to be called in ``on_fit_end``."""
        self.ending = w

    def take_part_end(self, state: ShardState, fitted: Callable[[ShardState], Any] | None) -> None:
        """Store the state at the end of a part of the fit."""
        self._state, self._fitted = state, fitted
        self.forget_run()  # the next part is not begun

    def forget_run(self) -> None:
        """Make :meth:`stop` call nothing: the run has ended, and is not to be kept by this view."""
        self._stop = _do_nothing


def _do_nothing() -> None:
    """Do nothing; used in place of `stop` once the run has ended."""


class Engine(ABC):
    """Base class of engines: holds the rows of one fit and runs it. Use it as a context manager.

    Attributes
    ----------
    interrupts : Interrupts
        Handler of Ctrl-C while the context is entered.
    callbacks : CallbackList
        Callbacks of the fit's phases; the last phase is reported on leaving the context.
    """

    def __init__(self) -> None:
        self.interrupts = Interrupts()
        self.callbacks = CallbackList()
        #: Names of the columns, for errors about values.
        self.feature_names: NDArray[Any] | None = None

    def report_phase(self, phase: str, done: int = 0, total: int | None = None) -> None:
        """Report the current phase of the fit to the callbacks."""
        self.callbacks.on_phase(phase, done, total)

    @property
    @abstractmethod
    def columns(self) -> tuple[int, ...] | None:
        """Return the first column of each lane, and their number; None where lanes hold rows."""

    @abstractmethod
    def cut_columns(self, n_lanes: int | None) -> None:
        """Assign some columns of all rows to each lane; called before blocks are inspected."""

    @abstractmethod
    def cut_keys(self, n_lanes: int | None) -> Collection:
        """Cut the entries of a `KeyedCollection` by ranges of keys, one range per lane."""

    @property
    def remote_key_bytes(self) -> int | None:
        """Return the most bytes that a trainer may use for values of others' keys, or None."""
        return None

    @abstractmethod
    def map_kept_blocks(self, function: Callable[[Block], Any]) -> list[Any]:
        """Return the results of a picklable function of each block that is kept."""

    @abstractmethod
    def map_chosen_blocks(
        self, function: Callable[[Block, Any], Any], arguments: Mapping[int, Any]
    ) -> list[Any]:
        """Return the results of a picklable function of some blocks, in the order of `arguments`.

        `arguments` maps a block's number to the function's second argument. Blocks that are not
        kept are read again.
        """

    @abstractmethod
    def inspect_blocks(self, n_lanes: int | None = None) -> list[BlockInfo]:
        """Make the blocks where the rows lie and return the facts of each.

        Rows in memory may be cut for `n_lanes` lanes, if the user gave that number.
        """

    @abstractmethod
    def choose_lanes(
        self,
        n_lanes: int | None,
        *,
        bytes_per_lane: int | None,
        passes: int,
        device: str = "cpu",
        by_block: bool = False,
    ) -> list[LaneSpec]:
        """Choose the lanes, for a fit of at most `passes` passes.

        In one process, a further lane is worth a thread for each `bytes_per_lane` bytes; None:
        never. If `device`, the name of the fit's device, is a GPU there, the kernels of one lane
        fill it. `by_block`: each block is a lane, unless the user gave a number of lanes.
        """

    @abstractmethod
    def scales(self) -> FeatureScales:
        """Return the scales of all features, in one pass over the rows."""

    @property
    def streaming(self) -> Streaming | None:
        """Return how blocks are read in each pass; None where they are kept."""
        return None

    def reserve_memory(self, reserved_share: float) -> None:  # noqa: B027 (all are held without a cluster)
        """Reserve a share of the memory budget for arrays that trainers compute from blocks."""

    @property
    def row_memory_bytes(self) -> float:
        """Return the bytes of one worker for blocks in memory and arrays computed from rows."""
        return float("inf")

    @property
    def on_one_host(self) -> bool:
        """Return whether the lanes have several workers on one host, which may share memory."""
        return False

    @property
    def history_facts(self) -> dict[str, Any]:
        """Return facts about the placement and movement of the data, for the history."""
        return {}

    @abstractmethod
    def train(self, fit: FitSpec, callbacks: CallbackList) -> FitResult:
        """Run a fit over the lanes chosen by :meth:`choose_lanes`."""

    @abstractmethod
    def close(self) -> None:
        """Release the rows and all resources that the engine opened."""

    def __enter__(self) -> Self:
        self.interrupts.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.columns is None:  # else columns are numbered within a lane's part
            name_column_in_error(error, self.feature_names)
        try:
            # A Ctrl-C during the clean-up is delayed until the clean-up is done, and the callbacks
            # are called in any case.
            with self.interrupts.delay():
                self.close()
        finally:
            try:
                with self.interrupts.delay():
                    self.callbacks.end(error)
            finally:
                self.interrupts.__exit__(kind, error, trace)
