"""Models that begin with products of the columns of X, so that their columns can lie apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.models.base import BatchRows

__all__ = ["ColumnModel", "ColumnPart"]


class ColumnModel(ABC):
    """Base class, beside `StepModel`, of models that are a function of ``X @ V``: their *head*.

    Some columns of X and the rows of V that belong to them make up a `ColumnPart`; the sum of the
    products of all parts is what the head goes on with. What belongs to no column (an intercept,
    parameters of the head) is of the last part.

    Examples
    --------
    >>> from daskml_dist.losses import SquaredError
    >>> from daskml_dist.models import ColumnModel
    >>> from daskml_dist.models.linear import LinearModel
    >>> model = LinearModel(SquaredError(), 4, 0, True)
    >>> isinstance(model, ColumnModel), model.rows_of_columns(2, 4)  # the intercept is of the last
    (True, slice(2, 5, None))
    """

    @abstractmethod
    def of_columns(self, start: int, stop: int) -> ColumnPart:
        """The part of some neighbouring columns, itself a `StepModel`.

        Its parameters are those of :meth:`rows_of_columns`; it begins where the whole one does.
        """

    @abstractmethod
    def rows_of_columns(self, start: int, stop: int) -> slice:
        """Rows of the parameters' matrix that belong to some neighbouring columns.

        Those of the last columns are followed by those that belong to no column.
        """


class ColumnPart(ABC):
    """Base class, beside `StepModel`, of the part of a model that belongs to some columns of X.

    Attributes
    ----------
    has_head : bool
        Whether the head has parameters; else every part can go on from the sum of the products.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.backends import get_backend
    >>> from daskml_dist.losses import SquaredError
    >>> from daskml_dist.models.linear import LinearModel
    >>> part = LinearModel(SquaredError(), 4, 0, True).of_columns(0, 2)
    >>> part.products(np.array([[1.0], [10.0]]), np.array([[1.0, 2.0]]), get_backend("cpu")).ravel()
    array([21.])
    """

    has_head: bool = False

    @abstractmethod
    def products(self, w: Any, X: Any, backend: Backend) -> Any:
        """Share of the part in what the head begins with.

        Parameters
        ----------
        w : array
            The part's parameters; of sparse rows perhaps those alone that they touch.
        X : rows of shape (n, n_columns)
        backend : Backend

        Returns
        -------
        array of shape (n,) or (n, width), in memory of its own
        """

    @abstractmethod
    def add_products(self, X: Any, slope: Any, out: Any, backend: Backend) -> None:
        """Add the gradient of the part's parameters, but for the head's, to `out`, in place.

        Parameters
        ----------
        X : rows of shape (n, n_columns)
        slope : array like the products
            Gradient of the summed loss by them; not to be changed.
        out : array
            As `w` in :meth:`products`.
        backend : Backend
        """

    @abstractmethod
    def head(self, w: Any, total: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Loss of some rows, from the sum of all parts' products.

        Parameters
        ----------
        w : array
            Parameters of the last part, asked for where the head has any.
        total : array
            Of the products; may be changed.
        rows : BatchRows
            Of targets and weights alone.
        out : array like `w`
            What the gradient of the head's parameters is added to.
        backend : Backend

        Returns
        -------
        float
            Sum of the rows' weighted losses.
        array like `total`
            Its gradient by the products.
        """

    @abstractmethod
    def head_sums(
        self, w: Any, total: Any, rows: BatchRows, backend: Backend
    ) -> NDArray[np.float64]:
        """Sums over held-out rows, as `StepModel.validation_sums`, from the sum of the products."""
