"""`Incremental`: an estimator of any package that learns block after block by `partial_fit`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import check_unique_names
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import fold_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidParameterError
from daskml_dist.meta_estimators.lazy_labels import labels_of
from daskml_dist.model_selection._validation import takes_dask_collections
from daskml_dist.parameters.checks import taking_client
from daskml_dist.wrappers._blocks import teach_block
from daskml_dist.wrappers.parallel_post_fit import ParallelPostFit

__all__ = ["Incremental"]


class Incremental(ParallelPostFit):
    """Estimator of any package that learns the blocks of a Dask collection one after the other.

    The model goes from worker to worker, to where each block lies, so one worker learns at a time
    and no more than a block is in its memory. Estimators of this package learn on all workers at
    once: prefer :class:`daskml_dist.linear_model.SGDClassifier` where it has the loss.

    Parameters
    ----------
    estimator : estimator
        With ``partial_fit``.
    scoring : str or callable, default=None
        As in :class:`ParallelPostFit`.
    shuffle_blocks : bool, default=True
        Whether blocks are taken in a random order, new in each call.
    random_state : int, RandomState or None, default=None
        Draws the order.

    Attributes
    ----------
    estimator_ : estimator
        What has learned; its fitted attributes are attributes of the wrapper too.

    See Also
    --------
    ParallelPostFit : Tells of the methods of rows, whose answers are lazy.

    Notes
    -----
    Names and meaning are those of ``dask_ml.wrappers.Incremental``. Labels need not be given: they
    are found in one pass over the first `y`.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from daskml_dist.wrappers import Incremental
    >>> X, y = make_classification(n_samples=400, random_state=0)
    >>> X, y = da.from_array(X, chunks=(100, 20)), da.from_array(y, chunks=100)
    >>> clf = Incremental(GaussianNB()).fit(X, y)
    >>> clf.class_count_.sum()
    np.float64(400.0)
    >>> clf.predict(X)
    dask.array<..., shape=(400,), dtype=int64, chunksize=(100,), chunktype=numpy.ndarray>
    """

    def __init__(
        self,
        estimator: Any,
        *,
        scoring: str | Callable[..., Any] | None = None,
        shuffle_blocks: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(estimator, scoring=scoring)
        self.shuffle_blocks = shuffle_blocks
        self.random_state = random_state

    @taking_client
    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Learn all blocks once, from the start.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features). Rows in memory are one block.
        y : array-like, dask Array or dask Series of shape (n_rows,) or (n_rows, n_targets), or None
        client : distributed.Client, optional
            That everything is computed by; by default the current one.
        **params
            For each call of ``partial_fit``: `classes`; `sample_weight`, of shape (n_rows,), of
            which each block is given its own rows' weights.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            The estimator has no ``partial_fit``.
        InvalidDataError
            The collections cannot be aligned or read, or the estimator refuses a block, which is
            named.
        """
        return self._learn(clone(self.estimator), X, y, params)

    @taking_client
    def partial_fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Learn all blocks once, from where the last call ended; arguments and errors as `fit`.

        Of the first call, labels that come later must be among `classes`.
        """
        begun = copy.deepcopy(vars(self).get("estimator_")) or clone(self.estimator)
        return self._learn(begun, X, y, params)

    def _learn(self, estimator: Any, X: Any, y: Any, params: dict[str, Any]) -> Self:
        """Let an estimator, which nobody else has, learn the blocks."""
        self._check_target(y)
        if not hasattr(estimator, "partial_fit"):
            raise InvalidParameterError(
                f"{type(estimator).__name__} has no partial_fit, so it cannot learn block by block."
                " Use ParallelPostFit, or fit it to rows in memory."
            )
        X, y, weight = take_named_columns(X, y, params.pop("sample_weight", None))
        params |= self._missing_classes(estimator, y, params)
        if not any(map(is_dask, (X, y, weight))):
            check_unique_names(X)
            self.estimator_ = _learn_block(params, estimator, None, X, y, weight)
        elif takes_dask_collections(estimator):
            params |= {} if weight is None else {"sample_weight": weight}
            self.estimator_ = estimator.partial_fit(X, y, **params)
        else:
            rows = as_collection(X, y, weight, numeric=False, multi_output=True)
            order = np.arange(len(rows.parts))
            if self.shuffle_blocks:
                order = check_random_state(self.random_state).permutation(order)
            with reading(type(self).__name__):
                self.estimator_ = fold_parts(
                    rows, partial(_learn_block, params), estimator, order.tolist()
                )
        return self

    def _missing_classes(self, estimator: Any, y: Any, params: dict[str, Any]) -> dict[str, Any]:
        """Return the argument `classes` of a first ``partial_fit`` that wants one."""
        wants = "classes" in signature(estimator.partial_fit).parameters
        if not wants or y is None or "classes" in params or hasattr(estimator, "classes_"):
            return {}
        return {"classes": labels_of(y)}


def _learn_block(
    params: dict[str, Any], estimator: Any, index: int | None, X: Any, y: Any, weight: Any
) -> Any:
    """Return a copy of an estimator that has learned the rows of one block."""
    if not X.shape[0]:  # a filter may leave none
        return estimator
    learned = copy.deepcopy(estimator)
    teach_block(learned.partial_fit, params, index, X, y, weight)
    return learned
