"""Callbacks that come with the package: they end fits early, or log and score their passes.

Each is given as ``callbacks=[...]`` to any estimator. How to write others is described in
:mod:`daskml_dist.training.callbacks`.
"""

from daskml_dist.callbacks.eval_monitor import EvalMonitor
from daskml_dist.callbacks.loggers import CSVLogger, MLflow, TensorBoard
from daskml_dist.callbacks.stopping import EarlyStopping, OptunaPruning, TimeLimit
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
