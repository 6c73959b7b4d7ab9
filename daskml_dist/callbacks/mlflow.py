"""Runs in MLflow."""

from __future__ import annotations

from typing import Any

from daskml_dist.callbacks.base import FitCallback, facts_of, numbers_of
from daskml_dist.errors import DaskMLDistError

__all__ = ["MLflow"]


class MLflow(FitCallback):
    """Callback that logs a fit as a run of MLflow: its facts once, its numbers each pass.

    Needs ``pip install "daskml-dist[mlflow]"`` (mlflow-skinny). Where a run is active, as in
    ``with mlflow.start_run():``, the fit is logged into it, and it stays open.

    Parameters
    ----------
    run_name : str or None, default=None
        Name of the run; MLflow makes one up by default.
    experiment : str or None, default=None
        Name of the experiment, which is made where there is none; the current one by default.
    tracking_uri : str or None, default=None
        Server or folder; MLflow's own by default.

    Raises
    ------
    DaskMLDistError
        As the fit begins: MLflow is not installed.

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
        self._own = False

    def on_fit_begin(self, run: Any) -> None:
        """Begin the run, or go on in the active one.

        Parameters
        ----------
        run : object
        """
        self.on_fit_end(run)  # of an earlier fit that nobody ended
        try:
            import mlflow
        except ImportError as error:
            raise DaskMLDistError(
                "The callback MLflow needs MLflow: pip install 'daskml-dist[mlflow]'; CSVLogger "
                "needs nothing."
            ) from error
        client = mlflow.MlflowClient(self.tracking_uri)
        active = mlflow.active_run()
        elsewhere = self.tracking_uri is not None or self.experiment is not None
        self._own = elsewhere or active is None
        if elsewhere:
            made = client.create_run(self._experiment_id(client), run_name=self.run_name)
        elif active is None:
            made = mlflow.start_run(run_name=self.run_name)  # in the experiment set, if any
        else:
            made = active
        self._run_id = made.info.run_id
        self._client = client
        for name, value in facts_of(run).items():
            client.log_param(self._run_id, name, value)

    def _experiment_id(self, client: Any) -> str:
        name = "Default" if self.experiment is None else self.experiment
        found = client.get_experiment_by_name(name)
        return str(client.create_experiment(name) if found is None else found.experiment_id)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Log a pass.

        Parameters
        ----------
        run : object
        record : dict
        """
        if self._client is None:
            return
        for key, value in numbers_of(record).items():
            self._client.log_metric(self._run_id, key, float(value), step=record["pass"])

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Write a pass again, that was made again since a worker was lost.

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
        """End a run of one's own.

        Parameters
        ----------
        run : object
        """
        client, self._client = self._client, None
        if client is None or not self._own:
            return
        import mlflow

        status = "FINISHED" if getattr(run, "error", None) is None else "FAILED"
        active = mlflow.active_run()
        if active is not None and active.info.run_id == self._run_id:
            mlflow.end_run(status)
        else:
            client.set_terminated(self._run_id, status)
