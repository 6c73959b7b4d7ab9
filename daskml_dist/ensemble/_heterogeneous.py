"""Ensembles of named members: what voting and stacking share on Dask collections."""

from __future__ import annotations

from typing import Any

from sklearn.utils import Bunch

from daskml_dist._members import checked_as_theirs
from daskml_dist._on_blocks import OnBlocks

__all__ = ["Named"]


class Named(OnBlocks):
    """Mixin of ensembles of named members, put before scikit-learn's class."""

    estimators: Any
    estimators_: list[Any]

    @property
    def n_features_in_(self) -> int:
        """Columns of X of the fit."""
        n: int = super().n_features_in_  # type: ignore[misc]
        return n

    def _checked_members(self) -> list[tuple[str, Any]]:
        """Names and members, but for dropped ones; parameters are checked."""
        with checked_as_theirs():
            self._validate_params()  # type: ignore[attr-defined]
            names, members = self._validate_estimators()  # type: ignore[attr-defined]
        return [(n, m) for n, m in zip(names, members, strict=True) if m != "drop"]

    def _set_members(self, fitted: list[Any]) -> None:
        """Set the fitted members, under their names too."""
        self.estimators_ = fitted
        left = iter(fitted)
        self.named_estimators_ = Bunch(
            **{name: "drop" if member == "drop" else next(left) for name, member in self.estimators}
        )
        self.__dict__.pop("feature_names_in_", None)
        for member in fitted:
            if hasattr(member, "feature_names_in_"):
                self.feature_names_in_ = member.feature_names_in_
