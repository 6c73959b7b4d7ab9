"""Facts that a fit tells of itself in a checkpoint, and going on from them."""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from daskml_dist.errors import CheckpointError
from daskml_dist.models.base import StepModel
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.checkpoint_format import is_count, is_number
from daskml_dist.training.history import RECORD_KEYS
from daskml_dist.training.spec import FitSpec

__all__ = ["facts_of", "most_bytes", "records_problem", "resumed"]

_Path = str | os.PathLike[str]

#: Bytes of the facts of any fit at most; those of one pass.
_FACTS, _PASS = 1 << 28, 1 << 12


def facts_of(fit: FitSpec, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts that go into a checkpoint beside the state, as JSON can hold them."""
    return {**_identity(fit), **_progress(fit, records)}


def most_bytes(fit: FitSpec) -> int:
    """Bytes of a checkpoint of this fit at most."""
    n_arrays = 2 + len(fit.steps.rule.state_names)
    size = int(np.prod(fit.steps.shape)) * np.dtype(fit.rows.dtype).itemsize
    return n_arrays * size + _FACTS + _PASS * fit.work.stopping.max_iter


def resumed(
    fit: FitSpec, path: _Path, state: ShardState, facts: dict[str, Any]
) -> tuple[FitSpec, list[dict[str, Any]]]:
    """The fit that goes on from a state, and the records of its passes so far.

    Raises
    ------
    CheckpointError
        The checkpoint is of another fit, or says what cannot be true.
    """
    if problem := _difference(fit, facts) or _unfit(fit, state) or _unlikely(state, facts):
        raise CheckpointError(
            f"{path} {problem}. Name another file, or set resume=False to begin anew."
        )
    if fit.steps.rule.average_after is None:  # an old average would stand for the parameters
        state = dataclasses.replace(state, average=None, n_averaged=0)
    state = _moved(state, facts.get("origin"), fit.steps.model, path)
    stopping = dataclasses.replace(
        fit.work.stopping, best=facts["best"], stale_passes=facts["stale_passes"]
    )
    going_on = fit.working(
        initial=state, stopping=stopping, seed=facts["seed"], first_pass=facts["passes"]
    )
    return going_on, facts["records"]


def _identity(fit: FitSpec) -> dict[str, Any]:
    """Facts that must be the same for a fit to go on, as JSON gives them back."""
    facts = {
        **fit.steps.model.identity(),
        "dtype": fit.rows.dtype,
        "optimizer": _names(group.optimizer.name for group in fit.steps.rule.groups),
        "classes": None if fit.rows.classes is None else fit.rows.classes.tolist(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=repr))
    return plain


def _names(names: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(names))


def _progress(fit: FitSpec, records: list[dict[str, Any]]) -> dict[str, Any]:
    rule = fit.work.stopping
    return {
        "passes": fit.work.first_pass,
        "seed": fit.work.seed,
        "origin": fit.steps.model.origin(),
        "best": rule.best,
        "stale_passes": rule.stale_passes,
        "records": records,
    }


def _difference(fit: FitSpec, facts: dict[str, Any]) -> str:
    """Difference that tells another fit; empty for this one."""
    for name, value in _identity(fit).items():
        if facts.get(name) != value:
            return (
                f"is of another fit: its {name} is {reprlib.repr(facts.get(name))}, here it is "
                f"{reprlib.repr(value)}"
            )
    return ""


def _unfit(fit: FitSpec, state: ShardState) -> str:
    """Reason that the fit cannot go on from a state; empty where it can."""
    if state.w.shape != fit.steps.shape or state.w.dtype != fit.rows.dtype:
        return f"holds parameters of shape {state.w.shape} and dtype {state.w.dtype}"
    wanted = fit.steps.rule.init(np.zeros_like(state.w))
    if state.opt_state.keys() != wanted.keys():
        return (
            f"holds the optimizer state {sorted(state.opt_state)}, and {sorted(wanted)} is needed"
        )
    for name, array in state.opt_state.items():
        if array.shape != wanted[name].shape:
            return f"holds {name} in the shape {array.shape} instead of {wanted[name].shape}"
    return ""


def _unlikely(state: ShardState, facts: dict[str, Any]) -> str:
    """Reason that the facts of a fit's course cannot be true; empty where they can."""
    for name in ("passes", "seed", "stale_passes"):
        if not is_count(facts.get(name)):
            return f"says {name}={reprlib.repr(facts.get(name))}"
    if not is_number(facts.get("best")):
        return f"says best={reprlib.repr(facts.get('best'))}"
    records: Any = facts.get("records")
    if problem := records_problem(records):
        return problem
    if records and not state.step:
        return f"has records of {len(records)} passes, and no step"
    if len(records) != facts["passes"]:
        return f"says passes={facts['passes']}, and has records of {len(records)}"
    return ""


def records_problem(records: Any) -> str:
    """Reason that something is no list of records of a fit's first passes; empty where it is."""
    if not (isinstance(records, list) and all(map(_is_record, records))):
        return "has no records of its passes"
    if [record["pass"] for record in records] != list(range(1, len(records) + 1)):
        return "has records of other passes than the first ones"
    return ""


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and all(
        type(record.get(key)) in (int, float) or (key == "val_score" and record.get(key) is None)
        for key in RECORD_KEYS
    )


def _moved(state: ShardState, origin: Any, model: StepModel, path: _Path) -> ShardState:
    """The state about the model's own origin, not a digit changed if it was so."""
    try:
        w, average = (
            None if values is None else model.moved(values, origin)
            for values in (state.w, state.average)
        )
    except ValueError as error:
        raise CheckpointError(
            f"{path} has an origin that no fit writes: {error}. "
            "Restore the file from a copy, or set resume=False to begin anew."
        ) from error
    assert w is not None
    return dataclasses.replace(state, w=w, average=average)
