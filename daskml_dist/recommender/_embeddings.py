"""Base classes of models over ids whose parameter rows are created when the ids occur.

The parameters are a growing table on servers (`ps/growing_shard.py`), from which a batch pulls and
pushes the rows of its own ids. This module defines the model and the learning rate, and looks ids
up in the fitted table. Gradients are in `models/embeddings.py`.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import Collection, take_named_columns
from daskml_dist.data.computing import use_client
from daskml_dist.data.field_hashing import N_COLUMNS
from daskml_dist.data.row_checks import check_feature_names, check_row_shape, find_row_shape
from daskml_dist.errors import (
    DivergedError,
    InvalidDataError,
    InvalidParameterError,
)
from daskml_dist.estimators.classifier import BaseClassifier, partial_fit
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.inference.table_fields import (
    TableFields,
    as_table,
    hash_table,
    holds_floats_alone,
)
from daskml_dist.losses import get_loss
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import BatchRows, GrowingTable, StepModel
from daskml_dist.models.embeddings import (
    INTERCEPT_ID,
    MAX_FIELDS,
    EmbeddingModel,
    to_id_rows,
)
from daskml_dist.parameters.checks import (
    check_columns,
    check_count,
    check_number,
    check_one_of,
    check_table_limits,
    seed_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.ps.growing_shard import find_sorted_ids, look_up_rows
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.recommender._table_frame import make_table_frame
from daskml_dist.schedules import Constant
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.job import FitJob
from daskml_dist.training.plan import make_target_shift, take_first_target_unit
from daskml_dist.training.spec import Settings

if TYPE_CHECKING:
    from daskml_dist.streaming.checkpoints import SavedStream
    from daskml_dist.streaming.start import StartedStream

#: Options of `Run` that have no meaning here.
_RUN_UNUSED = {"shard", "compute_dtype"}


class BaseEmbeddings(BaseSteps):
    """Base class of models over ids, each with a weight and a vector from its first occurrence."""

    _needs_target = True
    _run_used = tuple(name for name in Run().get_params() if name not in _RUN_UNUSED)
    _stream_policy = "sync"
    #: Whether all fitted attributes follow from the table's rows, so that published versions may
    #: hold only changes.
    _publishes_rows: ClassVar[bool] = True

    rank: int
    numeric: Any
    bags: str
    missing: str
    alpha: float
    init_scale: float
    loss: str | Loss
    admit_after: int
    expire_after: int | None
    max_rows: int | None
    dtype: str
    fields_: list[Any]
    kinds_: list[str]
    ids_: NDArray[np.int64]
    weights_: NDArray[Any]
    vectors_: NDArray[Any]
    intercept_: float

    @abstractmethod
    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        """Return the parameters of the `EmbeddingModel` that select its terms."""

    def _loss(self) -> Loss:
        """Return the loss of the parameter `loss`."""
        return get_loss(self.loss, "classification" if self._classification else "regression")

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        check_count("rank", self.rank)
        check_columns("numeric", self.numeric, "auto")
        check_one_of("bags", self.bags, ("mean", "sum"))
        check_one_of("missing", self.missing, ("error", "own"))
        check_number("alpha", self.alpha)
        check_number("init_scale", self.init_scale)
        check_table_limits(self.admit_after, self.expire_after, self.max_rows)
        self._loss()  # raises for an unknown loss, before the other settings are checked
        settings = super()._check_settings(policy)
        # The penalty applies to the parameters used by each row, and is part of the model.
        return replace(settings, penalty=replace(settings.penalty, l1=0.0, l2=0.0))

    def _model(self, rows: DatasetInfo, last: EmbeddingModel | None) -> EmbeddingModel:
        loss, summary = self._loss(), rows.summary
        if rows.classes is not None and len(rows.classes) > 2:
            raise InvalidDataError(
                f"{type(self).__name__} separates two classes, but y has {len(rows.classes)}. "
                "Wrap it in sklearn.multiclass.OneVsRestClassifier."
            )
        if rows.classes is None:
            loss.check_target(summary.target_range)
        offset = self._best_constant(loss, rows) if last is None else last.offset
        model = self._make_model(loss, self._make_table(last), offset, rows)
        self._check_goes_on(model, last)
        return model if last is None else replace(model, target_unit=last.target_unit)

    @staticmethod
    def _check_goes_on(model: Any, last: Any) -> None:
        """Raise if a model cannot continue from the last one, if any."""
        if last is not None and model.identity() != last.identity():
            raise InvalidParameterError(
                "Continuing needs the rank, layers and loss of the last fit. Keep them, or set "
                "warm_start=False."
            )

    def _make_table(self, last: Any) -> GrowingTable:
        """Return the description of the table; `last` is the model of a continued fit."""
        return GrowingTable(
            (0.0, *[float(self.init_scale)] * int(self.rank)),
            # Ids that occur later get the same initial values as in the first fit.
            seed_of(self._params()["random_state"]) if last is None else last.table.seed,
            self.admit_after,
            self.expire_after,
            self.max_rows,
        )

    def _make_model(
        self, loss: Loss, table: GrowingTable, offset: float, rows: DatasetInfo
    ) -> EmbeddingModel:
        """Return the model for these rows, whose vectors have the table's columns."""
        return EmbeddingModel(
            loss, int(self.rank), float(self.alpha), table, offset, touches=count_ids(rows),
            **self._terms(rows),
        )  # fmt: skip

    def _count_fields(self, rows: DatasetInfo, n_fields: int | None) -> int:
        """Return the number of fields of a row, if the user has not given it."""
        fields, n_columns = self._fields, rows.summary.n_features
        n = n_fields or (n_columns if fields is None else len(fields.names))
        if n > MAX_FIELDS:
            raise InvalidParameterError(
                f"{type(self).__name__} needs separate fields, but the rows have {n} columns, and "
                f"at most {MAX_FIELDS} can be fields. Give a dataframe with one column per field, "
                "rows of a FieldHasher with n_fields=, or use FactorizationMachineClassifier."
            )
        return int(n)

    def _best_constant(self, loss: Loss, rows: DatasetInfo) -> float:
        """Return the best constant prediction, from which training starts."""
        if rows.classes is not None:
            # The log odds; for other losses 0, between the classes.
            negatives, positives = rows.summary.label_weights(rows.classes)
            return (
                math.log(positives / negatives) if loss.proba and negatives and positives else 0.0
            )
        shift = make_target_shift(loss, True, rows.summary)
        return shift[0] if shift else loss.constant(float(rows.summary.target_mean))

    def _adapt_rate_to_rows(
        self, job: FitJob, settings: Settings, model: StepModel
    ) -> tuple[Settings, StepModel]:
        """Choose a rate by the ids of a row and the first targets' spread, stored by the model."""
        if not isinstance(model, EmbeddingModel):  # towers have no targets
            return settings, model
        if not settings.auto_rate:  # the user's rate is that of weights in the targets' own unit
            return settings, replace(model, target_unit=model.unit)
        spread, model = take_first_target_unit(model, job.rows.summary)
        if not settings.optimizer.adaptive:
            return settings, model
        # First steps of an adaptive optimizer change each entry by the rate. The prediction for a
        # row of m ids changes by m * rate, and by rank * rate**2 for each pair of them: use the
        # largest rate for which it changes by at most the targets' spread.
        m = _measure_ids(job)
        pairs = max(self.rank * m * (m - 1) / 2, 1e-6)
        rate = (math.sqrt(m * m + 4 * pairs * spread) - m) / (2 * pairs)
        max_rate = (
            settings.optimizer.sparse_learning_rate or settings.optimizer.default_learning_rate
        )
        settings = replace(
            settings, schedule=Constant(min(rate, max_rate * spread)), auto_rate=False
        )
        return settings, model

    # -- tables of ids ---------------------------------------------------------------------------

    def _train(self, *rows: Any, client: Any, **options: Any) -> None:
        # Columns whose type does not determine their kind are inspected before the fit, by its
        # client.
        with use_client(client):
            super()._train(*rows, client=client, **options)

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        if reset:
            self._set_fields(self.__dict__.pop("_fields_to_come", None) or self._find_fields(X))
        else:
            check_feature_names(self, X, reset=False)  # before columns are read by position
        return super()._make_collection(X, y, sample_weight, reset=reset)

    def _find_fields(self, X: Any) -> TableFields | None:
        """Return the fields of a table; None for rows whose columns are all numbers, or ids."""
        takes_all = isinstance(self.numeric, str) and self.missing == "error"
        if not is_dataframe_like(X) or (takes_all and holds_floats_alone(X)):
            return None
        return TableFields.find(
            as_table(X), self.numeric, reader=type(self).__name__, bags=self.bags,
            missing=self.missing, dtype=np.dtype(self.dtype).name,
        )  # fmt: skip

    def _set_fields(self, fields: TableFields | None) -> None:
        """Set the attributes of the fields; without them, drop those of an earlier fit."""
        if fields is None:
            for name in ("fields_", "kinds_"):
                self.__dict__.pop(name, None)
            return
        self.fields_, self.kinds_ = list(fields.names), list(fields.kinds)

    @property
    def _fields(self) -> TableFields | None:
        """Return the fields of the fit; None if it was not on a table."""
        attributes = vars(self)
        if "fields_" not in attributes:
            return None
        return TableFields(
            tuple(attributes["fields_"]), tuple(attributes["kinds_"]), self.bags, "stable",
            self.missing, np.dtype(self.dtype).name,
        )  # fmt: skip

    @property
    def _row_shape(self) -> tuple[int, ...]:
        return super()._row_shape if self._fields is None else (N_COLUMNS,)

    def _hash_table(self, X: Any) -> Any:
        """Return the rows of a table as entries of its fields' ids; all other rows unchanged."""
        return hash_table(X, self._fields, self._select_table)

    def _align_inputs(self, X: Any, y: Any, sample_weight: Any) -> Collection:
        return super()._align_inputs(self._hash_table(X), y, sample_weight)

    def _map_rows(self, function: Any, X: Any, *map_args: Any, **options: Any) -> Any:
        return super()._map_rows(function, self._hash_table(X), *map_args, **options)

    def _select_table(self, X: Any, fields: TableFields) -> Any:
        X = as_table(X, len(fields.names))
        check_row_shape(find_row_shape(X), (len(fields.names),), type(self).__name__)
        return X

    def _begin_stream(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> StartedStream:
        return self._hash_calls(super()._begin_stream(X, y, sample_weight, classes))

    def _resume_stream(self, saved: SavedStream, path: Any, classes: Any) -> StartedStream:
        facts = saved.stream["likeness"].get("fields")
        if facts is not None:
            # The artificial first rows are already hashed, so fields and names cannot be found from
            # them.
            names, kinds = (tuple(facts[name]) for name in ("names", "kinds"))
            self._fields_to_come = TableFields(names, kinds, self.bags, missing=self.missing)
        started = super()._resume_stream(saved, path, classes)
        if facts is not None and all(isinstance(name, str) for name in facts["names"]):
            self.feature_names_in_ = np.array(facts["names"], dtype=object)
        return self._hash_calls(started)

    def _hash_calls(self, started: StartedStream) -> StartedStream:
        """Return a stream whose calls provide tables, if the first one did."""
        if (fields := self._fields) is None:
            return started
        facts = {"names": list(fields.names), "kinds": list(fields.kinds)}
        return started.with_tables(self._hash_table, facts)

    # -- fitted attributes -----------------------------------------------------------------------

    def _set_learned(self, state: ShardState, model: Any, rows: DatasetInfo) -> None:
        assert state.ids is not None
        self._learned_ids = state.ids
        super()._set_learned(state, model, rows)

    def _set_parameters(self, w: NDArray[Any], model: EmbeddingModel, rows: DatasetInfo) -> None:
        self._set_rows(w, model)
        self._loss_of_fit = model.loss
        fields = self._fields
        self.n_features_in_ = rows.summary.n_features if fields is None else len(fields.names)
        if rows.classes is not None:
            self.classes_ = rows.classes

    def _set_rows(self, w: NDArray[Any], model: EmbeddingModel) -> None:
        """Set the attributes that follow from the table: its rows, and the intercept."""
        self._set_table(w, model)
        if model.unit != 1:
            self.weights_ = self.weights_ * model.unit
            self.vectors_ = self.vectors_ * math.sqrt(model.unit)
        ids = self._learned_ids
        self.intercept_ = model.offset
        if len(ids) and ids[-1] == INTERCEPT_ID:
            self.intercept_ += float(w[-1, 0]) * model.unit

    def _set_table(self, w: NDArray[Any], model: Any) -> None:
        """Set the attributes of the table's rows, without those of layers and intercept."""
        if not np.isfinite(w).all():
            raise DivergedError(
                "Weights or vectors became NaN or infinite. Lower learning_rate, or raise alpha."
            )
        ids, model_ids = self._learned_ids, model.own_ids
        if len(model_ids) == 1:
            # Without the intercept, whose id is the last: views, since a table may take half the
            # memory.
            rows: Any = slice(np.searchsorted(ids, model_ids[0]))
        else:
            is_learned, positions = find_sorted_ids(np.sort(model_ids), ids)
            rows = np.ones(len(ids), bool)
            rows[positions[is_learned]] = False
        self.ids_, self.weights_, self.vectors_ = ids[rows], w[rows, 0], w[rows, 1:]

    def _rows_since(self, old_model: BaseEmbeddings) -> dict[str, NDArray[Any]]:
        """Return the rows of the table that differ from an earlier model's, and the removed ids."""
        ids, w = self._learned_ids, self._state.w
        old_ids, old_w = old_model._learned_ids, old_model._state.w
        is_old, positions = find_sorted_ids(ids, old_ids)
        changed = ~is_old
        changed[is_old] = (w[is_old] != old_w[positions[is_old]]).any(axis=1)
        removed = np.setdiff1d(old_ids, ids, assume_unique=True)
        return {"ids": ids[changed], "rows": w[changed], "removed": removed}

    def _with_rows(self, changes: Mapping[str, NDArray[Any]]) -> Self:
        """Return the model after changes of :meth:`_rows_since`, without an optimizer's state."""
        replaced = np.concatenate([changes["ids"], changes["removed"]])
        is_kept = ~np.isin(self._learned_ids, replaced)
        ids = np.concatenate([self._learned_ids[is_kept], changes["ids"]])
        order = np.argsort(ids)
        ids, w = ids[order], np.concatenate([self._state.w[is_kept], changes["rows"]])[order]
        updated = copy.copy(self)
        updated._learned_ids, updated._state = ids, ShardState(w, {}, ids=ids)
        updated._set_rows(w, self._last_model)
        return updated

    def as_frame(self, partition_rows: int = 1_000_000) -> Any:
        """Return the fitted rows of all ids as a lazy Dask dataframe.

        Its index is the sorted ids, with known divisions; columns are the ids' field, ``weight``,
        and ``factor_0``, ``factor_1`` ... Its ``to_parquet`` writes them.
        (``save("table.safetensors")`` writes the estimator, with tensors ``ids_``, ``weights_`` and
        ``vectors_``.)

        Parameters
        ----------
        partition_rows : int, default=1_000_000
            Rows of a partition.

        Returns
        -------
        dask DataFrame
        """
        self._check_fitted()
        check_count("partition_rows", partition_rows)
        vectors = self.vectors_.reshape(len(self.ids_), math.prod(self.vectors_.shape[1:]))
        return make_table_frame(self.ids_, self.weights_, vectors, int(partition_rows))

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return TablePrediction(self._last_model, self._learned_ids, self._state.w)


def list_hidden_sizes(hidden_layer_sizes: Any) -> tuple[Any, ...]:
    """Return the units of each hidden layer, given a tuple or one number."""
    return (
        tuple(hidden_layer_sizes)
        if isinstance(hidden_layer_sizes, list | tuple)
        else (hidden_layer_sizes,)
    )


def count_ids(rows: DatasetInfo) -> float:
    """Return the mean number of ids of a row, including the intercept's."""
    return 1.0 + float(rows.summary.nonzeros_per_row or rows.summary.n_features)


#: Blocks whose ids are counted where blocks are read anew in each pass.
_COUNTED_BLOCKS = 8


def _measure_ids(job: FitJob) -> float:
    """Return the mean number of ids of a row, as `count_ids`, but without the zeros of dense rows.

    A zero is no id of its row, whether it is stored or not: so dense and sparse rows of the same
    numbers have the same rate.
    """
    summary = job.rows.summary
    if summary.nonzeros_per_row is not None:
        return count_ids(job.rows)
    infos = [info for info in summary.infos if info.n_rows]
    if job.engine.streaming is not None:
        infos = infos[:: max(len(infos) // _COUNTED_BLOCKS, 1)][:_COUNTED_BLOCKS]
    blocks = {info.index: None for info in infos}
    n_nonzeros = sum(job.engine.map_chosen_blocks(_count_block_nonzeros, blocks))
    n_rows = sum(info.n_rows for info in infos)
    return 1.0 + (n_nonzeros / max(n_rows, 1) or float(summary.n_features))


def _count_block_nonzeros(block: Block, argument: None) -> int:
    """Return the number of entries of a block's rows that are not 0."""
    rows = block.rows
    return int(rows.nnz if sparse.issparse(rows) else namespace(rows).count_nonzero(rows))


@dataclass(frozen=True, eq=False)
class TablePrediction:
    """Picklable function from rows to raw predictions, using the rows of a table.

    Parameters
    ----------
    model : EmbeddingModel
    ids : ndarray of int64 of shape (n_ids,)
        Sorted.
    w : ndarray of shape (n_ids, 1 + rank)
    """

    model: EmbeddingModel
    ids: NDArray[np.int64]
    w: NDArray[Any]

    def __call__(self, X: Any) -> NDArray[Any]:
        backend = get_backend("cpu")
        piece = BatchRows(to_id_rows(X, self.w.dtype), np.empty(0))
        index = self.model.touched([piece], backend)
        return self.model.predict(self.look_up(index), piece.X, backend)

    def look_up(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of sorted ids; unknown ids have their initial values."""
        return look_up_rows(index, self.ids, self.w, self.model.table)


class EmbeddingClassifier(BaseClassifier, BaseEmbeddings):
    """Base class of classifiers of two classes over ids."""

    partial_fit = partial_fit

    loss: str | Loss

    def decision_function(self, X: Any) -> Any:
        """Return the raw predictions, positive for the second class.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,)
        """
        self._check_fitted(X)
        return self._map_raw_predictions(None, X, self.weights_.dtype, None)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, 2)
        """
        self._check_fitted(X)
        write_proba = self._prediction_loss.write_proba
        return self._map_raw_predictions(write_proba, X, self.weights_.dtype, 2)
