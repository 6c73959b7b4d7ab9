"""`advise`: the plan of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.linear import LinearModel
from daskml_dist.planning.cache import load, save
from daskml_dist.planning.costs import Costs
from daskml_dist.planning.measure import measured_costs
from daskml_dist.planning.places import (
    Place,
    cluster_place,
    inline_place,
    traffic_of,
    work_of,
)
from daskml_dist.planning.plan import Choice, Plan
from daskml_dist.planning.rows import RowsShape, shape_of
from daskml_dist.planning.text import bytes_text, seconds_text
from daskml_dist.training.run import INLINE, client_of
from daskml_dist.training.settings import Settings

__all__ = ["advise"]

#: Policies that a plan looks at beside the estimator's own.
_OTHERS = ("sync", "async", "local", "average")
#: Policies of the same steps.
_SAME = {"sync": {"sync", "allreduce"}, "allreduce": {"sync", "allreduce"}}
#: Factors of the expected seconds that make the range, at each place.
_RANGE = {INLINE: (1 / 1.5, 1.5), "cluster": (1 / 1.7, 1.7)}


def advise(X: Any, estimator: Any, y: Any = None, client: Any = None) -> Plan:
    """Tell where a fit had better run, and what it will take at each place.

    The first plan of an estimator's kind makes some tiny fits at each place, which tell what a fit,
    a pass, a step, a row and an entry cost there; Dask's setting ``daskml_dist.planning.cache``
    (default True) keeps them in the user's cache folder. No row of X is read.

    Parameters
    ----------
    X : dask Array or DataFrame, array-like or pandas.DataFrame
        Of shape (n_rows, n_features), dense.
    estimator : estimator
        Trained by gradient steps, linear: :class:`~daskml_dist.linear_model.SGDClassifier`,
        :class:`~daskml_dist.linear_model.SGDRegressor` and estimators of your own like these.
        It is left as it is.
    y : str, dask Array or Series, or array-like, of shape (n_rows,)
    client : distributed.Client, optional
        Default: the current client. Without one the only place is this process.

    Returns
    -------
    Plan

    Raises
    ------
    InvalidParameterError
        There is no plan for such an estimator, policy or rows.
    InvalidDataError
        Nobody knows how many rows there are.

    Examples
    --------
    >>> import daskml_dist
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> plan = daskml_dist.advise(X, SGDClassifier(), y)    # doctest: +SKIP
    >>> print(plan)                                         # doctest: +SKIP
    >>> clf = plan.best.fit(X, y)                           # doctest: +SKIP
    """
    settings = _settings(estimator)
    rows = shape_of(estimator, X, y)
    client = client_of(rows.collection) if client is None else client
    places = [inline_place(settings)]
    notes = list(rows.notes)
    if client is not None:
        cluster = cluster_place(settings, rows, client)
        if cluster is None:
            notes.append("The cluster has no worker yet, so it is left out.")
        else:
            places.append(cluster)
    costs = [_costs(estimator, settings, place, rows) for place in places]
    choices = [
        choice
        for place, cost in zip(places, costs, strict=True)
        for choice in _choices(estimator, settings, place, rows, cost, gather=costs[-1].gather)
    ]
    notes += _memory_notes(choices, places)
    title = (
        f"{type(estimator).__name__}, {rows.n_rows:,} rows x {rows.n_features:,} features, "
        f"{bytes_text(rows.nbytes)}"
    )
    plan = Plan(title, tuple(choices), "", tuple(notes))
    return replace(plan, why=_reason(plan, places, costs))


def _settings(estimator: Any) -> Settings:
    if not getattr(estimator, "_plannable", False):
        raise InvalidParameterError(
            f"There are no plans for {type(estimator).__name__}: the costs are those of linear "
            "models by gradient steps, SGDClassifier and SGDRegressor. Measure a fit of a part of "
            "the rows instead."
        )
    settings: Settings = estimator._settings(None)
    if settings.policy.uses_threads or settings.run.shard == "features":
        what = "shard='features'" if settings.run.shard == "features" else settings.policy.name
        raise InvalidParameterError(
            f"There are no plans for {what}: its cost is not that of steps, rows and entries. Use "
            "another policy, with rows in the lanes, or measure a fit of a part of the rows."
        )
    return settings


def _costs(estimator: Any, settings: Settings, place: Place, rows: RowsShape) -> Costs:
    """Costs at a place, out of the file or measured now."""
    source = rows.collection.kind if place.name != INLINE else "memory"
    several = rows.n_classes > 2
    key = (
        f"{type(estimator).__name__}, {estimator._loss()!r}, {settings.optimizer!r}, "
        f"{settings.penalty!r}, {settings.policy!r}, {settings.average is not None}, "
        f"{settings.auto_rate}, {settings.run!r}, {rows.dtype}, {several}, from {source}; "
        f"{place.machine}"
    )
    found = load(key)
    if found is None:
        others = [name for name in _others(estimator, settings) if _differs(name, settings, place)]
        found = measured_costs(estimator, settings, place, source, rows.dtype, several, others)
        save(key, found)
    return found


def _others(estimator: Any, settings: Settings) -> list[str]:
    """Names of other policies that the estimator can be trained under."""
    own = settings.policy.name
    found = []
    for name in _OTHERS:
        if name in _SAME.get(own, {own}):
            continue
        try:
            estimator._settings(name)
        except InvalidParameterError:
            continue
        found.append(name)
    return found


def _differs(name: str, settings: Settings, place: Place) -> bool:
    """Whether steps under a policy differ from the user's; a lane that is alone meets nobody."""
    return place.lanes > 1 or not settings.policy.lockstep or name == "async"


def _choices(
    estimator: Any, settings: Settings, place: Place, rows: RowsShape, costs: Costs, gather: float
) -> list[Choice]:
    """Choices of a place, of the user's policy and of others; those of the same steps are one."""
    model = LinearModel(
        estimator._loss(), rows.n_features, rows.n_classes, bool(estimator.fit_intercept)
    )
    work = work_of(place, settings, model, rows.n_rows, settings.max_iter)
    quick = work
    if settings.tol is not None:
        quick = replace(work, passes=min(settings.max_iter, settings.n_iter_no_change + 1))
    memory = rows.nbytes / place.trainers
    moved = gather * rows.nbytes if place.name == INLINE and rows.collection.kind == "dask" else 0.0
    here = place.name == INLINE and rows.collection.kind == "memory"
    low, high = _RANGE[place.name]
    found = []
    for name in [settings.policy.name, *_others(estimator, settings)]:
        own = name == settings.policy.name
        if not own and not _differs(name, settings, place):
            continue
        policy = settings.policy if own else estimator._settings(name).policy
        shortest, longest = (moved + costs.seconds(w, name) for w in (quick, work))
        found.append(
            Choice(
                estimator,
                place.name,
                name,
                settings.max_iter,
                costs.pass_seconds(work, name),
                (low * shortest, high * longest) if here or memory <= place.room else None,
                traffic_of(place, rows, policy, work),
                memory,
                own,
                place.client,
            )
        )
    return found


def _memory_notes(choices: Sequence[Choice], places: Sequence[Place]) -> list[str]:
    rooms = {place.name: place.room for place in places}
    notes = []
    for choice in choices:
        if choice.own and choice.seconds is None:
            then = "end it" if choice.place == INLINE else "make it read them again in each pass"
            notes.append(
                f"Memory: {bytes_text(choice.memory)} of rows in a process would {then}, with room "
                f"for {bytes_text(rooms[choice.place])} {choice.place}."
            )
    return notes


def _reason(plan: Plan, places: Sequence[Place], costs: Sequence[Costs]) -> str:
    """Words of why the best choice is the best."""
    best = plan.best
    if best.seconds is None:
        return "The rows fit in no memory here, so workers read them in each pass."
    fits = f"{bytes_text(best.memory)} fits here" if best.place == INLINE else "The rows fit there"
    others = [c for c in plan.choices if c.own and c is not best]
    if not others:
        alone = "there is no Client with workers to compare with"
        return f"{fits}; about {seconds_text(best.expected)}, and {alone}."
    place, cost = places[-1], costs[-1]
    start = f"{seconds_text(cost.fit)} start, {seconds_text(cost.step)} a step there"
    other = others[0]
    words = {INLINE: "inline", "cluster": f"on {place.text}"}
    if other.seconds is None:
        return f"{fits}, and not {words[other.place]}; about {seconds_text(best.expected)}."
    return (
        f"{fits}; about {seconds_text(best.expected)} against {seconds_text(other.expected)} "
        f"{words[other.place]} ({start if best.place == INLINE else place.text})."
    )
