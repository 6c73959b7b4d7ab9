"""Click models with a wide and a deep part, over ids that get a row when they occur."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.base import Loss
from daskml_dist.models.mlp import ACTIVATIONS
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.checks import check_count, check_one_of
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.recommender._embeddings import EmbeddingClassifier, list_hidden_sizes
from daskml_dist.schedules import Schedule
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.spec import Settings


class BaseDeepClassifier(EmbeddingClassifier):
    """Base class of classifiers with layers over the vectors of all fields."""

    def __init__(
        self,
        rank: int = 8,
        *,
        numeric: Any = "auto",
        bags: str = "mean",
        missing: str = "error",
        hidden_layer_sizes: Any = (64, 32),
        activation: str = "relu",
        n_fields: int | None = None,
        alpha: float = 0.01,
        init_scale: float = 0.01,
        loss: str | Loss = "log_loss",
        max_iter: int = 1,
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
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_fields = n_fields
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

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        sizes = list_hidden_sizes(self.hidden_layer_sizes)
        if not sizes:
            raise InvalidParameterError(
                "hidden_layer_sizes=() leaves no layers. Give a size for each, such as (64, 32), "
                "or use FactorizationMachineClassifier."
            )
        for size in sizes:
            check_count("hidden_layer_sizes", size)
        check_one_of("activation", self.activation, ACTIVATIONS)
        if self.n_fields is not None:
            check_count("n_fields", self.n_fields)
        return super()._check_settings(policy)

    def _layers(self, rows: DatasetInfo) -> dict[str, Any]:
        """Return the parameters of the model's layers."""
        return {
            "hidden": tuple(map(int, list_hidden_sizes(self.hidden_layer_sizes))),
            "n_fields": self._count_fields(rows, self.n_fields),
            "activation": self.activation,
        }


class WideAndDeepClassifier(BaseDeepClassifier):
    """Wide-and-deep model for two classes: weights of ids plus a perceptron on their embeddings.

    The wide part learns the effect of each id; the deep part generalises over the concatenated
    vectors of the fields' ids. Ids need not be known before the fit: rows of weights and vectors
    are created on a parameter server when their ids occur.

    Parameters
    ----------
    rank : int, default=8
        Length of the vectors.
    hidden_layer_sizes : int or tuple of int, default=(64, 32)
        Units of the perceptron's hidden layers.
    activation : {"identity", "logistic", "relu", "tanh"}, default="relu"
    n_fields : int or None, default=None
        Fields of the rows; None: the columns of a dataframe, or of an array of 255 columns at most.
        For rows that a :class:`~daskml_dist.feature_extraction.FieldHasher` has made.
    max_iter : int, default=1
        Maximum passes over the rows. Networks over rare ids overfit from the second pass on (Zhang
        et al. 2022); with few ids, or columns of numbers, more passes are possible.
    numeric, bags, missing, alpha, init_scale, loss, tol, n_iter_no_change, shuffle, batch_size, \
learning_rate, \
optimizer, class_weight, warm_start, admit_after, expire_after, max_rows, dtype, policy, \
random_state
        As in :class:`FactorizationMachineClassifier`.

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
    H.-T. Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016.
    Z.-Y. Zhang et al., "Towards Understanding the Overfitting Phenomenon of Deep Click-Through Rate
    Prediction Models", CIKM 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.recommender import WideAndDeepClassifier
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> y = X[:, 0] * X[:, 1] > 0
    >>> clf = WideAndDeepClassifier(init_scale=0.5, max_iter=50, random_state=0)
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    """

    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        return {"pairs": False, **self._layers(rows)}


class DeepFMClassifier(BaseDeepClassifier):
    """DeepFM for two classes: factorisation machine and perceptron on shared embeddings.

    As :class:`WideAndDeepClassifier`, with the products of all pairs of vectors added.

    Parameters
    ----------
    rank, hidden_layer_sizes, activation, n_fields
        As in :class:`WideAndDeepClassifier`.
    max_iter : int, default=1
        Maximum passes over the rows. Networks over rare ids overfit from the second pass on (Zhang
        et al. 2022); with few ids, or columns of numbers, more passes are possible.
    numeric, bags, missing, alpha, init_scale, loss, tol, n_iter_no_change, shuffle, batch_size, \
learning_rate, \
optimizer, class_weight, warm_start, admit_after, expire_after, max_rows, dtype, policy, \
random_state
        As in :class:`FactorizationMachineClassifier`.

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
    H. Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI
    2017.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.recommender import DeepFMClassifier
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> y = X[:, 0] * X[:, 1] > 0
    >>> clf = DeepFMClassifier(init_scale=0.5, max_iter=50, random_state=0)
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    """

    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        return {"pairs": True, **self._layers(rows)}
