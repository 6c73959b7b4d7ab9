"""Functions of one entry of arrays, applied to whole arrays without a compiler.

A step of an optimizer is written once, for entry ``k`` (`Optimizer.elementwise_update`).
`compiled.py` compiles it into a loop; this module runs the same code with ``k = ...`` and an array
library in place of `math`. Both apply the same operations to each entry in the same order, so their
results have the same bits.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

from daskml_dist.errors import InvalidParameterError

#: Names in array libraries for Python's built-in functions.
_ARRAY_FUNCTIONS = {"abs": "abs", "max": "maximum", "min": "minimum"}


def where(condition: Any, if_true: Any, if_false: Any) -> Any:
    """Return `if_true` if the condition holds, else `if_false`; also for arrays."""
    return if_true if condition else if_false


def find_helpers(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the Python functions that another one calls by global names."""
    caller: Any = function
    global_values = {name: caller.__globals__.get(name) for name in caller.__code__.co_names}
    return {name: value for name, value in global_values.items() if isinstance(value, FunctionType)}


@cache
def lift_to_arrays(function: Callable[..., Any], xp: Any) -> Any:
    """Convert a function of single entries to a function of arrays."""
    source: Any = function
    names = source.__globals__
    # The same code object with other globals: helpers of the package are lifted too, `math` and its
    # functions become those of the array library.
    lifted: dict[str, Any] = {
        name: xp.where if value is where else lift_to_arrays(value, xp)
        for name, value in find_helpers(function).items()
    }
    for name in source.__code__.co_names:
        value = names.get(name, getattr(builtins, name, None))
        if value is math:
            lifted[name] = xp
        elif name in _ARRAY_FUNCTIONS and name not in names:
            lifted[name] = getattr(xp, _ARRAY_FUNCTIONS[name])
        elif isinstance(value, BuiltinFunctionType) and value.__module__ == "math":
            lifted[name] = getattr(xp, name)
    if any(value is math for value in names.values()):
        unknown = [n for n in source.__code__.co_names if hasattr(math, n) and not hasattr(xp, n)]
        if unknown:
            raise InvalidParameterError(
                f"{source.__qualname__} calls math.{unknown[0]}, which arrays of {xp.__name__} do "
                "not have. Give the optimizer a `_descend` of its own as well."
            )
    code, defaults, closure = source.__code__, source.__defaults__, source.__closure__
    return FunctionType(code, {**names, **lifted}, source.__name__, defaults, closure)
