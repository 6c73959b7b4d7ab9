"""Field-aware factorisation machine, over ids that get a parameter row when they occur."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from daskml_dist.losses.base import Loss
from daskml_dist.models.base import GrowingTable
from daskml_dist.models.embeddings import EmbeddingModel
from daskml_dist.models.field_aware import make_field_aware
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.checks import check_count
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.recommender._embeddings import EmbeddingClassifier
from daskml_dist.schedules import Schedule
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.spec import Settings


class FieldAwareFMClassifier(EmbeddingClassifier):
    """Field-aware factorisation machine for two classes, trained on growing tables.

    Each id has a weight, and a vector for each field of the rows: in the product of two ids, each
    uses its vector for the other's field. That needs fewer factors than
    :class:`FactorizationMachineClassifier` does, but each id has as many vectors as there are
    fields.

    Parameters
    ----------
    rank : int, default=4
        Length of each vector.
    n_fields : int or None, default=None
        As in :class:`WideAndDeepClassifier`.
    max_iter : int, default=2
        Maximum passes over the rows: it overfits early if most ids are rare.
    numeric, bags, missing, alpha, init_scale, loss, tol, n_iter_no_change, shuffle, batch_size, \
learning_rate, optimizer, class_weight, warm_start, admit_after, expire_after, max_rows, dtype, \
policy, random_state
        As in :class:`FactorizationMachineClassifier`.

    Attributes
    ----------
    ids_ : ndarray of int64 of shape (n_ids,)
        Sorted ids that have a row.
    weights_ : ndarray of shape (n_ids,)
    vectors_ : ndarray of shape (n_ids, n_fields, rank)
        For each id, its vectors for the ids of each field.
    intercept_ : float
    fields_ : list
        Names of the columns of a dataframe of ids; not set for other rows.
    kinds_ : list of str
        What each holds, as in :class:`~daskml_dist.feature_extraction.FieldHasher`.
    classes_ : ndarray of shape (2,)

    References
    ----------
    Y. Juan et al., "Field-aware Factorization Machines for CTR Prediction", RecSys 2016.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from daskml_dist.recommender import FieldAwareFMClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = pd.DataFrame(rng.integers(20, size=(1000, 2)), columns=["user", "item"])
    >>> likes = X["user"] % 2 == X["item"] % 2
    >>> clf = FieldAwareFMClassifier(init_scale=0.1, max_iter=50, random_state=0)
    >>> clf.fit(X, likes).score(X, likes) > 0.95
    True
    """

    def __init__(
        self,
        rank: int = 4,
        *,
        numeric: Any = "auto",
        bags: str = "mean",
        missing: str = "error",
        n_fields: int | None = None,
        alpha: float = 0.01,
        init_scale: float = 0.01,
        loss: str | Loss = "log_loss",
        max_iter: int = 2,
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
        if self.n_fields is not None:
            check_count("n_fields", self.n_fields)
        return super()._check_settings(policy)

    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        return {}

    def _make_model(
        self, loss: Loss, table: GrowingTable, offset: float, rows: DatasetInfo
    ) -> EmbeddingModel:
        model = super()._make_model(loss, table, offset, rows)
        return make_field_aware(model, self._count_fields(rows, self.n_fields))

    def _set_table(self, w: NDArray[Any], model: EmbeddingModel) -> None:
        super()._set_table(w, model)
        self.vectors_ = self.vectors_.reshape(len(self.ids_), -1, model.rank)
