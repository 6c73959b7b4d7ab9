"""Fits by solvers in parts: the log of the solver's course is saved between them."""

from __future__ import annotations

import json
import os
import re
import reprlib
import sys
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import CheckpointError, CommunicationError, InvalidParameterError
from daskml_dist.solvers import Solution
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import (
    Checkpoint,
    CheckpointFiles,
    decode_solver_log,
    is_count_fact,
)
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.in_parts import OneFit, records_problem
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.work import OwnRowsWork, RoundWork
from daskml_dist.training.worker.loops.rounds import RowsLog, SumLog

__all__ = ["load_saved_seed", "train_rounds_in_parts"]

Log = NDArray[np.uint8]


def train_rounds_in_parts(
    engine: Engine,
    fit: FitSpec,
    callbacks: CallbackList,
    checkpoint: Checkpoint,
    seed: int | None = None,
) -> FitResult:
    """Run a fit by a round solver with a checkpoint every few passes.

    A file holds the state that the solver kept, if any, and the sums since: the solver begins again
    and is given these, so that it ends with the digits of a fit without checkpoints. Sums that are
    too large to be remembered are not in it; where a solver neither keeps its state nor needs few
    sums (256 MB of them), the last file stays as it is. Of a solver that trainers run on their own
    rows (`RowSolver`) a file holds the state after its last iteration.

    `seed` is what the fit draws from where the user gave no `random_state`; it goes into the file
    (:func:`load_saved_seed`).
    """
    # No trainer has the solver's whole state.
    if isinstance(fit.work, RoundWork) and fit.work.in_ranges:
        raise InvalidParameterError(
            "A fit whose trainers hold ranges of the vectors cannot be saved. Leave the Checkpoint "
            'out, or raise dask.config.set({"daskml_dist.ranges_from": parameters}).'
        )
    # Fail before the first pass, not after hours.
    checkpoint.check_writable()
    records: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    log: Log | None = None
    lost = 0
    if checkpoint.resume:
        log, records = _load_saved_log(fit, checkpoint)
    watched = OneFit(callbacks, with_parameters=False)
    try:
        # Each part runs the solver from the log to the next pause.
        while True:
            # A solver that pauses returns its log as the solution; without a log it has come to its
            # end.
            result = engine.train(
                _make_next_part(fit, log, len(records), checkpoint, watched), watched
            )
            records, events = records + result.records, events + result.events
            lost += result.lost_rows
            assert isinstance(result.state, Solution)
            log = result.state.extra.get("log")
            if log is None or result.interrupted is not None:
                break
            checkpoint.save(
                log, {**_solver_fit_identity(fit), "records": records, "drawn_seed": seed}
            )
    except BaseException as error:
        watched.finish(error)
        raise
    watched.finish(result.interrupted)
    return FitResult(
        result.state, records, result.stopping, result.partial_rows, result.dropped, lost, events,
        result.interrupted,
    )  # fmt: skip


def load_saved_seed(checkpoint: Checkpoint) -> int | None:
    """Return the seed that the fit in a file drew for itself; None without a file or a seed."""
    found = CheckpointFiles.of(os.fspath(checkpoint.path), checkpoint.keep).load_newest_by(
        decode_solver_log
    )
    seed: Any = None if found is None else found[1].get("drawn_seed")
    return seed if is_count_fact(seed) and seed < 2**32 else None


def _make_next_part(
    fit: FitSpec, log: Log | None, n_passes: int, checkpoint: Checkpoint, watched: OneFit
) -> FitSpec:
    """Return the fit that continues from a log and pauses after the next passes."""
    return fit.replace_work(
        log=log,
        first_pass=n_passes,
        pause_at=None if watched.stopped else n_passes + checkpoint.every,
        is_stopped=watched.stopped,
    )


def _solver_fit_identity(fit: FitSpec) -> dict[str, Any]:
    """Return the facts that must agree for a fit to continue, as JSON gives them back."""
    rows = fit.rows
    # A fit that starts elsewhere takes another course.
    start = fit.work.start if isinstance(fit.work, RoundWork) else None
    # Addresses of objects differ between processes, and are no part of the identity.
    with np.printoptions(threshold=sys.maxsize):
        text = re.sub(" at 0x[0-9a-f]+", "", repr((fit.rounds.solver, fit.work.model)))
    facts = {
        "n_rows": sum(rows.lane_rows),
        "dtype": rows.dtype,
        "weight_scale": rows.weight_scale,
        "class_weight": None if rows.class_weight is None else rows.class_weight.tolist(),
        "classes": None if rows.classes is None else rows.classes.tolist(),
        "solver and model": text,
        "start": None if start is None else zlib.crc32(np.ascontiguousarray(start).data),
        "seed": fit.work.seed,
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=repr))
    return plain


def _load_saved_log(
    fit: FitSpec, checkpoint: Checkpoint
) -> tuple[Log | None, list[dict[str, Any]]]:
    """Return the saved log and its records; nothing where there is no file."""
    found = CheckpointFiles.of(os.fspath(checkpoint.path), checkpoint.keep).load_newest_by(
        decode_solver_log
    )
    if found is None:
        return None, []
    log, facts = found
    if problem := _describe_fit_difference(fit, facts) or _describe_impossible_log(fit, log, facts):
        raise CheckpointError(
            f"{checkpoint.path} {problem}. Name another file, or set resume=False to begin anew."
        )
    return log, facts["records"]


def _describe_fit_difference(fit: FitSpec, facts: dict[str, Any]) -> str:
    """Return how the saved fit differs from this one, in words; empty where it does not."""
    for name, value in _solver_fit_identity(fit).items():
        # Long texts are shown from the first difference on.
        if (found := facts.get(name)) != value:
            if isinstance(found, str) and isinstance(value, str):
                pairs = enumerate(zip(found, value, strict=False))
                at = next((i for i, (a, b) in pairs if a != b), 0)
                found, value = found[max(at - 10, 0) :], value[max(at - 10, 0) :]
            return (
                f"is of another fit: its {name} is {reprlib.repr(found)}, here it is "
                f"{reprlib.repr(value)}"
            )
    return ""


def _describe_impossible_log(fit: FitSpec, log: Log, facts: dict[str, Any]) -> str:
    """Return why a saved log cannot be of this fit; empty where it can."""
    known: RowsLog | SumLog
    try:
        if isinstance(fit.work, OwnRowsWork):
            known = RowsLog.unpacked(log)
        else:
            known = SumLog(0)
            known.replace_by(log)
    except (CommunicationError, ValueError, TypeError):
        return "holds a state that cannot be read"
    if known.n_rows != sum(fit.rows.lane_rows):
        return f"holds a state of {known.n_rows} rows"
    if problem := records_problem(facts.get("records")):
        return problem
    if len(facts["records"]) != len(known.reports):
        n_passes = len(facts["records"])
        return f"holds a state after {len(known.reports)} passes, and has records of {n_passes}"
    return ""
