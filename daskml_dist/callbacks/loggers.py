"""Callbacks that write the passes of a fit to CSV files, TensorBoard and MLflow.

Each writes as soon as a pass ends, so the passes of a killed fit are kept. After the loss of a
worker some passes are repeated (`on_pass_redone`): the CSV file is truncated at the first repeated
pass; TensorBoard and MLflow show the later value of the same step.
"""

from __future__ import annotations

import csv
import os
from typing import Any

from daskml_dist.callbacks.base import FitCallback, find_fit_facts, find_numbers
from daskml_dist.errors import DaskMLDistError, InvalidParameterError


class CSVLogger(FitCallback):
    """Callback that writes a line to a CSV file after each pass.

    The columns are the keys of :attr:`daskml_dist.training.history.History.records`; an empty field
    is a value that was not measured.

    Parameters
    ----------
    path : str or path
        A file in an existing folder on a disk of the client.
    append : bool, default=False
        Whether lines are appended to an existing file; else it is replaced.

    Raises
    ------
    InvalidParameterError
        At the start of the fit: the file cannot be written.

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
        # Offset in the file of each pass's line, by the number of the pass.
        self._offsets: dict[int, int] = {}

    def on_fit_begin(self, run: Any) -> None:
        """Open the file.

        Parameters
        ----------
        run : object
        """
        self.on_fit_end(run)  # closes the file of an earlier fit that did not end
        try:
            # `open` would take an integer for the number of an open file, and close that file.
            self._file = open(
                os.fspath(self.path), "a" if self.append else "w", newline="", encoding="utf-8"
            )
        except (OSError, TypeError) as error:
            raise InvalidParameterError(
                f"CSVLogger(path={self.path!r}): cannot be written ({error}). Name a file in a "
                "folder that exists and that you may write to."
            ) from error
        self._writer, self._offsets = None, {}

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
            # The first record determines the columns: a CSV file cannot get more columns later.
            # Lists are left out, since a field holds one value.
            names = [name for name, value in record.items() if not isinstance(value, list)]
            self._writer = csv.DictWriter(self._file, names, extrasaction="ignore")
            # A file that is appended to already has its header.
            if self._file.tell() == 0:
                self._writer.writeheader()
        self._offsets[record["pass"]] = self._file.tell()
        self._writer.writerow(record)
        self._file.flush()

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Write a pass that was repeated after the loss of a worker, and drop later ones.

        Parameters
        ----------
        run : object
        record : dict
        """
        # The fit resumed from a state before this pass, so the lines of later passes are invalid
        # too.
        if self._file is not None and record["pass"] in self._offsets:
            self._file.seek(self._offsets[record["pass"]])
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


class TensorBoard(FitCallback):
    """Callback that writes the measures of each pass for TensorBoard.

    Needs ``pip install "daskml-dist[tensorboard]"`` (tensorboardX). The step of a value is the
    number of its pass; changes of membership are written as text.

    Parameters
    ----------
    log_dir : str or path
        Folder of the run; one per fit.

    Raises
    ------
    DaskMLDistError
        At the start of the fit: tensorboardX is not installed.

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
        """Open the folder, and write the facts of the fit.

        Parameters
        ----------
        run : object
        """
        self.on_fit_end(run)  # closes the file of an earlier fit that did not end
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise DaskMLDistError(
                "The callback TensorBoard needs tensorboardX: pip install "
                "'daskml-dist[tensorboard]'; CSVLogger needs no extra package."
            ) from error
        self._writer, self._pass = SummaryWriter(os.fspath(self.log_dir)), 0
        # A list in Markdown, as TensorBoard shows texts.
        text = "\n".join(f"- {name}: {value}" for name, value in find_fit_facts(run).items())
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
        for key, value in find_numbers(record).items():
            self._writer.add_scalar(key, value, self._pass)
        # By default tensorboardX writes its queue only every two minutes.
        self._writer.flush()

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Write a pass that was repeated after the loss of a worker.

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


class MLflow(FitCallback):
    """Callback that logs a fit as an MLflow run: parameters once, metrics after each pass.

    Needs ``pip install "daskml-dist[mlflow]"`` (mlflow-skinny). If a run is active, as in ``with
    mlflow.start_run():``, the fit is logged into it, and the run stays open.

    Parameters
    ----------
    run_name : str or None, default=None
        Name of the run; MLflow makes one up by default.
    experiment : str or None, default=None
        Name of the experiment, which is created if missing; the current one by default.
    tracking_uri : str or None, default=None
        Server or folder; MLflow's own by default.

    Raises
    ------
    DaskMLDistError
        At the start of the fit: MLflow is not installed.

    Examples
    --------
    >>> from daskml_dist.callbacks import MLflow
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(callbacks=[MLflow(experiment='clicks')])  # doctest: +SKIP
    """

    def __init__(
        self,
        run_name: str | None = None,
        experiment: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        self.run_name = run_name
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self._client: Any = None
        self._run_id = ""
        # Whether this callback started the run, and so must end it.
        self._is_own_run = False

    def on_fit_begin(self, run: Any) -> None:
        """Start a run, or continue the active one.

        Parameters
        ----------
        run : object
        """
        self.on_fit_end(run)  # ends the run of an earlier fit that did not end
        try:
            import mlflow
        except ImportError as error:
            raise DaskMLDistError(
                "The callback MLflow needs MLflow: pip install 'daskml-dist[mlflow]'; CSVLogger "
                "needs no extra package."
            ) from error
        client = mlflow.MlflowClient(self.tracking_uri)
        active = mlflow.active_run()
        # If the callback names its own server or experiment, it creates a run beside the active
        # one. Otherwise it uses the active run, or starts one in the current experiment.
        creates_run = self.tracking_uri is not None or self.experiment is not None
        self._is_own_run = creates_run or active is None
        if creates_run:
            mlflow_run = client.create_run(self._experiment_id(client), run_name=self.run_name)
        elif active is None:
            mlflow_run = mlflow.start_run(run_name=self.run_name)
        else:
            mlflow_run = active
        self._run_id = mlflow_run.info.run_id
        self._client = client
        for name, value in find_fit_facts(run).items():
            client.log_param(self._run_id, name, value)

    def _experiment_id(self, client: Any) -> str:
        """Return the id of the experiment, which is created if there is none of its name."""
        name = "Default" if self.experiment is None else self.experiment
        experiment = client.get_experiment_by_name(name)
        return str(
            client.create_experiment(name) if experiment is None else experiment.experiment_id
        )

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Log a pass.

        Parameters
        ----------
        run : object
        record : dict
        """
        if self._client is None:
            return
        for key, value in find_numbers(record).items():
            self._client.log_metric(self._run_id, key, float(value), step=record["pass"])

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Log a pass that was repeated after the loss of a worker.

        Parameters
        ----------
        run : object
        record : dict
        """
        self.on_pass_end(run, record)

    def on_generation(self, run: Any, event: Any) -> None:
        """Note a change of membership as a tag.

        Parameters
        ----------
        run : object
        event : object
        """
        if self._client is not None:
            number = getattr(event, "generation", 0)
            self._client.set_tag(self._run_id, f"generation.{number}", str(event))

    def on_fit_end(self, run: Any) -> None:
        """End the run if it was started here.

        Parameters
        ----------
        run : object
        """
        client, self._client = self._client, None
        if client is None or not self._is_own_run:
            return
        import mlflow

        status = "FINISHED" if getattr(run, "error", None) is None else "FAILED"
        # If the run is MLflow's active run, MLflow must end it; otherwise it would stay active.
        active = mlflow.active_run()
        if active is not None and active.info.run_id == self._run_id:
            mlflow.end_run(status)
        else:
            client.set_terminated(self._run_id, status)
