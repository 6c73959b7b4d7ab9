"""Parameters of trees and forests: their checks, criteria, and weights of the classes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import ceil
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.devices import DEVICES
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.outside import outside
from daskml_dist.models.criteria import (
    AbsoluteErrorCriterion,
    Criterion,
    EntropyCriterion,
    GiniCriterion,
    PoissonCriterion,
    SquaredErrorCriterion,
)
from daskml_dist.parameters.checks import check_class_weight, check_number, check_one_of
from daskml_dist.training.data_summary import DataSummary
from daskml_dist.training.dataset_info import named_weights

__all__ = [
    "CRITERIA",
    "check_tree_params",
    "class_weights",
    "common_weights",
    "count_of_share",
    "is_count",
    "is_share",
]


#: Criteria by the names that users call them by.
CRITERIA: dict[str, Criterion] = {
    "gini": GiniCriterion(),
    "entropy": EntropyCriterion(),
    "log_loss": EntropyCriterion(),
    "squared_error": SquaredErrorCriterion(),
    "friedman_mse": SquaredErrorCriterion(),
    "poisson": PoissonCriterion(),
    "absolute_error": AbsoluteErrorCriterion(),
}


def check_tree_params(p: Mapping[str, Any], classification: bool) -> None:
    """Check the parameters of trees, before any work is started."""
    names = [name for name, c in CRITERIA.items() if c.of_classes == classification]
    check_one_of("criterion", p["criterion"], names)
    if p["criterion"] == "friedman_mse":
        warnings.warn(
            'Value "friedman_mse" for `criterion` is deprecated: it makes the splits of '
            '"squared_error". Use that.',
            FutureWarning,
            stacklevel=outside(),
        )
    if CRITERIA[p["criterion"]].needs_rows:
        _check_together(p)
    _check_bounds(p)
    check_one_of("decomposition", p["decomposition"], ("auto", "functional", "data"))
    check_one_of("device", p["device"], DEVICES)
    weights = p["class_weight"]
    for weight in weights if isinstance(weights, list) else [weights]:
        if not (isinstance(weight, str) and weight == "balanced_subsample") or "bootstrap" not in p:
            check_class_weight(weight)


def _check_bounds(p: Mapping[str, Any]) -> None:
    """Check what bounds the growth of trees."""
    for name, least in (("max_leaf_nodes", 2), ("max_depth", 1)):
        value = p[name]
        if value is not None and (not is_count(value) or value < least):
            raise InvalidParameterError(
                f"{name}={value!r}: use an integer >= {least}, or None for no bound."
            )
    _check_rows("min_samples_split", p["min_samples_split"], 2, 1.0)
    _check_rows("min_samples_leaf", p["min_samples_leaf"], 1, float(np.nextafter(1.0, 0)))
    check_number(
        "min_weight_fraction_leaf", p["min_weight_fraction_leaf"], lambda v: 0 <= v <= 0.5,
        "of [0, 0.5]",
    )  # fmt: skip
    check_number("min_impurity_decrease", p["min_impurity_decrease"])
    check_number("ccp_alpha", p["ccp_alpha"])
    if not is_count(p["max_bins"]) or not 2 <= p["max_bins"] <= 255:
        raise InvalidParameterError(
            f"max_bins={p['max_bins']!r}: use an integer from 2 to 255: a bin is a byte, and one "
            "is for missing values."
        )


def _check_together(p: Mapping[str, Any]) -> None:
    """Check what needs a node's rows together."""
    why = f"criterion={p['criterion']!r} needs medians of the targets, which are no sums"
    if p["device"] == "gpu":
        raise InvalidParameterError(
            f'{why}, and the CPU alone finds them. Use device="cpu" or "auto", or '
            'criterion="squared_error".'
        )
    if p["decomposition"] == "data":
        raise InvalidParameterError(
            f'{why}: a trainer needs the bins of all rows. Use decomposition="functional" or '
            '"auto", or criterion="squared_error".'
        )


def is_count(value: Any) -> bool:
    """Return whether a parameter is a whole number."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_share(value: Any) -> bool:
    """Return whether a parameter is a number, and no whole one."""
    return isinstance(value, Real) and not isinstance(value, Integral)


def count_of_share(given: Any, n: int) -> int:
    """Number of rows, given as such or as a share of `n`."""
    return int(given) if is_count(given) else ceil(given * n)


def _check_rows(name: str, value: Any, least: int, most: float) -> None:
    if is_count(value) and value >= least:
        return
    if is_share(value) and 0 < value <= most:
        return
    raise InvalidParameterError(
        f"{name}={value!r}: use an integer >= {least}, or a share of the rows between 0 and 1."
    )


def class_weights(given: Any, survey: DataSummary) -> tuple[NDArray[np.float64], ...]:
    """Weight of each class of each output; empty for none."""
    if given is None:
        return ()
    columns = survey.label_columns
    if given == "balanced":
        return tuple(
            np.divide(sums.sum(), len(sums) * sums, out=np.zeros(len(sums)), where=sums > 0)
            for _, sums in columns
        )
    if isinstance(given, dict):
        raise InvalidParameterError(
            "For multi-output, class_weight should be a list of dicts, or the string 'balanced'. "
            "Give a dict for each output."
        )
    _check_number(given, len(columns))
    return tuple(named_weights(of, labels) for of, (labels, _) in zip(given, columns, strict=True))


def common_weights(given: list[Any]) -> list[Any]:
    """The weights of the classes of one output, given as a list of one."""
    _check_number(given, 1)
    return given


def _check_number(given: list[Any], n_outputs: int) -> None:
    if len(given) != n_outputs:
        raise InvalidParameterError(
            f"The number of elements in class_weight should match number of outputs. Got "
            f"{len(given)} element(s) while y has {n_outputs}. Give a dict for each output."
        )
