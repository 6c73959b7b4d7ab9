"""Checkers of the estimators' parameters: each error names what is valid."""

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
from daskml_dist.parameters.run import Run
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.spec import RunSettings


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_count(value: Any) -> bool:
    return value is None or (
        isinstance(value, Integral) and not _is_flag(value) and int(value) >= 1
    )


def _is_threads(value: Any) -> bool:
    return value is None or isinstance(value, Integral)


def _is_seed(value: Any) -> bool:
    if isinstance(value, Integral) and not _is_flag(value):
        return 0 <= int(value) < 1 << 32
    return value is None or isinstance(value, np.random.RandomState) or value is np.random


def _is_gram(value: Any) -> bool:
    return _is_flag(value) or getattr(value, "ndim", 2 if isinstance(value, list) else 0) == 2


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not _is_flag(value) and float(value) >= 0


#: Whether a value is valid, and the words for those that are, by parameter.
ACCEPTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "copy_X": (_is_flag, "an instance of 'bool'"),
    "dual": (_is_flag, "an instance of 'bool'"),
    "intercept_scaling": (_is_number, "a float in the range [0.0, inf)"),
    "max_iter": (_is_count, "an int in the range [1, inf) or None"),
    "n_jobs": (_is_threads, "an instance of 'int' or None"),
    "precompute": (_is_gram, "an array-like or an instance of 'bool'"),
    "random_state": (_is_seed, "an int in the range [0, 4294967295], a RandomState or None"),
    "tol": (_is_number, "a float in the range [0.0, inf)"),
}


def check_accepted(estimator: Any) -> None:
    """Check the parameters that an estimator lists in `_accepted`."""
    for name in estimator._accepted:
        check_value(type(estimator).__name__, name, getattr(estimator, name))


def check_value(owner: str, name: str, value: Any) -> None:
    """Check a parameter of an estimator or function, which goes by the name `owner`."""
    is_valid, words = ACCEPTED[name]
    if not is_valid(value):
        raise InvalidParameterError(
            f"The {name!r} parameter of {owner} must be {words}. Got {value!r} instead."
        )


_Fit = TypeVar("_Fit", bound=Callable[..., Any])


def taking_client(fit: _Fit) -> _Fit:
    """Let the ``fit`` of an estimator of others take a `client`, which all of its fits are made by.

    It is the current client meanwhile, so members, splits and scores need not hand it on.
    """

    @wraps(fit)
    def on_client(self: Any, *args: Any, client: Any = None, **params: Any) -> Any:
        if client is None:
            return fit(self, *args, **params)
        check_client(client, "fit", "None for the current client")
        with use_client(client):
            return fit(self, *args, **params)

    signature = inspect.signature(fit)
    *others, last = signature.parameters.values()
    given = inspect.Parameter("client", inspect.Parameter.KEYWORD_ONLY, default=None)
    is_rest = last.kind is inspect.Parameter.VAR_KEYWORD
    parameters = [*others, given, last] if is_rest else [*others, last, given]
    setattr(on_client, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    return cast(_Fit, on_client)


def check_run(run: Any, device: Any, *, name: str, used: Collection[str]) -> RunSettings:
    """Check `run` and `device`, of an estimator that uses some of a `Run`'s parameters."""
    run = _as_run(run)
    if unused := [given for given in run.changed() if given not in used]:
        raise InvalidParameterError(
            f"run={run!r}: {name} does not use {' and '.join(unused)}. Leave that out; of a Run it "
            f"uses {', '.join(used)}."
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
        memory_budget=check_budget(run.memory_budget),
        on_lost_data=run.on_lost_data,
        shard=run.shard,
        compression=get_compressor(run.compression),
        name=name,
    )


def _as_run(run: Any) -> Run:
    if run is None:
        return Run()
    if isinstance(run, Run):
        return run
    raise InvalidParameterError(
        f"run={run!r}: use daskml_dist.Run, for example run=Run(n_lanes=2), or None."
    )


def check_one_of(name: str, value: Any, valid: Collection[Any]) -> None:
    """Check that a parameter is one of a few values."""
    if not any(value is one or (isinstance(value, str) and value == one) for one in valid):
        raise InvalidParameterError(
            f"{name}={value!r}: use one of {list(valid)}.{suggest_nearest(value, valid)}"
        )


def check_count(name: str, value: Any, also: str = "", least: int = 1) -> None:
    """Check that a parameter is an integer >= `least`; `also` names what else is valid."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        hint = f", {also}" if also else ""
        raise InvalidParameterError(f"{name}={value!r}: use an integer >= {least}{hint}.")


def check_number(
    name: str, value: Any, valid: Callable[[float], bool] = lambda v: v >= 0, hint: str = ">= 0"
) -> None:
    """Check that a parameter is a finite number, of a range that `hint` tells."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not (np.isfinite(float(value)) and valid(float(value)))
    ):
        raise InvalidParameterError(f"{name}={value!r}: use a number {hint}.")


def check_flag(name: str, value: Any) -> None:
    """Check that a parameter is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidParameterError(f"{name}={value!r}: use True or False.")


#: Parameters whose default is True or False, and that take other values too.
_ALSO = frozenset({"average", "oob_score", "precompute", "refit", "verbose"})


def check_flags(estimator: Any) -> None:
    """Check the parameters of an estimator that are flags by their default.

    A string such as "no" would else be as good as True.
    """
    kind: Any = type(estimator)  # of which mypy thinks that it has no hash
    for name in _flags_of(kind).difference(estimator._accepted):
        check_flag(name, getattr(estimator, name))


@cache
def _flags_of(kind: type) -> frozenset[str]:
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return frozenset(p.name for p in parameters if isinstance(p.default, bool)) - _ALSO


def check_class_weight(class_weight: Any) -> Any:
    """Check ``class_weight`` and return it."""
    if isinstance(class_weight, dict):
        valid = all(isinstance(w, Real) and 0 <= float(w) < np.inf for w in class_weight.values())
    else:
        valid = class_weight is None or class_weight == "balanced"
    if valid:
        return class_weight
    raise InvalidParameterError(
        f'class_weight={class_weight!r}: use "balanced", a dict from label to weight >= 0, or None.'
    )


def check_budget(memory_budget: Any) -> int | None:
    """Check a `memory_budget`; its bytes, None for "auto"."""
    if isinstance(memory_budget, str) and memory_budget == "auto":
        return None
    with suppress(ValueError, TypeError, AttributeError):
        if (budget := parse_bytes(memory_budget)) > 0:
            return int(budget)
    raise InvalidParameterError(
        f'memory_budget={memory_budget!r}: use "auto", a number of bytes, or a string such as '
        '"2 GiB".'
    )


def check_weighed(weights: Mapping[int, Any]) -> None:
    """Check that rows which are to be scored have weights."""
    for split, weight in weights.items():
        if float(weight) == 0:
            raise InvalidDataError(
                f"The test rows of split {split} have no weight: their sample_weight sums to zero, "
                "so they have no score. Shuffle the rows that are split, for example "
                "cv=KFold(5, shuffle=True), or leave rows of no weight out."
            )


def check_some_weight(weight: Any) -> None:
    """Check that the weights of rows that are to be scored do not sum to zero."""
    if float(weight) == 0:
        raise InvalidDataError(
            "The sample weights sum to zero, so there is no score. Give some rows a positive "
            "weight."
        )


def seed_of(random_state: Any) -> int:
    """A seed drawn from what the user gave."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise InvalidParameterError(f"{error}: use an integer, a RandomState or None.") from error


def check_steps(params: dict[str, Any]) -> None:
    """Check the numbers among the parameters of a fit by gradient steps."""
    for name in ("max_iter", "n_iter_no_change"):
        check_count(name, params[name])
    if not isinstance(params["average"], bool | np.bool_):
        check_count("average", params["average"], also="True or False")
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
            f'dtype={dtype!r}: use "float32" or "float64", or None: as the rows are.'
        )
    tol = params["tol"]
    if tol is not None and not (isinstance(tol, int | float | np.number) and tol >= 0):
        raise InvalidParameterError(f"tol={tol!r}: use a number >= 0, or None.")
    checkpoint = params["checkpoint"]
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise InvalidParameterError(
            f"checkpoint={checkpoint!r}: use Checkpoint(path, every=1) of daskml_dist.callbacks, "
            "such as checkpoint=Checkpoint('fit.npz'), or None."
        )


def has_sklearns_callbacks(estimator: Any) -> bool:
    """Return whether scikit-learn's ``set_callbacks`` (1.9) has given an estimator any."""
    return bool(getattr(estimator, "_skl_callbacks", None))


def refuse_sklearns_callbacks(estimator: Any) -> None:
    """Refuse scikit-learn's callbacks where its own ``fit``, which calls them, is not the one."""
    if has_sklearns_callbacks(estimator):
        raise InvalidParameterError(
            f"set_callbacks: {type(estimator).__name__} calls scikit-learn's callbacks for rows in "
            "memory, where its fit is scikit-learn's. Take them off: set_callbacks()."
        )


_RUN_NAMES = frozenset(field.name for field in fields(Run))


def check_names(estimator: type, params: Mapping[str, Any]) -> None:
    """Check that a constructor has the parameters that it is called with by name."""
    known = (list_parameter_names(estimator) if params else None) or ()
    unknown = (name for name in params if name not in known)
    check_names_of(estimator, params, hint=in_run(next(unknown, ""), known))


def in_run(name: str, known: Collection[str]) -> str:
    """End of a message: that a name is one of `run`, which an estimator has; or nothing."""
    if name not in _RUN_NAMES or "run" not in known:
        return ""
    return f" It is one of run: run=Run({name}=...)."
