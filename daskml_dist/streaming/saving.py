"""Saving of a stream: parameters and position in one file."""

from __future__ import annotations

import os
import time
from typing import Any

from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.streaming.saved import Saved
from daskml_dist.streaming.start import Started
from daskml_dist.training.checkpoint import Checkpoint, CheckpointFiles
from daskml_dist.training.in_parts import make_checkpoint_facts

__all__ = ["CLOSED", "ENDED", "TORN", "Saving"]

#: Why a stream goes no further.
CLOSED = "The stream is closed. Learn inside its context: with clf.stream(...) as s: ..."
ENDED = "This stream has ended. Open another one: with clf.stream(...) as s: ..."
TORN = (
    "A call of this stream was cut short, so that nobody knows which of its steps were made. Go on "
    "from the last checkpoint: stream(checkpoint=Checkpoint(..., resume=True)), or forget all that "
    "was learned: reset(parameters=True)."
)


class Saving:
    """Times at which a stream is saved, and its file.

    Parameters
    ----------
    checkpoint : Checkpoint
        Its `every` counts calls.
    seconds : float or None
        Save after so many seconds instead.

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

    def load(self) -> Saved | None:
        """The stream to go on from; None where it begins anew."""
        self.checkpoint.check_writable()
        if not self.checkpoint.resume:
            return None
        path = os.fspath(self.checkpoint.path)
        found = CheckpointFiles.of(path, self.checkpoint.keep).load_newest()
        if found is None:
            return None
        if "stream" not in found[1]:
            raise CheckpointError(
                f"{path} is of a fit, not of a stream. Name another file, or set resume=False to "
                "begin anew."
            )
        return Saved(*found)

    def count(self) -> None:
        """Count a call that begins; one that is interrupted may be learned all the same."""
        self._calls += 1

    @property
    def is_due(self) -> bool:
        """Return whether the last call is one to save after."""
        if self._seconds is None:
            return self._calls >= self.checkpoint.every
        return time.monotonic() - self._since >= self._seconds

    @property
    def is_behind(self) -> bool:
        """Return whether calls have begun since the last save."""
        return self._calls > 0

    def save(self, started: Started, stream: dict[str, Any]) -> None:
        """Save the parameters and the facts of the stream's course."""
        facts = {
            **make_checkpoint_facts(started.fit, []),
            "stream": {**stream, "likeness": started.facts()},
        }
        self.checkpoint.save(started.steps.meeting(), facts)
        self._calls, self._since = 0, time.monotonic()
