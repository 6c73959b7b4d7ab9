"""Voting: the fit of its members to Dask collections."""

from __future__ import annotations

from typing import Any

from daskml_dist.ensemble._heterogeneous import Named
from daskml_dist.errors import InvalidParameterError
from daskml_dist.meta_estimators.members import fit_members

__all__ = ["Voting"]


class Voting(Named):
    """Mixin of the voting ensembles, put before scikit-learn's class."""

    weights: Any
    _encoder = "le_"

    def _checked_members(self, params: dict[str, Any]) -> list[tuple[str, Any]]:
        named = super()._checked_members(params)
        if self.weights is not None and len(self.weights) != len(self.estimators):
            raise InvalidParameterError(
                f"Number of `estimators` and weights must be equal; got {len(self.weights)} "
                f"weights, {len(self.estimators)} estimators. Give one weight a member."
            )
        return named

    def _fit_lazy(
        self, named: list[tuple[str, Any]], given: list[dict[str, Any]], X: Any, y: Any,
        params: dict[str, Any], few: bool,
    ) -> None:  # fmt: skip
        jobs = [(member, X, y, own) for (_, member), own in zip(named, given, strict=True)]
        self._set_members(fit_members(jobs, few))
