"""Choice of where a fit runs: by its user, or by the planner.

The planner simulates fits and stands above them; it is loaded where it is asked for alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask

from daskml_dist.data.collection import Collection
from daskml_dist.training.job import AUTO, INLINE, find_default_client

if TYPE_CHECKING:
    from daskml_dist.planning.plan import Plan


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
    from daskml_dist.planning.advising import advise

    return advise(X, self, y, client=client)


def choose_client(estimator: Any, client: Any, collection: Collection, X: Any = None) -> Any:
    """Return the client of a fit, which the planner chooses where the user asks for ``"auto"``."""
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
    from daskml_dist.planning.advising import is_sooner_inline

    return INLINE if is_sooner_inline(estimator, collection, X, current) else None
