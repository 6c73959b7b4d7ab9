"""Ensembles of named members: what voting and stacking share on Dask collections."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

from sklearn.base import is_classifier
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import Bunch

from daskml_dist.data.containers import convert_named_columns
from daskml_dist.data.conversion import convert_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import doing
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.nearest import nearest
from daskml_dist.errors.sklearn_errors import checked_as_theirs
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.lazy_labels import counted_labels, encoded
from daskml_dist.meta_estimators.members import has_few_entries, here, params_of, taken
from daskml_dist.parameters.checks import taking_client

__all__ = ["Named", "label_encoder"]


def label_encoder(labels: Any) -> LabelEncoder:
    """scikit-learn's encoder of sorted labels."""
    encoder = LabelEncoder()
    encoder.classes_ = labels
    return encoder


class Named(OnBlocks):
    """Mixin of ensembles of named members, put before scikit-learn's class."""

    estimators: Any
    estimators_: list[Any]
    #: scikit-learn's name for the encoder of labels.
    _encoder: ClassVar[str]

    @taking_client
    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Self:
        """Fit every member to all rows, and what else the ensemble consists of.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        client : distributed.Client, optional
            That everything is computed by; by default the current one.
        **fit_params
            `sample_weight`, or what scikit-learn's metadata routing sends to members.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        self._check_named()
        X, y = convert_named_columns(*convert_to_host(X, y))
        if not is_dask(X):
            X, y, fit_params = here(X, y, fit_params, labels=is_classifier(self))
            found: Self = super().fit(X, y, **fit_params)  # type: ignore[misc]
            return found
        X, y, params = taken(X, y, fit_params)
        named = self._checked_members(params)
        given = params_of(self, named, params)
        y, n_rows = self._encoded(y) if is_classifier(self) else (y, None)
        few = has_few_entries(X, n_rows)
        with doing(type(self).__name__, getattr(self, "verbose", 0)):
            self._fit_lazy(named, given, X, y, params, few)
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and answer the same rows by every member; arguments and errors as :meth:`fit`.

        Parameters
        ----------
        X, y, **fit_params
            As in :meth:`fit`.

        Returns
        -------
        ndarray, pandas.DataFrame, dask Array or dask DataFrame
            As :meth:`transform` returns.
        """
        # scikit-learn's own would make one frame in memory where ``set_output`` asks for frames.
        return self.fit(X, y, **fit_params).transform(X)  # type: ignore[attr-defined]

    def _check_named(self) -> None:
        """Check that members are given with their names, which scikit-learn unpacks unseen."""
        given = self.estimators if isinstance(self.estimators, list | tuple) else ()
        if not all(isinstance(one, list | tuple) and len(one) == 2 for one in given):
            raise InvalidParameterError(
                f"estimators={self.estimators!r}: give (name, estimator) pairs, such as "
                '[("nb", GaussianNB())].'
            )

    def _encoded(self, y: Any) -> tuple[Any, int | None]:
        """Return numbers for the labels of a Dask collection, which are set, and how many rows."""
        self.classes_: Any
        self.classes_, counts = counted_labels(y)
        setattr(self, self._encoder, label_encoder(self.classes_))
        return encoded(y, self.classes_), int(counts.sum())

    @abstractmethod
    def _fit_lazy(
        self, named: list[tuple[str, Any]], given: list[dict[str, Any]], X: Any, y: Any,
        params: dict[str, Any], few: bool,
    ) -> None:  # fmt: skip
        """Fit to a Dask collection, and numbers of its labels; `given` is for each member.

        `few` is whether one process should fit a member.
        """

    @property
    def n_features_in_(self) -> int:
        """Columns of X of the fit."""
        n: int = super().n_features_in_  # type: ignore[misc]
        return n

    def _checked_members(self, params: dict[str, Any]) -> list[tuple[str, Any]]:
        """Names and members, but for dropped ones; parameters are checked, before any pass."""
        with checked_as_theirs():
            self._validate_params()  # type: ignore[attr-defined]
            names, members = self._validate_estimators()  # type: ignore[attr-defined]
        for name, member in zip(names, members, strict=True):
            if isinstance(member, type):
                raise InvalidParameterError(f"Member {name!r}:{nearest(member, ())}")
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
