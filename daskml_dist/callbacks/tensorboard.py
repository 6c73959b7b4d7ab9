"""Curves in TensorBoard."""

from __future__ import annotations

import os
from typing import Any

from daskml_dist.callbacks.base import FitCallback, facts_of, numbers_of
from daskml_dist.errors import DaskMLDistError

__all__ = ["TensorBoard"]


class TensorBoard(FitCallback):
    """Callback that writes each pass for TensorBoard, as soon as the pass ends.

    Needs ``pip install "daskml-dist[tensorboard]"`` (tensorboardX). The step of a number is its
    pass; changes of membership are texts.

    Parameters
    ----------
    log_dir : str or path
        Folder of the run, one a fit.

    Raises
    ------
    DaskMLDistError
        As the fit begins: tensorboardX is not installed.

    Examples
    --------
    >>> from daskml_dist.callbacks import TensorBoard
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(callbacks=[TensorBoard('logs')])  # doctest: +SKIP
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = log_dir
        self._writer: Any = None
        self._pass = 0

    def on_fit_begin(self, run: Any) -> None:
        """Open the folder.

        Parameters
        ----------
        run : object
        """
        self.on_fit_end(run)  # of an earlier fit that nobody ended
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise DaskMLDistError(
                "The callback TensorBoard needs tensorboardX: pip install "
                "'daskml-dist[tensorboard]'; CSVLogger needs nothing."
            ) from error
        self._writer, self._pass = SummaryWriter(os.fspath(self.log_dir)), 0
        text = "\n".join(f"- {name}: {value}" for name, value in facts_of(run).items())
        self._writer.add_text("fit", text, 0)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Write a pass.

        Parameters
        ----------
        run : object
        record : dict
        """
        if self._writer is None:
            return
        self._pass = record["pass"]
        for key, value in numbers_of(record).items():
            self._writer.add_scalar(key, value, self._pass)
        self._writer.flush()

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Write a pass again, that was made again since a worker was lost.

        Parameters
        ----------
        run : object
        record : dict
        """
        self.on_pass_end(run, record)

    def on_generation(self, run: Any, event: Any) -> None:
        """Write a change of membership.

        Parameters
        ----------
        run : object
        event : object
        """
        if self._writer is not None:
            self._writer.add_text("generations", str(event), self._pass)

    def on_fit_end(self, run: Any) -> None:
        """Close the folder.

        Parameters
        ----------
        run : object
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
