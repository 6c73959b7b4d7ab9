"""Matrix factorisation by alternating least squares.

With explicit ratings r_ui (Zhou et al. 2008, ALS-WR) the objective is the sum of
(r_ui - x_u'y_i)**2 over the ratings, plus reg (sum of n_u |x_u|**2 + sum of n_i |y_i|**2), where
n_u and n_i count the ratings of a user and an item. For given y it is a ridge regression for each
user: (Y_u'Y_u + reg n_u I) x_u = Y_u' r_u.

Implicit ratings (Hu, Koren and Volinsky 2008) are about all pairs: the preference p_ui is 1 for a
pair with a rating and else 0, with the confidence c_ui = 1 + alpha r_ui. The system of a user,
(Y'Y + Y'(C_u - I)Y + reg I) x_u = Y'C_u p_u, needs only the rated items, since Y'Y is shared by all
users (their section 4). This module is the estimator; sweeps are in `solvers/als.py`, systems in
`backends/als.py`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.als import LeastSquares, Regressors
from daskml_dist.data.conversion import convert_foreign, load_pandas
from daskml_dist.data.keyed.cut import NumberedEntries
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.estimators.base import BaseOnRows, callback_list, choose_client
from daskml_dist.models.rated_pairs import FactorModel
from daskml_dist.parameters.checks import (
    check_count,
    check_flag,
    check_number,
    check_one_of,
    check_run,
    seed_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.recommender._base import BaseRecommender, check_any_ratings
from daskml_dist.recommender._scores import find_id_positions
from daskml_dist.solvers.als import ALSSolver, build_ratings
from daskml_dist.solvers.keyed import KeyedSolution
from daskml_dist.training.job import KeyedJob


class ALS(BaseRecommender):
    """Matrix factorisation of ratings by alternating least squares.

    A rating is predicted by the product of a user's and an item's factors. Given the items'
    factors, those of each user are a small least squares problem, and the other way round.
    Ratings are partitioned once, by ranges of users and by ranges of items, over the workers; in a
    sweep each worker solves for its own users and items, and only factors are sent.

    Parameters
    ----------
    rank : int, default=10
        Length of a vector of factors.
    reg_param : float, default=0.1
        Penalty of the squared factors; for explicit ratings it is multiplied by the number of
        ratings that a user or an item has (ALS-WR), so that the best value depends little on the
        size of the data.
    max_iter : int, default=10
        Most sweeps over users and items.
    implicit : bool, default=False
        Whether ratings are counts or durations, at least 0: each makes a preference more certain,
        and a pair without one is a weak "no". Counts of a repeated pair are summed. Explicit
        ratings are opinions, and a repeated pair counts as several ratings.
    alpha : float, default=1.0
        Confidence that a unit of an implicit rating adds to 1.
    solver : {"cholesky", "cg"}, default="cholesky"
        ``"cg"`` makes `cg_steps` steps of conjugate gradients instead of a factorisation: faster
        for high ranks, with a loss that falls a little more slowly.
    biases : bool, default=False
        Learn biases: how much each user and each item adds to the mean of all explicit ratings.
    cg_steps : int, default=3
    tol : float or None, default=None
        Stop if the loss falls by less than this share in a sweep; None: after `max_iter`.
    dtype : {"float32", "float64"}, default="float32"
        Type of the factors and of the arithmetic; in float32, ill-conditioned systems are solved in
        float64.
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
        Mean of all ratings.
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

    plan = BaseOnRows.plan

    _run_used: ClassVar[tuple[str, ...]] = ("n_lanes", "deterministic")

    def __init__(
        self,
        # The objective, and how it is minimised.
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
        # The columns of a dataframe of ratings, and the seed of the first factors.
        user_col: Any = "user",
        item_col: Any = "item",
        rating_col: Any = "rating",
        random_state: Any = None,
        # Reports of the fit, and where it runs.
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
        """Fit the factors to ratings.

        Parameters
        ----------
        X : dataframe or table of any kind, scipy.sparse matrix, or dask Array of such chunks
            One rating a row, with the columns `user_col`, `item_col` and `rating_col`; ids are
            integers, strings or any other sortable values. Or a matrix of users and items, whose
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
            The message names the remedy: a column is missing; there are no ratings; an id or a
            rating is missing, or infinite, or negative for implicit ratings.
        DivergedError
            A system is singular, or factors overflow.
        TrainingError
            When the fit cannot continue.
        """
        # Parameters are checked before any rating is read.
        solver = self._solver()
        settings = check_run(
            self.run, self.device, name=type(self).__name__, used_settings=self._run_used
        )
        callbacks = callback_list(self.callbacks, type(self).__name__, self.max_iter, self.verbose)
        X = convert_foreign(X)
        entries = self._entries(X)
        client = choose_client(self, client, entries, X)
        with KeyedJob(entries, client, settings, callbacks) as job:
            solution, result, fit = job.solve(solver, callbacks)
            self.user_ids_, self.item_ids_ = (solution.ids[side] for side in ("user", "item"))
            self._set_factors(solution)
            self.history_ = job.make_history(fit, result)
        self._given = X  # for `recommend`, which leaves out items that users have rated
        return self

    def fold_in(self, X: Any) -> Self:
        """Return a copy with factors for new users, computed from their ratings.

        Each user's factors are the least squares solution for given factors of the items, which is
        half a sweep: users that are new since the fit are treated like all others.

        Parameters
        ----------
        X : as in :meth:`fit`
            All ratings of the users in the copy, which replace those of the fit. They are gathered
            to the client. Ratings of items that the fit has not seen are ignored.

        Returns
        -------
        ALS
            Its `recommend` leaves out items rated in `X`.

        Raises
        ------
        InvalidDataError
            A user has rated no item that the fit has seen.
        DivergedError
            The system of a user is singular.

        References
        ----------
        Y. Hu, Y. Koren and C. Volinsky, "Collaborative filtering for implicit feedback datasets",
        ICDM 2008, section 4.

        Examples
        --------
        >>> import pandas as pd
        >>> from daskml_dist.recommender import ALS
        >>> ratings = pd.DataFrame({
        ...     "user": ["ann", "ann", "bob", "bob"],
        ...     "item": ["tea", "milk", "tea", "milk"],
        ...     "rating": [5.0, 1.0, 4.0, 1.0],
        ... })
        >>> model = ALS(rank=2, reg_param=0.01, random_state=0).fit(ratings)
        >>> new = pd.DataFrame({"user": ["eve"], "item": ["tea"], "rating": [5.0]})
        >>> model.fold_in(new).recommend(["eve"], n=1)["item"].tolist()
        ['milk']
        """
        self._check_fitted()
        solver = self._fitted_solver()
        users, items, values = self._known_ratings(X)
        # New users are numbered locally, as rows of a CSR matrix of their ratings.
        ids, user_rows = np.unique(users, return_inverse=True)
        rated = build_ratings(user_rows, items, values, len(ids), self.implicit)
        regressors = self._item_regressors(solver.model)
        # `width` columns: the factors and, with biases, the bias as an additional unknown.
        out = np.zeros((len(ids), solver.model.width), self.item_factors_.dtype)
        # Solved by factorisation even with solver="cg": a few steps of conjugate gradients need
        # factors to start from, and new users have none.
        failed = replace(solver.equations, steps=None).solve(rated, regressors, out)
        if len(failed):
            raise DivergedError(
                f"The least squares of user {ids[failed[0]]!r} are singular. Raise reg_param, or "
                "lower rank; scale ratings that are huge."
            )
        # A shallow copy: the items' factors are shared.
        folded = copy.copy(self)
        folded.user_ids_, folded._given = ids, X
        rank = solver.model.rank
        folded.user_factors_ = np.ascontiguousarray(out[:, :rank])
        if solver.model.biased:
            # The bias is the last unknown of each user's system.
            folded.user_biases_ = out[:, rank].copy()
        return folded

    def explain(self, X: Any, item: Any, n: int = 10) -> Any:
        """Return the ratings of a user that contribute most to the prediction of an item.

        For given factors of the items, the factors of a user are a linear function of the user's
        ratings. So is the prediction, which is a sum of a contribution from each rating.

        Parameters
        ----------
        X : as in :meth:`fit`
            The ratings of one user.
        item : id
            One of ``item_ids_``.
        n : int, default=10
            Ratings to return, of the largest contributions.

        Returns
        -------
        pandas.DataFrame
            Columns `item_col`, the rated item, and "score", the contribution of its rating
            (float64). All contributions add up to the prediction of ``fold_in(X)``; for explicit
            ratings with biases, to that prediction less the mean and the item's bias.

        Raises
        ------
        InvalidDataError
            `X` holds several users, or none that has rated an item of the fit; the fit has not
            seen `item`.

        References
        ----------
        Hu, Koren and Volinsky, ICDM 2008, section 5.
        """
        self._check_fitted()
        check_count("n", n)
        (position,) = find_id_positions(self.item_ids_, np.asarray([item]), str(self.item_col))
        if position < 0:
            raise InvalidDataError(
                f"The fit has not seen the item {item!r}. Ask for one of item_ids_."
            )
        users, items, values = self._known_ratings(X)
        if len(ids := np.unique(users)) > 1:
            raise InvalidDataError(
                f"X holds the users {ids[:5].tolist()}. Pass the ratings of one of them."
            )
        solver = self._fitted_solver()
        rated = build_ratings(np.zeros(len(items), int), items, values, 1, self.implicit)
        regressors = self._item_regressors(solver.model)
        # Hu, Koren and Volinsky, section 5: with W_u the inverse of the user's system, the
        # prediction y_i' W_u Y' C_u p(u) is a sum of y_i' W_u y_j c_uj p_uj over the rated items j.
        contributions = solver.equations.contributions(
            rated, regressors, int(position), solver.model.width
        )
        largest = np.argsort(-contributions, kind="stable")[: int(n)]
        return load_pandas().DataFrame(
            {
                self.item_col: self.item_ids_[rated.indices[largest]],
                "score": contributions[largest],
            }
        )

    def _known_ratings(self, X: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the user ids, item positions and values of the ratings of items of the fit."""
        users, items, values = self._reduce_entries(_take_ratings, X)
        check_any_ratings(len(users))
        positions = find_id_positions(self.item_ids_, items, str(self.item_col))
        if len(unknown := np.setdiff1d(users, users[positions >= 0])):
            raise InvalidDataError(
                f"User {unknown[0]!r} has rated no item that the fit has seen, so there are no "
                "factors to compute. Leave this user out: recommend treats unseen users like "
                "the mean of all."
            )
        return users[positions >= 0], positions[positions >= 0], values[positions >= 0]

    def _item_regressors(self, model: FactorModel) -> Regressors:
        """Return the items' factors (and biases) as regressors of the users' ratings."""
        factors = self.item_factors_
        if model.biased:
            factors = np.column_stack([factors, self.item_biases_])
        # Implicit ratings use all items, rated or not: Y'Y is shared by the users' systems.
        width = model.width
        gram = model.gram(factors) if self.implicit else np.zeros((width, width))
        return model.regressors(factors, gram, self.mean_)

    def _solver(self) -> ALSSolver:
        """Check the parameters, and return the solver."""
        self._check_params()
        steps = int(self.cg_steps) if self.solver == "cg" else None  # None: Cholesky
        return ALSSolver(
            FactorModel(int(self.rank), bool(self.implicit), bool(self.biases), self.dtype),
            LeastSquares(float(self.reg_param), bool(self.implicit), float(self.alpha), steps),
            int(self.max_iter),
            None if self.tol is None else float(self.tol),
            seed_of(self.random_state),
        )

    def _fitted_solver(self) -> ALSSolver:
        """Return the solver for the items' factors of the fit, whose shape does not change."""
        solver = self._solver()
        rank, biased = self.item_factors_.shape[1], hasattr(self, "item_biases_")
        return replace(solver, model=replace(solver.model, rank=rank, biased=biased))

    def _check_params(self) -> None:
        """Raise if a parameter is invalid."""
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
                'device="gpu": the least squares of ALS are solved on the CPU. Use "auto" or "cpu".'
            )
        if self.implicit and self.biases:
            raise InvalidParameterError(
                "biases=True is for explicit ratings; implicit ones are weights of preferences. "
                "Set biases=False."
            )

    def _set_factors(self, solution: KeyedSolution) -> None:
        """Set the fitted attributes; the column after the factors holds the biases."""
        users, items = (solution.values[side] for side in ("user", "item"))
        rank = int(self.rank)
        self.user_factors_, self.item_factors_ = (
            np.ascontiguousarray(rows[:, :rank]) for rows in (users, items)
        )
        self.mean_ = float(solution.extra["mean"])
        self.n_iter_ = solution.n_iter
        # Remove the biases of an earlier fit.
        for name in ("user_biases_", "item_biases_"):
            if hasattr(self, name):
                delattr(self, name)
        if self.biases:
            self.user_biases_, self.item_biases_ = users[:, rank].copy(), items[:, rank].copy()


def _take_ratings(entries: NumberedEntries) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the user id, the item id and the value of each rating of a part."""
    # Codes number the distinct ids of the part.
    (users, items), (user_codes, item_codes) = entries.ids, entries.codes
    values = np.ones(len(user_codes)) if entries.values is None else entries.values
    return users[user_codes], items[item_codes], values
