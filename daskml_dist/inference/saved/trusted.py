"""Trusted types: what a model file may be made of without its reader's word.

What is read is arrays, numbers, and objects of the classes named here, whose attributes are set
without a call of their constructors; a name of anything else is refused. Rooms that write files,
open sockets or run commands are not among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from importlib import import_module

from daskml_dist.errors import ModelFileError

__all__ = ["asked_of", "check_findable", "check_trusted"]

_ROOMS = (
    "calibration", "cluster", "compose", "compression", "decomposition", "ensemble",
    "feature_extraction", "frequent_patterns", "graph", "impute", "linear_model", "losses",
    "metrics", "mixture", "model_selection", "models", "naive_bayes", "neural_network",
    "optimizers", "parameters.run", "penalties", "policies", "preprocessing", "ps.shard_state",
    "recommender", "schedules", "solvers", "svm", "training.history", "tree", "wrappers",
)  # fmt: skip
#: Of scikit-learn and NumPy: data alone, which skops does not list.
_ALSO = frozenset(
    (
        "builtins.object",  # columns are selected by such
        "numpy.dtype",
        "numpy.floating",
        "numpy.integer",
        "numpy.number",
        "sklearn._loss.loss.HalfTweedieLoss",
        "sklearn._loss.loss.HalfTweedieLossIdentity",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.calibration._TemperatureScaling",
        "sklearn.cluster._bisect_k_means._BisectingTree",
        "sklearn.compose._column_transformer.make_column_selector",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.metrics._scorer._PassthroughScorer",
        "sklearn.metrics._scorer._Scorer",
        "sklearn.model_selection._search_successive_halving.HalvingGridSearchCV",
        "sklearn.model_selection._search_successive_halving.HalvingRandomSearchCV",
        "sklearn.multiclass._ConstantPredictor",
        "sklearn.utils._bunch.Bunch",
    )
)
_SPLITTERS = "sklearn.model_selection._split."


def check_trusted(types: Iterable[str], given: Collection[str], name: str) -> list[str]:
    """Check the types that a file is made of."""
    types = sorted(types)
    if unknown := [one for one in asked_of(types) if one not in given]:
        raise ModelFileError(
            f"{name} is made of {', '.join(unknown)}: not known to hold data alone, so not read "
            "without your word. Where you trust whoever wrote the file, pass "
            f"load({name!r}, trusted={unknown}); a server is started with "
            f"{' '.join(f'--trusted {one}' for one in unknown)}."
        )
    return types


def asked_of(types: Iterable[str]) -> list[str]:
    """Types among these that only the user's word makes trusted."""
    return sorted(one for one in types if not _is_known(one))


def check_findable(types: Iterable[str], name: str) -> None:
    """Check, before a file is written, that classes of others can be found when it is read."""
    for one in asked_of(types):
        if not _can_be_found(one):
            raise ModelFileError(
                f"This {name} is made of {one}, which no later process finds by this name. Define "
                "the class in a module of yours, at its top; or save a network as .safetensors, "
                "which needs no class."
            )


def _can_be_found(name: str) -> bool:
    module, _, short = name.rpartition(".")
    try:
        return hasattr(import_module(module), short)
    except (ImportError, ValueError):
        return False


def _is_known(name: str) -> bool:
    ours = any(name.startswith(f"daskml_dist.{room}.") for room in _ROOMS)
    return ours or name in _ALSO or name.startswith(_SPLITTERS) or name in _scores()


@cache
def _scores() -> frozenset[str]:
    """Functions of arrays that scikit-learn's scorers call, as ``scoring="roc_auc"`` names one."""
    from sklearn.metrics import get_scorer, get_scorer_names

    scorers = map(get_scorer, get_scorer_names())
    functions = {one._score_func for one in scorers if hasattr(one, "_score_func")}
    return frozenset(f"{one.__module__}.{one.__qualname__}" for one in functions)
