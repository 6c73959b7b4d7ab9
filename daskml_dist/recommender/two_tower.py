"""Two towers: vectors of users and items from their columns, for retrieval among all items.

Users and items need no numbering: their parameter rows are created when their ids occur, as in the
click models. A pass before the fit collects each side's distinct rows and counts the items, whose
frequencies correct the loss. After the fit the towers compute the factors of all users and items,
which are used for recommendations as in the other recommenders. Gradients are in
`models/two_towers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.conversion import convert_foreign, load_pandas
from daskml_dist.data.field_hashing import N_COLUMNS
from daskml_dist.data.keyed.ids import convert_ids, find_positions
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import make_no_rows_error
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.block_mapping import map_blocks
from daskml_dist.inference.table_fields import TableFields, as_table
from daskml_dist.losses import get_loss
from daskml_dist.losses.base import Loss
from daskml_dist.models.mlp import ACTIVATIONS
from daskml_dist.models.two_towers import TwoTowerModel
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.checks import (
    check_columns,
    check_count,
    check_flag,
    check_number,
    check_one_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.recommender._base import BaseRecommender, predict_pairs
from daskml_dist.recommender._embeddings import (
    BaseEmbeddings,
    TablePrediction,
    count_ids,
    list_hidden_sizes,
)
from daskml_dist.recommender._scores import FittedFactors
from daskml_dist.schedules import Constant, Schedule
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.spec import Settings

#: Rate of adaptive optimizers with ``learning_rate="auto"``, in entries of vectors of scale
#: `init_scale`: of the rates tried, the one with the best rankings (`benchmarks/retrieval.py`).
_RATE = 0.1
#: Rows whose vectors are computed together: some MiB of pooled fields.
_ROWS_AT_ONCE = 1 << 14


class SideRows(NamedTuple):
    """Distinct users or items, the number of rows of each, and its first row.

    Parameters
    ----------
    ids : ndarray
        Sorted.
    counts : ndarray of float64
    frame : DataFrame
        Columns of the side, in the order of `ids`.
    """

    ids: NDArray[Any]
    counts: NDArray[np.float64]
    frame: Any


class TwoTower(BaseRecommender, BaseEmbeddings):
    """Two-tower retrieval model: vectors of users and items, trained on growing tables.

    The tower of a user is the sum of the vectors of its ids: its own id, and those of the columns
    `user_features`; or the output of a perceptron on these vectors (`hidden_layer_sizes`). Items
    have a tower too, and a bias. A row of data is an item that its user chose. The loss is the
    softmax of that item among the items of all rows of the batch; since popular items are more
    frequent in a batch, the logarithm of an item's frequency is subtracted from its logit.

    Parameters
    ----------
    rank : int, default=32
        Length of the vectors.
    user_col, item_col : str, default="user", "item"
    user_features, item_features : sequence of str, default=()
        Further columns of each side: ids (integers, strings, categories, lists of ids) or numbers.
        If a user or item occurs in several rows, its factors are computed from the first row.
    rating_col : str or None, default=None
        Column of the rows' weights, at least 0; None: all are 1.
    numeric, bags, missing
        As in :class:`FactorizationMachineClassifier`, for the features.
    hidden_layer_sizes : int or tuple of int, default=()
        Units of the hidden layers of each side's perceptron; empty: the vectors are added.
    activation : {"identity", "logistic", "relu", "tanh"}, default="relu"
    temperature : float, default=0.3
        Products of vectors are divided by it.
    normalize : bool, default=True
        Whether the towers' vectors have length 1.
    alpha : float, default=0.0
        Each row of data adds ``alpha / 2`` times the squares of the vectors of its ids.
    init_scale : float, default=0.1
        Standard deviation of the first entries of the vectors.
    max_iter : int, default=20
        Passes over the rows at most.
    batch_size : int, "auto" or None, default="auto"
        A row's negatives are the other rows of its batch (at most 4,096), so larger batches give
        better gradients.
    warm_start : bool, default=False
        Continue from the last fit's table and towers, possibly with other (for example newer) rows.
        The users and items of these rows have factors afterwards, others :meth:`embed_users` and
        :meth:`embed_items`.
    tol, n_iter_no_change, shuffle, learning_rate, optimizer, admit_after, expire_after, max_rows, \
dtype, policy, random_state
        As in :class:`FactorizationMachineClassifier`.

    Attributes
    ----------
    user_ids_, item_ids_ : ndarray of shape (n_users,), (n_items,)
        Sorted.
    user_factors_, item_factors_ : ndarray of shape (n_users, rank), (n_items, rank)
        Computed by the towers; the users' factors are divided by the temperature.
    item_biases_ : ndarray of shape (n_items,)
    ids_ : ndarray of int64 of shape (n_ids,)
        Sorted ids that have a row of the table.
    weights_ : ndarray of shape (n_ids,)
    vectors_ : ndarray of shape (n_ids, rank)
    fields_ : list
        Names of the columns: the user's, then the item's.
    kinds_ : list of str
        What each holds, as in :class:`~daskml_dist.feature_extraction.FieldHasher`.
    n_features_in_, feature_names_in_
        Not set: rows are pairs of ids.

    References
    ----------
    X. Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
    RecSys 2019. Y. Bengio and J.-S. Senecal, "Adaptive Importance Sampling to Accelerate Training
    of a Neural Probabilistic Language Model", IEEE Transactions on Neural Networks 19(4), 2008.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from daskml_dist.recommender import TwoTower
    >>> rng = np.random.default_rng(0)
    >>> users, items = rng.integers(20, size=(2, 4000))
    >>> chosen = pd.DataFrame({"user": users, "item": items})[users % 2 == items % 2]
    >>> model = TwoTower(rank=8, random_state=0).fit(chosen)
    >>> sorted(model.recommend([3], n=3, filter_seen=False)["item"] % 2)
    [1, 1, 1]
    """

    implicit = True  # its score is a ranking score
    _needs_target = False
    _publishes_rows = False  # factors of users and items are stored in addition to the table
    _row_shape = (N_COLUMNS,)

    def __init__(
        self,
        rank: int = 32,
        *,
        user_col: Any = "user",
        item_col: Any = "item",
        user_features: Sequence[Any] = (),
        item_features: Sequence[Any] = (),
        rating_col: Any = None,
        numeric: Any = "auto",
        bags: str = "mean",
        missing: str = "error",
        hidden_layer_sizes: Any = (),
        activation: str = "relu",
        temperature: float = 0.3,
        normalize: bool = True,
        alpha: float = 0.0,
        init_scale: float = 0.1,
        max_iter: int = 20,
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
        self.user_col = user_col
        self.item_col = item_col
        self.user_features = user_features
        self.item_features = item_features
        self.rating_col = rating_col
        self.numeric = numeric
        self.bags = bags
        self.missing = missing
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.temperature = temperature
        self.normalize = normalize
        self.alpha = alpha
        self.init_scale = init_scale
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

    def fit(  # type: ignore[override]
        self, X: Any, y: None = None, *, policy: str | Policy | None = None, client: Any = None
    ) -> Self:
        """Fit the towers to pairs of users and items.

        Parameters
        ----------
        X : dataframe or table of any kind
            With the columns `user_col` and `item_col`, and those of the features.
        y : ignored
        policy : str or Policy, optional
            For this fit only.
        client : distributed.Client, optional
            Default: the current client. Without one, pairs in memory are trained in this process
            and a Dask collection on a cluster inside it.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            The message names the remedy: a column is missing; there are no pairs; an id is missing,
            negative, or of mixed types.
        DivergedError
            Vectors overflow.
        TrainingError
            When the fit cannot continue.
        """
        X = convert_foreign(X)
        last = vars(self).get("_given")
        self._given = X  # callbacks may ask for recommendations of what users have not seen
        try:
            super(BaseRecommender, self).fit(X, None, policy=policy, client=client)
        except BaseException:
            self._given = last  # what users have seen in the fit whose factors remain
            raise
        del self._side_rows  # frames of all users and items, whose factors are now known
        return self

    def stream(self, **options: Any) -> NoReturn:
        """Raise: items must be counted before a fit.

        Raises
        ------
        InvalidParameterError
            Always.
        """
        raise InvalidParameterError(
            "TwoTower does not support streams: it counts items and collects the users' columns "
            "before a fit. Refit it regularly to new rows with warm_start=True, or stream pairs "
            "to MatrixFactorization."
        )

    def embed_users(self, X: Any) -> Any:
        """Return the vectors of users from their columns, also for unseen users.

        Parameters
        ----------
        X : pandas.DataFrame or dask DataFrame
            With the columns `user_col` and `user_features`.

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, rank + 1)
            Its product with a row of :meth:`embed_items` is the score of the pair.
        """
        return self._embed(0, X)

    def embed_items(self, X: Any) -> Any:
        """Return the vectors of items from their columns, for a nearest-neighbour index.

        Parameters
        ----------
        X : pandas.DataFrame or dask DataFrame
            With the columns `item_col` and `item_features`.

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, rank + 1)
            The last column is the bias.
        """
        return self._embed(1, X)

    def _embed(self, side: int, X: Any) -> Any:
        """Return the vectors of one side's tower for the rows of a table."""
        self._check_fitted()
        names = self._columns[side]
        table = self._select(X, names)
        encode = self._make_encoder(side)
        if not is_dask(table):
            return encode(table)
        return map_blocks(encode, table, meta=np.empty((0, int(self.rank) + 1), self.dtype))

    # -- training -----------------------------------------------------------------------

    def _loss(self) -> Loss:
        # Networks are constructed with a loss, which is not computed here.
        return get_loss("squared_error", "regression")

    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        return {}

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        for size in list_hidden_sizes(self.hidden_layer_sizes):
            check_count("hidden_layer_sizes", size)
        check_one_of("activation", self.activation, ACTIVATIONS)
        check_number("temperature", self.temperature, lambda v: v > 0, "> 0")
        check_flag("normalize", self.normalize)
        check_columns("user_features", self.user_features, None)
        check_columns("item_features", self.item_features, None)
        names = [name for side in self._columns for name in side]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise InvalidParameterError(
                f"The column {repeated[0]!r} is named twice, by user_col, item_col, user_features "
                "and item_features. Name each once."
            )
        return super()._check_settings(policy)

    @property
    def _columns(self) -> tuple[list[Any], list[Any]]:
        """Return the names of the columns of users, and of items; the id columns come first."""
        users, items = self.user_features or (), self.item_features or ()
        return [self.user_col, *users], [self.item_col, *items]

    def _select(self, X: Any, names: list[Any]) -> Any:
        """Return a table of the columns with these names."""
        table = as_table(X)
        if not is_dataframe_like(table):
            raise InvalidDataError(
                f"{type(self).__name__} reads the columns of a dataframe, and X is a "
                f"{type(X).__name__}. Give pandas.DataFrame(X, columns={names!r})."
            )
        for name in names:
            if name not in table.columns:
                raise InvalidDataError(
                    f"X has no column {name!r}; it has {list(table.columns)}. Name the columns "
                    f"with user_col, item_col etc.{suggest_nearest(name, table.columns)}"
                )
        return table[names]

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        users, items = self._columns
        X = as_table(X)  # once, since a generator of batches can be read only once
        table = self._select(X, [*users, *items])
        fields = self._fields
        if reset or fields is None:
            fields = self._find_pair_fields(table)
            self._set_fields(fields)
        elif list(fields.names) != [*users, *items]:
            raise InvalidParameterError(
                f"Continuing needs the columns of the last fit, {list(fields.names)}. Leave "
                "user_col, item_col and the features unchanged, or set warm_start=False."
            )
        with report_reading(type(self).__name__):
            sides = reduce_parts(
                as_collection(table, None, None, numeric=False),
                partial(_collect_sides, (users, items)),
                _merge_sides,
            )
        if sides is None:
            raise make_no_rows_error()
        self._side_rows = sides
        counts = sides[1].counts
        frequencies = partial(
            _look_up_frequencies, sides[1].ids, np.log(counts / counts.sum()), self.item_col
        )
        item_column = table[[self.item_col]]
        log_q = (
            map_blocks(frequencies, item_column, np.empty(0))
            if is_dask(X)
            else frequencies(item_column)
        )
        weight = None
        if self.rating_col is not None:
            weight = self._select(X, [self.rating_col])[self.rating_col]
        return as_collection(fields.hash_rows(table), log_q, weight)

    def _find_pair_fields(self, table: Any) -> TableFields:
        """Return the fields of a table; ids of users and items must not be numbers or lists."""
        fields = TableFields.find(
            table, self.numeric, reader=type(self).__name__, bags=self.bags, missing=self.missing,
            dtype=np.dtype(self.dtype).name,
        )  # fmt: skip
        kinds = list(fields.kinds)
        for column in (0, len(self._columns[0])):
            if kinds[column] in ("integers", "texts"):
                raise InvalidDataError(
                    f"Column {fields.names[column]!r} holds lists, but a row is for one user and "
                    f"one item. Put each in its own row: X.explode({fields.names[column]!r})."
                )
            if kinds[column] == "numeric":
                kinds[column] = "float"
        return replace(fields, kinds=tuple(kinds))

    def _model(self, rows: DatasetInfo, last: Any) -> Any:
        users, items = self._columns
        model = TwoTowerModel(
            self._loss(), int(self.rank), (len(users), len(items)), float(self.alpha),
            self._make_table(last), float(self.temperature), bool(self.normalize),
            tuple(map(int, list_hidden_sizes(self.hidden_layer_sizes))), self.activation,
            touches=count_ids(rows),
        )  # fmt: skip
        self._check_goes_on(model, last)
        return model

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        if not settings.auto_rate or not settings.optimizer.adaptive:
            return settings
        return replace(settings, schedule=Constant(_RATE), auto_rate=False)

    # -- fitted attributes -----------------------------------------------------------------------

    def _set_learned(self, state: ShardState, model: Any, rows: DatasetInfo) -> None:
        super()._set_learned(state, model, rows)
        self.user_ids_, self.item_ids_ = (side.ids for side in self._side_rows)
        users, items = (
            self._make_encoder(number)(side.frame) for number, side in enumerate(self._side_rows)
        )
        self.user_factors_, self.item_factors_ = users[:, :-1].copy(), items[:, :-1].copy()
        self.item_biases_ = items[:, -1].copy()

    def _set_parameters(self, w: NDArray[Any], model: Any, rows: DatasetInfo) -> None:
        self._set_table(w, model)

    def _make_encoder(self, side: int) -> SideEncoder:
        """Return the function from the columns of one side to its tower's vectors."""
        fields, n_users = self._fields, len(self._columns[0])
        assert fields is not None
        side_fields = slice(n_users, None) if side else slice(n_users)
        fields = replace(fields, names=fields.names[side_fields], kinds=fields.kinds[side_fields])
        vectors = TowerVectors(self._last_model, self._learned_ids, self._state.final)
        return SideEncoder(side, fields, n_users if side else 0, vectors)

    def _fitted(self) -> FittedFactors:
        # Biases of users would not change which items are best for them.
        return replace(super()._fitted(), user_biases=np.zeros(len(self.user_ids_)))

    def _set_row_shape(self, shape: tuple[int, ...]) -> None: ...  # pairs have no features

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return partial(predict_pairs, self._fitted(), self._names)

    _side_rows: tuple[SideRows, ...]


@dataclass(frozen=True, eq=False)
class TowerVectors(TablePrediction):
    """Picklable function from the hashed rows of one side to its tower's vectors."""

    def encode(self, side: int, X: Any) -> NDArray[Any]:
        """Return vectors and biases side by side; users' vectors are divided by the temperature."""
        model: Any = self.model
        encoded = np.empty((X.shape[0], model.rank + 1), self.w.dtype)
        for block in row_slices(len(encoded), _ROWS_AT_ONCE):
            index, rows = model.place_rows(X[block], self.w.dtype)
            vectors, biases = model.encode_side(side, self.look_up(index), rows, get_backend("cpu"))
            # The product of both sides is the logit: the bias of an item is multiplied by a 1 of
            # the user.
            encoded[block, :-1] = (
                vectors if side else vectors / vectors.dtype.type(model.temperature)
            )
            encoded[block, -1] = biases if side else 1
        return encoded


@dataclass(frozen=True, eq=False)
class SideEncoder:
    """Picklable function from the columns of users, or of items, to their vectors.

    Parameters
    ----------
    side : int
        0 of users, 1 of items.
    fields : TableFields
        Fields of the side.
    first : int
        Number of its first field among those of both sides.
    vectors : TowerVectors
    """

    side: int
    fields: TableFields
    first: int
    vectors: TowerVectors

    def __call__(self, frame: Any) -> NDArray[Any]:
        """Return the vectors of the rows of a frame."""
        rows = self.fields.hash_rows(frame)
        rows.indices += self.first  # low bits are the field
        return self.vectors.encode(self.side, rows)


def _collect_sides(
    columns: tuple[list[Any], list[Any]], index: int, X: Any, *_: Any
) -> tuple[SideRows, ...] | None:
    """Return the distinct users and items of a block; None for a block without rows."""
    if not len(X):
        return None
    sides = []
    for names in columns:
        ids = convert_ids(X[names[0]], str(names[0]))
        distinct, first, counts = np.unique(ids, return_index=True, return_counts=True)
        sides.append(SideRows(distinct, counts.astype(np.float64), X[names].iloc[first]))
    return tuple(sides)


def _merge_sides(block_sides: list[tuple[SideRows, ...]]) -> tuple[SideRows, ...]:
    """Return the distinct users and items of several blocks; the first row of each is kept."""
    pandas, merged = load_pandas(), []
    for sides in zip(*block_sides, strict=True):
        ids = np.concatenate([side.ids for side in sides])
        distinct, first, codes = np.unique(ids, return_index=True, return_inverse=True)
        counts = np.bincount(codes, np.concatenate([side.counts for side in sides])).astype(float)
        frame = pandas.concat([side.frame for side in sides]).iloc[first]
        merged.append(SideRows(distinct, counts, frame))
    return tuple(merged)


def _look_up_frequencies(
    ids: NDArray[Any], log_q: NDArray[np.float64], name: Any, X: Any
) -> NDArray[np.float64]:
    """Return the logarithm of the frequency of each row's item."""
    frequencies: NDArray[np.float64] = log_q[find_positions(ids, convert_ids(X[name], str(name)))]
    return frequencies
