"""Counts of a fit's losses, by which it is given up where it comes no further for long."""

from __future__ import annotations

from daskml_dist.data.computing import Deadline
from daskml_dist.errors import MessageError, WorkerLostError

#: Generations without progress after which the user is told, and after the timeout the fit is given
#: up; and times that it may lose all it had learned.
MANY_LOSSES = 6
#: Such generations after which a fit is given up where somebody sends unreadable messages.
MANY_GARBLED = 3
_REMEDY = (
    "Check the workers' logs: did they run out of memory? Use smaller chunks, memory_budget, or "
    "workers with more memory."
)


class LossCounts:
    """Counts of a run's losses since it last came further.

    Parameters
    ----------
    seconds : float
        For which workers may be lost without progress in between.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._patience = Deadline("an end of the losses of workers", seconds, _REMEDY)
        #: How far the fit has come since it last began anew, and losses since.
        self._furthest = 0
        self._n_losses = 0
        #: Losses in a row in which somebody sent a message without a meaning.
        self._n_garbled = 0
        self._n_anew = 0

    def go_on_from(self, reached: int) -> None:
        """Note how far a fit has come that goes on after a loss."""
        if reached > self._furthest:
            self._furthest, self._n_losses, self._n_garbled = reached, 0, 0

    def begin_anew(self) -> None:
        """Note that all was lost: from here on the fit is judged by what it learns anew."""
        self._n_anew += self._furthest > 0
        self._furthest = 0

    def count(self, reason: str, garbled: str | None, story: str) -> None:
        """Count a loss; raise where the fit has come no further for long.

        And soon where it is not that: whoever sends what nobody can read will do so again.

        Parameters
        ----------
        reason : str
        garbled : str or None
            What was sent that has no meaning.
        story : str
            What batch systems tell of the workers' ends.
        """
        self._n_losses += 1
        self._n_garbled = self._n_garbled + 1 if garbled else 0
        if self._n_garbled >= MANY_GARBLED:
            raise MessageError(
                f"The fit was restarted {self._n_garbled} times without a lost worker and made "
                f"no progress: {garbled}"
            )
        if self._n_anew > MANY_LOSSES:
            raise WorkerLostError(
                f"The fit lost its whole state {self._n_anew} times: servers together with their "
                f"standbys ({reason}).{story} {_REMEDY} With checkpoint=Checkpoint(path), a fit "
                "can resume from its last checkpoint."
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
            f"progress in between ({reason}).{story} {_REMEDY} Then fit again."
        )
