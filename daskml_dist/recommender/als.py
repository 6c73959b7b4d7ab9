"""`ALS`."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from daskml_dist._callback_list import callback_list
from daskml_dist._checks import (
    check_count,
    check_flag,
    check_number,
    check_one_of,
    check_run,
    seed_of,
)
from daskml_dist._run import Run
from daskml_dist.backends.als import LeastSquares
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.factors import Factors
from daskml_dist.planning import Planned
from daskml_dist.recommender._base import BaseRecommender
from daskml_dist.solvers.als import ALSSolver
from daskml_dist.solvers.keyed import KeyedSolution
from daskml_dist.training.history import History
from daskml_dist.training.interrupts import raise_interrupt
from daskml_dist.training.keyed_fit import KeyedFit

__all__ = ["ALS"]


class ALS(Planned, BaseRecommender):
    """Factors of users and items by alternating least squares.

    A rating is predicted by the product of a user's and an item's factors. Given the items'
    factors, those of each user are a small least squares problem, and the other way round.
    Ratings are cut once by ranges of users and of items over the workers; in a sweep each worker
    solves for its own users and items, and factors travel alone.

    Parameters
    ----------
    rank : int, default=10
        Length of a vector of factors.
    reg_param : float, default=0.1
        Penalty of the squared factors; of explicit ratings times the number of the ratings that a
        user or an item has (ALS-WR), so that it depends little on the size of the data.
    max_iter : int, default=10
        Sweeps.
    implicit : bool, default=False
        Ratings are counts or durations, at least 0: each makes a preference more certain, and a
        pair without one is a weak "no". Counts of a pair that comes several times are summed.
        Otherwise ratings are what users say, and a pair that comes several times was rated
        several times.
    alpha : float, default=1.0
        Confidence that a unit of an implicit rating adds to 1.
    solver : {"cholesky", "cg"}, default="cholesky"
        ``"cg"`` makes `cg_steps` steps of conjugate gradients instead of a factorisation: faster
        for high ranks, with a loss that falls a little more slowly.
    biases : bool, default=False
        Learn what each user and each item adds to the mean of all explicit ratings.
    cg_steps : int, default=3
    tol : float or None, default=None
        End where the loss falls by less than this share in a sweep; None: after `max_iter`.
    dtype : {"float32", "float64"}, default="float32"
        Of the factors and of the arithmetic; in float32, systems that need more digits are solved
        in float64.
    user_col, item_col, rating_col : str, default="user", "item", "rating"
        Columns of a dataframe. Without a rating column (None) every row is a rating of 1.
    random_state : int, RandomState instance or None, default=None
        The first factors follow from it and from the order of the ids, not from workers or chunks.
    verbose : int, default=0
        Above 0: a line of progress.
    run : Run or None, default=None
        Uses `n_lanes` and `deterministic`.
    device : {"auto", "cpu"}, default="auto"
        Least squares are solved by the CPU.
    callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Attributes
    ----------
    user_ids_, item_ids_ : ndarray of shape (n_users,), (n_items,)
        Sorted; of a sparse matrix, the rows and columns that have a rating.
    user_factors_, item_factors_ : ndarray of shape (n_users, rank), (n_items, rank)
    user_biases_, item_biases_ : ndarray of shape (n_users,), (n_items,)
        With `biases`.
    mean_ : float
        Of all ratings.
    n_iter_ : int
        Sweeps.
    history_ : History
        A record a sweep; its loss is the root mean squared error, or the mean squared error of
        all pairs weighted by their confidence.

    References
    ----------
    Y. Zhou, D. Wilkinson, R. Schreiber and R. Pan, "Large-scale parallel collaborative filtering
    for the Netflix prize", AAIM 2008. Y. Hu, Y. Koren and C. Volinsky, "Collaborative filtering
    for implicit feedback datasets", ICDM 2008.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.recommender import ALS
    >>> ratings = pd.DataFrame({
    ...     "user": ["ann", "ann", "bob", "bob", "eve"],
    ...     "item": ["tea", "milk", "tea", "milk", "tea"],
    ...     "rating": [5.0, 1.0, 4.0, 1.0, 5.0],
    ... })
    >>> model = ALS(rank=2, reg_param=0.01, random_state=0).fit(ratings)
    >>> model.recommend(["eve"], n=1)["item"].tolist()
    ['milk']
    """

    _run_used: ClassVar[tuple[str, ...]] = ("n_lanes", "deterministic")

    def __init__(
        self,
        rank: int = 10,
        *,
        reg_param: float = 0.1,
        max_iter: int = 10,
        implicit: bool = False,
        alpha: float = 1.0,
        solver: str = "cholesky",
        biases: bool = False,
        cg_steps: int = 3,
        tol: float | None = None,
        dtype: str = "float32",
        user_col: Any = "user",
        item_col: Any = "item",
        rating_col: Any = "rating",
        random_state: Any = None,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.rank = rank
        self.reg_param = reg_param
        self.max_iter = max_iter
        self.implicit = implicit
        self.alpha = alpha
        self.solver = solver
        self.biases = biases
        self.cg_steps = cg_steps
        self.tol = tol
        self.dtype = dtype
        self.user_col = user_col
        self.item_col = item_col
        self.rating_col = rating_col
        self.random_state = random_state
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def fit(self, X: Any, y: None = None, *, client: Any = None) -> Self:
        """Learn the factors.

        Parameters
        ----------
        X : pandas.DataFrame, dask DataFrame, scipy.sparse matrix, or dask Array of such chunks
            A rating a row, with the columns `user_col`, `item_col` and `rating_col`; ids are
            integers, strings or anything else that sorts. Or a matrix of users and items, whose
            stored cells are ratings, and whose rows and columns are ids.
        y : ignored
        client : distributed.Client, optional
            Default: the current client. Without one, ratings in memory are trained in this process
            and a Dask collection on a cluster inside it.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Naming the remedy: a column is not there; there are no ratings; an id or a rating is
            missing, or infinite, or negative where ratings are implicit.
        DivergedError
            A system is singular, or factors overflow.
        TrainingError
            When the fit cannot go on.
        """
        solver = self._solver()
        settings = check_run(self.run, self.device, name=type(self).__name__, used=self._run_used)
        callbacks = callback_list(self.callbacks, type(self).__name__, self.max_iter, self.verbose)
        entries = self._entries(X)
        client = self._placed(client, entries, X)
        with KeyedFit(entries, settings, client, callbacks) as fit:
            solution, result, spec = fit.solve(solver, callbacks)
            self.user_ids_, self.item_ids_ = (solution.ids[side] for side in ("user", "item"))
            self._set_factors(solution)
            self.history_ = History(
                result.records,
                extra={
                    "n_lanes": len(spec.rows.lane_rows),
                    "generations": result.events,
                    **fit.engine.facts,
                },
                interrupted=result.interrupted is not None,
            )
        self._given = X
        if result.interrupted is not None:
            raise_interrupt(result.interrupted, len(self.history_))
        return self

    def _solver(self) -> ALSSolver:
        """The solver, of checked parameters."""
        self._check_params()
        steps = int(self.cg_steps) if self.solver == "cg" else None
        return ALSSolver(
            Factors(int(self.rank), bool(self.implicit), bool(self.biases), self.dtype),
            LeastSquares(float(self.reg_param), bool(self.implicit), float(self.alpha), steps),
            int(self.max_iter),
            None if self.tol is None else float(self.tol),
            seed_of(self.random_state),
        )

    def _check_params(self) -> None:
        for name in ("rank", "max_iter", "cg_steps"):
            check_count(name, getattr(self, name))
        check_number("reg_param", self.reg_param)
        check_number("alpha", self.alpha, lambda v: v > 0, "> 0")
        for name in ("implicit", "biases"):
            check_flag(name, getattr(self, name))
        check_one_of("solver", self.solver, ("cholesky", "cg"))
        check_one_of("dtype", self.dtype, ("float32", "float64"))
        if self.tol is not None:
            check_number("tol", self.tol)
        if self.device == "gpu":
            raise InvalidParameterError(
                'device="gpu": the least squares of ALS are solved by the CPU. Use "auto" or "cpu".'
            )
        if self.implicit and self.biases:
            raise InvalidParameterError(
                "biases=True is for explicit ratings: implicit ones say how certain a preference "
                "is. Set biases=False."
            )

    def _set_factors(self, solution: KeyedSolution) -> None:
        users, items = (solution.values[side] for side in ("user", "item"))
        rank = int(self.rank)
        self.user_factors_, self.item_factors_ = (
            np.ascontiguousarray(rows[:, :rank]) for rows in (users, items)
        )
        self.mean_ = float(solution.extra["mean"])
        self.n_iter_ = solution.n_iter
        for name in ("user_biases_", "item_biases_"):
            if hasattr(self, name):
                delattr(self, name)
        if self.biases:
            self.user_biases_, self.item_biases_ = users[:, rank].copy(), items[:, rank].copy()
