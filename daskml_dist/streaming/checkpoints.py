"""Checkpoints of streams: when they are written, and how a resumed stream is planned from one.

A file holds the parameters, the position in the source, and facts about the stream's first rows. A
resumed stream plans its fit from rows of zeros that have these facts (`SavedStream.rows`), so that
no plan has to be written to disk. Parameters and position are in one file, which is renamed into
place when complete: after a crash both are those of the last save.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.checkpoint import Checkpoint, CheckpointFiles
from daskml_dist.training.in_parts import make_checkpoint_facts, resume_from_checkpoint
from daskml_dist.training.spec import FitSpec

#: Attributes of models with scales of the first rows, on which automatic rates depend.
SCALES_OF_FIRST_ROWS = ("row_size", "target_units", "target_unit")
# Texts of errors: why a stream cannot continue.
CLOSED = "The stream is closed. Use it inside its context: with clf.stream(...) as s: ..."
ENDED = "This stream has ended. Open another one: with clf.stream(...) as s: ..."
TORN = (
    "A call of this stream was interrupted, so it is unknown which of its steps were made. "
    "Resume from the last checkpoint: stream(checkpoint=Checkpoint(..., resume=True)), or "
    "discard everything learned: reset(parameters=True)."
)


class SavingSchedule:
    """Times at which a stream is saved, and the file of its checkpoint.

    Parameters
    ----------
    checkpoint : Checkpoint
        Its `every` is a number of calls.
    seconds : float or None
        Save after this many seconds instead.

    Raises
    ------
    InvalidParameterError
    """

    def __init__(self, checkpoint: Checkpoint, seconds: float | None) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidParameterError(
                f'checkpoint={checkpoint!r}: give a Checkpoint, such as Checkpoint("m.npz", '
                "every=1000), or None."
            )
        if seconds is not None and not seconds > 0:
            raise InvalidParameterError(
                f"checkpoint_seconds={seconds!r}: give a positive number, or None."
            )
        self.checkpoint = checkpoint
        self._seconds = seconds
        self._calls = 0
        self._since = time.monotonic()

    def load(self) -> SavedStream | None:
        """Return the saved stream to continue from; None for a new stream."""
        self.checkpoint.check_writable()
        if not self.checkpoint.resume:
            return None
        path = os.fspath(self.checkpoint.path)
        saved = CheckpointFiles.from_url(path, self.checkpoint.keep).load_newest()
        if saved is None:
            return None
        # A checkpoint of a fit has the same format, without a position from which to continue.
        if "stream" not in saved[1]:
            raise CheckpointError(
                f"{path} is of a fit, not of a stream. Name another file, or set resume=False to "
                "start again."
            )
        return SavedStream(*saved)

    def count(self) -> None:
        """Count a call that begins; even an interrupted one may have changed the parameters."""
        self._calls += 1

    @property
    def is_due(self) -> bool:
        """Return whether the stream should be saved after the last call."""
        # Checked after calls only, so that a save by seconds needs no timer thread.
        if self._seconds is None:
            return self._calls >= self.checkpoint.every
        return time.monotonic() - self._since >= self._seconds

    @property
    def is_behind(self) -> bool:
        """Return whether calls have begun since the last save."""
        return self._calls > 0

    def save(self, fit: FitSpec, state: ShardState, stream: dict[str, Any]) -> None:
        """Save the parameters, with the stream's position, sums and facts of its first rows."""
        self.checkpoint.save(state, {**make_checkpoint_facts(fit, []), "stream": stream})
        # Measured from the end of the save, so that after a slow save the next one is not due at
        # once.
        self._calls, self._since = 0, time.monotonic()


@dataclass(frozen=True)
class SavedStream:
    """A saved stream.

    Parameters
    ----------
    state : ShardState
    metadata : dict
    """

    state: ShardState
    metadata: dict[str, Any]

    @property
    def stream(self) -> dict[str, Any]:
        """Return the facts of the stream: position, sums of losses, and facts of its first rows."""
        stream_facts: dict[str, Any] = self.metadata["stream"]
        return stream_facts

    def likeness_for(self, *names: str) -> list[Any]:
        """Return facts of the first rows that only some estimators have, by their names."""
        likeness = self.stream["likeness"]
        # The stream may be of another kind of estimator: the identity of its model is compared
        # later.
        if missing := [name for name in names if name not in likeness]:
            raise CheckpointError(
                "The checkpoint is of a stream of another kind of estimator: it has no "
                f"{missing}. Name another file, or set resume=False to start again."
            )
        return [likeness[name] for name in names]

    @property
    def classes(self) -> NDArray[Any] | None:
        """Return the labels of the stream; None for regression."""
        likeness = self.stream["likeness"]
        if likeness["classes"] is None:
            return None
        return np.array(likeness["classes"], dtype=likeness["labels"])

    def rows(self, n_rows: int) -> tuple[Any, NDArray[Any] | None]:
        """Return rows of zeros from which a stream starts in the same way as from its first rows.

        These are at least `n_rows` rows, and have all labels.
        """
        likeness, y = self.stream["likeness"], self._make_targets(n_rows)
        n_rows = n_rows if y is None else len(y)
        shape, dtype = (n_rows, *likeness["row_shape"]), likeness["dtype"]
        if likeness["nonzeros"] is not None:
            # Each row has as many stored entries as the first rows had on average: the plan chooses
            # sparse steps by this number. In CSR explicit zeros are stored entries too.
            n = likeness["nonzeros"]
            indices, indptr = np.tile(np.arange(n), n_rows), np.arange(n_rows + 1) * n
            return sparse.csr_matrix((np.zeros(n * n_rows, dtype), indices, indptr), shape), y
        X = np.zeros(shape, dtype)
        names = likeness["names"]
        if names is None:
            return X, y
        import pandas as pd

        frame = pd.DataFrame(X, columns=list(names))
        return frame.astype({name: kind for name, kind in names.items() if kind}), y

    def _make_targets(self, n_rows: int) -> NDArray[Any] | None:
        """Return targets for :meth:`rows`, or labels with all classes; None without targets."""
        likeness, classes = self.stream["likeness"], self.classes
        if classes is None:
            if (targets := likeness["targets"]) is None:
                return None
            return np.array([targets if _has_target_columns(likeness) else targets[0]] * n_rows)
        if _has_target_columns(likeness):
            return np.zeros((n_rows, likeness["n_targets"]), np.int64)
        return np.resize(classes, max(n_rows, len(classes)))

    def fit(self, fit: FitSpec, path: str | os.PathLike[str]) -> FitSpec:
        """Return a fit to :meth:`rows` with the state and the learning rates of the stream."""
        fit, _ = resume_from_checkpoint(fit, path, self.state, self.metadata)
        likeness = self.stream["likeness"]
        rule = replace(fit.steps.rule, steps_per_pass=likeness["steps_per_pass"])
        # The plan from rows of zeros has another schedule, automatic rate and scales than the plan
        # from the first rows, so all are taken from the file.
        rates = likeness["rates"]
        scales = {name: likeness.get(name) for name in SCALES_OF_FIRST_ROWS}
        saved_scales = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in scales.items()
            if value is not None
        }
        if saved_scales:
            model: Any = fit.steps.model
            fit = fit.replace_work(model=replace(model, **saved_scales))
        return fit.replace_work(rule=rule if rates is None else rule.with_constant_rates(rates))


def _has_target_columns(likeness: dict[str, Any]) -> bool:
    """Return whether each row has several targets."""
    return likeness["n_targets"] is not None
