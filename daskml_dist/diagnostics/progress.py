"""Callback that shows a fit live, in a terminal and in a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console

from daskml_dist.diagnostics.display import Display, open_display
from daskml_dist.diagnostics.status import Status
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject

__all__ = ["Progress"]


class Progress(ParameterObject):
    """Callback that shows the progress of a fit, and leaves a one-line summary.

    A terminal shows one live line: while rows are read and workers are chosen, the phase and its
    progress; then pass, loss, rows per second, staleness, validation score, elapsed time and an
    upper bound of the remaining time. A notebook shows the same in one output that is rewritten in
    place, with the curves so far; it needs no widgets. Any other output (a file, a pipe, the log of
    a batch job) gets the summary; if a phase takes long, its status is printed before that, after 5
    seconds and then at delays that double up to 10 minutes.

    Parameters
    ----------
    console : rich.console.Console or None, default=None
        Where to write; None uses rich's default console, which writes to standard output. Copies
        share the console; it is not pickled.
    max_iter : int or None, default=None
        Number of passes that counts as 100 %; None uses the fit's ``max_iter``.
    verbose : int, default=1
        2 or more: a plain line for each pass, also in a terminal, and for other phases that take
        more than a second.

    Raises
    ------
    InvalidParameterError
        `console` is no console, `max_iter` is less than 1, or `verbose` is not an integer.

    Examples
    --------
    >>> from daskml_dist.diagnostics.progress import Progress
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(callbacks=[Progress()]).fit(X, y)  # doctest: +SKIP
    """

    def __init__(
        self, console: Console | None = None, max_iter: int | None = None, verbose: int = 1
    ) -> None:
        # As Progress(10), for max_iter=10, would be.
        if console is not None and not hasattr(console, "is_terminal"):
            raise InvalidParameterError(
                f"Progress(console={console!r}): give a rich.console.Console, or None for that of "
                "rich."
            )
        if max_iter is not None and max_iter < 1:
            raise InvalidParameterError(
                f"Progress(max_iter={max_iter}): give at least 1, or None for that of the fit"
            )
        if not isinstance(verbose, int | np.integer | np.bool_):
            raise InvalidParameterError(
                f"verbose={verbose!r}: give 0 for no output, 1 for a live line, 2 for a line "
                "per pass"
            )
        self.console = console
        self.max_iter = max_iter
        self.verbose = verbose
        # Both exist from the first phase of a fit to its end.
        self._status: Status | None = None
        self._display: Display | None = None

    # An estimator is cloned and pickled with its callbacks, but a console holds locks and files: so
    # copies share it, and pickles leave it out.

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        return type(self)(self.console, self.max_iter, self.verbose)

    def __reduce__(self) -> tuple[type[Progress], tuple[None, int | None, int]]:
        return type(self), (None, self.max_iter, self.verbose)

    def on_phase(self, phase: str, done: int, total: int | None) -> None:
        """Show the current phase, and close the display after the last one.

        Parameters
        ----------
        phase : str
            One of :data:`daskml_dist.training.callbacks.PHASES`.
        done, total : int, int or None
            Number of blocks read, and their total number.
        """
        if phase == "end":
            self._close()
            return
        # The first phase begins before `on_fit_begin`, so the display is opened here.
        if self._status is None or self._display is None:
            self._status = Status(self.max_iter)
            self._status.enter(phase, done, total)
            self._display = open_display(self.console, self._status, self.verbose)
        else:
            self._display.enter(is_new_phase=self._status.enter(phase, done, total))

    def on_fit_begin(self, run: Any) -> None:
        """Show that the fit begins.

        Parameters
        ----------
        run : object
            With the attributes ``max_iter``, ``policy_name``, ``n_lanes`` and ``n_servers``.
        """
        # A status with a title belongs to an earlier fit that was not finished.
        if self._status is not None and self._status.title:
            self._close()
        if self._status is None or self._display is None:
            self._status = Status(self.max_iter)
            self._display = open_display(self.console, self._status, self.verbose)
        self._status.record_start(run)
        self._display.show_start()

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Show a pass that ended.

        Parameters
        ----------
        run : object
        record : dict
            Record of the pass: ``pass``, ``loss``, ``rows``, ``seconds``, ``staleness_mean``,
            ``staleness_max`` and ``val_score``.
        """
        if self._status is not None and self._display is not None:
            self._status.add(record)
            self._display.show()

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Show a pass that was repeated after the loss of a worker.

        Parameters
        ----------
        run : object
        record : dict
        """
        self.on_pass_end(run, record)

    def on_generation(self, run: Any, event: Any) -> None:
        """Print a line for a change of membership.

        Parameters
        ----------
        run : object
        event : object
            Shown as its `str`.
        """
        if self._display is not None:
            self._display.note(f"membership changed: {event}")

    def on_fit_end(self, run: Any) -> None:
        """Close the display, whether the fit succeeded or not, and leave the summary.

        Parameters
        ----------
        run : object
        """
        self._close()

    def _close(self) -> None:
        display, self._display, self._status = self._display, None, None
        if display is not None:
            display.close()
