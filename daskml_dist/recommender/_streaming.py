"""Streams of ratings: starting, resuming from checkpoints, and setting fitted attributes.

In a fit the ids are known and sorted, and the row of a factor is the position of its id. In a
stream any call may have new ids, so ids are numbered in order of arrival, the parameters have more
rows than there are ids, and rows are sorted only when attributes are set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import load_pandas
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.shard_state import ShardState

if TYPE_CHECKING:
    from daskml_dist.recommender._stream_steps import (
        NumberedIds,
        StartedRatingStream,
        UnnumberedRatings,
    )
    from daskml_dist.streaming.checkpoints import SavedStream
    from daskml_dist.streaming.drift import ProgressiveLoss
    from daskml_dist.training.spec import FitSpec


class StreamedFactors(BaseSteps):
    """Base class of estimators of factors that can learn from a stream of ratings.

    New users and items get factors when they first occur.
    """

    user_col: Any
    item_col: Any
    rating_col: Any
    user_ids_: NDArray[Any]
    item_ids_: NDArray[Any]
    _ids: tuple[NDArray[Any], NDArray[Any]]

    def _stream_inputs(
        self, X: Any, y: Any, sample_weight: Any, is_continued: bool
    ) -> tuple[Any, ...]:
        if sample_weight is not None:
            raise InvalidParameterError(
                "Streams of ratings do not support sample_weight. Leave it out, or repeat ratings."
            )
        return X, None, None

    def _begin_stream(
        self, X: Any, y: Any, sample_weight: Any, classes: Any
    ) -> StartedRatingStream:
        from daskml_dist.recommender._stream_steps import NumberedIds, reserve_rows

        # The ids of an earlier fit have the first numbers, in their sorted order.
        state: ShardState | None = vars(self).get("_state")
        no_ids = np.empty(0)
        fitted_ids = (no_ids, no_ids) if state is None else (self.user_ids_, self.item_ids_)
        ids = NumberedIds(fitted_ids[0]), NumberedIds(fitted_ids[1])
        for numbered, call_ids in zip(ids, self._number_entries(X).ids, strict=True):
            numbered.check(call_ids)

        # The plan has rows for the first call's ids; the stream starts with reserved rows instead.
        def ready(fit: FitSpec) -> FitSpec:
            return reserve_rows(fit, 0, 0) if state is None else self._continue_fit(fit, state, ids)

        estimator: Any = self
        return self._plan_stream(X, ids, ready, 0.0 if state is None else float(estimator.t_))

    def _continue_fit(
        self, fit: FitSpec, state: ShardState, ids: tuple[NumberedIds, NumberedIds]
    ) -> FitSpec:
        """Return the fit from an earlier fit's state, with twice as many rows as ids."""
        from daskml_dist.recommender._stream_steps import reserve_rows

        last: Any = vars(self)["_last_model"]
        if fit.steps.model.parameters.width != last.parameters.width:
            raise InvalidParameterError(
                f"The stream continues a fit with rank={last.rank} and biases={last.biased}. "
                "Keep them, or use a clone of the estimator."
            )
        # Space for as many new ids as there are known ones.
        fit = reserve_rows(fit, *(2 * len(numbered) for numbered in ids))
        model: Any = fit.steps.model
        w = model.init(fit.work.seed, fit.rows.dtype)
        opt_state = fit.steps.rule.init(w)
        # The state of another optimizer cannot be used: it is initialised again.
        has_same_state = opt_state.keys() == state.opt_state.keys()
        # Users are in the first rows, items after the rows that are reserved for users.
        n_users = len(ids[0])
        for new_start, start, stop in ((0, 0, n_users), (model.n_users, n_users, len(state.w))):
            w[new_start : new_start + stop - start] = state.w[start:stop]
            for name in opt_state if has_same_state else ():
                opt_state[name][new_start : new_start + stop - start] = state.opt_state[name][
                    start:stop
                ]
        return fit.replace_work(initial=ShardState(w, opt_state, state.step, state.rows))

    def _resume_stream(self, saved: SavedStream, path: Any, classes: Any) -> StartedRatingStream:
        from daskml_dist.recommender._stream_steps import NumberedIds, ids_from_json, reserve_rows

        stream = saved.stream
        likeness = stream["likeness"]
        ids, capacities, offset = saved.likeness_for("ids", "room", "offset")
        saved_ids = [ids_from_json(plain) for plain in ids]
        # The stream is planned from one artificial rating, with known ids.
        names = self.user_col, self.item_col, self.rating_col
        values = saved_ids[0][:1], saved_ids[1][:1], likeness["targets"]
        X = load_pandas().DataFrame(dict(zip(names, values, strict=True)))

        def ready(fit: FitSpec) -> FitSpec:
            fit = reserve_rows(fit, *capacities)
            model: Any = fit.steps.model
            model = dataclasses.replace(model, offset=offset)
            return saved.fit(fit.replace_work(model=model), path)

        started = self._plan_stream(
            X, (NumberedIds(saved_ids[0]), NumberedIds(saved_ids[1])), ready, stream["seen"]
        )
        # The facts about the real first ratings, without the ids and sizes, which grow: `facts`
        # adds the current ones.
        started.likeness = {name: likeness.get(name) for name in started.likeness}
        return started

    def _plan_stream(
        self,
        X: Any,
        ids: tuple[NumberedIds, NumberedIds],
        prepare_fit: Callable[[FitSpec], FitSpec],
        n_rows_seen: float,
    ) -> StartedRatingStream:
        """Return the stream that some ratings plan; `prepare_fit` moves its fit to the stream."""
        from daskml_dist.recommender._stream_steps import RatingSteps, StartedRatingStream
        from daskml_dist.streaming.start import (
            check_stream_settings,
            describe_first_rows,
            get_batch_rows,
        )
        from daskml_dist.training.job import INLINE, FitJob

        estimator: Any = self
        settings = check_stream_settings(estimator)
        batch_rows = get_batch_rows(settings)
        ids_before = vars(self).get("_ids")
        try:
            collection = estimator._make_collection(X, None, None, reset=True)
            with FitJob(collection, INLINE, settings.run) as job:
                rows = job.rows = estimator._dataset_info(job, None, None, False)
                batch_size = batch_rows or rows.summary.n_rows
                settings = dataclasses.replace(settings, batch_size=batch_size)
                model = estimator._model(rows, vars(self).get("_last_model"))
                fit = estimator._plan_fit(job, settings, model, None)
        finally:
            # Planning sets the ids of these few ratings; predictions need all ids.
            if ids_before is not None:
                self._ids = ids_before
        likeness = describe_first_rows(fit, rows.summary, settings.auto_rate, None) | {
            "batch_rows": batch_size
        }
        fit = prepare_fit(fit)

        def grown(fit: FitSpec) -> None:
            started.fit = fit

        steps = RatingSteps(fit, batch_rows, ids, grown)
        started = StartedRatingStream(
            fit, rows, self._make_call_reader(ids), steps, n_rows_seen, likeness, ids,
            open_cluster_steps=_open_cluster_steps,
        )  # fmt: skip
        return started

    def _make_call_reader(self, ids: tuple[NumberedIds, NumberedIds]) -> Any:
        """Return the function that checks the ratings of a call."""
        from daskml_dist.recommender._stream_steps import UnnumberedRatings

        estimator: Any = self

        # Only checks: new ids get their numbers once the call is accepted
        # (`RatingSteps.learn_rows`), so that a refused call adds none.
        def make(X: Any, y: Any, sample_weight: Any) -> tuple[BatchRows, UnnumberedRatings]:
            entries = self._number_entries(X)
            for numbered, call_ids in zip(ids, entries.ids, strict=True):
                numbered.check(call_ids)
            if entries.values is not None:
                # The extremes show whether any rating is outside the domain of the loss.
                target_range = [entries.values.min(), entries.values.max()]
                estimator._loss().check_target(np.array(target_range, np.float64))
            return BatchRows(None), UnnumberedRatings(entries)

        return make

    def _number_entries(self, X: Any) -> Any:
        """Return the ratings of a call, with the call's ids numbered among themselves."""
        estimator: Any = self
        entries = estimator._entries(X)
        numbered = entries.number_entries(entries.sources[0])
        if not len(numbered):
            raise InvalidDataError("The call has no ratings. Skip it.")
        return numbered

    def _show_stream(self, started: Any, state: ShardState, progress: ProgressiveLoss) -> None:
        state, self._ids = started.sorted_state(state)
        n_users, n_items = map(len, self._ids)
        model = dataclasses.replace(started.fit.steps.model, n_users=n_users, n_items=n_items)
        estimator: Any = self
        estimator._set_learned(state, model, started.rows)
        estimator.n_iter_, estimator.t_ = 1, started.n_seen(progress)
        self.__dict__.pop("_given", None)  # incomplete: a stream does not keep its ratings


def _open_cluster_steps(client: Any, plan: Any, fit: FitSpec, steps: Any) -> Any:
    """Return steps of factors by lanes on a cluster."""
    from daskml_dist.recommender._stream_lanes import ClusterRatingSteps

    return ClusterRatingSteps(client, plan, fit, steps)
