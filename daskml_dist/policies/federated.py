"""Federated averaging: drawn clients train from common parameters, and are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.policies.base import Policy, is_number

__all__ = ["FederatedAveraging"]

#: First number of the seeds of client draws, which keeps them apart from the draws of rows or
#: parameters.
_DRAW_STREAM = 0xC11E


@dataclass(frozen=True)
class FederatedAveraging(Policy):
    """Federated averaging (FedAvg): in each round, some clients train and are averaged.

    A client is a lane: by default a chunk of a Dask array or a partition of a dataframe, as the
    helpers ``partition_by_class``, ``partition_by_dirichlet`` and ``partition_by_column`` of
    :mod:`daskml_dist.datasets` produce; with ``Run(n_lanes=k)``, one of `k` even parts of the rows.
    In each round, drawn clients take local steps from the common parameters, with a new optimizer
    state. The mean of their parameters, weighted by their rows, becomes the new common parameters,
    or the input of an outer step (`outer`). Clients that are not drawn compute and send nothing. A
    pass of ``max_iter`` and of ``history_`` is a round; ``history_`` has the numbers of its
    ``clients``, and their ``rows``, each counted as often as it was learned.

    The draw depends only on ``random_state`` and the number of the round, so losing a worker
    changes neither the draw nor, with ``Run(deterministic=True)``, any bit.

    Choose it to test how a model learns from rows that belong to different owners: it simulates
    federated learning, or runs it over silos that share one Dask cluster. All clients' rows are on
    that cluster; there are no devices and no secure aggregation.

    Parameters
    ----------
    fraction : float, default=0.1
        Share of the clients that each round draws, above 0 and at most 1; at least one client.
    local_epochs : int, default=1
        Passes of a drawn client over its rows in a round, in batches of ``batch_size`` rows, so
        that a client with fewer rows takes fewer steps.
    local_steps : int or None, default=None
        Steps of each drawn client in a round, in place of `local_epochs`: a client with fewer rows
        repeats them, and one with more rows uses some of them, drawn again in each round.
    proximal : float, default=0.0
        Factor mu of FedProx: ``mu * (w - w_round)`` is added to each local gradient, which keeps
        clients near the common parameters.
    outer : str, Optimizer or None, default=None
        As in :class:`LocalSGD`: ``"adam"`` is FedAdam, ``"adagrad"`` FedAdagrad, ``"momentum"``
        FedAvgM. None: to the mean, which is FedAvg.
    outer_rate, outer_momentum : float or None, default=None
        As in :class:`LocalSGD`.

    References
    ----------
    B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017. T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020
    (FedProx). S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (FedAdam, FedAdagrad).

    Examples
    --------
    >>> from daskml_dist.policies import FederatedAveraging
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> policy = FederatedAveraging(fraction=0.2, local_epochs=5, outer="adam")
    >>> SGDClassifier(policy=policy).policy.fraction
    0.2
    """

    name = "federated"
    loop = "replicas"
    draws_lanes = True
    fraction: float = 0.1
    local_epochs: int = 1
    local_steps: int | None = None
    proximal: float = 0.0
    outer: str | Optimizer | None = None
    outer_rate: float | None = None
    outer_momentum: float | None = None

    def __post_init__(self) -> None:
        fraction, steps, mu = self.fraction, self.local_steps, self.proximal
        is_count = isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1
        if steps is not None and not is_count:
            raise InvalidParameterError(
                f"FederatedAveraging(local_steps={steps!r}): give an integer >= 1, or None for "
                "local_epochs."
            )
        super().__post_init__()
        if not (is_number(fraction) and 0 < fraction <= 1):
            raise InvalidParameterError(
                f"FederatedAveraging(fraction={fraction!r}): give a number > 0 and <= 1, the share "
                "of the clients that each round draws."
            )
        if steps is not None and self.local_epochs != 1:
            raise InvalidParameterError(
                f"FederatedAveraging(local_epochs={self.local_epochs}, local_steps={steps}): "
                "give either local epochs or local steps. Leave one of them out."
            )
        if not (is_number(mu) and mu >= 0):
            raise InvalidParameterError(
                f"FederatedAveraging(proximal={mu!r}): give a finite number >= 0; 0 is FedAvg."
            )

    @property
    def average_every(self) -> int:  # type: ignore[override]
        """Return the steps of a round; with local epochs, each counts as one step."""
        return self.local_epochs if self.local_steps is None else self.local_steps

    @property
    def compresses(self) -> bool:
        """Return False: the changes of drawn clients are sent whole."""
        return False

    def count_client_steps(self, n_rows: int, batch_size: int | None) -> tuple[int, int]:
        """Return a client's batches in one pass over its rows, and its steps in a round."""
        n_batches, _ = super().count_client_steps(n_rows, batch_size)
        return n_batches, self.local_steps or self.local_epochs * n_batches

    def for_round(self, n_steps: int) -> Policy:
        """Return the policy of a fit whose rounds have `n_steps` steps."""
        return replace(self, local_steps=n_steps, local_epochs=1)

    def draw_clients(self, seed: int, number: int, rows: Sequence[int]) -> list[int]:
        """Return the clients of a round, sorted.

        Parameters
        ----------
        seed : int
            Seed of the fit, from ``random_state``.
        number : int
            Number of the round, from 0.
        rows : sequence of int
            Rows of each client. Clients without rows, such as clients with lost data, are not
            drawn.

        Returns
        -------
        list of int
        """
        nonempty = np.flatnonzero(np.asarray(rows))
        count = max(1, round(self.fraction * len(nonempty)))
        # The draw depends only on the seed and the round; a stateful generator could be in another
        # state after a loss.
        random: Any = np.random.default_rng([_DRAW_STREAM, seed, number])
        drawn: list[int] = sorted(random.choice(nonempty, count, replace=False).tolist())
        return drawn
