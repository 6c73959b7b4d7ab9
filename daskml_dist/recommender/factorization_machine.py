"""Factorisation machines whose ids get a row of parameters when they first occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from daskml_dist.estimators.regressor import partial_fit, score_r2
from daskml_dist.inference.row_mapping import write_in_place
from daskml_dist.losses.base import Loss
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.recommender._embeddings import BaseEmbeddings, EmbeddingClassifier
from daskml_dist.schedules import Schedule
from daskml_dist.training.dataset_info import DatasetInfo


class FactorizationMachineClassifier(EmbeddingClassifier):
    """Factorisation machine for two classes, trained on a parameter server with growing tables.

    Each id has a weight and a vector of `rank` factors; a row is predicted by its weights and by
    the products of all pairs of its vectors. Ids need not be known in advance: a row of the table
    is created when its id first occurs.

    In a dataframe each column is a field, of ids (integers, strings, categories, dates, lists of
    ids) or of numbers; there is no one-hot encoding. In an array or a sparse matrix each column is
    an id, whose value multiplies its weight and its vector. A dataframe with only floats is read as
    an array.

    Parameters
    ----------
    rank : int, default=8
        Length of the vectors.
    numeric : "auto" or list of str, default="auto"
        Columns of a dataframe that hold numbers; all others hold ids. By default those of floats
        are numbers, and those of integers, booleans, strings, categories, dates and lists are ids.
    bags : {"mean", "sum"}, default="mean"
        Values of the ids of a list: one over their number, or 1.
    missing : {"error", "own"}, default="error"
        Treatment of missing ids, and of numbers that are NaN or infinite, in a dataframe: an error,
        or an id of their own.
    alpha : float, default=0.01
        Each row of data adds ``alpha / 2`` times the squares of the weights and factors of its ids.
    init_scale : float, default=0.01
        Standard deviation of the initial factors; weights begin at 0.
    loss : str or Loss, default="log_loss"
        One of :class:`~daskml_dist.linear_model.SGDClassifier`.
    max_iter : int, default=3
        Maximum passes over the rows. If most ids are rare, as in click logs, later passes memorise
        the few rows of each id: one or two are best.
    tol, n_iter_no_change, shuffle, batch_size, learning_rate, optimizer, class_weight, warm_start
        As in :class:`~daskml_dist.linear_model.SGDClassifier`. With ``learning_rate="auto"`` first
        steps move a row's prediction by about 1.
    admit_after : int, default=1
        Number of steps that touch an id after which it gets a row; before that its gradients are
        dropped. 2 or more leaves out ids that occur once, which are most ids in click logs.
    expire_after : int or None, default=None
        Steps without its id after which a row is dropped; None: never.
    max_rows : int or None, default=None
        Maximum rows of a server's table, beyond which the rows unused for longest are dropped.
    dtype : {"float32", "float64"}, default="float32"
    policy : str or Policy, default="sync"
        ``"sync"``, ``"ssp"`` or ``"async"``: the table is on servers.
    random_state : int, RandomState instance or None, default=None
        An id's initial factors follow from it and the id, not from the order in which ids occur.

    Attributes
    ----------
    ids_ : ndarray of int64 of shape (n_ids,)
        Sorted ids that have a row.
    weights_ : ndarray of shape (n_ids,)
    vectors_ : ndarray of shape (n_ids, rank)
    intercept_ : float
    fields_ : list
        Names of the columns of a dataframe of ids; not set for other rows.
    kinds_ : list of str
        What each holds, as in :class:`~daskml_dist.feature_extraction.FieldHasher`.
    classes_ : ndarray of shape (2,)

    References
    ----------
    S. Rendle, "Factorization Machines", ICDM 2010.
    M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from daskml_dist.recommender import FactorizationMachineClassifier
    >>> rng = np.random.default_rng(0)
    >>> users, items = rng.integers(20, size=1000), rng.integers(20, size=1000)
    >>> likes = users % 2 == items % 2  # no weight of either alone tells
    >>> at = np.stack([users, 20 + items], axis=1).ravel()
    >>> X = sparse.csr_array((np.ones(2000), at, np.arange(0, 2001, 2)), shape=(1000, 40))
    >>> clf = FactorizationMachineClassifier(init_scale=0.1, max_iter=50, random_state=0)
    >>> clf.fit(X, likes).score(X, likes) > 0.95
    True

    Columns of ids beside numbers:

    >>> import pandas as pd
    >>> clicks = pd.DataFrame({"user": users, "site": items.astype(str), "age": rng.random(1000)})
    >>> clf.fit(clicks, likes).score(clicks, likes) > 0.95
    True
    >>> clf.kinds_
    ['integer', 'text', 'numeric']
    """

    def __init__(
        self,
        rank: int = 8,
        *,
        numeric: Any = "auto",
        bags: str = "mean",
        missing: str = "error",
        alpha: float = 0.01,
        init_scale: float = 0.01,
        loss: str | Loss = "log_loss",
        max_iter: int = 3,
        tol: float | None = None,
        n_iter_no_change: int = 5,
        shuffle: bool = True,
        batch_size: int | str | None = "auto",
        learning_rate: float | str | Schedule = "auto",
        optimizer: str | Optimizer = "adagrad",
        class_weight: Any = None,
        warm_start: bool = False,
        admit_after: int = 1,
        expire_after: int | None = None,
        max_rows: int | None = None,
        dtype: str = "float32",
        policy: str | Policy = "sync",
        random_state: Any = None,
        verbose: int = 0,
        run: Run | None = None,
        callbacks: Any = None,
        checkpoint: Any = None,
    ) -> None:
        self.rank = rank
        self.numeric = numeric
        self.bags = bags
        self.missing = missing
        self.alpha = alpha
        self.init_scale = init_scale
        self.loss = loss
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.shuffle = shuffle
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.admit_after = admit_after
        self.expire_after = expire_after
        self.max_rows = max_rows
        self.dtype = dtype
        self.policy = policy
        self.random_state = random_state
        self.verbose = verbose
        self.run = run
        self.callbacks = callbacks
        self.checkpoint = checkpoint

    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        return {"pairs": True}


class FactorizationMachineRegressor(RegressorMixin, BaseEmbeddings):
    """Factorisation machine for regression, trained on a parameter server with growing tables.

    As :class:`FactorizationMachineClassifier`, with the losses of
    :class:`~daskml_dist.linear_model.SGDRegressor`.

    Parameters
    ----------
    rank, numeric, bags, missing, alpha, init_scale, max_iter, tol, n_iter_no_change, shuffle, \
batch_size, learning_rate, \
optimizer, warm_start, admit_after, expire_after, max_rows, dtype, policy, random_state
        As in :class:`FactorizationMachineClassifier`. With ``learning_rate="auto"``, factors are
        initialised and learned for targets in units of the first ones' standard deviation.
    loss : str or Loss, default="squared_error"

    Attributes
    ----------
    ids_ : ndarray of int64 of shape (n_ids,)
    weights_ : ndarray of shape (n_ids,)
    vectors_ : ndarray of shape (n_ids, rank)
    intercept_ : float
    fields_ : list
        Names of the columns of a dataframe of ids; not set for other rows.
    kinds_ : list of str
        What each holds, as in :class:`~daskml_dist.feature_extraction.FieldHasher`.

    References
    ----------
    S. Rendle, "Factorization Machines", ICDM 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.recommender import FactorizationMachineRegressor
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> y = X[:, 0] * X[:, 1] + X[:, 2]
    >>> reg = FactorizationMachineRegressor(init_scale=0.1, max_iter=50, random_state=0)
    >>> reg.fit(X, y).score(X, y) > 0.95
    True
    """

    def __init__(
        self,
        rank: int = 8,
        *,
        numeric: Any = "auto",
        bags: str = "mean",
        missing: str = "error",
        alpha: float = 0.01,
        init_scale: float = 0.01,
        loss: str | Loss = "squared_error",
        max_iter: int = 3,
        tol: float | None = None,
        n_iter_no_change: int = 5,
        shuffle: bool = True,
        batch_size: int | str | None = "auto",
        learning_rate: float | str | Schedule = "auto",
        optimizer: str | Optimizer = "adagrad",
        warm_start: bool = False,
        admit_after: int = 1,
        expire_after: int | None = None,
        max_rows: int | None = None,
        dtype: str = "float32",
        policy: str | Policy = "sync",
        random_state: Any = None,
        verbose: int = 0,
        run: Run | None = None,
        callbacks: Any = None,
        checkpoint: Any = None,
    ) -> None:
        self.rank = rank
        self.numeric = numeric
        self.bags = bags
        self.missing = missing
        self.alpha = alpha
        self.init_scale = init_scale
        self.loss = loss
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.shuffle = shuffle
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.warm_start = warm_start
        self.admit_after = admit_after
        self.expire_after = expire_after
        self.max_rows = max_rows
        self.dtype = dtype
        self.policy = policy
        self.random_state = random_state
        self.verbose = verbose
        self.run = run
        self.callbacks = callbacks
        self.checkpoint = checkpoint

    score = score_r2
    partial_fit = partial_fit

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return self._prediction_loss.inverse_link

    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        return {"pairs": True}

    def predict(self, X: Any) -> Any:
        """Return the predicted targets.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,)
        """
        self._check_fitted(X)
        write = write_in_place(self._inverse_link())
        return self._map_raw_predictions(write, X, self.weights_.dtype, None)
