"""Planned fits: the method `plan` of estimators, and the planner's choice of a client."""

from __future__ import annotations

import logging
from typing import Any

import dask

from daskml_dist.data.collection import Collection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.planning.advising import advise, known_costs
from daskml_dist.planning.costs import Costs
from daskml_dist.planning.families import Family, family_of
from daskml_dist.planning.places import Place, cluster_place, inline_place
from daskml_dist.planning.plan import Plan
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.run import AUTO, INLINE, find_default_client

__all__ = ["choose_client", "plan"]

logger = logging.getLogger(__name__)


def plan(self: Any, X: Any, y: Any = None, *, client: Any = None) -> Plan:
    """Estimate where :meth:`fit` runs fastest, and its time and memory at each place.

    Parameters
    ----------
    X, y, client
        As in :meth:`fit`; X is dense, and the number of its rows known.

    Returns
    -------
    Plan
        See :func:`daskml_dist.planning.advise`, which also tells what is raised.

    Examples
    --------
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> plan = SGDClassifier().plan(X, y)  # doctest: +SKIP
    >>> plan.best.fit(X, y)  # doctest: +SKIP
    """
    return advise(X, self, y, client=client)


def choose_client(estimator: Any, client: Any, collection: Collection, X: Any = None) -> Any:
    """Return the client of a fit, which the planner chooses where the user asks for ``"auto"``.

    Parameters
    ----------
    estimator : estimator
    client : distributed.Client, "inline", "auto" or None
        As the user gave it; None is ``"auto"`` where Dask's configuration
        ``daskml_dist.client`` says so.
    collection : Collection
        The rows of the fit.
    X : array-like, optional
        The same rows as the user gave them.

    Returns
    -------
    distributed.Client, "inline" or None
        None: the current client, where there is one.
    """
    if client is None and dask.config.get("daskml_dist.client", None) == AUTO:
        client = AUTO
    if not isinstance(client, str) or client != AUTO:
        return client
    # Rows that lie on workers, or go to a GPU, are not moved to this process.
    if collection.kind != "memory" or getattr(estimator, "device", "cpu") == "gpu":
        return None
    current = find_default_client(collection)
    if current is None:
        return INLINE
    try:
        family = family_of(estimator)
        family.check(estimator)
        rows = family.quick_shape(estimator, collection, X)
    except (InvalidParameterError, InvalidDataError) as error:
        # Parameters and rows that are not valid are refused by the fit itself, in its own words.
        logger.info("No plan, so the current client trains: %s", error)
        return None
    return INLINE if _is_sooner_inline(estimator, family, rows, current) else None


def _is_sooner_inline(estimator: Any, family: Family, rows: RowsShape, client: Any) -> bool:
    """Return whether a fit ends sooner in this process, by costs that are known already.

    Nothing is measured: that would take longer than most of the fits that it decides about.
    """
    here = inline_place(family.lanes(estimator))
    costs = known_costs(family, estimator, here, rows) or Costs(family.usual)
    seconds = _expected_seconds(estimator, family, rows, here, costs)
    if seconds <= family.usual_there["fit"] / 2:
        # A cluster has not finished starting the fit by then.
        return True
    there = cluster_place(family.lanes(estimator), family.budget(estimator), rows, client)
    if there is None:
        return True
    computing = {name: v for name, v in costs.values.items() if name in family.computing}
    costs_there = known_costs(family, estimator, there, rows)
    costs_there = costs_there or Costs({**computing, **family.usual_there}, passes=costs.passes)
    return seconds <= _expected_seconds(estimator, family, rows, there, costs_there)


def _expected_seconds(
    estimator: Any, family: Family, rows: RowsShape, place: Place, costs: Costs
) -> float:
    """Return the seconds of a fit at a place, for the geometric mean of least and most passes."""
    least, most = family.passes(estimator, costs)
    work = family.work(estimator, rows, place, (least * most) ** 0.5)
    return costs.seconds(work)
