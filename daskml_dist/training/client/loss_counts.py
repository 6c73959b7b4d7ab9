"""Counts of a fit's losses, used to give up if it makes no progress for long."""

from __future__ import annotations

from daskml_dist.data.computing import Deadline
from daskml_dist.errors import MessageError, WorkerLostError

#: Number of generations without progress after which the user is informed and, after the timeout,
#: the fit is given up; also the number of times that a fit may lose its whole state.
MANY_LOSSES = 6
#: Number of such generations after which a fit with unreadable messages is given up.
MANY_GARBLED = 3
_REMEDY = (
    "Check the workers' logs: did they run out of memory? Use smaller chunks, memory_budget, or "
    "workers with more memory."
)


class LossCounts:
    """Counts of a run's losses since its last progress.

    Parameters
    ----------
    seconds : float
        Seconds for which workers may be lost without progress in between.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._patience = Deadline("an end of the losses of workers", seconds, _REMEDY)
        #: Progress of the fit since its last restart from the beginning, and losses since then.
        self._max_reached = 0
        self._n_losses = 0
        #: Consecutive losses in which a malformed message was received.
        self._n_garbled = 0
        self._n_full_restarts = 0

    def note_recovery(self, reached: int) -> None:
        """Record the progress of a fit that continues after a loss."""
        if reached > self._max_reached:
            self._max_reached, self._n_losses, self._n_garbled = reached, 0, 0

    def note_full_restart(self) -> None:
        """Record that all state was lost: progress is measured from the beginning again."""
        self._n_full_restarts += self._max_reached > 0
        self._max_reached = 0

    def count(self, reason: str, garbled: str | None, history: str) -> None:
        """Count a loss; raise if the fit has made no progress for long.

        It raises sooner for unreadable messages, since their sender will most likely repeat them.

        Parameters
        ----------
        reason : str
        garbled : str or None
            Error of a malformed message.
        history : str
            Sentence from batch systems about why the workers were lost.
        """
        self._n_losses += 1
        self._n_garbled = self._n_garbled + 1 if garbled else 0
        if self._n_garbled >= MANY_GARBLED:
            raise MessageError(
                f"The fit was restarted {self._n_garbled} times without a lost worker and made "
                f"no progress: {garbled}"
            )
        if self._n_full_restarts > MANY_LOSSES:
            raise WorkerLostError(
                f"The fit lost its whole state {self._n_full_restarts} times: servers together "
                f"with their standbys ({reason}).{history} {_REMEDY} With "
                "checkpoint=Checkpoint(path), a fit can resume from its last checkpoint."
            )
        # Time starts with the first loss after progress.
        if self._n_losses == 1:
            self._patience.renew()
        if self._n_losses <= MANY_LOSSES or self._patience.has_time_left(
            f"{MANY_LOSSES} without any progress in between"
        ):
            return
        raise WorkerLostError(
            f"The fit lost workers {self._n_losses - 1} times in {self._seconds:g} s without any "
            f"progress in between ({reason}).{history} {_REMEDY} Then fit again."
        )
