"""Ends of error messages that suggest the value or parameter that was probably meant.

Two tables translate the words of other libraries (XGBoost, Keras, PyTorch, older scikit-learn);
misspelt words are matched by similarity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

#: Names of values in other libraries, and their names here: the first valid one is suggested.
_VALUES_OF_OTHERS: dict[str, tuple[str | None, ...]] = {
    "acc": ("accuracy",),
    "all_reduce": ("allreduce",),
    "asynchronous": ("async",),
    "auc": ("roc_auc",),
    "average": ("mean",),
    "bf16": ("bfloat16",),
    "binary:logistic": ("log_loss",),
    "binary_crossentropy": ("log_loss",),
    "bsp": ("sync",),
    "categorical_crossentropy": ("log_loss",),
    "cross_entropy": ("log_loss",),
    "crossentropy": ("log_loss",),
    "cuda": ("gpu",),
    "deviance": ("log_loss",),
    "diagonal": ("diag",),
    "fp16": ("float16",),
    "gaussian": ("normal",),
    "half": ("float16",),
    "lad": ("absolute_error",),
    "lasso": ("l1",),
    "least_squares": ("squared_error",),
    "log": ("log_loss",),
    "logistic": ("log_loss",),
    "logloss": ("log_loss", "neg_log_loss"),
    "mae": ("absolute_error", "neg_mean_absolute_error"),
    "mape": ("neg_mean_absolute_percentage_error",),
    "mean_absolute_error": ("neg_mean_absolute_error",),
    "mean_squared_error": ("neg_mean_squared_error",),
    "mode": ("most_frequent",),
    "mse": ("squared_error", "neg_mean_squared_error"),
    "multi:softmax": ("log_loss",),
    "none": (None,),
    "one_hot": ("onehot",),
    "platt": ("sigmoid",),
    "reg:squarederror": ("squared_error",),
    "ridge": ("l2",),
    "rmse": ("neg_root_mean_squared_error", "squared_error"),
    "root_mean_squared_error": ("neg_root_mean_squared_error",),
    "sigmoid": ("logistic",),
    "squared_loss": ("squared_error",),
    "svm": ("hinge",),
    "synchronous": ("sync",),
}


def suggest_nearest(value: Any, valid: Iterable[Any]) -> str:
    """Return a sentence that suggests a valid name, or an object for a class; or an empty one."""
    if isinstance(value, type):
        name = value.__name__
        return f" {name} is a class: pass an instance, {name}()."
    if not isinstance(value, str):
        return ""
    plain, valid = _normalize_name(value), list(valid)
    names = {_normalize_name(name): name for name in valid if isinstance(name, str)}
    # The whole name first ("binary:logistic"), then the part before a colon: "cuda:0" is a device
    # of the kind "cuda".
    synonyms = _VALUES_OF_OTHERS.get(plain) or _VALUES_OF_OTHERS.get(plain.partition(":")[0], ())
    # A valid name with other letter case ("L1") needs no translation.
    for option in () if plain in names else synonyms:
        if option in valid:
            return f" Did you mean {option!r}?"
    # A similarity of 0.7 means two or three wrong letters in ten; below, suggestions would be
    # guesses.
    matches = get_close_matches(plain, names, n=1, cutoff=0.7)
    return f" Did you mean {names[matches[0]]!r}?" if matches else ""


def _normalize_name(name: str) -> str:
    """Return a name in lower case, with underscores for hyphens and spaces."""
    return name.lower().replace("-", "_").replace(" ", "_")


#: Names of parameters in other libraries, and their names here: the first that exists is used.
_PARAMETERS_OF_OTHERS: dict[str, tuple[str, ...]] = {
    "batch": ("batch_size",),
    "early_stopping_rounds": ("n_iter_no_change",),
    "epochs": ("max_iter",),
    "eta": ("learning_rate",),
    "eta0": ("learning_rate_init", "learning_rate"),
    "iterations": ("max_iter",),
    "k": ("n_clusters", "n_components"),
    "l2": ("alpha", "l2_regularization"),
    "lambda": ("alpha", "l2_regularization"),
    "learning_rate_init": ("learning_rate",),
    "lr": ("learning_rate", "learning_rate_init"),
    "n_epochs": ("max_iter",),
    "n_estimators": ("max_iter",),
    "n_iter": ("max_iter",),
    "n_trees": ("n_estimators", "max_iter"),
    "num_boost_round": ("max_iter",),
    "num_epochs": ("max_iter",),
    "num_leaves": ("max_leaf_nodes",),
    "num_round": ("max_iter",),
    "optim": ("optimizer",),
    "reg_alpha": ("alpha",),
    "reg_lambda": ("l2_regularization", "alpha"),
    "seed": ("random_state",),
    "step_size": ("learning_rate",),
    "weight_decay": ("alpha",),
}


def suggest_parameter(name: str, valid: Collection[str]) -> str:
    """Return a sentence that suggests the parameter for a name; or an empty one."""
    own_name = next(
        (option for option in _PARAMETERS_OF_OTHERS.get(name, ()) if option in valid), None
    )
    return suggest_nearest(name, valid) if own_name is None else f" Here it is named {own_name!r}."
