"""XGBoost's own distributed training on the ranks of `run_together`.

Rank 0 starts XGBoost's tracker, all ranks join it, and each trains on its own blocks. After each
tree the booster is saved with the group: if a worker is lost, the ranks of the next generation
continue from it. XGBoost waits for a silent peer in its own code; a thread shuts down its
connections once the group has ended (`call_breakable`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.collective import RankGroup, run_together
from daskml_dist.integrations._connections import LibraryConnections, call_breakable
from daskml_dist.integrations._trees import (
    check_eval_set,
    check_model,
    encode_eval_set,
    encode_rank_labels,
    join_rows,
    list_rows,
    load_library,
)

__all__ = ["fit"]


def fit(
    model: Any,
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    qid: Any = None,
    eval_set: tuple[Any, Any] | None = None,
    client: Any = None,
    retries: int | None = None,
    timeout: float | None = None,
) -> Any:
    """Train a model of XGBoost on a Dask cluster, and return it fitted.

    Parameters
    ----------
    model : xgboost.XGBClassifier, XGBRegressor, XGBRanker, ...
        An unfitted model with its parameters; it is not changed.
    X, y : Dask Array or dataframe, or rows in memory
        Features of shape (n_rows, n_features), and targets of shape (n_rows,). Labels of a
        classifier may be numbers or text.
    sample_weight : of shape (n_rows,), or None
        For a ranker, the weight of each query, as in XGBoost.
    qid : of shape (n_rows,), or None
        Query of each row, for a ranker: the rows of a query are in one block, in ascending order.
    eval_set : tuple of (X, y) in memory, or None
        Rows to evaluate after each tree, the same on all ranks; used by ``early_stopping_rounds``
        of the model.
    client, retries, timeout
        As in :func:`~daskml_dist.collective.run_together`.

    Returns
    -------
    model of the class of `model`
        Fitted, in this process: it predicts without a cluster. XGBoost's own classifiers only know
        the labels 0, 1, ...; for others the class is derived from that of `model`, and predicts the
        labels of `y`, in ``classes_``. pickle keeps them; ``save_model`` does not.

    Raises
    ------
    InvalidParameterError
        XGBoost is not installed, or `model` is not one of its models.
    InvalidDataError
        The arrays do not have the same rows.
    FunctionError
        XGBoost raised an error on a rank, or y has missing labels or only one class.

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.integrations.xgboost import fit
    >>> X = da.random.default_rng(0).normal(size=(1_000, 4), chunks=250)
    >>> from xgboost import XGBRegressor  # doctest: +SKIP
    >>> fit(XGBRegressor(n_estimators=10), X, X[:, 0]).predict(X[:2].compute())  # doctest: +SKIP
    array([...], dtype=float32)
    """
    xgboost = load_library("xgboost")
    check_model(model, xgboost.XGBModel, "xgboost")
    names, blocks = list_rows({"X": X, "y": y, "sample_weight": sample_weight, "qid": qid})
    check_eval_set(eval_set, X)
    train = _XGBoostTraining(copy.deepcopy(model), names, eval_set)
    raw, classes = run_together(client, train, blocks, retries=retries, timeout=timeout)[0]
    fitted = copy.deepcopy(model)
    # XGBoost's own classifiers take the positions of the classes for their labels.
    if classes is not None and not np.array_equal(classes, np.arange(len(classes))):
        fitted = _restore_labelled(type(model), {**vars(fitted), "_labels": classes})
    fitted.load_model(bytearray(raw))
    return fitted


@cache
def _derive_labelled_class(kind: Any) -> Any:
    """Return a class derived from a classifier of XGBoost that predicts labels of any type."""

    class Labelled(kind):
        @property
        def classes_(self) -> Any:
            labels = vars(self).get("_labels")
            return super().classes_ if labels is None else labels

        def fit(self, X: Any, y: Any, **params: Any) -> Any:
            # XGBoost's own training begins again, with labels that it accepts.
            self._labels = None
            return super().fit(X, y, **params)

        def predict(self, X: Any, **params: Any) -> Any:
            codes = super().predict(X, **params)
            labels = vars(self).get("_labels")
            return codes if labels is None or params.get("output_margin") else labels[codes]

        def __reduce__(self) -> Any:
            # pickle finds classes by name, but this one is made for each model class.
            return _restore_labelled, (kind, vars(self))

    Labelled.__name__, Labelled.__qualname__ = kind.__name__, kind.__qualname__
    Labelled.__module__, Labelled.__doc__ = kind.__module__, kind.__doc__
    return Labelled


def _restore_labelled(kind: Any, state: dict[str, Any]) -> Any:
    """Return a classifier with labels, given the class that its own is derived from."""
    derived = _derive_labelled_class(kind)
    restored = derived.__new__(derived)
    vars(restored).update(state)
    return restored


class _XGBoostTraining:
    """Function that trains on every rank, starting from the last saved booster."""

    __name__ = "XGBoost's training"

    def __init__(self, model: Any, names: Sequence[str], eval_set: Any) -> None:
        self._model = model
        self._names = names
        self._eval_set = eval_set

    def __call__(
        self, group: RankGroup, blocks: list[Any], state: Any
    ) -> tuple[bytes, NDArray[Any] | None]:
        """Train; return the booster as bytes, the same on all ranks, and the classes if any."""
        xgboost = load_library("xgboost")
        tracking = load_library("xgboost.tracker")
        rows = join_rows(blocks, self._names)
        classes = None
        if hasattr(self._model, "predict_proba"):
            rows["y"], classes = encode_rank_labels(rows["y"], group)
        eval_set = encode_eval_set(self._eval_set, classes)
        params = self._choose_params(classes, group)
        tracker = args = None
        if group.rank == 0:
            tracker = tracking.RabitTracker(group.size, group.own_host, sortby="task")
            tracker.start()
            args = tracker.worker_args()
        args = group.broadcast(args)
        # XGBoost orders ranks by the names of tasks.
        args["dmlc_task_id"] = f"{group.rank:08d}"
        # Seconds after which XGBoost itself abandons connections. The tracker already listens: a
        # second attempt would only wait for the tracker of an earlier generation, which is gone.
        args |= {"dmlc_timeout": int(group.timeout), "dmlc_retry": 1}

        def train(connections: LibraryConnections) -> bytes:
            """Train in the thread that owns XGBoost's connections."""
            xgboost.collective.init(**args)
            try:
                connections.claim()
                booster = self._train(xgboost, params, rows, eval_set, group, state)
            except Exception:
                # The tracker of a single rank cannot be lost. If its connection stayed open, the
                # calling process would crash when it exits.
                if group.size == 1:
                    xgboost.collective.finalize()
                raise
            # Not in a finally clause: after an error it would try for seconds to reach a lost
            # tracker.
            xgboost.collective.finalize()
            return bytes(booster.save_raw("ubj"))

        trained = call_breakable(group, train)
        group.barrier()
        return trained, classes

    def _choose_params(self, classes: NDArray[Any] | None, group: RankGroup) -> dict[str, Any]:
        """Return the parameters of the model, with those that depend on the classes."""
        params: dict[str, Any] = self._model.get_xgb_params()
        params["nthread"] = params.pop("n_jobs", None) or group.n_threads
        if self._model.eval_metric is not None and not callable(self._model.eval_metric):
            params["eval_metric"] = self._model.eval_metric
        if classes is not None and len(classes) > 2:
            if params.get("objective") in (None, "binary:logistic"):
                params["objective"] = "multi:softprob"
            params["num_class"] = len(classes)
        return params

    def _train(
        self,
        xgboost: Any,
        params: dict[str, Any],
        rows: dict[str, Any],
        eval_set: Any,
        group: RankGroup,
        state: Any,
    ) -> Any:
        """Grow the trees that the saved booster does not have yet."""
        matrix_options = {"enable_categorical": self._model.enable_categorical}
        if self._model.missing is not None:
            matrix_options["missing"] = self._model.missing
        names = {"sample_weight": "weight", "qid": "qid"}
        extra = {names[name]: rows[name] for name in rows if name in names}
        data = xgboost.DMatrix(rows["X"], rows["y"], **extra, **matrix_options)
        evals = []
        if eval_set is not None:
            evals = [(xgboost.DMatrix(*eval_set, **matrix_options), "validation_0")]
        raw, stopping = state or (None, None)
        saved_booster = None
        if raw is not None:
            saved_booster = xgboost.Booster(params)
            saved_booster.load_model(bytearray(raw))
        if stopping is None and self._model.early_stopping_rounds is not None:
            stopping = xgboost.callback.EarlyStopping(rounds=self._model.early_stopping_rounds)
        callbacks = [*(self._model.callbacks or ()), _make_saving(xgboost, group, stopping)]
        n_before = 0 if saved_booster is None else saved_booster.num_boosted_rounds()
        return xgboost.train(
            params,
            data,
            self._model.get_num_boosting_rounds() - n_before,
            evals=evals,
            xgb_model=saved_booster,
            verbose_eval=False,
            # Early stopping comes first, so that a booster is only saved if more trees may follow.
            callbacks=[*([stopping] if stopping is not None else []), *callbacks],
        )


def _make_saving(xgboost: Any, group: RankGroup, stopping: Any) -> Any:
    """Return the callback that saves the booster after each tree."""

    class Saving(xgboost.callback.TrainingCallback):
        """Callback that saves the booster, and what early stopping has seen, with the group."""

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            """Save the booster; return False, since this callback never ends the training."""
            raw = bytes(model.save_raw("ubj")) if group.rank == 0 else None
            group.save((raw, stopping if group.rank == 0 else None))
            return False

    return Saving()
