"""Public functions of metrics that are scikit-learn's on rows in memory.

On Dask collections one pass leaves so little that scikit-learn's function, or a sum, does the rest:
each takes the arguments that scikit-learn's has, and they mean what they mean there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from daskml_dist.errors.signatures import wrong_arguments
from daskml_dist.metrics._columns import Columns, is_lazy
from daskml_dist.metrics._examples import example_of

__all__ = ["face"]

_DOC = """{summary}

Parameters
----------
{names} : dask Array, Series or DataFrame, or array-like
    {columns}
sample_weight : like `{first}`, or a float, or None
    Where scikit-learn's function takes weights.{options}{own}

Returns
-------
object
    What :func:`{source}` returns of the same rows in memory.

Raises
------
InvalidTypeError
    There is no such argument, or one is missing.
InvalidParameterError
    An option has no meaning here.
InvalidDataError
    The columns cannot be aligned, hold NaN or what has no score; the weights sum to zero.
{notes}"""

#: An option beyond scikit-learn's, and what is told of it.
Own = tuple[inspect.Parameter, str]


def face(
    source: Callable[..., Any],
    lazily: Callable[..., Any],
    columns: Columns,
    summary: str,
    *,
    of: str,
    module: str,
    own: Own | None = None,
    notes: str = "",
) -> Callable[..., Any]:
    """Make the public function of a metric."""
    name, theirs = source.__name__, inspect.signature(source)
    parameters = list(theirs.parameters.values())
    first, second = (parameter.name for parameter in parameters[:2])
    if own is not None:
        parameters.append(own[0])
    signature = theirs.replace(parameters=parameters)

    def metric(*args: Any, **kwargs: Any) -> Any:
        try:
            options = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise wrong_arguments(name, metric, args, kwargs) from error
        y_true, y_pred = options.pop(first), options.pop(second)
        weight = options.pop("sample_weight", None)
        if is_lazy(y_true, y_pred, weight):
            return lazily(y_true, y_pred, weight, **options)
        if own is not None:
            options.pop(own[0].name, None)
        return columns.in_memory(source, y_true, y_pred, weight, **options)

    others = [p.name for p in theirs.parameters.values()][2:]
    others = [f"`{name}`" for name in others if name != "sample_weight"]
    told = "\n**options\n    As in scikit-learn: " + ", ".join(others) + "." if others else ""
    metric.__doc__ = _DOC.format(
        summary=summary,
        names=f"{first}, {second}",
        first=first,
        columns=of,
        source=f"{'sklearn.calibration' if 'calib' in name else 'sklearn.metrics'}.{name}",
        options=told,
        own="" if own is None else f"\n{own[0].name}\n    {own[1]}",
        notes=notes,
    ).rstrip("\n")
    metric.__doc__ = f"{metric.__doc__}{example_of(name, module)}"
    metric.__name__ = metric.__qualname__ = name
    metric.__module__ = module
    setattr(metric, "__signature__", signature)  # noqa: B010 - mypy knows no such attribute
    return metric
