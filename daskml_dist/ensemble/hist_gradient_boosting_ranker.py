"""Gradient boosting of trees that rank the rows of a query: LambdaMART and related methods.

The trees are those of `BaseBoosting`. This module reads the inputs: the query of each row is joined
to its target (`data.query_ids`), for the fit and for each validation set. Gradients and NDCG, which
are computed query by query, are in `daskml_dist.solvers.ranking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.callbacks.eval_monitor import name_eval_sets
from daskml_dist.data.collection import Collection, as_collection, find_length, take_named_columns
from daskml_dist.data.conversion import convert_batches, convert_foreign
from daskml_dist.data.query_ids import join_queries, resolve_sizes, take_group_column
from daskml_dist.ensemble.hist_gradient_boosting import BaseBoosting
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.estimators.trees import is_count
from daskml_dist.metrics.queries import ndcg_score
from daskml_dist.parameters.checks import check_count, check_flag, check_number, check_one_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.binning import HoldoutMask
from daskml_dist.solvers.ranking import OBJECTIVES, NdcgScorer, QueryHoldout, RankingLoss
from daskml_dist.training.dataset_info import DatasetInfo

#: Maximum label for the gain ``2**label - 1``, as in LightGBM and XGBoost: above it one row would
#: dominate all others.
_MAX_EXPONENTIAL_LABEL = 31


@dataclass(frozen=True, eq=False)
class _RankedTarget:
    """Target of rows, and the queries of the rows, as given by the user.

    Parameters
    ----------
    y, group : object
    row_set_number : int
        Number of the set of rows: 0 for those of the fit.
    """

    y: Any
    group: Any
    row_set_number: int = 0


class HistGradientBoostingRanker(BaseBoosting):
    """Gradient boosting of trees that order the rows of each query by relevance (LambdaMART).

    The gradients of a row come from all rows of its query. They may be in any blocks and on any
    workers: the trees have the same bits for any chunks and number of workers, and after the loss
    of any worker.

    Parameters
    ----------
    objective : {"lambdarank", "rank_xendcg", "pairwise"}, default="lambdarank"
        Pairs of rows weighted by the change of NDCG if they are exchanged (Burges 2010); the cross
        entropy of scores and drawn targets (Bruch 2021); all pairs with equal weight (RankNet).
    group : str or None, default="qid"
        Name of the column of a dataframe that holds the query of each row, if `fit` is not given
        the queries. It is not a feature.
    truncation_level : int or None, default=30
        Only pairs with a row among the first `truncation_level` of their query count; None: all
        pairs count.
    sigmoid : float, default=1.0
        Steepness of the probability that a pair is in the wrong order.
    normalize : bool, default=True
        Whether the gradients of a query are divided by the sum of their sizes, as in LightGBM, and
        of "lambdarank" by the distance of the scores too.
    label_gain : {"exponential", "linear"} or sequence of float, default="exponential"
        Gain of a label: ``2**label - 1``, the label itself, or the entry at the label's index.
    ndcg_eval_at : int, None, or sequence of these, default=10
        Places that NDCG counts (None: all), in early stopping (the first), in the scores of
        `eval_set` (each) and in :meth:`score` (the first).
    subsample : float, default=1.0
        Share of the queries from whose rows the tree of an iteration is grown. ("goss" draws rows.)
    validation_fraction : float or None, default=0.1
        Share of the queries that are held out for early stopping, drawn by a hash of the query;
        None: the training queries are scored.

    Attributes
    ----------
    train_score_, validation_score_ : ndarray of float64
        With early stopping, NDCG before the first tree and after each iteration, of the training
        queries and of the held-out queries; otherwise empty.

    References
    ----------
    C. J. C. Burges, "From RankNet to LambdaRank to LambdaMART: an overview", Microsoft Research
    Technical Report MSR-TR-2010-82, 2010. S. Bruch, "An alternative cross entropy loss for
    learning-to-rank", WWW 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import HistGradientBoostingRanker
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(400, 2)), np.repeat(np.arange(40), 10)
    >>> y = np.digitize(X[:, 0], [0, 1])
    >>> model = HistGradientBoostingRanker(max_iter=20).fit(X, y, group=qid)
    >>> bool(model.score(X, y, group=qid) > 0.95)
    True
    """

    objective: str
    group: str | None
    truncation_level: int | None
    sigmoid: float
    normalize: bool
    label_gain: Any
    ndcg_eval_at: Any
    #: Early stopping uses NDCG, which is not a parameter.
    scoring: Any = "loss"
    _defaults: ClassVar[dict[str, Any]] = {**BaseOnRows._defaults, "scoring": "loss"}
    _needs_target = True
    #: Name of the column that held the queries in the fit, or would have held them.
    _query_column: str | None = None

    def __init__(
        self,
        objective: str = "lambdarank",
        *,
        group: str | None = "qid",
        # Weights of pairs of rows, and of labels.
        truncation_level: int | None = 30,
        sigmoid: float = 1.0,
        normalize: bool = True,
        label_gain: Any = "exponential",
        ndcg_eval_at: Any = 10,
        # Number of steps, and their length; shorter ones overfit less (Friedman 2001, section 5).
        learning_rate: float = 0.1,
        max_iter: int = 100,
        # Earlier trees that an iteration ignores (DART).
        drop_rate: float = 0.0,
        skip_drop: float = 0.0,
        max_drop: int | None = 50,
        # Growth of each tree, by the largest gain first or level by level.
        max_leaf_nodes: int | None = 31,
        max_depth: int | None = None,
        grow_policy: str = "lossguide",
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        # Rows that an iteration uses, and features that a tree, a level and a node use.
        subsample: float = 1.0,
        sampling_method: str = "uniform",
        top_rate: float = 0.2,
        other_rate: float = 0.1,
        colsample_bytree: float = 1.0,
        colsample_bylevel: float = 1.0,
        max_features: float = 1.0,
        # Treatment of features: bins, categories, and the effects that trees may learn.
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        warm_start: bool = False,
        # Early stopping by NDCG on held-out queries or, without a fraction, on the training
        # queries.
        early_stopping: bool | str = "auto",
        validation_fraction: float | None = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
        verbose: int = 0,
        random_state: Any = None,
        # Where the fit runs, and how it is monitored.
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.objective = objective
        self.group = group
        self.truncation_level = truncation_level
        self.sigmoid = sigmoid
        self.normalize = normalize
        self.label_gain = label_gain
        self.ndcg_eval_at = ndcg_eval_at
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.drop_rate = drop_rate
        self.skip_drop = skip_drop
        self.max_drop = max_drop
        self.max_leaf_nodes = max_leaf_nodes
        self.max_depth = max_depth
        self.grow_policy = grow_policy
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.subsample = subsample
        self.sampling_method = sampling_method
        self.top_rate = top_rate
        self.other_rate = other_rate
        self.colsample_bytree = colsample_bytree
        self.colsample_bylevel = colsample_bylevel
        self.max_features = max_features
        self.max_bins = max_bins
        self.categorical_features = categorical_features
        self.monotonic_cst = monotonic_cst
        self.interaction_cst = interaction_cst
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        check_one_of("objective", self.objective, OBJECTIVES)
        if self.group is not None and not isinstance(self.group, str):
            raise InvalidParameterError(
                "The constructor parameter group is the name of a column of X, or None. Pass "
                "the queries themselves to fit: fit(X, y, group=ids)."
            )
        if self.truncation_level is not None:
            check_count("truncation_level", self.truncation_level)
        check_number("sigmoid", self.sigmoid, lambda v: v > 0, "> 0")
        check_flag("normalize", self.normalize)
        if isinstance(self.label_gain, str):
            check_one_of("label_gain", self.label_gain, ("exponential", "linear"))
        elif not (np.ndim(self.label_gain) == 1 and np.min(self.label_gain, initial=0.0) >= 0):
            raise InvalidParameterError(
                f'label_gain={self.label_gain!r} must be "exponential", "linear", or a gain >= 0 '
                "for each label from 0: label_gain=[0, 1, 3, 7]."
            )
        for k in _list_cutoffs(self.ndcg_eval_at):
            if k is not None:
                check_count("ndcg_eval_at", k)
        super()._check_params()

    def _check_validation_fraction(self, value: Any) -> None:
        if is_count(value):
            raise InvalidParameterError(
                f"validation_fraction={value!r} must be a share of the queries in (0, 1), or "
                "None: queries are held out whole, so a number of rows is not possible."
            )
        super()._check_validation_fraction(value)

    # -- inputs --------------------------------------------------------------------------------

    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        group: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
        group_val: Any = None,
        eval_set: Any = None,
        client: Any = None,
    ) -> Self:
        """Fit the ensemble of ranking trees.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
            Dense, and may hold NaN, which is a missing value.
        y : of one value a row, or the name of a column
            Relevance: whole numbers from 0, more is better; with ``label_gain="linear"`` any
            numbers from 0.
        sample_weight : of one value a row, or the name of a column, or None
            Weights of queries: all rows of a query have the same. With sizes in `group`, one
            for each query, too.
        group : str, or of one value a row, or sizes of queries, optional
            Query of each row: the name of a column of the dataframe X; an id for each row (numbers,
            texts), in any order and any blocks; or the numbers of rows of queries that follow each
            other. By default the column named by the parameter `group`.
        X_val, y_val, sample_weight_val, group_val
            Rows whose NDCG determines early stopping, in the same forms.
        eval_set : tuple of (X, y), (X, y, group) or (X, y, group, sample_weight), or list or dict
            Sets of rows whose NDCG is in :attr:`history_` after each iteration, as
            ``eval_score_SET_ndcg@K``. Without `X_val`, the last set determines early stopping.
        client : distributed.Client, optional
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            An argument is invalid; the message names the remedy.
        TrainingError
            The fit cannot continue.
        """
        if eval_set is not None:
            sets = name_eval_sets(eval_set, "group, sample_weight")
            eval_set = {
                name: (X, _RankedTarget(y, extras[0] if extras else None, number), *extras[1:])
                for number, (name, (X, y, *extras)) in enumerate(sets.items(), 2)
            }
        if group_val is not None and X_val is None:
            raise InvalidDataError("group_val is provided, but X_val was not provided. Give both.")
        y_val = None if y_val is None else _RankedTarget(y_val, group_val, 1)
        return super().fit(
            X, _RankedTarget(y, group), sample_weight, X_val=X_val, y_val=y_val,
            sample_weight_val=sample_weight_val, eval_set=eval_set, client=client,
        )  # fmt: skip

    def _prepare_inputs(
        self, X: Any, y: Any, sample_weight: Any, *, labels_stay: bool = False
    ) -> tuple[Any, Any, Any]:
        """Return X without the column of queries, targets joined with them, and weights."""
        if not isinstance(y, _RankedTarget):
            return X, y, sample_weight  # joined already
        ranked, number = y, y.row_set_number
        # Batches of a generator may contain targets and weights.
        X, target, sample_weight = convert_batches(X, ranked.y, sample_weight)
        if number == 0:  # for the fit: its column is left out of all rows from here on
            self._query_column = ranked.group if isinstance(ranked.group, str) else self.group
        X, group = take_group_column(X, ranked.group, self._query_column)
        X, y, sample_weight = super()._prepare_inputs(X, target, sample_weight)
        group, sample_weight = resolve_sizes(group, find_length(X), sample_weight, number)
        return X, join_queries(y, group, self._label_check()), sample_weight

    def _align_inputs(self, X: Any, y: Any, sample_weight: Any) -> Collection:
        X = X if self._is_encoded else self._encode_categories(X)
        # Three columns: the target, and the halves of the query's code.
        return as_collection(X, y, sample_weight, multi_output=True)

    def _label_check(self) -> Callable[[NDArray[np.float64]], None]:
        """Return a picklable function that raises for labels that cannot be ranked."""
        gain = self.label_gain
        kind = gain if isinstance(gain, str) else len(gain)
        return partial(_check_labels, kind)

    def _take_features(self, X: Any) -> Any:
        """Return rows without the column of queries."""
        X, column = convert_foreign(X), self._query_column
        if is_dataframe_like(X) and column is not None and column in X.columns:
            return X.drop(columns=[column])
        return X

    def _read_features(self, X: Any) -> Any:
        return super()._read_features(self._take_features(X))

    # -- the problem ---------------------------------------------------------------------------

    def _make_boosting_loss(self, rows: DatasetInfo) -> RankingLoss:
        gain = self.label_gain
        return RankingLoss(
            self.objective,
            None if self.truncation_level is None else int(self.truncation_level),
            float(self.sigmoid),
            bool(self.normalize),
            gain if isinstance(gain, str) else tuple(float(value) for value in gain),
        )

    def _draw_holdout(self, rows: DatasetInfo, size: float) -> HoldoutMask:
        return QueryHoldout(float(size), self._seed)

    @property
    def _stop_scoring(self) -> Any:
        return _list_cutoffs(self.ndcg_eval_at)[0]

    def _name_watched_scores(self, scoring: Any) -> dict[str, Any]:
        cutoffs = _list_cutoffs(self.ndcg_eval_at)
        return {"ndcg" if k is None else f"ndcg@{k}": k for k in cutoffs}

    def _make_scorer(self, scoring: Any, rows: DatasetInfo) -> Any:
        return NdcgScorer(None if scoring is None else int(scoring))

    # -- functions of rows ---------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Predict scores: within a query, rows are ranked by descending score.

        Parameters
        ----------
        X : as in :meth:`fit`
            With or without the column of queries, which predictions do not need.

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows,)
        """
        return self._map_raw_predictions(None, X, np.float64, None)

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Yield the scores after each iteration.

        Parameters
        ----------
        X : as in :meth:`predict`

        Yields
        ------
        ndarray or lazy dask Array of float64 of shape (n_rows,)
        """
        X = self._take_features(X)
        self._check_fitted(X)
        for stage in self._iterate_stages():
            yield stage.predict(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, group: Any = None) -> float:
        """Return the mean NDCG of the queries, by the gains of labels that the fit used.

        Parameters
        ----------
        X, y, sample_weight, group
            As in :meth:`fit`.

        Returns
        -------
        float
        """
        self._check_fitted()
        X, group = take_group_column(X, group, self._query_column)
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        mean_ndcg: float = ndcg_score(
            y, self.predict(X), group=group, k=_list_cutoffs(self.ndcg_eval_at)[0],
            gain=self.label_gain, sample_weight=sample_weight,
        )  # fmt: skip
        return mean_ndcg


def _list_cutoffs(user_cutoffs: Any) -> tuple[int | None, ...]:
    """Return the cutoffs of NDCG: at least one number or None."""
    cutoffs = (
        tuple(user_cutoffs) if isinstance(user_cutoffs, Sequence | np.ndarray) else (user_cutoffs,)
    )
    if not cutoffs or isinstance(user_cutoffs, str):
        raise InvalidParameterError(
            f"ndcg_eval_at={user_cutoffs!r} must be a number of positions, None, or a list of "
            "these."
        )
    return cutoffs


def _check_labels(kind: str | int, labels: NDArray[np.float64]) -> None:
    """Raise for labels that are negative, not integers if they must be, or too large."""
    finite = labels[np.isfinite(labels)]  # others are refused when blocks are made
    if (finite < 0).any():
        raise InvalidDataError(
            f"y holds a negative relevance, {finite.min():g}. Relevance counts from 0: shift the "
            "labels, y - y.min()."
        )
    max_label = _MAX_EXPONENTIAL_LABEL if kind == "exponential" else None
    if isinstance(kind, int):
        max_label = kind - 1
    if kind != "linear" and (finite != np.trunc(finite)).any():
        raise InvalidDataError(
            "y holds labels that are not whole numbers. Round them, or use label_gain='linear', "
            "in which the gain is the label itself."
        )
    if max_label is not None and (finite > max_label).any():
        remedy = (
            "label_gain='linear', in which the gain is the label itself"
            if kind == "exponential"
            else f"a label_gain of {int(finite.max()) + 1} numbers"
        )
        raise InvalidDataError(
            f"y holds the label {finite.max():g}, and label_gain goes up to {max_label}. Give few "
            f"grades of relevance, such as 0 to 4, or {remedy}."
        )
