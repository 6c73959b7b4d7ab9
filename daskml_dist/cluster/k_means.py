"""`KMeans`: Lloyd's iterations over all rows, run by `solvers/k_means.py`."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from daskml_dist.cluster._base import BaseCentroidSolver
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import check_count, check_number, check_one_of, seed_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.k_means import KMeansSolver
from daskml_dist.training.dataset_info import DatasetInfo

_INITS = ("k-means||", "k-means++", "random")


class KMeans(BaseCentroidSolver):
    """k-means over all rows, by Lloyd's iterations.

    The first centroids are found in a few rounds over all rows ("k-means||"); each later iteration
    is one pass. An iteration's sums have the size of the centroids, so rows are not moved, in
    memory or streamed, and a lost worker costs only the sum that it was computing.

    Parameters
    ----------
    init : {"k-means||", "k-means++", "random"}, array-like of shape (n_clusters, n_features) or \
    callable, default="k-means||"
        First centroids. ``"k-means||"`` finds centroids in a sample of the rows, draws some rows
        far from them in each of `init_rounds` rounds over all rows, and chooses among both.
        ``"k-means++"`` draws one in each of ``n_clusters`` passes (scikit-learn tries several, and
        keeps the best). ``"random"``: random rows. A function is called once, with rows in memory,
        `n_clusters` and a `random_state`, and returns the centroids.
    n_init : int or "auto", default="auto"
        Number of runs, of which the best is kept. ``"auto"``: 10 for ``init="random"``, else 1.
    tol : float, default=1e-4
        A run ends when the sum of the centroids' squared movements is at most `tol` times the mean
        variance of the features, or when no row changes its centroid.
    algorithm : {"lloyd", "elkan"}, default="lloyd"
        Both run the same iterations here, which compare a row with other centroids only if bounds
        on its distances require it.
    oversampling_factor : float, default=1.0
        Number of rows that a round of ``"k-means||"`` draws, per cluster.
    init_rounds : int, default=1

    Attributes
    ----------
    cluster_centers_ : ndarray of float64 of shape (n_clusters, n_features)
    labels_ : ndarray or lazy dask Array of int32 of shape (n_rows,)
        Index of each row's centroid; lazy if X is lazy, and then not pickled.
    inertia_ : float
        Sum of the squared distances of the rows to their centroids, weighted.
    n_iter_ : int
        Iterations of the best run.

    References
    ----------
    B. Bahmani, B. Moseley, A. Vattani, R. Kumar and S. Vassilvitskii, "Scalable k-means++", VLDB
    2012.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.cluster import KMeans
    >>> X = np.array([[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> model = KMeans(n_clusters=2, random_state=0).fit(X)
    >>> sorted(model.cluster_centers_.tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means||",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        oversampling_factor: float = 1.0,
        init_rounds: int = 1,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.oversampling_factor = oversampling_factor
        self.init_rounds = init_rounds
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        for name in ("n_clusters", "max_iter", "init_rounds"):
            check_count(name, getattr(self, name))
        check_number("tol", self.tol)
        check_number("oversampling_factor", self.oversampling_factor, lambda v: v > 0, "> 0")
        check_one_of("algorithm", self.algorithm, ("lloyd", "elkan"))
        if self.n_init != "auto":
            check_count("n_init", self.n_init, '"auto"')
        if self.algorithm == "elkan" and self.n_clusters == 1:
            warnings.warn(
                "algorithm='elkan' doesn't make sense for a single cluster. Using 'lloyd' instead.",
                RuntimeWarning,
                stacklevel=user_stack_level(),
            )
        # The shape of an array is checked once the number of features is known.
        self._check_init(_INITS)

    def _problem(self, rows: DatasetInfo) -> tuple[Unlabelled, KMeansSolver]:
        summary = self._check_n_rows(rows)
        init = (
            self.init
            if isinstance(self.init, str)
            else self._resolve_given_centroids(summary.n_features, _INITS)
        )
        return Unlabelled(summary.n_features), KMeansSolver(
            k=int(self.n_clusters),
            init=init,
            n_init=self._count_runs(),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            # Bahmani et al.: a round draws `oversampling * k` rows in expectation.
            oversampling=float(self.oversampling_factor),
            rounds=int(self.init_rounds),
            seed=seed_of(self.random_state),
            sparse=summary.any_sparse,
        )

    def _count_runs(self) -> int:
        """Return the number of runs, of which the best is kept."""
        if not isinstance(self.init, str):  # every run would be the same
            self._warn_of_one_init()
            return 1
        if self.n_init == "auto":
            # As in scikit-learn: k-means|| and k-means++ seldom gain from a second run.
            return 10 if self.init == "random" else 1
        return int(self.n_init)

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        self._set_centroids(solution, model, rows)
        # There are fewer distinct rows than clusters.
        if (n_distinct := int(solution.extra["n_found"])) < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({n_distinct}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )
