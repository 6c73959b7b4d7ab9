"""`IncrementalPCA`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import decomposition
from sklearn.utils import gen_batches

from daskml_dist.data.blocks import check_finite_rows
from daskml_dist.data.collection import Collection, as_collection, take_named_columns
from daskml_dist.data.conversion import as_rows, convert_to_host
from daskml_dist.data.feature_names import check_feature_names
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import fold_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import DivergedError, InvalidDataError, as_ours
from daskml_dist.estimators.transformer import BlockTransformer

__all__ = ["IncrementalPCA"]


class IncrementalPCA(BlockTransformer, decomposition.IncrementalPCA):
    """:class:`sklearn.decomposition.IncrementalPCA` for Dask collections, batch for batch.

    Batches are cut from the rows in their order, over the borders of blocks; the components go
    from worker to worker, so one works at a time. :class:`~daskml_dist.decomposition.PCA` is
    exact, takes one pass and lets all workers work: this class is for rows that come bit by bit
    (`partial_fit`), and for scikit-learn's very results.

    Parameters
    ----------
    n_components : int or None, default=None
    whiten : bool, default=False
    copy : bool, default=True
    batch_size : int or None, default=None
        None: five times the features.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, var_, \
noise_variance_, n_components_, n_samples_seen_, batch_size_
        As in scikit-learn.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    References
    ----------
    D. Ross, J. Lim, R. Lin and M. Yang, "Incremental learning for robust visual tracking",
    International Journal of Computer Vision 77, 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.decomposition import IncrementalPCA
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> pca = IncrementalPCA(n_components=2)
    >>> for part in np.split(X, 3):
    ...     _ = pca.partial_fit(part)
    >>> pca.transform(X).shape
    (60, 2)
    """

    def partial_fit(self, X: Any, y: Any = None, check_input: bool = True) -> Self:
        """Go on with more rows: a batch in memory, or the batches of a Dask collection.

        Parameters
        ----------
        X : array-like, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features).
        y : ignored
        check_input : bool, default=True
            Whether to check rows in memory.

        Returns
        -------
        self
        """
        if is_dask(X := convert_to_host(X)):
            first = not hasattr(self, "components_")
            if not first:
                check_feature_names(self, X, reset=False)
            return self._fit_on(X, self)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            decomposition.IncrementalPCA.partial_fit(self, X, y, check_input=check_input)
        if not (np.isfinite(self.components_).all() and np.isfinite(self.var_).all()):
            raise DivergedError(
                "The squares of the rows overflow. Scale the features (StandardScaler), and fit a "
                "new IncrementalPCA."
            )
        # Else columns of a slice, which sum otherwise after they were stored.
        components = np.ascontiguousarray(vars(self)["components_"])
        self.__dict__["components_"] = components
        ratio: NDArray[Any] = vars(self)["explained_variance_ratio_"]
        # Equal rows have no variance, and no share of it.
        self.explained_variance_ratio_ = np.where(np.isfinite(ratio), ratio, 0.0)
        return self

    def _fit_lazy(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        fresh = type(self)(**self.get_params(deep=False))
        return self._fit_on(X, fresh)

    def _fit_on(self, X: Any, begun: IncrementalPCA) -> Self:
        """Go on from an estimator with all batches of a collection."""
        self._check_parameters()
        collection = as_collection(*take_named_columns(X, None, None), numeric=self._numeric)
        with reading(type(self).__name__):
            course = fold_parts(collection, _step, _Course(begun)).ended()
        if not course.n_rows:
            raise InvalidDataError(
                "X holds 0 sample(s) in all its blocks, while a minimum of 1 is required. Check "
                "the filter or the path that made the collection."
            )
        self._take(course.model, collection)
        return self

    def _take(self, model: IncrementalPCA, collection: Collection) -> None:
        """Take what was fitted; names are those of the collection."""
        self.__dict__.update({n: v for n, v in vars(model).items() if n.endswith("_")})
        self.__dict__.pop("feature_names_in_", None)
        self.n_features_in_ = self.components_.shape[1]
        if collection.feature_names is not None:
            self.feature_names_in_ = collection.feature_names

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        raise AssertionError("batches are not merged")


@dataclass(frozen=True)
class _Course:
    """Components so far, and rows that are not a batch yet.

    Parameters
    ----------
    model : IncrementalPCA
    left : ndarray or None
    n_rows : int
        Rows of the collection so far.
    """

    model: IncrementalPCA
    left: NDArray[Any] | None = None
    n_rows: int = 0

    def went_on(self, rows: NDArray[Any]) -> _Course:
        """After more rows: all batches that are whole whatever comes."""
        if self.left is not None:
            rows = np.vstack([self.left, rows])
        model = copy.copy(self.model)
        model.batch_size_ = model.batch_size or 5 * rows.shape[1]
        size, least = model.batch_size_, model.n_components or 0
        start = 0
        while start + size + least <= len(rows):
            # A copy: scikit-learn takes the mean from the batch itself.
            model.partial_fit(rows[start : start + size].copy(), check_input=False)
            start += size
        return replace(self, model=model, left=rows[start:].copy())

    def ended(self) -> _Course:
        """After the last rows."""
        if self.left is None or not len(self.left):
            return self
        model = copy.copy(self.model)
        try:
            for at in gen_batches(
                len(self.left), model.batch_size_, min_batch_size=model.n_components or 0
            ):
                model.partial_fit(self.left[at].copy(), check_input=False)
        except ValueError as error:
            raise as_ours(error) from error
        return replace(self, model=model, left=None)


def _step(course: _Course, index: int, X: Any, y: Any, sample_weight: Any) -> _Course:
    rows = as_rows(X, index=index)
    rows = rows.toarray() if hasattr(rows, "toarray") else rows
    if not len(rows):
        return course
    check_finite_rows(rows, index)
    try:
        found = course.went_on(rows)
    except ValueError as error:
        raise as_ours(error, f"Block {index} of X: ") from error
    return replace(found, n_rows=course.n_rows + len(rows))
