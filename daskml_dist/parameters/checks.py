"""Checks of the estimators' parameters, made when an estimator is fitted.

As in scikit-learn, a constructor stores its arguments unchecked, because ``set_params`` and `clone`
rely on it; ``fit`` checks them before any work starts. Each error names the parameter, its value
and the valid values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, TypeVar, cast

import numpy as np
from dask.utils import parse_bytes
from sklearn.utils import check_random_state

from daskml_dist.backends.devices import DEVICES, STORED
from daskml_dist.compression import get_compressor
from daskml_dist.data.computing import check_client, use_client
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import check_parameter_names as check_names_of
from daskml_dist.errors.signatures import list_parameter_names
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.models.base import MOST_SIGHTINGS, MOST_STEPS
from daskml_dist.parameters.run import Run
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.spec import RunSettings


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_count_or_none(value: Any) -> bool:
    # bool is a subclass of int, so True would pass as the count 1.
    return value is None or (
        isinstance(value, Integral) and not _is_flag(value) and int(value) >= 1
    )


def _is_random_state(value: Any) -> bool:
    if isinstance(value, Integral) and not _is_flag(value):
        return 0 <= int(value) < 1 << 32  # the range of seeds of NumPy's Mersenne Twister
    return value is None or isinstance(value, np.random.RandomState) or value is np.random


def _is_flag_or_matrix(value: Any) -> bool:
    return _is_flag(value) or getattr(value, "ndim", 2 if isinstance(value, list) else 0) == 2


def _is_nonnegative(value: Any) -> bool:
    return isinstance(value, Real) and not _is_flag(value) and float(value) >= 0


#: Parameters of scikit-learn that have no effect here: a check of the value, and scikit-learn's
#: description of the valid values. They are checked so that a wrong value is an error in both
#: packages.
ACCEPTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "copy_X": (_is_flag, "an instance of 'bool'"),
    "dual": (_is_flag, "an instance of 'bool'"),
    "intercept_scaling": (_is_nonnegative, "a float in the range [0.0, inf)"),
    "max_iter": (_is_count_or_none, "an int in the range [1, inf) or None"),
    "n_jobs": (lambda v: v is None or isinstance(v, Integral), "an instance of 'int' or None"),
    "precompute": (_is_flag_or_matrix, "an array-like or an instance of 'bool'"),
    "random_state": (
        _is_random_state,
        "an int in the range [0, 4294967295], a RandomState or None",
    ),
    "tol": (_is_nonnegative, "a float in the range [0.0, inf)"),
}


def check_accepted(estimator: Any) -> None:
    """Check the parameters without effect that an estimator lists in `_accepted`."""
    for name in estimator._accepted:
        check_value(type(estimator).__name__, name, getattr(estimator, name))


def check_value(owner: str, name: str, value: Any) -> None:
    """Check a parameter of `ACCEPTED`, of the estimator or function called `owner`."""
    is_valid, expected = ACCEPTED[name]
    if not is_valid(value):
        raise InvalidParameterError(
            f"The {name!r} parameter of {owner} must be {expected}. Got {value!r} instead."
        )


_Fit = TypeVar("_Fit", bound=Callable[..., Any])


def taking_client(fit: _Fit) -> _Fit:
    """Add to a meta-estimator's ``fit`` the keyword `client`: the cluster of all fits inside it.

    It is the current client while ``fit`` runs, so members, splits and scorers need not pass it on.
    """

    @wraps(fit)
    def fit_on_client(self: Any, *args: Any, client: Any = None, **params: Any) -> Any:
        if client is None:
            return fit(self, *args, **params)
        check_client(client, "fit", "None for the current client")
        with use_client(client):
            return fit(self, *args, **params)

    # inspect.signature would follow `wraps` to the plain ``fit``, which has no `client`. A keyword
    # parameter must precede **params.
    signature = inspect.signature(fit)
    *earlier, last = signature.parameters.values()
    added = inspect.Parameter("client", inspect.Parameter.KEYWORD_ONLY, default=None)
    has_kwargs = last.kind is inspect.Parameter.VAR_KEYWORD
    parameters = [*earlier, added, last] if has_kwargs else [*earlier, last, added]
    # setattr, because mypy knows no attribute __signature__ of functions.
    setattr(fit_on_client, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    return cast(_Fit, fit_on_client)


def check_run(run: Any, device: Any, *, name: str, used_settings: Collection[str]) -> RunSettings:
    """Check `run` and `device` of the estimator `name`; return the settings of the fit.

    A parameter of `run` that the estimator does not use must have its default value.
    """
    if run is None:
        run = Run()
    elif not isinstance(run, Run):
        raise InvalidParameterError(
            f"run={run!r}: use daskml_dist.Run, for example run=Run(n_lanes=2), or None."
        )
    # A setting that the estimator does not use is an error: the user expects it to have an effect.
    elif unused := [setting for setting in run.changed() if setting not in used_settings]:
        raise InvalidParameterError(
            f"run={run!r}: {name} does not use {' and '.join(unused)}. Leave that out; it only "
            f"uses {', '.join(used_settings)}."
        )
    if run.n_lanes is not None:
        check_count("n_lanes", run.n_lanes)
    check_count("n_servers", run.n_servers)
    check_flag("deterministic", run.deterministic)
    check_one_of("compute_dtype", run.compute_dtype, STORED)
    check_one_of("on_lost_data", run.on_lost_data, ("raise", "skip"))
    check_one_of("shard", run.shard, ("rows", "features"))
    check_one_of("device", device, DEVICES)
    return RunSettings(
        device=device,
        n_lanes=run.n_lanes,
        n_servers=int(run.n_servers),
        deterministic=bool(run.deterministic),
        compute_dtype=run.compute_dtype,
        memory_budget=_check_budget(run.memory_budget),
        on_lost_data=run.on_lost_data,
        shard=run.shard,
        compression=get_compressor(run.compression),
        name=name,
    )


def check_one_of(name: str, value: Any, valid: Collection[Any]) -> None:
    """Check that a parameter is one of a few values."""
    # Compare by identity, or as strings: == on an array has no truth value, and 1 == True.
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in valid):
        raise InvalidParameterError(
            f"{name}={value!r}: use one of {list(valid)}.{suggest_nearest(value, valid)}"
        )


def check_columns(name: str, value: Any, default: str | None) -> None:
    """Check that a parameter is a list of columns, or its default."""
    if value is None and default is None:
        return
    if isinstance(value, str) and default is not None:
        check_one_of(name, value, (default,))
        return
    if isinstance(value, str) or not np.iterable(value):
        raise InvalidParameterError(
            f"{name}={value!r}: use a list of columns, such as {name}=[{value!r}]."
        )


def check_count(
    name: str, value: Any, also: str = "", min_value: int = 1, max_value: int | None = None
) -> None:
    """Check that a parameter is an integer within bounds; `also` names another valid value."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < min_value or (max_value is not None and value > max_value):
        bounds = f">= {min_value}" if max_value is None else f"from {min_value} to {max_value:,}"
        hint = f", {also}" if also else ""
        raise InvalidParameterError(f"{name}={value!r}: use an integer {bounds}{hint}.")


def check_table_limits(admit_after: Any, expire_after: Any, max_rows: Any) -> None:
    """Check the parameters that decide which ids have a row in a growing table."""
    check_count("admit_after", admit_after, max_value=MOST_SIGHTINGS)
    if expire_after is not None:
        check_count("expire_after", expire_after, "or None: no row expires", max_value=MOST_STEPS)
    if max_rows is not None:
        check_count("max_rows", max_rows, "or None: as many as the memory holds")


def check_number(
    name: str, value: Any, valid: Callable[[float], bool] = lambda v: v >= 0, hint: str = ">= 0"
) -> None:
    """Check that a parameter is a finite number for which `valid` holds; `hint` names the range."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not (np.isfinite(float(value)) and valid(float(value)))
    ):
        raise InvalidParameterError(f"{name}={value!r}: use a number {hint}.")


def check_flag(name: str, value: Any) -> None:
    """Check that a parameter is True or False."""
    if not _is_flag(value):
        raise InvalidParameterError(f"{name}={value!r}: use True or False.")


#: Parameters whose default is True or False but that accept other values too (an integer, a scorer,
#: a matrix). Their estimators check them.
_NOT_ONLY_FLAGS = frozenset({"average", "oob_score", "precompute", "refit", "verbose"})


def check_flags(estimator: Any) -> None:
    """Check the parameters of an estimator whose defaults are True or False.

    Otherwise a string such as "no" would count as True.
    """
    kind: Any = type(estimator)  # Any, because mypy considers a class unhashable
    # `check_accepted` checks the parameters in `_accepted`, with scikit-learn's messages.
    for name in _list_flags(kind).difference(estimator._accepted):
        check_flag(name, getattr(estimator, name))


@cache
def _list_flags(kind: type) -> frozenset[str]:
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return frozenset(p.name for p in parameters if isinstance(p.default, bool)) - _NOT_ONLY_FLAGS


def check_class_weight(class_weight: Any) -> Any:
    """Check `class_weight`, and return it."""
    if isinstance(class_weight, dict):
        valid = all(isinstance(w, Real) and 0 <= float(w) < np.inf for w in class_weight.values())
    else:
        valid = class_weight is None or class_weight == "balanced"
    if valid:
        return class_weight
    raise InvalidParameterError(
        f'class_weight={class_weight!r}: use "balanced", a dict from label to weight >= 0, or None.'
    )


def _check_budget(memory_budget: Any) -> int | None:
    """Check a `memory_budget`; return its bytes, or None for "auto"."""
    if isinstance(memory_budget, str) and memory_budget == "auto":
        return None
    if budget := count_bytes(memory_budget):
        return budget
    raise InvalidParameterError(
        f'memory_budget={memory_budget!r}: use "auto", a number of bytes, or a string such as '
        '"2 GiB".'
    )


def count_bytes(size: Any) -> int:
    """Return a positive number of bytes, given as a number or as a text; 0 for anything else."""
    # Dask's parser refuses scalars of NumPy.
    if isinstance(size, Real) and not isinstance(size, bool):
        return int(float(size)) if 0 < float(size) < np.inf else 0
    if isinstance(size, str):
        with suppress(ValueError):
            return max(int(parse_bytes(size)), 0)
    return 0


def check_weighed(weights: Mapping[int, Any]) -> None:
    """Check that the test rows of each split have a positive total weight, given by split."""
    for split, weight in weights.items():
        if float(weight) == 0:
            raise InvalidDataError(
                f"The test rows of split {split} have no weight: their sample_weight sums to "
                "zero, so they have no score. Shuffle the rows before splitting, for example "
                "cv=KFold(5, shuffle=True), or leave out rows without weight."
            )


def check_some_weight(weight: Any) -> None:
    """Check that the rows to score have a positive total weight, given that total."""
    if float(weight) == 0:
        raise InvalidDataError(
            "The sample weights sum to zero, so there is no score. Give some rows a positive "
            "weight."
        )


def seed_of(random_state: Any) -> int:
    """Return a seed below 2**31 - 1, drawn from a `random_state` as scikit-learn accepts it.

    Drawing advances a `RandomState`, so two fits of one estimator differ, as in scikit-learn.
    """
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise InvalidParameterError(f"{error}: use an integer, a RandomState or None.") from error


def check_steps(params: dict[str, Any]) -> None:
    """Check the parameters that all estimators trained by gradient steps have."""
    for name in ("max_iter", "n_iter_no_change"):
        check_count(name, params[name])
    # An integer is the number of rows after which averaging begins, as in scikit-learn's SGD.
    if not _is_flag(params["average"]):
        check_count("average", params["average"], also="True or False")
    # Check only the types here: `get_penalty` checks the ranges.
    for name in ("alpha", "l1_ratio"):
        if not isinstance(params[name], Real):
            raise InvalidParameterError(f"{name}={params[name]!r}: use a number.")
    batch_size = params["batch_size"]
    if batch_size is not None and batch_size != "auto":
        check_count("batch_size", batch_size, also='"auto", or None for full batches')
    fraction = params["validation_fraction"]
    if not (isinstance(fraction, float | np.floating) and 0 < fraction < 1):
        raise InvalidParameterError(
            f"validation_fraction={fraction!r}: use a number between 0 and 1."
        )
    if params["micro_batch_size"] is not None:
        check_count("micro_batch_size", params["micro_batch_size"], also="or None")
    if params["clip"] is not None:
        check_number("clip", params["clip"], lambda v: v > 0, "> 0, or None")
    dtype = params["dtype"]
    if dtype is not None and dtype not in ("float32", "float64", np.float32, np.float64):
        raise InvalidParameterError(
            f'dtype={dtype!r}: use "float32" or "float64", or None to keep the dtype of the rows.'
        )
    if params["tol"] is not None:
        check_number("tol", params["tol"], hint=">= 0, or None")
    checkpoint = params["checkpoint"]
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise InvalidParameterError(
            f"checkpoint={checkpoint!r}: use Checkpoint(path, every=1) of daskml_dist.callbacks, "
            "such as checkpoint=Checkpoint('fit.npz'), or None."
        )


def has_sklearns_callbacks(estimator: Any) -> bool:
    """Return whether callbacks were set by scikit-learn's ``set_callbacks`` (scikit-learn 1.9)."""
    return bool(getattr(estimator, "_skl_callbacks", None))


def refuse_sklearns_callbacks(estimator: Any) -> None:
    """Raise if scikit-learn's callbacks are set: only the ``fit`` of scikit-learn calls them."""
    if has_sklearns_callbacks(estimator):
        raise InvalidParameterError(
            f"set_callbacks: {type(estimator).__name__} only supports scikit-learn's callbacks "
            "for rows in memory. Remove them: set_callbacks()."
        )


_RUN_NAMES = frozenset(field.name for field in fields(Run))


def check_names(estimator: type, params: Mapping[str, Any]) -> None:
    """Check that a constructor accepts the given parameter names."""
    # A parameter of `run` gets its own hint.
    accepted = (list_parameter_names(estimator) if params else None) or ()
    unknown = (name for name in params if name not in accepted)
    check_names_of(estimator, params, hint=in_run(next(unknown, ""), accepted))


def in_run(name: str, known_names: Collection[str]) -> str:
    """Return a hint that `name` is a parameter of an estimator's `run`, or "" if it is none."""
    if name not in _RUN_NAMES or "run" not in known_names:
        return ""
    return f" It belongs to run: run=Run({name}=...)."
