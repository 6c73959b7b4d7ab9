"""Rule that turns a mean gradient into a step: groups of parameters, and shared settings.

A `ParameterGroup` is a range of rows with one optimizer, penalty and rate. An `UpdateRule` has the
groups of all parameters, the schedule, and settings that all groups share: averaging, clipping,
lazy regularisation. An `OuterStep` starts from the mean of lanes that train independently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from daskml_dist.backends.namespace import namespace, numbers, zeros
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import N_TABLE_IDS, Parameters
from daskml_dist.optimizers.adagrad import Adagrad
from daskml_dist.optimizers.base import GroupOptions, Optimizer
from daskml_dist.optimizers.sgd import SGD, Nesterov
from daskml_dist.penalties import Penalty
from daskml_dist.policies.base import Policy
from daskml_dist.privacy import GaussianNoise
from daskml_dist.ps.shard_state import copy_array
from daskml_dist.schedules import Constant, Schedule


@dataclass(frozen=True)
class ParameterGroup:
    """Consecutive rows of the parameters with the same update.

    Parameters
    ----------
    start, stop : int
        The rows.
    optimizer : Optimizer
    penalty : Penalty
    n_penalised : int
        Number of leading rows of the group to which the penalty applies.
    rate : float, default=1.0
        Factor on the learning rate; for sums, on the amount added.
    buffer : bool, default=False
        Whether the rows are running means, which move by their mean "gradient" itself.
    additive : bool, default=False
        Whether the rows are sums, which move by their summed "gradient".
    rates : tuple of float, default=()
        Further factors on the learning rate, one for each column of the parameters; empty if there
        are none.
    retention : float, default=1.0
        For running means, factor by which a step multiplies them first.
    """

    start: int
    stop: int
    optimizer: Optimizer
    penalty: Penalty
    n_penalised: int
    rate: float = 1.0
    buffer: bool = False
    additive: bool = False
    rates: tuple[float, ...] = ()
    retention: float = 1.0

    @property
    def descends(self) -> bool:
        """Return whether an optimizer makes the steps, rather than a plain sum or mean."""
        return not (self.buffer or self.additive)

    @property
    def rows(self) -> slice:
        """Return the rows as a slice."""
        return slice(self.start, self.stop)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the state kept for each parameter."""
        return self.optimizer.state_names if self.descends else ()

    def by_column(self, amount: Any, like: Any) -> Any:
        """Return a rate, or sum of rates, by column; unchanged if all columns have the same."""
        if not self.rates:
            return amount
        amount = float(amount) if isinstance(amount, float) else amount
        return amount * numbers(self.rates, like)[None, :]

    def update(
        self, w: Any, grad: Any, opt_state: dict[str, Any], rate: float, step_number: int, l1: Any
    ) -> None:
        """Take one step of the optimizer, each column at its own rate."""
        # Elementwise updates broadcast a rate for each column.
        if not self.rates or self.optimizer.elementwise_update is not None:
            self.optimizer.update(w, grad, opt_state, self.by_column(rate, w), step_number, l1)
            return
        for k, factor in enumerate(self.rates):  # the update may use the rate in any way
            column = slice(k, k + 1)
            column_state = {name: array[:, column] for name, array in opt_state.items()}
            strength = l1[:, column] if getattr(l1, "shape", (0, 1))[1] > 1 else l1
            self.optimizer.update(
                w[:, column], grad[:, column], column_state, rate * factor, step_number, strength
            )

    def part_within(self, start: int, stop: int) -> ParameterGroup:
        """Return the part of the group in a range of rows, counted from its start; may be empty."""
        # The intersection of the group's rows and the range; penalised rows come first in it.
        first, last = max(self.start, start), min(self.stop, stop)
        n_rows = max(last - first, 0)
        penalised = min(max(self.start + self.n_penalised - first, 0), n_rows)
        offset = first - start if n_rows else 0
        return replace(self, start=offset, stop=offset + n_rows, n_penalised=penalised)


def make_parameter_groups(
    parameters: Parameters,
    optimizer: Optimizer,
    penalty: Penalty,
    options: Mapping[str, GroupOptions] | None = None,
) -> tuple[ParameterGroup, ...]:
    """Return the groups of a model's parts, in order; neighbours with equal updates are joined."""
    options = options or {}
    names = [part.name for part in parameters.parts]
    # A pattern without a part is most likely a typing error, which would silently train with other
    # rates.
    for pattern in options:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidParameterError(
                f"No part of the model is called {pattern!r}. Its parts are {names}."
            )
    groups: list[ParameterGroup] = []
    for part in parameters.parts:
        matching = (o for pattern, o in options.items() if fnmatchcase(part.name, pattern))
        part_options = next(matching, GroupOptions())
        rows, descends = parameters.rows[part.name], not (part.buffer or part.additive)
        if (part_options.optimizer or optimizer).whole_matrices:
            raise InvalidParameterError(
                f"{part_options.optimizer or optimizer!r} updates whole matrices, but servers, and "
                "batches that touch few rows, only have parts of them. Use it for the steps "
                'between averages, as in policy=LocalSGD(outer="muon"), and another optimizer '
                'here, such as "adam".'
            )
        if (part_options.optimizer or optimizer).row_wise and parameters.shape[0] != N_TABLE_IDS:
            raise InvalidParameterError(
                f"{part_options.optimizer or optimizer!r} keeps one number per id, but this model "
                "has no table of ids. Use 'adagrad' or 'adam'."
            )
        group = ParameterGroup(
            rows.start,
            rows.stop,
            part_options.optimizer or optimizer,
            part_options.penalty or penalty,
            rows.stop - rows.start if part.penalised and descends else 0,
            part_options.rate if descends else 1.0,
            part.buffer,
            part.additive,
            retention=part.retention if part.buffer else 1.0,
        )
        # Neighbours with the same update make one step together, in one kernel or pass.
        last = groups[-1] if groups else None
        if last is not None and _can_join(last, group):
            n_penalised = last.n_penalised + group.n_penalised
            groups[-1] = replace(last, stop=group.stop, n_penalised=n_penalised)
        else:
            groups.append(group)
    return tuple(groups)


def _can_join(last: ParameterGroup, new: ParameterGroup) -> bool:
    """Return whether a group can continue another one, with penalised rows first in the union."""
    # Equal except for their rows: the dataclass compares optimizer, penalty and rates.
    has_same_update = (
        replace(new, start=last.start, stop=last.stop, n_penalised=last.n_penalised) == last
    )
    return has_same_update and (new.n_penalised == 0 or last.n_penalised == last.stop - last.start)


@dataclass(frozen=True)
class UpdateRule:
    """Rule that turns a mean gradient into a step.

    Parameters
    ----------
    groups : tuple of ParameterGroup
        All rows of the parameters, in order.
    schedule : Schedule
    steps_per_pass : float
        Steps (updates) in one pass, for schedules that count passes.
    average_after : int or None
        Number of rows seen after which the parameters are averaged (averaged SGD, Polyak and
        Juditsky 1992); None: never.
    coordinates : bool
        Whether gradients touch few rows: a row's penalty is then applied when it is touched, for
        all the steps since it last was (lazy regularisation, Carpenter 2008).
    step_share : float
        Share of the fit's steps that this shard makes, if several make them.
    clip : float or None
        Largest norm of the mean gradient of all parameters except buffers and sums (Pascanu,
        Mikolov and Bengio 2013); longer gradients are scaled down to it. Only for whole parameters.
    outer : OuterStep or None
        Step towards the mean when lanes are averaged; None: lanes take the mean itself.
    flushes : bool
        Whether subnormal numbers count as 0, as in the model's gradients.
    proximal : float
        Factor on the distance from a replica's anchor, the parameters after the lanes' last
        averaging, which is added to each mean gradient (FedProx, Li et al. 2020).
    noise : GaussianNoise or None
        Noise added to the summed gradient of each step (differential privacy).
    scheduled_steps : float
        Steps that the schedule counts in one update: the mean number of rows in a batch of which
        each row is a step of its own, else 1.
    """

    groups: tuple[ParameterGroup, ...]
    schedule: Schedule
    steps_per_pass: float
    average_after: int | None = None
    coordinates: bool = False
    step_share: float = 1.0
    clip: float | None = None
    outer: OuterStep | None = None
    flushes: bool = False
    proximal: float = 0.0
    noise: GaussianNoise | None = None
    scheduled_steps: float = 1.0

    @property
    def only_group(self) -> ParameterGroup:
        """Return the group that holds all parameters except sums."""
        (group,) = self._not_beside
        return group

    @property
    def _not_beside(self) -> tuple[ParameterGroup, ...]:
        """Return all groups except sums; all groups if there are only sums."""
        return tuple(group for group in self.groups if not group.additive) or self.groups

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the state that any group or the outer step keeps."""
        outer = () if self.outer is None else self.outer.state_names
        return (*self._group_state_names, *outer)

    @property
    def _group_state_names(self) -> tuple[str, ...]:
        """Return the names of the optimizer states of all groups, each once."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group.state_names))

    def init(self, w: Any, start: int = 0) -> dict[str, Any]:
        """Return the state before the first step, of the parameters' rows from `start` on."""
        outer = {} if self.outer is None else self.outer.init(w)
        return self._init_groups(w, start) | outer

    def _init_groups(self, w: Any, start: int) -> dict[str, Any]:
        """Return the initial optimizer state of rows of the parameters, from row `start` on."""
        # In the usual case, the optimizer's own arrays without a copy.
        if len(self.groups) == 1 and self.groups[0].descends:
            return self.groups[0].optimizer.init(w)
        opt_state = {name: zeros(w.shape, w.dtype, w) for name in self._group_state_names}
        for group in self.groups:
            rows = group.part_within(start, start + w.shape[0]).rows
            # Groups with different optimizers share one array per name; rows of a group that does
            # not use it stay zero.
            group_state = group.optimizer.init(w[rows, ...]) if group.descends else {}
            for name, array in group_state.items():
                opt_state[name][rows, ...] = array
        return opt_state

    def with_constant_rates(self, rates: Sequence[float]) -> UpdateRule:
        """Return the rule with constant rates: one for all columns, or one for each."""
        if len(set(rates)) == 1:
            return replace(self, schedule=Constant(rates[0]))
        # Rates that differ by column become factors of the groups, with a schedule of 1.
        groups = (replace(g, rates=tuple(rates)) if g.descends else g for g in self.groups)
        return replace(self, groups=tuple(groups), schedule=Constant(1.0))

    def take_column_at_rate(self, column: int) -> UpdateRule:
        """Return the rule of one column of the parameters, with its rate."""
        if not any(group.rates for group in self.groups):
            return self
        (rate,) = {group.rates[column] for group in self.groups if group.rates}
        groups = tuple(replace(group, rates=()) for group in self.groups)
        return replace(self, groups=groups, schedule=Constant(rate * self.schedule(1, 0.0)))

    @property
    def of_independent_lanes(self) -> UpdateRule:
        """Return the rule of lanes whose outer steps and averages are made by the servers."""
        return replace(self, outer=None, average_after=None)

    @property
    def of_averaging_servers(self) -> UpdateRule:
        """Return the rule of servers whose gradient is the negative progress of the lanes.

        The lanes themselves have applied penalties, rates and clipping.
        """
        outer = self.outer or OuterStep(SGD(), 1.0, ())
        no_penalty = Penalty(0.0, 0.0)
        groups = tuple(
            replace(
                g,
                optimizer=outer.optimizer,
                penalty=no_penalty,
                n_penalised=0,
                rate=1.0,
                rates=(),
                retention=1.0,
            )
            for g in self.groups
        )
        return replace(
            self,
            groups=groups,
            schedule=Constant(outer.rate),
            coordinates=False,
            clip=None,
            outer=None,
        )

    def scale_to_share(self, row_share: float) -> UpdateRule:
        """Return the rule of a replica that gets this share of the rows between averagings.

        The amounts that it adds to sums are scaled up to all rows, so that the mean over replicas
        equals the total.
        """
        if not any(group.additive for group in self.groups):
            return self
        # A lane without rows adds nothing.
        rate = 1 / row_share if row_share else 1.0
        groups = (replace(g, rate=rate) if g.additive else g for g in self.groups)
        return replace(self, groups=tuple(groups))

    @property
    def penalty_is_lazy(self) -> bool:
        """Return whether rows that no gradient touches have pending penalties."""
        penalties = [group.penalty for group in self.groups if group.n_penalised]
        return self.coordinates and any(penalty.l1 or penalty.l2 for penalty in penalties)

    @property
    def steps_alone(self) -> bool:
        """Return whether several steps may be made in one call."""
        if len(self._not_beside) > 1 or self.clip is not None or self.proximal:
            return False
        # Compiled loops take one learning rate for all parameters.
        if self.only_group.rate != 1 or self.only_group.rates:
            return False
        return self.average_after is None

    @property
    def can_run_in_kernels(self) -> bool:
        """Return whether a device's kernels may make several steps at once."""
        if not self.steps_alone:
            return False
        return not self.coordinates or (
            type(self.only_group.optimizer) is Adagrad and not self.penalty_is_lazy
        )


#: Prefix of the names of the state of outer steps.
OUTER_PREFIX = "outer_"


@dataclass(frozen=True)
class OuterSection:
    """Consecutive rows that an outer step treats in the same way.

    Parameters
    ----------
    start, stop : int
        The rows.
    shape : tuple of int or None
        Shape of these rows as one matrix, for optimizers of whole matrices; else None.
    descends : bool
        Whether the optimizer makes the step; running means and sums are set to the lanes' mean.
    """

    start: int
    stop: int
    shape: tuple[int, int] | None
    descends: bool

    def cut(self, array: Any) -> Any:
        """Return the section of an array, as a view if possible."""
        part = array[self.start : self.stop, ...]
        return part if self.shape is None else namespace(array).reshape(part, self.shape)

    def put(self, section_values: Any, array: Any) -> None:
        """Write a changed section back, if it was not a view."""
        if self.shape is not None:
            rows = array[self.start : self.stop, ...]
            rows[...] = namespace(array).reshape(section_values, rows.shape)


@dataclass(frozen=True)
class OuterStep:
    """Optimizer step from the last averaging of the lanes towards their mean.

    The lanes' mean progress since the last averaging serves as a gradient. All lanes make the same
    step, so its state is the same in each, except for the residual that compression left out of the
    lane's own progress.

    Parameters
    ----------
    optimizer : Optimizer
    rate : float
    sections : tuple of OuterSection
        All rows of the parameters, in order.
    keeps_residual : bool
        Whether lanes exchange their progress in compressed form.

    References
    ----------
    A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """

    optimizer: Optimizer
    rate: float
    sections: tuple[OuterSection, ...]
    keeps_residual: bool = False

    @classmethod
    def from_policy(
        cls, policy: Policy, parameters: Parameters, compressed: bool = False
    ) -> OuterStep | None:
        """Return the outer step of a policy; None if lanes take their mean.

        With compression, lanes send their progress from a starting point, which the step keeps.
        """
        outer = policy.outer_optimizer
        if outer is None:
            if not compressed:
                return None
            # SGD at rate 1 moves to the mean.
            return cls(Nesterov(0.0), 1.0, _make_sections(parameters, whole_matrices=False), True)
        sections = _make_sections(parameters, outer.optimizer.whole_matrices)
        return cls(outer.optimizer, outer.rate, sections, compressed)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the state: the lanes' starting point and the optimizer's state."""
        optimizer_names = (self._name_of(name) for name in self.optimizer.state_names)
        residual = ("outer_residual",) if self.keeps_residual else ()
        return ("outer_origin", *optimizer_names, *residual)

    def _name_of(self, name: str) -> str:
        """Return the name under which a state of the optimizer is kept."""
        # The optimizer's name is part of it, so that another optimizer never takes over this state.
        return f"{OUTER_PREFIX}{self.optimizer.name}_{name}"

    def init(self, w: Any) -> dict[str, Any]:
        """Return the state before the first outer step."""
        optimizer_state = {
            self._name_of(name): array for name, array in self.optimizer.init(w).items()
        }
        residual = {"outer_residual": namespace(w).zeros_like(w)} if self.keeps_residual else {}
        return {"outer_origin": copy_array(w)} | optimizer_state | residual

    def take(self, w: Any, mean: Any, opt_state: dict[str, Any], step_number: int) -> None:
        """Move `w` from the last starting point, given the mean of the lanes' parameters.

        `step_number` counts the outer steps, from 1.
        """
        origin = opt_state["outer_origin"]
        progress = origin - mean  # the negative progress, as a gradient
        for section in self.sections:
            if not section.descends:
                section.cut(origin)[...] = section.cut(mean)
                continue
            part = section.cut(origin)
            section_state = {
                name: section.cut(opt_state[self._name_of(name)])
                for name in self.optimizer.state_names
            }
            self.optimizer.update(
                part, section.cut(progress), section_state, self.rate, step_number
            )
            section.put(part, origin)
            for name, array in section_state.items():
                section.put(array, opt_state[self._name_of(name)])
        w[...] = origin


def _make_sections(parameters: Parameters, whole_matrices: bool) -> tuple[OuterSection, ...]:
    """Return the sections of a model's parameters; with `whole_matrices`, one for each matrix."""
    sections: list[OuterSection] = []
    for part in parameters.parts:
        rows, descends = parameters.rows[part.name], not (part.buffer or part.additive)
        size = prod(part.shape)
        if not size:
            continue
        # Kernels of a convolution form a matrix with one row per output channel.
        shape = (part.shape[0], size // part.shape[0]) if part.shape else (1, 1)
        section = OuterSection(
            rows.start, rows.stop, shape if whole_matrices and descends else None, descends
        )
        last = sections[-1] if sections else None
        if last and last.shape is section.shape is None and last.descends == descends:
            sections[-1] = replace(last, stop=section.stop)
        else:
            sections.append(section)
    return tuple(sections)
