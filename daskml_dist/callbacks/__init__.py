"""Callbacks that come with the package: what ends a fit, and where its numbers go.

Each is given as ``callbacks=[...]`` to any estimator; one's own are described in
:mod:`daskml_dist.training.callbacks`.
"""

from daskml_dist.callbacks.csv_logger import CSVLogger
from daskml_dist.callbacks.early_stopping import EarlyStopping
from daskml_dist.callbacks.eval_monitor import EvalMonitor
from daskml_dist.callbacks.mlflow import MLflow
from daskml_dist.callbacks.optuna_pruning import OptunaPruning
from daskml_dist.callbacks.tensorboard import TensorBoard
from daskml_dist.callbacks.time_limit import TimeLimit
from daskml_dist.diagnostics.progress import Progress
from daskml_dist.training.checkpoint import Checkpoint

__all__ = [
    "CSVLogger",
    "Checkpoint",
    "EarlyStopping",
    "EvalMonitor",
    "MLflow",
    "OptunaPruning",
    "Progress",
    "TensorBoard",
    "TimeLimit",
]
