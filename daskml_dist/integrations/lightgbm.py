"""LightGBM's own distributed training on the ranks of `run_together`.

LightGBM allows a host program to provide its two collectives (``LGBM_NetworkInitWithFunctions``):
here the group of ranks provides them, so LightGBM opens no port, and a lost or silent rank ends the
training like any call of the group. After each tree the booster is saved with the group.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.collective import RankGroup, run_together
from daskml_dist.errors import InvalidParameterError
from daskml_dist.integrations._trees import (
    check_eval_set,
    check_model,
    encode_eval_set,
    encode_rank_labels,
    join_rows,
    list_rows,
    load_library,
)
from daskml_dist.training.dataset_info import balanced_weights, named_weights

__all__ = ["fit"]

_Bytes, _Size = ctypes.c_void_p, ctypes.c_int32
_Sizes = ctypes.POINTER(ctypes.c_int32)
#: Function for ``output += input``, elementwise, on arrays with elements of a given size in bytes.
_Reducer = ctypes.CFUNCTYPE(None, _Bytes, _Bytes, ctypes.c_int, _Size)
_ReduceScatter = ctypes.CFUNCTYPE(
    None, _Bytes, _Size, ctypes.c_int, _Sizes, _Sizes, ctypes.c_int, _Bytes, _Size,
    ctypes.POINTER(_Reducer),
)  # fmt: skip
_AllGather = ctypes.CFUNCTYPE(
    None, _Bytes, _Size, _Sizes, _Sizes, ctypes.c_int, _Bytes, _Size
)  # fmt: skip


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
    """Train a model of LightGBM on a Dask cluster, and return it fitted.

    Parameters
    ----------
    model : lightgbm.LGBMClassifier, LGBMRegressor or LGBMRanker
        An unfitted model with its parameters; it is not changed.
        With the parameter ``early_stopping_round=``, scores on `eval_set` may end the training.
    X, y : Dask Array or dataframe, or rows in memory
        Features of shape (n_rows, n_features), and targets of shape (n_rows,). Labels of a
        classifier may be numbers or text.
    sample_weight : of shape (n_rows,), or None
    qid : of shape (n_rows,), or None
        Query of each row, for a ranker: the rows of a query must be adjacent, in one block.
    eval_set : tuple of (X, y) in memory, or None
        Rows to evaluate after each tree, the same on all ranks.
    client, retries, timeout
        As in :func:`~daskml_dist.collective.run_together`.

    Returns
    -------
    lightgbm.Booster
        The trained trees; ``booster.predict`` works in this process, without a cluster. Of a
        classifier it returns probabilities: of ``booster.classes_[1]``, or a column for each of
        ``booster.classes_``, the sorted labels.

    Raises
    ------
    InvalidParameterError
        LightGBM is not installed, or `model` is not one of its models.
    InvalidDataError
        The arrays do not have the same rows.
    FunctionError
        LightGBM raised an error on a rank, or y has missing labels or only one class.

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.integrations.lightgbm import fit
    >>> X = da.random.default_rng(0).normal(size=(1_000, 4), chunks=250)
    >>> from lightgbm import LGBMRegressor  # doctest: +SKIP
    >>> fit(LGBMRegressor(n_estimators=10), X, X[:, 0]).predict(X[:2].compute())  # doctest: +SKIP
    array([...])
    """
    lightgbm = load_library("lightgbm")
    check_model(model, lightgbm.LGBMModel, "lightgbm")
    names, blocks = list_rows({"X": X, "y": y, "sample_weight": sample_weight, "qid": qid})
    check_eval_set(eval_set, X)
    train = _LightGBMTraining(copy.deepcopy(model), names, eval_set)
    results = run_together(client, train, blocks, retries=retries, timeout=timeout)
    text, classes, best = results[0]
    booster = lightgbm.Booster(model_str=text)
    booster.best_iteration = best
    if classes is not None:
        booster.classes_ = classes
    return booster


class _LightGBMTraining:
    """Function that trains on every rank, starting from the last saved booster."""

    __name__ = "LightGBM's training"

    def __init__(self, model: Any, names: Sequence[str], eval_set: Any) -> None:
        self._model = model
        self._names = names
        self._eval_set = eval_set

    def __call__(
        self, group: RankGroup, blocks: list[Any], state: Any
    ) -> tuple[str, NDArray[Any] | None, int]:
        """Train; return the booster as text, the classes if any, and the best iteration.

        All are the same on every rank.
        """
        lightgbm = load_library("lightgbm")
        rows = join_rows(blocks, self._names)
        classes = None
        if isinstance(self._model, lightgbm.LGBMClassifier):
            rows["y"], classes = encode_rank_labels(rows["y"], group)
            self._weigh_classes(rows, classes, group)
        eval_set = encode_eval_set(self._eval_set, classes)
        params = self._choose_params(classes, group)
        n_trees, patience = params.pop("n_estimators"), params.pop("early_stopping_round", 0)
        text, scores = state or (None, [])
        saving = _Saving(lightgbm, group, scores, patience)
        # Continue after the trees that were saved before a loss, if there are any.
        n_done = 0 if text is None else lightgbm.Booster(model_str=text).current_iteration()
        if n_done < n_trees and not saving.has_stalled:
            with _serve_collectives(lightgbm, group) as raise_failure:
                saving.raise_failure = raise_failure
                data = lightgbm.Dataset(
                    rows["X"], rows["y"], weight=rows.get("sample_weight"),
                    group=_count_queries(rows.get("qid")), free_raw_data=False,
                )  # fmt: skip
                watched = []
                if eval_set is not None:
                    watched = [data.create_valid(*eval_set)]
                booster = lightgbm.train(
                    params, data, n_trees - n_done, valid_sets=watched, callbacks=[saving],
                    init_model=None if text is None else lightgbm.Booster(model_str=text),
                )  # fmt: skip
                raise_failure()
                text = booster.model_to_string(num_iteration=-1)
        assert text is not None
        return text, classes, saving.best_iteration

    def _weigh_classes(self, rows: dict[str, Any], classes: Any, group: RankGroup) -> None:
        """Multiply the weights of the rows by the model's `class_weight`."""
        class_weight = self._model.class_weight
        if class_weight is None:
            return
        if isinstance(class_weight, str) and class_weight == "balanced":
            counts = np.bincount(rows["y"], minlength=len(classes)).astype(np.float64)
            weights = balanced_weights(group.allreduce(counts))
        elif isinstance(class_weight, dict):
            weights = named_weights(class_weight, classes)
        else:
            raise InvalidParameterError(
                f'class_weight={class_weight!r}: use "balanced", a dict from label to weight, or '
                "None."
            )
        row_weights = rows.get("sample_weight")
        rows["sample_weight"] = weights[rows["y"]] * (
            1.0 if row_weights is None else np.asarray(row_weights)
        )

    def _choose_params(self, classes: NDArray[Any] | None, group: RankGroup) -> dict[str, Any]:
        """Return the parameters of the model, with those that depend on the classes."""
        lightgbm = load_library("lightgbm")
        params: dict[str, Any] = self._model.get_params()
        for name in ("importance_type", "class_weight"):
            params.pop(name, None)
        if params.get("random_state") is None:
            params.pop("random_state", None)
        params = {name: value for name, value in params.items() if value is not None}
        params["num_threads"] = params.pop("n_jobs", None) or group.n_threads
        objective = "regression"
        if classes is not None:
            objective = "binary" if len(classes) == 2 else "multiclass"
            if len(classes) > 2:
                params["num_class"] = len(classes)
        elif isinstance(self._model, lightgbm.LGBMRanker):
            objective = "lambdarank"
        params.setdefault("objective", objective)
        params.setdefault("verbosity", -1)
        if group.size > 1:
            params |= {"num_machines": group.size, "pre_partition": True}
            params.setdefault("tree_learner", "data")
        return params


class _Saving:
    """Callback that saves the booster after each tree, and ends training if scores stall.

    Parameters
    ----------
    lightgbm : module
    group : RankGroup
    scores : list of float
        Scores on the evaluation rows so far, of the first metric, with larger values better.
    patience : int
        Number of trees without a better score after which the training ends; 0: it does not.
    """

    #: LightGBM calls it after each iteration, after the callbacks that record scores.
    before_iteration = False
    order = 100

    def __init__(self, lightgbm: Any, group: RankGroup, scores: list[float], patience: int) -> None:
        self._lightgbm = lightgbm
        self._group = group
        self._scores = list(scores)
        self._patience = patience
        self.raise_failure: Callable[[], None] = lambda: None

    @property
    def best_iteration(self) -> int:
        """Return the number of trees with the best score; 0 if there are no scores."""
        return 1 + int(np.argmax(self._scores)) if self._scores else 0

    @property
    def has_stalled(self) -> bool:
        """Return whether there has been no better score for `patience` trees."""
        since = len(self._scores) - self.best_iteration
        return bool(self._patience and self._scores and since >= self._patience)

    def __call__(self, env: Any) -> None:
        """Save LightGBM's state after an iteration."""
        self.raise_failure()
        if env.evaluation_result_list:
            _, _, value, larger_is_better, *_ = env.evaluation_result_list[0]
            self._scores.append(float(value) if larger_is_better else -float(value))
        group = self._group
        text = env.model.model_to_string(num_iteration=-1) if group.rank == 0 else None
        group.save((text, self._scores))
        if self.has_stalled:
            raise self._lightgbm.callback.EarlyStopException(
                self.best_iteration - 1, env.evaluation_result_list
            )


def _count_queries(qid: Any) -> Any:
    """Return the number of rows of each query (its rows are adjacent); None without queries."""
    if qid is None:
        return None
    query_ids = np.asarray(qid)
    begins = np.flatnonzero(np.r_[True, query_ids[1:] != query_ids[:-1]])
    return np.diff(np.r_[begins, len(query_ids)])


@contextmanager
def _serve_collectives(lightgbm: Any, group: RankGroup) -> Iterator[Callable[[], None]]:
    """Provide LightGBM's collectives through the group; yield a function that raises errors.

    An error cannot pass through LightGBM's own code: after the first error, collectives return
    without an exchange, until LightGBM returns and the error is raised.
    """
    if group.size == 1:
        yield lambda: None
        return
    failures: list[BaseException] = []

    def guard(work: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            if not failures:
                try:
                    work(*args)
                except BaseException as error:
                    failures.append(error)

        return guarded

    def raise_failure() -> None:
        if failures:
            raise failures[0]

    def reduce_scatter(
        source: int, size: int, item_size: int, starts: Any, lengths: Any, n_blocks: int,
        target: int, target_size: int, reducer: Any,
    ) -> None:  # fmt: skip
        own_bytes = _view_bytes(source, size)
        parts = [own_bytes[starts[r] : starts[r] + lengths[r]] for r in range(group.size)]
        received = group.alltoall_bytes(parts)
        # Add in the order of ranks, so that the sums are always the same.
        total = received[0].copy()
        for part in received[1:]:
            reducer[0](part.ctypes.data, total.ctypes.data, item_size, len(part))
        _view_bytes(target, target_size)[: len(total)] = total

    def gather_all(
        source: int, size: int, starts: Any, lengths: Any, n_blocks: int, target: int,
        target_size: int,
    ) -> None:  # fmt: skip
        gathered = _view_bytes(target, target_size)
        own_bytes = _view_bytes(source, size)[: lengths[group.rank]]
        for rank, part in enumerate(group.allgather_bytes(own_bytes)):
            gathered[starts[rank] : starts[rank] + len(part)] = part

    callbacks = _ReduceScatter(guard(reduce_scatter)), _AllGather(guard(gather_all))
    library = lightgbm.basic._LIB
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in callbacks]
    library.LGBM_NetworkInitWithFunctions(group.size, group.rank, *addresses)
    try:
        yield raise_failure
    finally:
        library.LGBM_NetworkFree()


def _view_bytes(address: int, size: int) -> NDArray[Any]:
    """Return memory of LightGBM as an array of bytes, without a copy."""
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, np.uint8)
