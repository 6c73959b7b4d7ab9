"""`BisectingKMeans`: k-means by repeated splits of a cluster in two."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import get_backend
from daskml_dist.cluster._base import BaseCentroidSolver
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.models.base import BatchRows
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import check_count, check_number, check_one_of, seed_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.bisecting_k_means import BisectingSolver, LeafAssignment
from daskml_dist.solvers.k_means import KMeansSolver
from daskml_dist.training.dataset_info import DatasetInfo


class BisectingKMeans(BaseCentroidSolver):
    """k-means by repeatedly splitting one cluster into two.

    Each split is a k-means with two centroids over the rows of its cluster, on whichever workers
    they are.

    Parameters
    ----------
    init : {"k-means||", "k-means++", "random"}, default="k-means||"
        First centroids of each split, as in :class:`KMeans`.
    n_init : int, default=1
        Number of runs of each split, of which the best is kept.
    tol : float, default=1e-4
        A run ends when the sum of both centroids' squared movements is at most `tol` times the mean
        variance of the features in the cluster to split, or when no row changes its centroid.
    algorithm : {"lloyd", "elkan"}, default="lloyd"
        Both run the same iterations here.
    bisecting_strategy : {"biggest_inertia", "largest_cluster"}, default="biggest_inertia"
        Cluster to split next: the one with the largest sum of squared distances to its centroid, or
        with the largest weight of rows.

    Attributes
    ----------
    cluster_centers_ : ndarray of float64 of shape (n_clusters, n_features)
        In the order of the tree; fewer, with a warning, if no remaining cluster has rows that
        differ.
    labels_ : ndarray or lazy dask Array of int32 of shape (n_rows,)
        Index of each row's cluster; lazy if X is lazy, and then not pickled.
    inertia_ : float
        Sum of the squared distances of the rows to the centroids of their clusters, weighted.

    References
    ----------
    M. Steinbach, G. Karypis and V. Kumar, "A comparison of document clustering techniques", KDD
    Workshop on Text Mining, 2000.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.cluster import BisectingKMeans
    >>> X = np.array([[1, 1], [3, 1], [10, 0], [10, 2], [10, 8], [10, 10]])
    >>> model = BisectingKMeans(n_clusters=3, random_state=0).fit(X)
    >>> model.cluster_centers_.tolist()
    [[2.0, 1.0], [10.0, 1.0], [10.0, 9.0]]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: str = "k-means||",
        n_init: int = 1,
        random_state: Any = None,
        max_iter: int = 300,
        verbose: int = 0,
        tol: float = 1e-4,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        bisecting_strategy: str = "biggest_inertia",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.tol = tol
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.bisecting_strategy = bisecting_strategy
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        for name in ("n_clusters", "n_init", "max_iter"):
            check_count(name, getattr(self, name))
        check_number("tol", self.tol)
        check_one_of("init", self.init, ("k-means||", "k-means++", "random"))
        check_one_of("algorithm", self.algorithm, ("lloyd", "elkan"))
        strategies = "biggest_inertia", "largest_cluster"
        check_one_of("bisecting_strategy", self.bisecting_strategy, strategies)

    def _problem(self, rows: DatasetInfo) -> tuple[Unlabelled, BisectingSolver]:
        summary = self._check_n_rows(rows)
        # Each split is a k-means with k = 2 over the rows of one leaf (Steinbach et al.).
        two_means = KMeansSolver(
            k=2,
            init=self.init,
            n_init=int(self.n_init),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            # The defaults of `KMeans`.
            oversampling=1.0,
            rounds=1,
            seed=seed_of(self.random_state),
            sparse=summary.any_sparse,
        )
        by_weight = self.bisecting_strategy == "largest_cluster"
        solver = BisectingSolver(int(self.n_clusters), two_means, by_weight)
        return Unlabelled(summary.n_features), solver

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        self._set_centroids(solution, model, rows)
        # Kept, because prediction descends the same splits.
        leaves, nodes = solution.extra["leaves"], solution.extra["nodes"]
        # A tree of m splits has 1 + 2 m nodes; `nodes` are the leaves, in the order of clusters.
        labels = np.zeros(1 + 2 * len(leaves.split), np.int32)
        labels[nodes] = np.arange(len(nodes))
        self._tree = _TreeDescent(leaves, labels)
        # A leaf whose rows are all equal cannot be split.
        if (n_leaves := len(nodes)) < self.n_clusters:
            warnings.warn(
                f"Number of clusters ({n_leaves}) found smaller than n_clusters "
                f"({self.n_clusters}): no remaining cluster has distinct rows, or the fit was "
                "stopped. Ask for fewer clusters.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )

    def predict(self, X: Any) -> Any:
        """Return the cluster of each row, by descending to the nearer of two centroids.

        These are the labels of the fit; the centroid of another leaf may be nearer.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of int32 of shape (n_rows,)
        """
        self._check_fitted(X)
        return self._map_rows(self._tree, X, np.int32)


@dataclass(frozen=True, eq=False)
class _TreeDescent:
    """Function of rows: the cluster that each row reaches by descending the tree of splits.

    Parameters
    ----------
    leaves : LeafAssignment
    labels : ndarray of int32 of shape (n_nodes,)
        Cluster of each leaf; 0 for inner nodes.
    """

    leaves: LeafAssignment
    labels: NDArray[np.int32]
    hides_not_finite: ClassVar[bool] = True

    def __call__(self, X: Any) -> NDArray[Any]:
        # Find the nodes of the rows as in the fit, where they determine which split a row belongs
        # to.
        backend = get_backend("cpu")
        rows = BatchRows(backend.rows(X, slice(0, X.shape[0])))
        labels: NDArray[Any] = self.labels[self.leaves.make(None, rows, backend)]
        return labels

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the function of rows on a device; only the leaves are copied from it."""

        def apply(X: Any) -> NDArray[Any]:
            rows = BatchRows(backend.rows(X, slice(0, X.shape[0])))
            labels: NDArray[Any] = self.labels[
                backend.to_numpy(self.leaves.make(None, rows, backend))
            ]
            return labels

        return apply
