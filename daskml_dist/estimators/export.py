"""Base class of all estimators and transformers: export to other formats, and a link to the docs.

The formats are scikit-learn's own estimator, ONNX, and a model file.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

import dask

__all__ = ["Exported"]

#: Pages below the site's address; docs/conf.py makes them.
_PAGE = "reference/{estimator_module}.{estimator_name}.html"


class Exported:
    """Mixin of estimators: `to_sklearn`, `to_onnx`, `save`, and a link to the documentation.

    The "?" of an estimator's HTML diagram opens its page on the site whose address is Dask's
    configuration ``daskml_dist.docs`` (a site built at home), else the ``Documentation`` URL of the
    installed package. Without either there is no link.
    """

    _doc_link_module = "daskml_dist"

    @property
    def _doc_link_template(self) -> str:
        site = dask.config.get("daskml_dist.docs", None) or _site_of_package()
        return f"{site.rstrip('/')}/{_PAGE}" if site else ""

    def _doc_link_url_param_generator(self) -> dict[str, Any]:
        # A class has its page under the public module that it is imported from.
        module = ".".join(type(self).__module__.split(".")[:2])
        return {"estimator_module": module, "estimator_name": type(self).__name__}

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
def _site_of_package() -> str:
    """Return the documentation's address in the installed package's metadata, or an empty text."""
    try:
        urls = metadata("daskml-dist").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = dict(url.split(", ", 1) for url in urls if ", " in url)
    return str(named.get("Documentation", ""))
