"""Engines: where a fit runs. Both make the same trainer run the same maths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import Block, BlockInfo
from daskml_dist.data.collection import Collection
from daskml_dist.data.feature_scales import FeatureScales
from daskml_dist.data.row_checks import name_column_in_error
from daskml_dist.errors import InvalidParameterError
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers import Solution
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec, Streaming

__all__ = ["Engine", "FitResult", "RunView"]


@dataclass
class FitResult:
    """Result of a fit.

    Parameters
    ----------
    state : ShardState or Solution
        Parameters and optimizer state, whole; what a solver found.
    records : list of dict
        One a pass.
    stopping : StoppingRule
        As the last pass left it.
    partial_rows : float
        Rows stepped on after the last whole pass (lanes at their own pace).
    dropped : int
        Pushes that came too late or twice; none was applied.
    lost_rows : int
        Rows that were lost for good on the way.
    events : list of dict
        Changes of membership, in order.
    interrupted : KeyboardInterrupt or None
        What ended the fit, still to be raised; the result is what it had come to.
    """

    state: ShardState | Solution
    records: list[dict[str, Any]]
    stopping: StoppingRule
    partial_rows: float
    dropped: int = 0
    lost_rows: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    interrupted: KeyboardInterrupt | None = None


class RunView:
    """A running fit, as callbacks see it.

    Attributes
    ----------
    run_id : str
    policy_name : str
    max_iter : int or None
        Passes at most, where that is planned; None in fits by most solvers.
    n_lanes, n_servers : int
        Lanes, and shards of the parameter server.
    trainer_addresses, server_addresses : list of str
        Dask worker addresses of the trainers and of the fit's actors; empty without a cluster.
    lane_addresses : dict of int to str
        Dask worker address of each lane, once it has one; empty without a cluster.
    client : distributed.Client or None
        That of the cluster.
    n_passes : int
        Passes that are made and count; after a loss, fewer than callbacks were told of.
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
        self.max_iter = fit.work.planned
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
        #: What ends the fit, as callbacks are told of its end.
        self.error: BaseException | None = None
        #: Parameters that the fit is to end with; None: those that it came to.
        self.ending: NDArray[Any] | None = None

    def stop(self) -> None:
        """End the fit with the pass that is open; it counts as a whole fit."""
        self.stopped = True
        self._stop()

    def parameters(self) -> NDArray[Any]:
        """Parameters after the last pass, as the model has them; a copy.

        Raises
        ------
        InvalidParameterError
            The fit's parameters stay with its trainers until it ends.
        """
        if self._state is None:
            raise InvalidParameterError(
                "The parameters of this fit are with its trainers until it ends. Set "
                "needs_parameters = True on the callback that asks for them, and use an estimator "
                "that is trained by gradient steps."
            )
        return np.copy(self._state.final)

    def estimator(self) -> Any:
        """A copy of the estimator, fitted with the parameters after the last pass.

        Raises
        ------
        InvalidParameterError
            As :meth:`parameters`.
        """
        w = self.parameters()
        assert self._state is not None
        assert self._fitted is not None
        return self._fitted(self._state.ending_with(w))

    def end_with(self, w: NDArray[Any]) -> None:
        """Have the fit end with other parameters than the last; in ``on_fit_end``."""
        self.ending = w

    def paused(self, state: ShardState, fitted: Callable[[ShardState], Any] | None) -> None:
        """Note that a part of the fit has ended, with such a state."""
        self._state, self._fitted = state, fitted
        self._stop = _nothing  # the next part is not begun


def _nothing() -> None:
    pass


class Engine(ABC):
    """Holder of the rows of one fit, which runs it. Use it as a context manager.

    Attributes
    ----------
    interrupts : Interrupts
        Ctrl-C, from entering the context to leaving it.
    callbacks : CallbackList
        Who is told of the phases of the fit, the last one on leaving the context.
    """

    def __init__(self) -> None:
        self.interrupts = Interrupts()
        self.callbacks = CallbackList()
        #: Names of the columns, for errors about values.
        self.feature_names: NDArray[Any] | None = None

    def tell(self, phase: str, done: int = 0, total: int | None = None) -> None:
        """Tell the callbacks what the fit does now."""
        self.callbacks.on_phase(phase, done, total)

    @property
    @abstractmethod
    def columns(self) -> tuple[int, ...] | None:
        """First column of each lane, and their number, where lanes hold columns; else None."""

    @abstractmethod
    def cut_columns(self, n_lanes: int | None) -> None:
        """Let each lane hold some columns of all rows, before these are looked at.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            The columns cannot be cut so.
        """

    @abstractmethod
    def cut_keys(self, n_lanes: int | None) -> Collection:
        """Cut the entries of a `KeyedCollection` by ranges of keys, one a lane; what came of it."""

    @property
    def room(self) -> int | None:
        """Bytes that a trainer may take for values of others' keys; None: nothing limits them."""
        return None

    @abstractmethod
    def ask(self, function: Callable[[Block], Any]) -> list[Any]:
        """Results of a function of each block, of those that are kept; it is picklable."""

    @abstractmethod
    def look(self, function: Callable[[Block], Any], numbers: list[int]) -> list[Any]:
        """Results of a function of some blocks, which are read anew where they are not kept."""

    @abstractmethod
    def survey(self, n_lanes: int | None = None) -> list[BlockInfo]:
        """Make the blocks where the rows lie and return what the client must know of each.

        Rows in memory may be cut for `n_lanes`, where the user gives it.
        """

    @abstractmethod
    def lanes(
        self, n_lanes: int | None, *, share: int | None, passes: int, device: str = "cpu"
    ) -> list[LaneSpec]:
        """Choose the lanes for a fit of at most so many passes.

        In one process another lane is worth a thread for each `share` bytes; None: never. Where
        `device`, the name of the fit's, is a GPU there, one lane's kernels fill it.
        """

    @abstractmethod
    def scales(self) -> FeatureScales:
        """Scales of all features, in one pass."""

    @property
    def streaming(self) -> Streaming | None:
        """Reading of the blocks in each pass, known with the lanes; None where they are kept."""
        return None

    def leave(self, share: float) -> None:  # noqa: B027 (all are held without a cluster)
        """Leave a share of the budget to what trainers make of blocks; before the survey."""

    @property
    def budget(self) -> float:
        """Bytes of blocks that are held, and of what is made of rows, on one worker."""
        return float("inf")

    @property
    def on_one_host(self) -> bool:
        """Whether the workers of the lanes are several, and may share memory."""
        return False

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the data's way, for the history."""
        return {}

    @abstractmethod
    def train(self, fit: FitSpec, callbacks: CallbackList) -> FitResult:
        """Run a fit over the lanes that :meth:`lanes` chose."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    def __enter__(self) -> Self:
        self.interrupts.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.columns is None:  # else numbers of columns are those of a part of them
            name_column_in_error(error, self.feature_names)
        try:
            with self.interrupts.held():
                self.close()
        finally:
            try:
                with self.interrupts.held():
                    self.callbacks.end(error)
            finally:
                self.interrupts.__exit__(kind, error, trace)
