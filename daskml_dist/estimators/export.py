"""Mixins of estimators: their page of the documentation, and their export to other formats.

Formats are scikit-learn's own estimator, ONNX, and a model file.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

import dask

__all__ = ["Documented", "Exported"]

#: Pages below the site's address; docs/conf.py makes them.
_PAGE = "reference/{estimator_module}.{estimator_name}.html"


class Documented:
    """Mixin that links the "?" of an estimator's HTML diagram to its page of the documentation.

    The address of the site is the package's own (``Documentation`` of its project's URLs), or that
    of Dask's configuration, ``daskml_dist.docs``, such as that of a site built at home. Without
    either there is no link.
    """

    _doc_link_module = "daskml_dist"

    @property
    def _doc_link_template(self) -> str:
        site = dask.config.get("daskml_dist.docs", None) or _own_site()
        return f"{site.rstrip('/')}/{_PAGE}" if site else ""

    def _doc_link_url_param_generator(self) -> dict[str, Any]:
        # A class has its page by the room that it is imported from.
        room = ".".join(type(self).__module__.split(".")[:2])
        return {"estimator_module": room, "estimator_name": type(self).__name__}


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


@cache
def _own_site() -> str:
    """Address of the documentation, as the package's metadata tell; empty where they do not."""
    try:
        urls = metadata("daskml-dist").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = dict(url.split(", ", 1) for url in urls if ", " in url)
    return str(named.get("Documentation", ""))
