"""scikit-learn's metadata routing where searches and validations are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn import get_config
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from daskml_dist.errors import InvalidParameterError

__all__ = ["is_routed", "weighed_scores"]


def is_routed(params: Mapping[str, Any]) -> bool:
    """Return whether scikit-learn's routing is on, and there is something to route."""
    given = any(value is not None for value in params.values())
    return given and bool(get_config()["enable_metadata_routing"])


def weighed_scores(
    estimator: Any, scorers: Mapping[str, Any], params: Mapping[str, Any], default: bool
) -> bool:
    """Return whether scores count the rows' weights, by what estimator and scorers request."""
    if not is_routed(params):
        return default
    given = {name: value for name, value in params.items() if value is not None}
    own = MethodMapping().add(caller="fit", callee="fit")
    asked = {name: s for name, s in scorers.items() if hasattr(s, "get_metadata_routing")}
    if len(asked) < len(scorers):
        own = own.add(caller="fit", callee="score")
    router = MetadataRouter(owner="cross-validation").add(estimator=estimator, method_mapping=own)
    for name, scorer in asked.items():
        mapping = MethodMapping().add(caller="fit", callee="score")
        router.add(**{f"scorer_{name}": scorer}, method_mapping=mapping)
    routed = process_routing(router, "fit", **given)
    scores = [set(routed[f"scorer_{name}"].score) for name in asked]
    if len(asked) < len(scorers):
        scores.append(set(routed.estimator.score))
    weighed, plain = all(s == {"sample_weight"} for s in scores), not any(scores)
    if set(routed.estimator.fit) != set(given) or not (weighed or plain):
        raise InvalidParameterError(
            f"{sorted(given)} are passed, and not requested by fit, or not by all scores alike. "
            "Request sample_weight by set_fit_request and set_score_request of the estimator (of "
            "each scorer, where scorers are given), and leave out what is not requested."
        )
    return weighed if scores else default
