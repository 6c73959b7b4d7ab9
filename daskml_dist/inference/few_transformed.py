"""Few rows of a frame before scikit-learn's transformers, which take long to look at frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numpy.typing import NDArray

from daskml_dist.data.feature_names import names_surely_match
from daskml_dist.data.plain_rows import extract_frame_floats, extract_frame_words, is_small_frame
from daskml_dist.sklearn_internals import get_output_config, set_output_module

__all__ = ["few_of_frame", "gives_arrays", "is_wrapped", "theirs"]


def few_of_frame(transformer: Any, X: Any, options: dict[str, Any]) -> NDArray[Any] | None:
    """Values of few rows of a frame with the names of the fit, where these are enough."""
    if (
        not is_small_frame(X)
        or not transformer._by_place
        or options.get("copy") is False
        or not getattr(transformer, "copy", True)
        or not names_surely_match(X, getattr(transformer, "feature_names_in_", None))
        or not gives_arrays(transformer)
    ):
        return None
    values = extract_frame_floats(X)
    return values if values is not None or transformer._numeric else extract_frame_words(X)


def gives_arrays(transformer: Any) -> bool:
    """Return whether nobody asked for another container of what is transformed."""
    return bool(get_output_config("transform", transformer)["dense"] == "default")


@cache
def theirs(kind: Any, base: Any) -> Callable[..., Any]:
    """Method ``transform`` of a class that comes after `base`, which makes no frames of arrays."""
    found: Any = super(base, kind).transform
    plain: Callable[..., Any] = found.__wrapped__ if is_wrapped(found) else found
    return plain


def is_wrapped(method: Any) -> bool:
    """Return whether scikit-learn makes the containers that ``set_output`` names of a method."""
    return getattr(method, "__globals__", None) is vars(set_output_module)
