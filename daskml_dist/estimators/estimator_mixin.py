"""Common parts of every estimator: checked names, translated errors, export to files.

Estimators have two roots, `BaseOnRows` and (for transformers that extend a class of scikit-learn)
`EstimatorMixin`; both take their methods from the functions of this module. The formats of the
export are scikit-learn's own estimator, ONNX, and a model file.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

import dask

from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.errors.sklearn_errors import translate_sklearn_errors

#: Pages below the site's address; docs/conf.py makes them.
_PAGE = "reference/{estimator_module}.{estimator_name}.html"


def make_doc_link_template(self: Any) -> str:
    """Return the address of an estimator's page, which the "?" of its HTML diagram opens.

    The site is that of Dask's configuration ``daskml_dist.docs`` (a site built at home), else the
    ``Documentation`` URL of the installed package. Without either there is no link.
    """
    site = dask.config.get("daskml_dist.docs", None) or _site_of_package()
    return f"{site.rstrip('/')}/{_PAGE}" if site else ""


def make_doc_link_params(self: Any) -> dict[str, Any]:
    """Return the values of the fields in `_PAGE` for an estimator."""
    # A class has its page under the public module from which it is imported.
    module = ".".join(type(self).__module__.split(".")[:2])
    return {"estimator_module": module, "estimator_name": type(self).__name__}


def to_sklearn(self: Any) -> Any:
    """Return a fitted scikit-learn estimator with the same predictions.

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
    from daskml_dist.inference import export

    return export.to_sklearn(self)


def to_onnx(self: Any, path: Any = None, *, sample: Any = None) -> Any:
    """Write the fitted estimator to an ONNX file.

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
    from daskml_dist.inference import export

    return export.to_onnx(self, path, sample=sample)


async def fit_async(self: Any, *args: Any, **params: Any) -> Any:
    """Fit in a thread, without blocking the event loop.

    For programs of one event loop, with a ``Client(..., asynchronous=True)`` or none. Other calls
    that wait are awaited by :func:`daskml_dist.run_async`; lazy predictions wait for nothing.

    Parameters
    ----------
    *args, **params
        As in ``fit``.

    Returns
    -------
    self

    Raises
    ------
    asyncio.CancelledError
        The task was cancelled: the fit has ended between two steps, and the estimator holds its
        current state.

    Examples
    --------
    >>> import asyncio
    >>> from daskml_dist.linear_model import Ridge
    >>> asyncio.run(Ridge().fit_async([[0.0], [1.0]], [0.0, 2.0]))
    Ridge()
    """
    from daskml_dist.training.asynchronous import run_async

    return await run_async(self.fit, *args, **params)


def save(self: Any, path: Any) -> None:
    """Write the fitted estimator to a model file without pickles.

    See :func:`daskml_dist.inference.save`; :func:`daskml_dist.load` reads it.

    Parameters
    ----------
    path : str or path-like
        Ends in ``.skops`` or ``.safetensors``.

    Raises
    ------
    ModelFileError
        The file cannot be written, or an attribute cannot be stored in it.
    NotFittedError
        This one is not fitted.
    """
    from daskml_dist.inference import saved

    saved.save(self, path)


@cache
def _site_of_package() -> str:
    """Return the documentation's address in the installed package's metadata, or an empty text."""
    try:
        urls = metadata("daskml-dist").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    url_of_label = dict(url.split(", ", 1) for url in urls if ", " in url)
    return str(url_of_label.get("Documentation", ""))


@translate_sklearn_errors
class EstimatorMixin(NamedParameters):
    """Mixin of estimators that, placed before one of scikit-learn's, extends it to Dask."""

    _doc_link_module = "daskml_dist"
    _doc_link_template = property(make_doc_link_template)
    _doc_link_url_param_generator = make_doc_link_params
    to_sklearn = to_sklearn
    to_onnx = to_onnx
    fit_async = fit_async
    save = save

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        translate_sklearn_errors(cls)
