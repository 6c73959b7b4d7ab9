"""Linear models by gradient steps."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, ClassVar

from daskml_dist.data.batches import LaneSpec, Segment, count_pass_steps
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.linear import LinearModel
from daskml_dist.planning.costs import Costs, Equation, PackedMessage, Work
from daskml_dist.planning.families.base import Family, Probe
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.policies import get_policy
from daskml_dist.policies.base import Policy
from daskml_dist.training.job import INLINE
from daskml_dist.training.learning_rate_search import choose_sample_size
from daskml_dist.training.plan import choose_batch_rows, largest_batch_rows
from daskml_dist.training.spec import Settings

#: Limits of the first steps of a fit, which run before the compiled gathers of batches are loaded:
#: most steps, and most entries in their rows.
_EARLY_STEPS, _EARLY_ENTRIES = 1 << 10, 1 << 26
#: Policies that a plan compares with the estimator's own, and policies whose steps are equal.
_COMPARED_POLICIES = ("sync", "async", "local", "average")
_EQUAL_POLICIES = {"sync": {"sync", "allreduce"}, "allreduce": {"sync", "allreduce"}}
#: Shapes of probes: rows per lane, features, rows of a batch, and outputs for more than two
#: classes. The first one measures early steps, under each policy; the others measure later steps.
_PROBE_SHAPES = (
    (10000, 8, 64, 3), (20000, 8, 512, 3), (20000, 64, 256, 3), (3000, 1000, 256, 10),
)  # fmt: skip
#: Rows and features of probes of the costs outside passes: first with almost no rows; then with so
#: many that the pilot's sample is a small part of them and no cache holds them; and the rows of a
#: batch of the latter.
_EMPTY_SHAPE, _LARGE_SHAPE, _LARGE_BATCH = (1000, 8), (500_000, 16), 1024
#: Passes of the probe of early steps; the first of them fills the processor's caches.
_EARLY_PASSES = 3
#: Bytes of rows that no cache of a usual processor holds, and bytes that are read from memory in
#: the time of one access to a random address.
_CACHE_BYTES, _ACCESS_BYTES = 1 << 23, 256
#: Number of lanes from which a probe has fewer rows per lane.
_MAX_FULL_LANES = 8
#: Passes after the early steps, and most passes of a probe.
_LATE_PASSES, _MAX_PASSES = 3, 80
#: Passes of fits to a part of sparse rows.
_DRAWN_PASSES = 4


class LinearStepsFamily(Family):
    """Linear models by gradient steps, with rows divided among the lanes.

    Counts of a pass are the steps of each lane, and rows and entries times the outputs. The pilot,
    which searches for a learning rate on a sample, runs before the first pass. The first steps of a
    fit are slower than later ones, so they are counted separately.
    """

    kind = "linear models by gradient steps"
    estimators = ("BaseSGD",)
    computing = frozenset({"sample", "early", "copy", "row", "far", "entry"})
    usual: ClassVar = {
        "fit": 2e-3, "read": 1e-9, "sample": 4e-8, "pass": 1e-4, "early": 2e-5, "copy": 1e-9,
        "step": 5e-6, "row": 5e-9, "far": 4e-8, "entry": 2e-10,
    }  # fmt: skip
    usual_cluster_costs: ClassVar = {"fit": 0.1, "read": 4e-9, "pass": 1e-3, "step": 6e-5}
    bytes_per_thread = 0
    takes_sparse = True
    #: The estimator of the current plan, and its settings, since checking them is slow.
    _cached_settings: tuple[weakref.ref[Any], Settings] | None = None

    def check(self, estimator: Any) -> None:
        """Check the parameters, and refuse those for which the cost model does not hold.

        The checked settings are kept for later calls with the same estimator.
        """
        self._cached_settings = None
        settings = self._settings(estimator)
        self._cached_settings = weakref.ref(estimator), settings
        policy = settings.policy
        if policy.uses_threads or policy.draws_lanes or settings.run.shard == "features":
            by_policy = policy.uses_threads or policy.draws_lanes
            option = policy.name if by_policy else "shard='features'"
            raise InvalidParameterError(
                f"There are no plans for {option}: its cost does not follow from steps, rows and "
                "entries. Use another policy, with rows in the lanes, or measure a fit of a "
                "part of the rows."
            )

    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts of a fit.

        Rows are divided among the trainers, each with some lanes.
        """
        settings = self._settings(estimator)
        model = self._model(estimator, rows)
        lanes = _make_lane(rows, place)
        batch = choose_batch_rows(settings.batch_size, lanes, None, largest_batch_rows(model))
        size = min(batch or lanes[0].n_rows, lanes[0].n_rows)
        steps = count_pass_steps(lanes, batch, settings.validation_fraction)
        has_pilot = settings.auto_rate and settings.calibrates
        sample = choose_sample_size(rows.n_rows, model, 1.0) if has_pilot else 0
        share, d, width = rows.n_rows / place.trainers, rows.row_entries, model.width
        early = int(min(_EARLY_STEPS, _EARLY_ENTRIES // max(size * d, 1)))
        # Rows are read in random order: each costs a random memory access if no cache holds them.
        row_bytes = d * rows.itemsize
        far_accesses = 0.0
        if share * row_bytes > _CACHE_BYTES:
            far_accesses = share * (1 + row_bytes / _ACCESS_BYTES)
        setup = {
            "fit": 1.0,
            "read": float(rows.n_rows * d),
            "sample": float(sample * d * width),
        }
        if rows.entries is None:  # batches of sparse rows are not gathered
            setup["early"] = min(early, passes * steps)
            setup["copy"] = min(early, passes * steps) * size * d
        return Work(
            setup,
            {
                "pass": 1.0,
                "step": float(steps),
                "row": share * width,
                "far": far_accesses,
                "entry": share * d * width,
            },
            passes,
            float(steps),
            float((model.n_features + 1) * width * rows.itemsize),
            self._pack_message(settings, model, rows.itemsize, place.lanes),
        )

    def _pack_message(
        self, settings: Settings, model: LinearModel, itemsize: int, n_lanes: int
    ) -> PackedMessage | None:
        """Return the message of a lane in one synchronization, if it is compressed."""
        compressor, parameters = settings.run.compression, model.parameters
        if compressor is None:
            return None
        n_bytes = compressor.count_bytes(parameters, f"float{8 * itemsize}")
        ranged = settings.policy.sums_gradients and compressor.sums_ranges(parameters, n_lanes)
        way = "ranges" if ranged else "gather"
        return PackedMessage(n_bytes, "sum" if compressor.sums_messages else way)

    def passes(self, estimator: Any, costs: Costs) -> tuple[float, float]:
        """Return the fewest passes after which `tol` may end the fit, and all passes."""
        settings = self._settings(estimator)
        max_passes = float(settings.max_iter)
        return (
            max_passes if settings.tol is None else min(max_passes, settings.n_iter_no_change + 1.0)
        ), max_passes

    def probes(self, estimator: Any, place: Place, *, is_multiclass: bool) -> Sequence[Probe]:
        """Return fits of several shapes; on a cluster those that measure starts and steps."""
        share = min(1.0, _MAX_FULL_LANES / place.lanes)
        shapes = _PROBE_SHAPES if place.name == INLINE else (_PROBE_SHAPES[0], _PROBE_SHAPES[2])
        probes: list[Probe] = []
        for rows, d, batch, outputs in shapes:
            lane_rows = int(rows * share)
            steps = -(-lane_rows // batch)
            early = min(_EARLY_STEPS, _EARLY_ENTRIES // max(batch * d, 1))
            passes = min(-(-early // steps) + _LATE_PASSES, _MAX_PASSES)
            if not probes or place.name != INLINE:
                passes = _EARLY_PASSES
            probes.append(_make_probe(lane_rows * place.lanes, d, batch, outputs, passes))
        rows, d = _EMPTY_SHAPE
        probes.append(_make_probe(-(-rows // place.lanes) * place.lanes, d, rows, 3, 1, times=2))
        rows, d = _LARGE_SHAPE
        lane_rows = -(-rows // place.lanes)
        if place.name != INLINE:
            return [*probes, _make_probe(lane_rows * place.lanes, d, lane_rows, 3, 1)]
        passes = -(-_EARLY_STEPS * _LARGE_BATCH // lane_rows) + 2
        return [*probes, _make_probe(lane_rows * place.lanes, d, _LARGE_BATCH, 3, passes)]

    def sparse_probe_params(self, estimator: Any, rows: RowsShape, place: Place) -> dict[str, Any]:
        """Return few passes with the batches of the whole fit, so that a step has the same cost."""
        settings, model = self._settings(estimator), self._model(estimator, rows)
        widest = largest_batch_rows(model)
        batch = choose_batch_rows(settings.batch_size, _make_lane(rows, place), None, widest)
        return {
            "max_iter": _DRAWN_PASSES, "tol": None, "early_stopping": False, "batch_size": batch,
        }  # fmt: skip

    def equations(self, work: Work, seconds: float, records: Sequence[float]) -> list[Equation]:
        """Return equations of start and end, of early passes, and of later passes."""
        if "early" not in work.setup:
            return super().equations(work, seconds, records)
        steps, early = work.one_pass["step"], work.setup["early"]
        # The first pass is left out: it loads data into the processor's caches.
        early_seconds = [s for i, s in enumerate(records) if i and steps * (i + 1) <= early]
        late_seconds = [s for i, s in enumerate(records) if steps * i >= early]
        late = ("early", "copy")
        setup = {name: count for name, count in work.setup.items() if name not in late}
        equations: list[Equation] = [(setup, max(seconds - sum(records), 0.0))]
        if early_seconds:
            copied = steps * work.setup["copy"] / early
            equations.append(
                ({**work.one_pass, "early": steps, "copy": copied}, fmean(early_seconds))
            )
        if late_seconds:
            equations.append((work.one_pass, median(late_seconds)))
        return equations

    # -- policies ------------------------------------------------------------------------------

    def lanes(self, estimator: Any) -> int | None:
        """Return the number of lanes that the user set, if any."""
        return self._settings(estimator).run.n_lanes

    def key(self, estimator: Any) -> str:
        """Return a text of the parameters that the cost of a step depends on."""
        settings = self._settings(estimator)
        return (
            f"{type(estimator).__name__}, {estimator._loss()!r}, {settings.optimizer!r}, "
            f"{settings.penalty!r}, {settings.policy!r}, {settings.average is not None}, "
            f"{settings.auto_rate}, {settings.run!r}"
        )

    def policy(self, estimator: Any) -> Policy:
        """Return the policy of the estimator."""
        return self._settings(estimator).policy

    def choice_policy(self, estimator: Any) -> str:
        """Return the name of the estimator's policy."""
        return self.policy(estimator).name

    def policies(self, estimator: Any) -> list[str]:
        """Return the names of other policies that differ and that the estimator supports."""
        own_name = self.policy(estimator).name
        names = []
        for name in _COMPARED_POLICIES:
            if name in _EQUAL_POLICIES.get(own_name, {own_name}):
                continue
            try:
                estimator._check_settings(name)
            except InvalidParameterError:
                continue
            names.append(name)
        return names

    def differs(self, estimator: Any, name: str, place: Place) -> bool:
        """Return True if steps differ from the user's; a single lane never synchronizes."""
        return place.lanes > 1 or not self.policy(estimator).lockstep or name == "async"

    def traffic(self, estimator: Any, name: str, place: Place, work: Work) -> float:
        """Return the bytes of gradients and parameters, as often as the policy sends them."""
        if place.trainers == 1:
            return 0.0
        own_policy = self.policy(estimator)
        policy = own_policy if name == own_policy.name else get_policy(name)
        steps, lanes, trainers = work.meetings, place.lanes, place.trainers
        # Servers receive compressed messages and answer uncompressed; trainers receive those of
        # others.
        sent_bytes = work.message if work.packed is None else work.packed.n_bytes
        served_bytes, uncompressed = sent_bytes + work.message, 2.0 * work.message
        if policy.averages and policy.uses_shards:
            return served_bytes * max(steps * work.passes // policy.average_every, 1) * lanes
        if not policy.lockstep:
            per_step = sent_bytes / policy.push_every + work.message / policy.pull_every
            return per_step * steps * lanes * work.passes
        if not policy.uses_shards and work.packed is not None:
            served_bytes = 2.0 * work.packed.count_sent(lanes, trainers)
        if not policy.averages:
            return served_bytes * steps * trainers * work.passes
        if not policy.average_every:
            return served_bytes * trainers
        # The mean at the end is not compressed.
        return (
            served_bytes * (steps * work.passes // policy.average_every) + uncompressed
        ) * trainers

    def _settings(self, estimator: Any) -> Settings:
        """Return the checked settings of an estimator, kept for the current plan."""
        cached = self._cached_settings
        if cached is not None and cached[0]() is estimator:
            return cached[1]
        settings: Settings = estimator._check_settings(None)
        return settings

    def _model(self, estimator: Any, rows: RowsShape) -> LinearModel:
        """Return the model that an estimator would train on rows of a given shape."""
        fit_intercept = bool(estimator._all_params()["fit_intercept"])
        return LinearModel(
            estimator._loss(), rows.n_features, rows.n_classes, fit_intercept, touches=rows.entries
        )


def _make_lane(rows: RowsShape, place: Place) -> list[LaneSpec]:
    """Return a list of one lane with its share of the rows, as input for the batch rules."""
    return [LaneSpec(0, (Segment(0, 0, -(-rows.n_rows // place.lanes)),))]


def _make_probe(rows: int, d: int, batch: int, outputs: int, passes: int, times: int = 1) -> Probe:
    """Return a probe with a fixed number of passes and batches of a given size."""
    params = {
        "batch_size": batch, "max_iter": passes, "tol": None, "early_stopping": False,
        "class_weight": None,
    }  # fmt: skip
    return Probe(rows, d, outputs, params, times)
