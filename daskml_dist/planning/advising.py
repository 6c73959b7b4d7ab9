"""Plans of fits: costs at each place are measured or read, and the choices are compared.

:func:`advise` makes a complete plan for the user, and measures costs that are not known yet. For
``client="auto"``, :func:`is_sooner_inline` is called before each fit: it measures nothing, and uses
the scheduler only if a fit in this process would take longer than a cluster takes to start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import check_client
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.planning.costs import Costs, load_costs, save_costs
from daskml_dist.planning.families import find_family
from daskml_dist.planning.families.base import Family
from daskml_dist.planning.hypothetical_cluster import simulate_choice
from daskml_dist.planning.measure import measure_costs
from daskml_dist.planning.places import Place, cluster_place, inline_place
from daskml_dist.planning.plan import Choice, Plan, format_bytes, format_seconds
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.job import INLINE, find_default_client

logger = logging.getLogger(__name__)

#: Least factor of the range of seconds for sparse rows: a part of the rows touches fewer parameters
#: than all rows do, so these stay in caches longer.
_SPARSE_SPREAD = 2.0


@suggest_arguments
def advise(X: Any, estimator: Any, y: Any = None, client: Any = None) -> Plan:
    """Estimate time and memory of a fit in this process and on a cluster, and advise where to run.

    The first plan for a kind of estimator runs some tiny fits at each place to measure the cost of
    a fit, a pass, a row and an entry. The costs are kept in the user's cache folder, unless Dask's
    setting ``daskml_dist.planning.cache`` is False. For dense rows, no features are read. The cost
    of sparse rows depends on the positions of their entries, so each plan fits three parts of them,
    with at most about a million stored entries.

    Parameters
    ----------
    X : dask Array or DataFrame, array-like or pandas.DataFrame
        Features, of shape (n_rows, n_features). Sparse rows must be in memory, and are supported
        for SGD and linear models by gradients. For :class:`~daskml_dist.recommender.ALS`, ratings
        in memory.
    estimator : estimator
        An estimator with a cost model: linear models, K-means, PCA, trees, forests, boosting, ALS,
        and classes derived from these. It is not changed.
    y : str, dask Array or Series, or array-like, of shape (n_rows,)
    client : distributed.Client, optional
        Default: the current client. Without one, this process is the only place.

    Returns
    -------
    Plan

    Raises
    ------
    InvalidParameterError
        There is no plan for this estimator, policy or kind of rows.
    InvalidDataError
        The number of rows is unknown.

    Examples
    --------
    >>> import daskml_dist
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> plan = daskml_dist.advise(X, SGDClassifier(), y)    # doctest: +SKIP
    >>> print(plan)                                         # doctest: +SKIP
    >>> clf = plan.best.fit(X, y)                           # doctest: +SKIP
    >>> print(plan.what_if(50, bandwidth="10Gbit"))         # doctest: +SKIP
    """
    family = find_family(estimator)
    family.check(estimator)
    rows = family.shape(estimator, X, y)
    if client is None:
        client = find_default_client(rows.collection)  # type: ignore[arg-type]
    else:
        check_client(client, "plan", "None for the current client")
    notes = list(rows.notes)
    places = [inline_place(family.lanes(estimator))]
    if client is not None:
        cluster = cluster_place(family.lanes(estimator), family.budget(estimator), rows, client)
        if cluster is None:
            notes.append("The cluster has no worker yet, so it is left out.")
        else:
            places.append(cluster)
    request = _PlanRequest(family, estimator, rows)
    # This process is measured first: its costs of pure computation are used for workers too.
    costs: list[Costs] = []
    for place in places:
        costs.append(request.find_costs(place, costs[0] if costs else Costs({})))
    # Only the costs of a cluster include the seconds per byte gathered from it.
    choices = [
        choice
        for place, cost in zip(places, costs, strict=True)
        for choice in request.list_choices(place, cost, costs[0], gather=costs[-1].gather)
    ]
    notes += _memory_notes(choices, places)
    size = f"{rows.n_rows:,} rows x {rows.n_features:,} features"
    size = f"{rows.n_rows:,} ratings" if rows.keys else size
    title = f"{type(estimator).__name__}, {size}, {format_bytes(rows.nbytes)}"
    plan = Plan(
        title, tuple(choices), "", tuple(notes), request.make_what_if(costs[0], costs[1:])
    )  # fmt: skip
    return replace(plan, why=_explain_best(plan, places, costs))


def load_known_costs(family: Family, estimator: Any, place: Place, rows: RowsShape) -> Costs | None:
    """Return the costs at a place that were measured before; None if there are none."""
    return load_costs(_make_key(family, estimator, place, rows))


def _make_key(family: Family, estimator: Any, place: Place, rows: RowsShape) -> str:
    """Return the key under which costs are kept: all that they depend on, as text."""
    is_multiclass = rows.n_classes > 2
    source = _rows_source(rows, place)
    return f"{family.key(estimator)}, {rows.dtype}, {is_multiclass}, from {source}; {place.machine}"


def _rows_source(rows: RowsShape, place: Place) -> str:
    """Return where a fit reads rows: "memory" or "dask"; for a fit in this process, "memory"."""
    return rows.kind if place.name != INLINE else "memory"


@dataclass(frozen=True)
class _PlanRequest:
    """Estimator and rows of a requested plan, with their costs and choices at each place.

    Parameters
    ----------
    family : Family
    estimator : estimator
    rows : RowsShape
    """

    family: Family
    estimator: Any
    rows: RowsShape

    def find_costs(self, place: Place, inline_costs: Costs) -> Costs:
        """Return the costs at a place, either read from the file or measured now."""
        family, rows = self.family, self.rows
        key = _make_key(family, self.estimator, place, rows)
        # The costs of sparse rows depend on the positions of their entries, so they are never kept.
        is_sparse = rows.entries is not None
        costs = None if is_sparse else load_costs(key)
        if costs is None:
            policies = self._other_policies(place)
            known_values = {
                name: v for name, v in inline_costs.values.items() if name in family.computing
            }
            costs = measure_costs(
                family, self.estimator, place, _rows_source(rows, place), rows.dtype,
                rows.n_classes > 2, known_values, policies, rows if is_sparse else None,
            )  # fmt: skip
            # Workers do everything that a fit in one process does, so no operation is cheaper
            # there; a lower value is noise of the measurement.
            values = {
                name: max(v, inline_costs.values.get(name, 0.0)) for name, v in costs.values.items()
            }
            costs = replace(costs, values=values)
            if not is_sparse:
                save_costs(key, costs)
        return costs

    def _other_policies(self, place: Place) -> list[str]:
        """Return the policies besides the estimator's own whose steps differ at a place."""
        family, estimator = self.family, self.estimator
        names = family.policies(estimator)
        return [name for name in names if family.differs(estimator, name, place)]

    def list_choices(
        self, place: Place, costs: Costs, inline_costs: Costs, gather: float
    ) -> list[Choice]:
        """Return the choices at a place, under the estimator's policy and others.

        `inline_costs` are the costs in this process, `gather` the seconds per byte moved to it.
        """
        family, estimator, rows = self.family, self.estimator, self.rows
        inline, lazy = place.name == INLINE, rows.kind == "dask"
        # The number of passes depends on the rows, so the number for this process is used
        # everywhere.
        min_passes, max_passes = family.passes(estimator, inline_costs)
        works = [family.work(estimator, rows, place, passes) for passes in (min_passes, max_passes)]
        memory = rows.nbytes / place.trainers
        # For a fit in this process, Dask rows are gathered; for one on a cluster, rows in memory
        # are sent. The time to send them is part of the measured costs of a fit there.
        moved = gather * rows.nbytes if inline and lazy else 0.0
        sent_bytes = rows.nbytes if lazy == inline else 0.0
        spread = family.spread[place.name]
        if rows.entries is not None:
            spread = max(spread, _SPARSE_SPREAD)
        # From the fewest passes with fast operations to the most passes with slow ones.
        low, high = 1 / spread, spread
        own_name = family.choice_policy(estimator)
        choices = []
        for name in [own_name, *self._other_policies(place)]:
            shortest, longest = (moved + costs.seconds(work, name) for work in works)
            # Rows that are already in memory do fit in this process.
            fits = memory <= place.memory_limit or (inline and not lazy)
            choices.append(
                Choice(
                    estimator,
                    place.name,
                    name,
                    (round(min_passes), round(max_passes)),
                    costs.pass_seconds(works[1], name),
                    (low * shortest, high * longest) if fits else None,
                    sent_bytes + family.traffic(estimator, name, place, works[1]),
                    memory,
                    name == own_name,
                    place.client,
                )
            )
        return choices

    def make_what_if(self, inline_costs: Costs, cluster_costs: Sequence[Costs]) -> Any:
        """Return the function behind :meth:`Plan.what_if`, for hypothetical clusters."""
        # A fit is assumed to start as fast on the hypothetical cluster as on the real one, if any.
        start = (
            cluster_costs[0].values.get("fit", 0.0)
            if cluster_costs
            else self.family.usual_cluster_costs["fit"]
        )

        def choice(**cluster_options: Any) -> Choice:
            return simulate_choice(
                self.family, self.estimator, self.rows, inline_costs, start=start, **cluster_options
            )

        return choice


def _memory_notes(choices: Sequence[Choice], places: Sequence[Place]) -> list[str]:
    """Return warnings for places whose memory does not hold the rows."""
    limits = {place.name: place.memory_limit for place in places}
    notes = []
    for choice in choices:
        if choice.own and choice.seconds is None:
            effect = "end it" if choice.place == INLINE else "make it read them again in each pass"
            notes.append(
                f"Memory: {format_bytes(choice.memory)} of rows in one process would {effect}, "
                f"with room for {format_bytes(limits[choice.place])} {choice.place}."
            )
    return notes


def _explain_best(plan: Plan, places: Sequence[Place], costs: Sequence[Costs]) -> str:
    """Return a sentence that explains why the best choice is the best."""
    best = plan.best
    if best.seconds is None:
        return "The rows do not fit in memory here, so workers read them again in each pass."
    fits = (
        f"{format_bytes(best.memory)} fits here" if best.place == INLINE else "The rows fit there"
    )
    other_places = [c for c in plan.choices if c.own and c is not best]
    if not other_places:
        alone = "there is no Client with workers to compare with"
        return f"{fits}; about {format_seconds(best.expected)}, and {alone}."
    place, values = places[-1], costs[-1].values
    start = f"{format_seconds(values.get('fit', 0.0))} start"
    for name, unit in (("step", "a step"), ("pass", "a pass")):
        if values.get(name):
            start += f", {format_seconds(values[name])} {unit} there"
            break
    other = other_places[0]
    place_texts = {INLINE: "inline", "cluster": f"on {place.text}"}
    if other.seconds is None:
        return f"{fits}, and not {place_texts[other.place]}; about {format_seconds(best.expected)}."
    return (
        f"{fits}; about {format_seconds(best.expected)} against {format_seconds(other.expected)} "
        f"{place_texts[other.place]} ({start if best.place == INLINE else place.text})."
    )


def is_sooner_inline(estimator: Any, collection: Collection, X: Any, client: Any) -> bool:
    """Return whether a fit ends sooner in this process, according to known costs.

    Nothing is measured: that would take longer than most of these fits.
    """
    try:
        family = find_family(estimator)
        family.check(estimator)
        rows = family.quick_shape(estimator, collection, X)
    except (InvalidParameterError, InvalidDataError) as error:
        # Invalid parameters and rows are refused by the fit itself, with its own error.
        logger.info("No plan, so the current client trains: %s", error)
        return False
    local_place = inline_place(family.lanes(estimator))
    costs = load_known_costs(family, estimator, local_place, rows) or Costs(family.usual)
    seconds = _expected_seconds(estimator, family, rows, local_place, costs)
    # By then, a cluster would not have finished starting the fit. Half, since costs differ between
    # processors. Most small fits return here, without a request to a scheduler.
    if seconds <= family.usual_cluster_costs["fit"] / 2:
        return True
    cluster = cluster_place(family.lanes(estimator), family.budget(estimator), rows, client)
    if cluster is None:
        return True
    # A cluster that was never measured: computing costs as much as here, the rest its usual cost.
    computing = {name: v for name, v in costs.values.items() if name in family.computing}
    costs_there = load_known_costs(family, estimator, cluster, rows)
    costs_there = costs_there or Costs(
        {**computing, **family.usual_cluster_costs}, passes=costs.passes
    )
    return seconds <= _expected_seconds(estimator, family, rows, cluster, costs_there)


def _expected_seconds(
    estimator: Any, family: Family, rows: RowsShape, place: Place, costs: Costs
) -> float:
    """Return the seconds of a fit at a place, for the geometric mean of least and most passes."""
    min_passes, max_passes = family.passes(estimator, costs)
    work = family.work(estimator, rows, place, (min_passes * max_passes) ** 0.5)
    return costs.seconds(work)
