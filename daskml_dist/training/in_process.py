"""Engine without a cluster: one trainer and its servers in the calling process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any, Self

from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.host_threads import count_cores
from daskml_dist.comm.base import Endpoint, WaitBound
from daskml_dist.comm.listener import Credentials
from daskml_dist.comm.server_connections import publish_server
from daskml_dist.data.batches import (
    LaneSpec,
    make_block_lanes,
    make_column_lanes,
    make_even_lanes,
    make_whole_lanes,
)
from daskml_dist.data.blocks import Block, BlockInfo, inspect_block, join_column_infos
from daskml_dist.data.collection import Collection, cut_by_columns
from daskml_dist.data.computing import shield_workers
from daskml_dist.data.feature_scales import (
    FeatureScales,
    compute_block_scales,
    join_scales,
    merge_scales,
)
from daskml_dist.data.keyed.collection import KeyedCollection
from daskml_dist.ps.server import ShardServer
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine, FitResult, RunView
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec
from daskml_dist.training.worker.kept_values import forget_kept_values
from daskml_dist.training.worker.servers import (
    count_fit_servers,
    join_final_states,
    join_interrupted_states,
    make_server,
)
from daskml_dist.training.worker.trainer import Trainer

#: Entries per further lane of keys: below this, starting and synchronizing a thread takes longer
#: than the sums.
ENTRIES_PER_KEY_LANE = 1 << 19


class InProcessEngine(Engine):
    """Engine that trains on rows in the memory of this process.

    Parameters
    ----------
    collection : Collection
        A collection of the kind "memory".
    """

    def __init__(self, collection: Collection) -> None:
        super().__init__()
        self._collection = collection
        self._blocks: dict[int, Block] = {}
        self._lanes: list[LaneSpec] = []
        self._shielding = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        # The Ctrl-C that ends this fit also reaches the idle workers of a cluster.
        self._shielding.enter_context(shield_workers())
        return self

    @property
    def columns(self) -> tuple[int, ...] | None:
        """Return the first column of each lane, and their number; None where lanes hold rows."""
        return self._collection.columns

    def cut_columns(self, n_lanes: int | None) -> None:
        """Assign some columns of all rows to each lane; one lane by default."""
        self._collection = cut_by_columns(self._collection, n_lanes or 1)

    def cut_keys(self, n_lanes: int | None) -> Collection:
        """Cut the entries by ranges of keys; by default one lane per core if that is faster."""
        assert isinstance(self._collection, KeyedCollection)
        if n_lanes is None:
            n_lanes = min(count_cores(), 1 + self._collection.n_entries // ENTRIES_PER_KEY_LANE)
        self._collection = self._collection.cut(n_lanes)
        return self._collection

    def map_kept_blocks(self, function: Callable[[Block], Any]) -> list[Any]:
        """Return the results of a function of each block."""
        return [function(block) for block in self._blocks.values()]

    def map_chosen_blocks(
        self, function: Callable[[Block, Any], Any], arguments: Mapping[int, Any]
    ) -> list[Any]:
        """Return the results of a function of some blocks, each with an argument of its own."""
        return [function(self._blocks[i], argument) for i, argument in arguments.items()]

    def inspect_blocks(self, n_lanes: int | None = None) -> list[BlockInfo]:
        """Make the blocks and return the facts of each."""
        # The same block maker as in Dask's tasks.
        make, parts = self._collection.block_maker, self._collection.parts
        for i, part in enumerate(parts):
            self.report_phase("reading", i, len(parts))
            self._blocks[i] = make(i, *part)
        self.report_phase("reading", len(parts), len(parts))
        infos = [inspect_block(block) for block in self._blocks.values()]
        if self.columns is None:
            return infos
        return join_column_infos(infos, len(self.columns) - 1)

    def choose_lanes(
        self,
        n_lanes: int | None,
        *,
        bytes_per_lane: int | None,
        passes: int,
        device: str = "cpu",
        by_block: bool = False,
    ) -> list[LaneSpec]:
        """Choose one lane by default; up to one per core where threads are faster."""
        rows = {i: block.n_rows for i, block in self._blocks.items()}
        if isinstance(self._collection, KeyedCollection):
            self._lanes = make_whole_lanes(rows, self._collection.lanes or 1)
            return self._lanes
        if self.columns is not None:
            self._lanes = make_column_lanes(rows, len(self.columns) - 1)
            return self._lanes
        if by_block and n_lanes is None:
            self._lanes = make_block_lanes(rows)
            return self._lanes
        # By default one lane; more only if there is enough work for threads.
        if n_lanes is None:
            n_worthwhile = (
                0
                if bytes_per_lane is None
                else sum(b.nbytes for b in self._blocks.values()) // bytes_per_lane
            )
            # A single lane on a GPU: kernels of several lanes would run on parts of the rows, one
            # after the other.
            if n_worthwhile and get_backend(device).device == "gpu":
                n_worthwhile = 0
            n_lanes = max(1, min(count_cores(), sum(rows.values()), 1 + n_worthwhile))
        self._lanes = make_even_lanes(rows, n_lanes)
        return self._lanes

    def scales(self) -> FeatureScales:
        """Return the scales of all features."""
        scales = [compute_block_scales(block) for block in self._blocks.values()]
        return merge_scales(scales) if self.columns is None else join_scales(scales)

    def train(self, fit: FitSpec, callbacks: CallbackList) -> FitResult:
        """Run the fit in the calling thread, and in compute threads where lanes share memory."""
        run_id = uuid.uuid4().hex
        records: list[dict[str, Any]] = []
        # The same servers as on a cluster, called directly (`comm.server_connections`).
        servers = [
            make_server(fit, s, n_trainers=1, on_record=records.append)
            for s in range(count_fit_servers(fit))
        ]
        endpoints = tuple(Endpoint(f"{run_id}-{s}") for s in range(len(servers)))
        # Registered by name, so that the trainer finds them without a socket.
        for endpoint, server in zip(endpoints, servers, strict=True):
            publish_server(endpoint.key, server)
        threads = count_cores() if fit.work.uses_threads else 1
        lanes = tuple(self._lanes)
        clocks = (fit.work.first_clock,) * len(lanes)
        # One trainer of rank 0 in generation 0. It needs no secret and no snapshots, since there is
        # no other process.
        spec = TrainerSpec(
            run_id, 0, 0, 1, 0, lanes, clocks, threads, endpoints, b"", 0, fit.rows.lane_rows
        )
        view = RunView(run_id, fit, [], [], servers[0].stop)
        n_reported = 0

        def report_passes() -> None:
            """Call the callbacks for passes recorded since the last call."""
            # A solver keeps complete states, so its fit may end after any pass.
            if fit.work.remembers_course:
                self.interrupts.raise_pending()
            nonlocal n_reported
            while n_reported < len(records):
                n_reported += 1
                view.n_passes += 1
                with self.interrupts.at_once():
                    callbacks.on_pass_end(view, records[n_reported - 1])

        trainer = Trainer(
            fit, spec, WaitBound(fit.run.timeout), Credentials(b""), "127.0.0.1",
            idle=report_passes, raise_if_stopped=self.interrupts.raise_pending,
        )  # fmt: skip
        try:
            callbacks.on_fit_begin(view)
            callbacks.on_phase("training")
            result = self._run_trainer(trainer, fit)
            report_passes()
        except BaseException as error:
            with self.interrupts.delay():
                # The state can be kept if no step was interrupted: the interrupt came between
                # steps, or from a callback. Solvers keep complete states in any case.
                is_whole = callbacks.has_raised(error) or self.interrupts.was_pending(error)
                interrupted_result = None
                if isinstance(error, KeyboardInterrupt) and (is_whole or fit.work.remembers_course):
                    interrupted_result = _keep_interrupted(
                        fit, servers, trainer.interrupted(), error
                    )
            callbacks.on_fit_end(view, error)
            if interrupted_result is None:
                raise
            return interrupted_result
        finally:
            trainer.close()
            forget_kept_values(run_id)
        callbacks.on_fit_end(view)
        return _make_result(fit, servers, result)

    def _run_trainer(self, trainer: Trainer, fit: FitSpec) -> TrainerResult:
        """Run the trainer; a Ctrl-C waits for the end of a step."""
        # An interrupt is raised between steps only: half a step would leave parameters that no
        # uninterrupted fit has. Solvers keep their last complete state, so they may be interrupted
        # at any point.
        with nullcontext() if fit.work.remembers_course else self.interrupts.between_steps():
            return trainer.run(self._blocks)

    def close(self) -> None:
        """Release the blocks, and end the protection of idle workers."""
        self._blocks = {}
        self._shielding.close()


def _make_result(fit: FitSpec, servers: list[ShardServer], result: TrainerResult) -> FitResult:
    """Return the result of a fit that ended normally."""
    ledger = servers[0].ledger
    assert ledger is not None
    state = join_final_states(fit, [server.state() for server in servers], [result])
    dropped = servers[0].dropped
    return FitResult(state, ledger.records, ledger.rule, ledger.partial_rows, dropped)


def _keep_interrupted(
    fit: FitSpec, servers: list[ShardServer], result: TrainerResult, error: KeyboardInterrupt
) -> FitResult | None:
    """Return the result so far of an interrupted fit; None before the first step."""
    ledger = servers[0].ledger
    assert ledger is not None
    interrupted = join_interrupted_states(fit, [server.state() for server in servers], [result])
    if interrupted is None:
        return None
    partial = ledger.partial_rows + interrupted.rows
    dropped = servers[0].dropped
    return FitResult(
        interrupted.state, ledger.records, ledger.rule, partial, dropped, interrupted=error
    )
