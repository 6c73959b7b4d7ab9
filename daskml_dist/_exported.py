"""Mixin of all that can be exported: as scikit-learn's own, as ONNX, and as a model file."""

from __future__ import annotations

from typing import Any

from daskml_dist._documented import Documented

__all__ = ["Exported"]


class Exported(Documented):
    """Mixin of estimators and transformers that may have a twin in scikit-learn."""

    def to_sklearn(self) -> Any:
        """Return scikit-learn's own fitted estimator that answers as this one does.

        See :func:`daskml_dist.inference.to_sklearn`.

        Returns
        -------
        estimator
            It needs neither this package nor Dask.

        Raises
        ------
        ExportError
            scikit-learn has no such estimator.
        NotFittedError
            This one is not fitted.
        """
        from daskml_dist.inference.export import to_sklearn

        return to_sklearn(self)

    def to_onnx(self, path: Any = None, *, sample: Any = None) -> Any:
        """Write the fitted estimator as a file of ONNX.

        See :func:`daskml_dist.inference.to_onnx`.

        Parameters
        ----------
        path : str or path-like, optional
        sample : array-like or pandas.DataFrame of shape (n, n_features), optional

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        ExportError
            scikit-learn has no such estimator, ONNX has none, or skl2onnx is not installed.
        NotFittedError
            This one is not fitted.
        """
        from daskml_dist.inference.export import to_onnx

        return to_onnx(self, path, sample=sample)

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a model file, which holds no pickle.

        See :func:`daskml_dist.inference.save`; :func:`daskml_dist.load` reads it.

        Parameters
        ----------
        path : str or path-like
            That ends in ``.skops`` or ``.safetensors``.

        Raises
        ------
        ModelFileError
            It cannot be written, or holds what cannot be stored.
        NotFittedError
            This one is not fitted.
        """
        from daskml_dist.inference.saved import save

        save(self, path)
