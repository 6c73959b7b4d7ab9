"""`Planned`: estimators that tell what a fit will take, and choose where to make it."""

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
from daskml_dist.training.run import AUTO, INLINE, client_of

__all__ = ["Planned"]

logger = logging.getLogger(__name__)


class Planned:
    """Estimator whose fits can be planned, where there is a cost model of their kind.

    Examples
    --------
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> plan = SGDClassifier().plan(X, y)  # doctest: +SKIP
    >>> plan.best.fit(X, y)  # doctest: +SKIP
    """

    def plan(self, X: Any, y: Any = None, *, client: Any = None) -> Plan:
        """Tell where :meth:`fit` had better run, and what it will take at each place.

        Parameters
        ----------
        X, y, client
            As in :meth:`fit`; X is dense, and the number of its rows known.

        Returns
        -------
        Plan
            See :func:`daskml_dist.planning.advise`, which also tells what is raised.
        """
        return advise(X, self, y, client=client)

    def _placed(self, client: Any, collection: Collection, X: Any = None) -> Any:
        """The client of a fit, where the user leaves the choice to the planner."""
        if client is None and dask.config.get("daskml_dist.client", None) == AUTO:
            client = AUTO
        if not isinstance(client, str) or client != AUTO:
            return client
        if collection.kind != "memory" or getattr(self, "device", "cpu") == "gpu":
            return None
        current = client_of(collection)
        if current is None:
            return INLINE
        try:
            family = family_of(self)
            family.check(self)
            rows = family.quick_shape(self, collection, X)
        except (InvalidParameterError, InvalidDataError) as error:
            # What is wrong with the fit itself it will tell.
            logger.info("No plan, so the current client trains: %s", error)
            return None
        return INLINE if _sooner_here(self, family, rows, current) else None


def _sooner_here(estimator: Any, family: Family, rows: RowsShape, client: Any) -> bool:
    """Whether a fit ends sooner in this process, by costs that are known already.

    Nothing is measured, which would take longer than most fits that it is about.
    """
    here = inline_place(family.lanes(estimator))
    costs = known_costs(family, estimator, here, rows) or Costs(family.usual)
    seconds = _expected(estimator, family, rows, here, costs)
    if seconds <= family.usual_there["fit"] / 2:
        # No cluster has begun by then.
        return True
    there = cluster_place(family.lanes(estimator), family.budget(estimator), rows, client)
    if there is None:
        return True
    computing = {name: v for name, v in costs.values.items() if name in family.computing}
    costs_there = known_costs(family, estimator, there, rows)
    costs_there = costs_there or Costs({**computing, **family.usual_there}, passes=costs.passes)
    return seconds <= _expected(estimator, family, rows, there, costs_there)


def _expected(estimator: Any, family: Family, rows: RowsShape, place: Place, costs: Costs) -> float:
    least, most = family.passes(estimator, costs)
    work = family.work(estimator, rows, place, (least * most) ** 0.5)
    return costs.seconds(work)
