"""A fit whose learning rate falls where it gets no better: parts, each with a fifth of the rate."""

from __future__ import annotations

import dataclasses
from typing import cast

from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.in_parts import OneFit
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.work import StepWork

__all__ = ["train_adaptively"]

#: What the rate is divided by, and the rate from which on it is not, as in scikit-learn.
_FACTOR, _LEAST = 5.0, 1e-6


def train_adaptively(engine: Engine, fit: FitSpec, callbacks: CallbackList) -> FitResult:
    """Run a fit; where it makes no progress, go on with a fifth of the learning rate.

    Parameters
    ----------
    engine : Engine
    fit : FitSpec
        Of steps, with a constant learning rate.
    callbacks : CallbackList
    """
    work = cast(StepWork, fit.work)
    rate = cast(Constant, work.rule.schedule).learning_rate
    max_iter, watched = work.stopping.max_iter, OneFit(callbacks)
    parts: list[FitResult] = []
    interrupted: KeyboardInterrupt | None = None
    try:
        while True:
            result = engine.train(fit, watched)
            parts.append(result)
            interrupted, state = result.interrupted, result.state
            done = fit.work.first_pass + len(result.records)
            stuck = result.stopping.converged and interrupted is None and not watched.stopped
            if not stuck or rate <= _LEAST or done >= max_iter:
                break
            rate /= _FACTOR
            assert isinstance(state, ShardState)
            stopping = dataclasses.replace(result.stopping, stale_passes=0, converged=False)
            rule = dataclasses.replace(work.rule, schedule=Constant(rate))
            fit = fit.working(initial=state, first_pass=done, stopping=stopping, rule=rule)
    except BaseException as error:
        watched.finish(error)
        if not isinstance(error, KeyboardInterrupt) or not parts:
            raise
        interrupted = error  # what the parts before have found stays
    watched.finish(interrupted)
    return _joined(parts, interrupted)


def _joined(parts: list[FitResult], interrupted: KeyboardInterrupt | None) -> FitResult:
    last = parts[-1]
    return FitResult(
        last.state,
        [record for part in parts for record in part.records],
        last.stopping,
        sum(part.partial_rows for part in parts),
        sum(part.dropped for part in parts),
        sum(part.lost_rows for part in parts),
        [event for part in parts for event in part.events],
        interrupted,
    )
