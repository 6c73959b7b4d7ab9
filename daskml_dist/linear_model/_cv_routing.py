"""scikit-learn's metadata routing of linear models that choose their penalty by scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.utils import Bunch
from sklearn.utils.metadata_routing import process_routing

from daskml_dist.errors import InvalidParameterError, InvalidTypeError
from daskml_dist.sklearn_internals import is_metadata_routing_enabled, raise_for_params

__all__ = ["routed"]


def routed(estimator: Any, method: str, given: Mapping[str, Any], more: Mapping[str, Any]) -> Bunch:
    """Metadata for the splitter (``splitter.split``) and for the scorer (``scorer.score``)."""
    given = {name: value for name, value in given.items() if value is not None}
    try:
        raise_for_params(more, estimator, method)
        if is_metadata_routing_enabled():
            found = process_routing(estimator, method, **given, **more)
            if strange := sorted(set(found.scorer.get("score", {})) - {"sample_weight"}):
                raise InvalidParameterError(
                    f"The scorer requests {strange}: scores here know sample_weight alone. "
                    "Request this only, and give a scorer of your own what else it needs."
                )
            return found
    except (UnsetMetadataPassedError, InvalidParameterError):
        raise
    except ValueError as error:
        raise InvalidParameterError(str(error)) from error
    except TypeError as error:
        raise InvalidTypeError(str(error)) from error
    groups = {name: given[name] for name in ("groups",) if name in given}
    weight = {name: given[name] for name in ("sample_weight",) if name in given}
    return Bunch(splitter=Bunch(split=groups), scorer=Bunch(score=weight))
