"""A table of passes in a file."""

from __future__ import annotations

import csv
import os
from typing import Any

from daskml_dist.callbacks.base import FitCallback
from daskml_dist.errors import InvalidParameterError

__all__ = ["CSVLogger"]


class CSVLogger(FitCallback):
    """Callback that writes each pass as a line of a CSV file, as soon as the pass ends.

    The columns are those of :attr:`daskml_dist.training.history.History.records`; an empty field
    was not measured.

    Parameters
    ----------
    path : str or path
        A file in an existing folder, on a disk of the client.
    append : bool, default=False
        Go on after the lines of a file that is there; else it is written anew.

    Raises
    ------
    InvalidParameterError
        As the fit begins: the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.callbacks import CSVLogger
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = CSVLogger(f'{folder}/fit.csv')
    ...     _ = SGDClassifier(max_iter=2, tol=None, callbacks=[log], random_state=0).fit(X, y)
    ...     n_lines = len(open(f'{folder}/fit.csv').read().splitlines())
    >>> n_lines
    3
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        self.path = path
        self.append = append
        self._file: Any = None
        self._writer: Any = None
        #: Where the line of each pass begins.
        self._places: dict[int, int] = {}

    def on_fit_begin(self, run: Any) -> None:
        """Open the file.

        Parameters
        ----------
        run : object
        """
        self.on_fit_end(run)  # of an earlier fit that nobody ended
        try:
            # Kept open from pass to pass.
            self._file = open(self.path, "a" if self.append else "w", newline="", encoding="utf-8")
        except (OSError, TypeError) as error:
            raise InvalidParameterError(
                f"CSVLogger(path={self.path!r}): cannot be written ({error}). Name a file in a "
                "folder that exists and that you may write to."
            ) from error
        self._writer, self._places = None, {}

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Write a pass.

        Parameters
        ----------
        run : object
        record : dict
        """
        if self._file is None:
            return
        if self._writer is None:
            names = [name for name, value in record.items() if not isinstance(value, list)]
            self._writer = csv.DictWriter(self._file, names, extrasaction="ignore")
            if self._file.tell() == 0:
                self._writer.writeheader()
        self._places[record["pass"]] = self._file.tell()
        self._writer.writerow(record)
        self._file.flush()

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Write a pass over, that was made again since a worker was lost, and drop later ones.

        Parameters
        ----------
        run : object
        record : dict
        """
        if self._file is not None and record["pass"] in self._places:
            self._file.seek(self._places[record["pass"]])
            self._file.truncate()
        self.on_pass_end(run, record)

    def on_fit_end(self, run: Any) -> None:
        """Close the file.

        Parameters
        ----------
        run : object
        """
        file, self._file = self._file, None
        if file is not None:
            file.close()
