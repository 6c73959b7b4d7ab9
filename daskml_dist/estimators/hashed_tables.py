"""Base class of estimators whose rows may be tables of ids."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from daskml_dist.data.collection import Collection
from daskml_dist.data.plain_rows import RowsPlaceholder
from daskml_dist.errors import InvalidTypeError
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.inference.table_fields import TableFields, is_hashed


class BaseTableReader(BaseOnRows):
    """Base class of estimators whose rows may be tables of ids, which are hashed where they lie."""

    @property
    @abstractmethod
    def _fields(self) -> TableFields | None:
        """Return the fields of the fit; None where it was not to a table."""

    @abstractmethod
    def _select_table(self, X: Any, fields: TableFields) -> Any:
        """Return the columns of the fit of a table; raise where it has them not."""

    def _hash_table(self, X: Any) -> Any:
        """Return the rows of a table as entries of its fields' ids; all other rows as they are."""
        fields = self._fields
        if fields is None or is_hashed(X):
            return X
        if isinstance(X, RowsPlaceholder):
            raise InvalidTypeError("Rows of ids have columns of several types: give a dataframe.")
        return fields.hash_rows(self._select_table(X, fields))

    def _align_inputs(self, X: Any, y: Any, sample_weight: Any) -> Collection:
        return super()._align_inputs(self._hash_table(X), y, sample_weight)

    def _map_rows(self, function: Any, X: Any, *given: Any, **options: Any) -> Any:
        return super()._map_rows(function, self._hash_table(X), *given, **options)
