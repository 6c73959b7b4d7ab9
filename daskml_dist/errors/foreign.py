"""Names of parameters as other libraries have them."""

from __future__ import annotations

from collections.abc import Collection

from daskml_dist.errors.nearest import nearest

__all__ = ["called_here"]

#: What parameters are called elsewhere, and in this package: the first that an estimator has.
_OUR_PARAMETERS: dict[str, tuple[str, ...]] = {
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


def called_here(name: str, valid: Collection[str]) -> str:
    """End of a message: what a parameter of another library's is called here; or nothing."""
    known = next((here for here in _OUR_PARAMETERS.get(name, ()) if here in valid), None)
    return nearest(name, valid) if known is None else f" Here it is called {known!r}."
